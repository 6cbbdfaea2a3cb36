// Mermaid from beside this file, and only on pages with diagrams: it has 2.5 MB. The theme asks for a global `mermaid`
// and would fetch one from another host if there were none. It is @mermaid-js/tiny 11.17.2, as npm has it.
const source = new URL("mermaid.tiny.js", document.currentScript.src);
let settings = {};
let loaded;

function load() {
  loaded ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = source;
    script.onload = () => resolve(window.mermaid); // the real one by now
    script.onerror = () => reject(new Error("mermaid.tiny.js cannot be loaded"));
    document.head.append(script);
  });
  return loaded;
}

window.mermaid = {
  initialize(given) {
    settings = given;
  },
  async render(...diagram) {
    const mermaid = await load();
    mermaid.initialize(settings);
    return mermaid.render(...diagram);
  },
};
