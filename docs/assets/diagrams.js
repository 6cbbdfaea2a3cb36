// Load Mermaid from this folder, and only on pages with diagrams, because the file is 2.5 MB. The theme uses the global
// `mermaid`; without one, it would load Mermaid from another host. The file is that of @mermaid-js/tiny 11.17.2 on npm.
const source = new URL("mermaid.tiny.js", document.currentScript.src);
let settings = {};
let loaded;

function load() {
  loaded ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = source;
    script.onload = () => resolve(window.mermaid); // the script has replaced the object below
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
