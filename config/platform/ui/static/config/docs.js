"use strict";

// The look that the reader's system has, also when it changes while the page is open.
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", follow);
follow();

const api = document.getElementById("api");
const safe = ["GET", "HEAD", "OPTIONS"];

// "Try it out" works with a token, or with the session of whoever is signed in: that one wants the CSRF token, which goes
// to this host alone.
function signed(request) {
    const isOurs = new URL(request.url, document.baseURI).origin === window.location.origin;
    if (isOurs && !safe.includes((request.method || "GET").toUpperCase())) {
        request.headers["X-CSRFToken"] = api.dataset.csrf;
    }
    return request;
}

// The session needs nothing to be entered, and no script may set its cookie: only tokens are asked for.
function tokensAlone() {
    const only = (original) => (...given) => {
        const definitions = original(...given);
        return definitions && definitions.filter((definition) => definition.has("bearer"));
    };
    return { statePlugins: { auth: { wrapSelectors: { definitionsToAuthorize: only } } } };
}

SwaggerUIBundle({
    url: api.dataset.schema,
    domNode: api,
    presets: [SwaggerUIBundle.presets.apis],
    layout: "BaseLayout",
    deepLinking: true,
    displayRequestDuration: true,
    docExpansion: "list",
    defaultModelsExpandDepth: 0,
    filter: true,
    persistAuthorization: false,
    plugins: [tokensAlone],
    requestInterceptor: signed,
    tryItOutEnabled: true,
    validatorUrl: null,
});
