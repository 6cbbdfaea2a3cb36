"use strict";
// Export pages: bulk selection, dropped files, and the countdown of the receipt.

// ---- Bulk selection ------------------------------------------------------------------------------------------------
function updateSelection(form) {
  const boxes = [...form.querySelectorAll("input[name=job]")];
  const chosen = boxes.filter((box) => box.checked).length;
  const words = form.querySelector("[data-chosen]");
  words.textContent = chosen ? `${chosen} selected.` : "Select exports to cancel or retry them together.";
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
  updateSelection(form);
});

for (const kind of ["DOMContentLoaded", "htmx:afterSettle"]) {
  document.addEventListener(kind, () => {
    for (const form of document.querySelectorAll("[data-several]")) updateSelection(form);
  });
}

// ---- Chunks --------------------------------------------------------------------------------------------------------
// The table polls every few seconds. Ignore the response of a poll during a request of the user, because it would remove
// the target of that request.
document.addEventListener("htmx:beforeSwap", (event) => {
  const { target, requestConfig } = event.detail;
  if (target.id === "chunks" && requestConfig.elt === target && target.querySelector(".htmx-request")) event.detail.shouldSwap = false;
});

// ---- Dropped files: their content is put into the list, so that errors can refer to its lines ------------
const MAX_FILE = 5 * 1024 * 1024;

async function readIntoList(file, form) {
  if (!file || file.size > MAX_FILE) return; // the server returns the error
  const list = document.getElementById(form.getAttribute("data-drop")); // not form.dataset, which is the form's field `dataset`
  list.value = await file.text();
  for (const input of form.querySelectorAll("input[type=file]")) input.value = "";
  list.dispatchEvent(new Event("input", { bubbles: true }));
}

document.addEventListener("change", (event) => {
  const form = event.target.closest("[data-drop]");
  if (form && event.target.type === "file") readIntoList(event.target.files[0], form);
});

document.addEventListener("dragover", (event) => {
  if (event.target.closest("[data-drop]") && event.dataTransfer.types.includes("Files")) event.preventDefault();
});

document.addEventListener("drop", (event) => {
  const form = event.target.closest("[data-drop]");
  if (!form || !event.dataTransfer.files.length) return;
  event.preventDefault();
  const input = form.querySelector("input[type=file]");
  if (!input.checkVisibility()) return; // the form of filters or of documents has no list
  input.files = event.dataTransfer.files; // stays there if it is too large, so that the server returns the error
  readIntoList(event.dataTransfer.files[0], form);
});

// ---- A click on a column adds it to the form's field ---------------------------------------------------------------
document.addEventListener("click", (event) => {
  const name = event.target.closest("[data-column]")?.dataset.column;
  if (name === undefined) return;
  const field = document.getElementById("id_columns");
  const quoted = /^\s|[",\n]|\s$/.test(name) ? `"${name.replaceAll('"', '""')}"` : name;
  field.value = [field.value.replace(/[\s,]+$/, ""), quoted].filter(Boolean).join(", ");
  field.dispatchEvent(new Event("input", { bubbles: true }));
});

// ---- A click on a key of an earlier export adds it to the list of keys or pairs ------
document.addEventListener("click", (event) => {
  const key = event.target.closest("[data-key]")?.dataset.key;
  if (key === undefined) return;
  const pairs = document.getElementById("id_items");
  const isPair = pairs?.checkVisibility();
  const field = isPair ? pairs : document.getElementById("id_keys");
  const before = field.value.trimEnd();
  field.value = before + (before ? "\n" : "") + key + (isPair ? " " : "");
  field.dispatchEvent(new Event("input", { bubbles: true }));
  if (isPair) field.focus(); // for the date
});

// ---- Countdown -----------------------------------------------------------------------------------------------------
// Counts down the seconds from the server, so that a wrong local clock does not matter.
const ends = new WeakMap();

window.setInterval(() => {
  for (const place of document.querySelectorAll("[data-countdown]")) {
    if (!ends.has(place)) ends.set(place, performance.now() + Number(place.dataset.countdown) * 1000);
    const left = Math.ceil((ends.get(place) - performance.now()) / 1000);
    place.textContent = duration(Math.max(0, left));
    if (left === 0) refresh("receipt");
  }
}, 1000);

// ---- Receipt update after a download -------------------------------------------------------------------------------
function refresh(id) {
  const place = document.getElementById(id);
  if (place) htmx.trigger(place, "refresh");
}

document.addEventListener("submit", (event) => {
  const id = event.submitter?.dataset.refresh;
  if (id) for (const wait of [1000, 4000]) window.setTimeout(() => refresh(id), wait);
});
