"use strict";

// Follow the color scheme of the system, also when it changes.
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", follow);
follow();

const api = document.getElementById("api");
const safe = ["GET", "HEAD", "OPTIONS"];

// "Try it out" works with a token or with the user's session. The session needs the CSRF token, which is sent to this
// host only.
function signed(request) {
    const isOurs = new URL(request.url, document.baseURI).origin === window.location.origin;
    if (isOurs && !safe.includes((request.method || "GET").toUpperCase())) {
        request.headers["X-CSRFToken"] = api.dataset.csrf;
    }
    return request;
}

// Offer only tokens in the dialog: the session needs no input, and scripts cannot set its cookie.
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
