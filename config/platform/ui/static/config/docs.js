"use strict";
// "Try it out" in the API reference: requests with a token or with the user's session, and links to operations.

for (const each of document.querySelectorAll("[data-script-only]")) each.hidden = false;

const SAFE = ["GET", "HEAD", "OPTIONS"];

document.addEventListener("submit", (event) => {
  if (!event.target.matches("form.try, #authorization")) return;
  event.preventDefault();
  if (event.target.matches("form.try")) send(event.target);
});

// Requests with the session need the CSRF token. Requests with an API token do not send the session.
function headersFor(method) {
  const token = document.getElementById("token").value.trim();
  if (token) return { Authorization: `Bearer ${token}` };
  return SAFE.includes(method) ? {} : { "X-CSRFToken": document.getElementById("api").dataset.csrf };
}

async function send(form) {
  // Not form.dataset: a field with the name `dataset` shadows it.
  const [method, path] = ["data-method", "data-path"].map((name) => form.getAttribute(name));
  const headers = headersFor(method);
  const url = new URL(path.replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(form.elements[name].value)), window.location.origin);
  for (const input of form.querySelectorAll("input[data-in]")) {
    if (!input.value) continue;
    if (input.dataset.in === "query") url.searchParams.set(input.name, input.value);
    if (input.dataset.in === "header") headers[input.name] = input.value;
  }
  const body = form.querySelector("textarea[data-in=body]")?.value;
  if (body) headers["Content-Type"] = "application/json";
  const credentials = headers.Authorization ? "omit" : "same-origin";
  const output = form.querySelector(".answer");
  output.textContent = "Sending …";
  try {
    await show(output, await fetch(url, { method, headers, body: body || undefined, credentials, redirect: "manual" }));
  } catch {
    output.textContent = "Could not reach the server.";
  }
}

async function show(output, response) {
  const text = response.type === "opaqueredirect" ? "A redirect to the file." : await response.text();
  const code = document.createElement("pre");
  code.tabIndex = 0;
  code.setAttribute("aria-label", "Response");
  code.textContent = pretty(text);
  output.replaceChildren(Object.assign(document.createElement("p"), { textContent: `Status ${response.status || "3xx"}` }), code);
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text.slice(0, 100000);
  }
}

// Open the operation that the URL's fragment links to.
function open() {
  const target = window.location.hash && document.getElementById(decodeURIComponent(window.location.hash.slice(1)));
  if (target instanceof HTMLDetailsElement) target.open = true;
}
window.addEventListener("hashchange", open);
open();
