"use strict";
// Shared by all pages, in addition to htmx: confirmations, copy buttons, error messages, and live updates.

// ---- Confirmations and copies --------------------------------------------------------------------------------------
// Buttons that wait for a response are `aria-disabled`, because `disabled` would move the keyboard's focus to the page.
// Ignore a second click, because the server would reject it and show an error.
for (const kind of ["submit", "click"]) {
  document.addEventListener(kind, (event) => {
    const button = kind === "submit" ? event.submitter : event.target.closest?.("button");
    if (button?.dataset.sent === undefined) return;
    event.preventDefault();
    event.stopImmediatePropagation();
  }, true);
}

document.addEventListener("submit", (event) => {
  // The question of the button, or of the form. Read as an attribute, because fields shadow properties of the form.
  const question = event.submitter?.getAttribute("data-confirm") ?? event.target.getAttribute("data-confirm");
  if (question && !window.confirm(question)) {
    event.preventDefault();
    return;
  }
  const button = event.submitter;
  if (button && event.target.method === "post") {
    markSent(button);
    // A download keeps the page, so the button must become usable again.
    if (button.matches("[data-download]")) window.setTimeout(() => unmarkSent(event.target), 3000);
  }
});

function markSent(button) {
  button.dataset.sent = "";
  button.setAttribute("aria-disabled", "true");
}

function unmarkSent(place) {
  for (const button of [place, ...(place.elements ?? [])]) {
    if (button.dataset.sent === undefined) continue;
    button.removeAttribute("aria-disabled");
    delete button.dataset.sent;
  }
}

document.addEventListener("htmx:beforeRequest", (event) => {
  if (event.target instanceof HTMLButtonElement) markSent(event.target);
});

// Reload a page that was restored from the back/forward cache: its buttons are still marked as sent.
window.addEventListener("pageshow", (event) => {
  if (event.persisted) window.location.reload();
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const source = document.getElementById(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(source.textContent.trim());
    button.textContent = "Copied";
  } catch { // there is no clipboard without HTTPS, and the user can refuse access to it
    window.getSelection().selectAllChildren(source);
    button.textContent = "Selected: copy with the keyboard";
  }
});

// ---- Durations -----------------------------------------------------------------------------------------------------
// Formats seconds as the server does: with the two largest units, `2 h 5 min`.
const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

function duration(seconds) {
  let left = seconds;
  const parts = [];
  for (const [length, unit] of UNITS) {
    if (left >= length) parts.push(`${Math.floor(left / length)} ${unit}`);
    left %= length;
  }
  return parts.slice(0, 2).join(" ") || "0 s";
}

// ---- Failures ------------------------------------------------------------------------------------------------------
// If an htmx request fails, the page keeps its content and input, and shows an error. It stays until the same element or
// another action of the user succeeds; updates of other parts of the page do not remove it.
const ACTIONS = "form, button, a";
let failed = null;

function explain(xhr) {
  const words = new DOMParser().parseFromString(xhr?.responseText ?? "", "text/html").querySelector("main p")?.textContent;
  return words || (xhr?.status ? `The server returned an error (${xhr.status}).` : "Could not reach the server.");
}

document.addEventListener("htmx:afterRequest", (event) => {
  if (event.target.matches("form, button")) unmarkSent(event.target);
  if (event.detail.xhr?.readyState === 0) return; // aborted by the page
  const source = event.detail.requestConfig.elt;
  // The failed element may have been replaced by an update of a part that contains it.
  if (event.detail.successful && source !== failed && !source.matches(ACTIONS) && document.contains(failed)) return;
  document.getElementById("trouble")?.remove();
  failed = event.detail.successful ? null : source;
  if (!failed) return;
  const note = document.createElement("p");
  note.id = "trouble";
  note.className = "message error";
  note.textContent = `${explain(event.detail.xhr)} Your input is kept. This page may be out of date.`;
  document.getElementById("messages")?.append(note);
});

// ---- State kept across updates -------------------------------------------------------------------------------------
// Updates replace parts of a page. Open <details> stay open and selected options stay selected, if they have an id and
// exist in the new content.
const restorers = new Map();

document.addEventListener("htmx:beforeSwap", (event) => {
  const target = event.detail.target;
  for (const { id } of target.querySelectorAll("details[id][open]")) restorers.set(id, (place) => { place.open = true; });
  for (const { id, value } of target.querySelectorAll("select[id]")) {
    restorers.set(id, (place) => { if ([...place.options].some((option) => option.value === value)) place.value = value; });
  }
});

document.addEventListener("htmx:afterSwap", () => {
  for (const [id, restore] of restorers) {
    const place = document.getElementById(id);
    if (place) restore(place);
  }
  restorers.clear();
});

// ---- Focus ---------------------------------------------------------------------------------------------------------
// htmx restores the focus by id. If the update has no element with this id, an equal link or button gets the focus. If
// there is none, the surrounding part gets the focus, so that Tab continues there.
let focused = null;
let ancestorIds = [];

