"use strict";
// What pages do beyond HTML and htmx: ask before what cannot be undone, copy, and follow what happens on the server.

// ---- Questions and copies -------------------------------------------------------------------------------------------
document.addEventListener("submit", (event) => {
  const question = event.target.getAttribute("data-confirm"); // a form's own names may be those of its fields
  if (question && !window.confirm(question)) {
    event.preventDefault();
    return;
  }
  // A second click sends nothing: the server would do it once, but tell of a failure.
  const button = event.submitter;
  if (button && event.target.method === "post") {
    window.setTimeout(() => { button.disabled = true; button.dataset.sent = ""; }, 0);
    // A download leaves the page as it is: the next one is wanted some time.
    if (button.matches("[data-download]")) window.setTimeout(() => giveBack(event.target), 3000);
  }
});

function giveBack(form) {
  for (const button of form.querySelectorAll("[data-sent]")) {
    button.disabled = false;
    delete button.dataset.sent;
  }
}

// A page that comes back from the browser's memory has its buttons again.
window.addEventListener("pageshow", (event) => {
  if (event.persisted) window.location.reload();
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent.trim());
  button.textContent = "Copied";
});

// ---- Failures -------------------------------------------------------------------------------------------------------
// What htmx fetches or sends may fail: the page stays as it is, with what was typed, and says so until the next success.
function told(xhr) {
  const words = new DOMParser().parseFromString(xhr?.responseText ?? "", "text/html").querySelector("main p")?.textContent;
  return words || (xhr?.status ? `The server answered with an error (${xhr.status}).` : "The server does not answer.");
}

document.addEventListener("htmx:afterRequest", (event) => {
  if (event.target instanceof HTMLFormElement) giveBack(event.target);
  document.getElementById("trouble")?.remove();
  if (event.detail.successful || event.detail.xhr?.readyState === 0) return; // 0: the page itself took it back
  const note = document.createElement("p");
  note.id = "trouble";
  note.className = "message error";
  note.textContent = `${told(event.detail.xhr)} Nothing on this page is lost; what you see may be out of date.`;
  document.getElementById("messages")?.append(note);
});

// ---- What was begun -------------------------------------------------------------------------------------------------
// News replace parts of a page. What somebody had opened in them stays open, and what was chosen stays chosen, where it
// has an id and is there again.
const begun = new Map();

document.addEventListener("htmx:beforeSwap", (event) => {
  const target = event.detail.target;
  for (const { id } of target.querySelectorAll("details[id][open]")) begun.set(id, (place) => { place.open = true; });
  for (const { id, value } of target.querySelectorAll("select[id]")) {
    begun.set(id, (place) => { if ([...place.options].some((option) => option.value === value)) place.value = value; });
  }
});

document.addEventListener("htmx:afterSwap", () => {
  for (const [id, restore] of begun) {
    const place = document.getElementById(id);
    if (place) restore(place);
  }
  begun.clear();
});

// ---- Following ------------------------------------------------------------------------------------------------------
// An element with data-events="/…/events" is told "news" when something happened there; its hx-trigger says what is
// fetched then. The stream is the fast way and never the only one: without it, "news" comes every few seconds. A hidden
// page listens to nothing, as a browser has six connections to a host for all its tabs. What has ended carries data-ended.
const POLL_MS = 3000;
const AGAIN_MS = 5000;
const SPACING_MS = 700;
const SILENT_MS = 15000;
const KINDS = ["snapshot", "progress", "chunk", "status"];

class Follower {
  constructor(place) {
    this.place = place;
    this.failures = 0;
    this.told = -SPACING_MS;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.rest() : this.begin()));
    document.addEventListener("htmx:afterSettle", () => this.hasEnded() && this.rest());
    // News that were on their way when the end was shown bring nothing, and would take what somebody has opened since.
    place.addEventListener("htmx:beforeRequest", (event) => event.target === place && this.hasEnded() && event.preventDefault());
    this.begin();
  }

  hasEnded() {
    return !document.contains(this.place) || this.place.matches("[data-ended]") || this.place.querySelector("[data-ended]");
  }

  begin() {
    if (this.hasEnded() || document.hidden) return;
    this.rest();
    this.listen();
    this.news();
  }

  listen() {
    this.source = new EventSource(this.place.dataset.events);
    this.source.onopen = () => { this.failures = 0; this.stopPolling(); };
    this.source.onerror = () => this.fail();
    for (const kind of KINDS) this.source.addEventListener(kind, () => this.news());
    // A stream may be open and yet bring nothing: a proxy that collects answers holds it back.
    this.silent ??= window.setInterval(() => this.hasEnded() || this.news(), SILENT_MS);
  }

  fail() {
    this.failures += 1;
    if (this.failures > 1 && !this.poll) this.poll = window.setInterval(() => this.news(), POLL_MS);
    if (this.source.readyState !== EventSource.CLOSED) return; // the browser tries again by itself
    this.news(); // a stream that is refused may be one that has ended
    this.again = window.setTimeout(() => this.hasEnded() || this.listen(), AGAIN_MS);
  }

  // The first is told at once, what follows soon after together, a moment later: the last one is never lost, as it
  // would be by htmx's own `throttle`.
  news() {
    if (this.soon) return;
    this.soon = window.setTimeout(() => {
      this.soon = 0;
      this.told = performance.now();
      if (document.contains(this.place)) htmx.trigger(this.place, "news");
    }, Math.max(0, this.told + SPACING_MS - performance.now()));
  }

  stopPolling() {
    window.clearInterval(this.poll);
    this.poll = 0;
  }

  rest() {
    this.source?.close();
    window.clearTimeout(this.again);
    window.clearInterval(this.silent);
    this.silent = undefined;
    this.stopPolling();
  }
}

document.addEventListener("DOMContentLoaded", () => {
  for (const place of document.querySelectorAll("[data-events]")) new Follower(place);
});
