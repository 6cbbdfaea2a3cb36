"use strict";
// What the pages of exports do beyond page.js: count what is ticked, take a dropped file into the list, count down.

// ---- Several at once ------------------------------------------------------------------------------------------------
function ticked(form) {
  const boxes = [...form.querySelectorAll("input[name=job]")];
  const chosen = boxes.filter((box) => box.checked).length;
  const words = form.querySelector("[data-chosen]");
  words.textContent = chosen ? `${chosen} ticked.` : "Tick exports to cancel or retry several at once.";
  for (const button of form.querySelectorAll("[data-needs-chosen]")) button.disabled = !chosen;
  const all = form.querySelector("[data-all]");
  all.checked = chosen > 0 && chosen === boxes.length;
  all.indeterminate = chosen > 0 && chosen < boxes.length;
}

document.addEventListener("change", (event) => {
  const form = event.target.closest("[data-several]");
  if (!form) return;
  if (event.target.matches("[data-all]")) {
    for (const box of form.querySelectorAll("input[name=job]")) box.checked = event.target.checked;
  }
  ticked(form);
});

document.addEventListener("htmx:afterSettle", () => {
  for (const form of document.querySelectorAll("[data-several]")) ticked(form);
});

document.addEventListener("DOMContentLoaded", () => {
  for (const form of document.querySelectorAll("[data-several]")) ticked(form);
});

// ---- Chunks ---------------------------------------------------------------------------------------------------------
// They are fetched anew every few seconds. What comes so gives way to what somebody has just asked for: put in first, it
// would take away the place where that is to go.
document.addEventListener("htmx:beforeSwap", (event) => {
  const { target, requestConfig } = event.detail;
  if (target.id === "chunks" && requestConfig.elt === target && target.querySelector(".htmx-request")) event.detail.shouldSwap = false;
});

// ---- A file into the list: what is in it can be seen, and errors name its lines ----------------------------------------
const MAX_FILE = 5 * 1024 * 1024;

async function take(file, form) {
  if (!file || file.size > MAX_FILE) return; // the server says why
  const list = document.getElementById(form.getAttribute("data-drop")); // form.dataset is its field `dataset`
  list.value = await file.text();
  for (const input of form.querySelectorAll("input[type=file]")) input.value = "";
  list.dispatchEvent(new Event("input", { bubbles: true }));
}

document.addEventListener("change", (event) => {
  const form = event.target.closest("[data-drop]");
  if (form && event.target.type === "file") take(event.target.files[0], form);
});

document.addEventListener("dragover", (event) => {
  if (event.target.closest("[data-drop]") && event.dataTransfer.types.includes("Files")) event.preventDefault();
});

document.addEventListener("drop", (event) => {
  const form = event.target.closest("[data-drop]");
  if (!form || !event.dataTransfer.files.length) return;
  event.preventDefault();
  take(event.dataTransfer.files[0], form);
});

// ---- A receipt's time -----------------------------------------------------------------------------------------------
// The server says how many seconds are left, so that a clock that is wrong here does not matter.
const ends = new WeakMap();

function words(seconds) {
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const parts = [];
  for (const [length, unit] of units) {
    if (seconds >= length) parts.push(`${Math.floor(seconds / length)} ${unit}`);
    seconds %= length;
  }
  return parts.slice(0, 2).join(" ") || "0 s";
}

window.setInterval(() => {
  for (const place of document.querySelectorAll("[data-countdown]")) {
    if (!ends.has(place)) ends.set(place, performance.now() + Number(place.dataset.countdown) * 1000);
    const left = Math.ceil((ends.get(place) - performance.now()) / 1000);
    place.textContent = words(Math.max(0, left));
    if (left === 0) news("receipt");
  }
}, 1000);

// ---- After a download: was the link used? -----------------------------------------------------------------------------
function news(id) {
  const place = document.getElementById(id);
  if (place) htmx.trigger(place, "news");
}

document.addEventListener("submit", (event) => {
  const id = event.submitter?.dataset.news;
  if (id) for (const wait of [1000, 4000]) window.setTimeout(() => news(id), wait);
});