document.addEventListener("htmx:beforeSwap", () => {
  focused = document.activeElement;
  ancestorIds = [];
  for (let part = focused; part && part !== document.body; part = part.parentElement) if (part.id) ancestorIds.push(part.id);
});

document.addEventListener("htmx:afterSettle", () => {
  if (!focused || document.contains(focused) || document.activeElement !== document.body) return;
  const part = ancestorIds.map((id) => document.getElementById(id)).find(Boolean) ?? document.getElementById("main");
  const place = equalElement(focused, part) ?? part;
  if (place === part && !place.matches("a[href], button, input, select, textarea, summary, [tabindex]")) place.tabIndex = -1;
  place.focus({ preventScroll: true });
});

function equalElement(original, part) {
  const likeness = (each) => [each.getAttribute("href"), each.getAttribute("name"), each.value, each.textContent].join("\n");
  return [...part.querySelectorAll(original.localName)].find((each) => likeness(each) === likeness(original));
}

// ---- Progress for screen readers -----------------------------------------------------------------------------------
// Progress is not a live region, because screen readers would read it continuously. Changed text of an element with
// data-progress is copied to #announcement, at most every ten seconds, and immediately at the end.
const SPOKEN_MS = 10000;
let spoken = "";
let lastSpoken = -SPOKEN_MS;

const progressOf = (place) => place?.textContent.replace(/\s+/g, " ").trim() ?? "";

document.addEventListener("htmx:afterSettle", () => {
  const place = document.querySelector("[data-progress]");
  const text = progressOf(place);
  const isEarly = place?.dataset.progress !== "end" && performance.now() < lastSpoken + SPOKEN_MS;
  const announcement = document.getElementById("announcement");
  if (!text || !announcement || text === spoken || isEarly) return;
  announcement.textContent = spoken = text;
  lastSpoken = performance.now();
});

document.addEventListener("DOMContentLoaded", () => { spoken = progressOf(document.querySelector("[data-progress]")); });

// ---- Live updates --------------------------------------------------------------------------------------------------
// An element with data-events="/…/events" receives the event "refresh" when the stream has an event; its hx-trigger fetches
// the update. Without a stream, "refresh" is triggered every few seconds. A hidden page closes its stream, because a
// browser has only six connections per host for all tabs. Finished content has data-ended; then the element receives "ended" once.
const POLL_MS = 3000;
const RECONNECT_MS = 5000;
const SPACING_MS = 700;
const SILENT_MS = 15000;
const KINDS = ["snapshot", "progress", "chunk", "status"];

class Follower {
  constructor(place) {
    this.place = place;
    this.failures = 0;
    this.lastUpdate = -SPACING_MS;
    this.isOver = Boolean(this.hasEnded());
    document.addEventListener("visibilitychange", () => (document.hidden ? this.disconnect() : this.begin()));
    document.addEventListener("htmx:afterSettle", () => this.hasEnded() && this.end());
    // Drop late updates after the end. They contain nothing new, and would close elements that the user has opened.
    place.addEventListener("htmx:beforeRequest", (event) => event.target === place && this.hasEnded() && event.preventDefault());
    this.begin();
  }

  hasEnded() {
    return !document.contains(this.place) || this.place.matches("[data-ended]") || this.place.querySelector("[data-ended]");
  }

  begin() {
    if (this.hasEnded() || document.hidden) return;
    this.disconnect();
    this.listen();
    this.refresh();
  }

  listen() {
    this.source = new EventSource(this.place.dataset.events);
    this.source.onopen = () => { this.failures = 0; this.stopPolling(); };
    this.source.onerror = () => this.fail();
    for (const kind of KINDS) this.source.addEventListener(kind, () => this.refresh());
    // An open stream may stay silent behind a proxy that buffers responses.
    this.silent ??= window.setInterval(() => this.hasEnded() || this.refresh(), SILENT_MS);
  }

  fail() {
    this.failures += 1;
    if (this.failures > 1 && !this.poll) this.poll = window.setInterval(() => this.refresh(), POLL_MS);
    if (this.source.readyState !== EventSource.CLOSED) return; // the browser reconnects
    this.refresh(); // a refused stream may have ended
    this.again = window.setTimeout(() => this.hasEnded() || this.listen(), RECONNECT_MS);
  }

  // Trigger the first event immediately and batch the following ones. Unlike htmx's `throttle`, this never drops the
  // last event.
  refresh() {
    if (this.soon) return;
    this.soon = window.setTimeout(() => {
      this.soon = 0;
      this.lastUpdate = performance.now();
      if (document.contains(this.place)) htmx.trigger(this.place, "refresh");
    }, Math.max(0, this.lastUpdate + SPACING_MS - performance.now()));
  }

  stopPolling() {
    window.clearInterval(this.poll);
    this.poll = 0;
  }

  end() {
    this.disconnect();
    if (!this.isOver && document.contains(this.place)) htmx.trigger(this.place, "ended");
    this.isOver = true;
  }

  disconnect() {
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
