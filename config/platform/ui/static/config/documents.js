"use strict";
// Document pages: uploads with progress, live updates of the list, and links to citations.

// ---- Uploads -------------------------------------------------------------------------------------------------------
// Each file is an API request; two run at a time. A retry has the same Idempotency-Key, so that a lost response does not
// create a second task.
const PARALLEL_UPLOADS = 2;
const RETRY_DELAYS_MS = [1000, 4000];

class Upload {
  constructor(queue, file, rule) {
    this.queue = queue;
    this.file = file;
    this.rule = rule;
    this.key = key();
    this.tries = 0;
    this.item = queue.template.content.firstElementChild.cloneNode(true);
    this.bar = this.item.querySelector("progress");
    this.message = this.item.querySelector(".upload-message");
    this.share = this.item.querySelector(".upload-share"); // not part of the message, which screen readers announce
    this.item.querySelector(".upload-name").textContent = file.name;
    this.bar.setAttribute("aria-label", file.name);
    this.button("cancel").addEventListener("click", () => this.cancel());
    this.button("again").addEventListener("click", () => this.again());
    queue.list.append(this.item);
    this.show("Queued.");
  }

  button(name) {
    return this.item.querySelector(`[data-do=${name}]`);
  }

  show(text, { ended = false, again = false } = {}) {
    this.message.textContent = text;
    this.button("cancel").hidden = ended;
    this.button("again").hidden = !again;
    this.bar.hidden = this.share.hidden = ended;
    this.item.classList.toggle("wrong", ended);
  }

  send() {
    const body = new FormData();
    if (this.rule) body.append("rule_id", this.rule);
    body.append("file", this.file);
    this.request = new XMLHttpRequest();
    this.request.open("POST", this.queue.url);
    this.request.setRequestHeader("X-CSRFToken", this.queue.token);
    this.request.setRequestHeader("Idempotency-Key", this.key);
    this.request.upload.onprogress = (event) => this.progress(event);
    this.request.onload = () => this.loaded();
    this.request.onerror = () => this.connectionLost();
    this.show("Uploading …");
    this.request.send(body);
  }

  progress(event) {
    if (!event.lengthComputable) return;
    this.bar.value = (100 * event.loaded) / event.total;
    this.share.textContent = `${Math.floor(this.bar.value)} %`;
    if (event.loaded === event.total) this.show("Processing …");
  }

  loaded() {
    const body = parsed(this.request.responseText);
    if (this.request.status === 202) {
      this.show("", { ended: true });
      this.item.classList.remove("wrong");
      const link = document.createElement("a");
      link.href = `${this.queue.page}/${body.task_id}`;
      link.textContent = "Uploaded. View progress";
      this.message.append(link);
      if (body.duplicate_of) this.message.append(`. Same file as task ${body.duplicate_of}.`);
      this.queue.ended(this, true);
      return;
    }
    const errors = (body.errors ?? []).map((error) => error.detail).join(" ");
    const wait = this.request.getResponseHeader("Retry-After");
    const advice = wait ? ` Try again in ${duration(Number(wait))}.` : "";
    const isSignedOut = [401, 403].includes(this.request.status);
    const message = isSignedOut ? "You are signed out. Reload the page to sign in." : errors || body.detail || "Unknown error.";
    this.show(`Upload failed: ${message}${advice}`, { ended: true, again: [409, 429].includes(this.request.status) || this.request.status >= 500 });
    this.queue.ended(this, false);
  }

  connectionLost() {
    const wait = RETRY_DELAYS_MS[this.tries];
    this.tries += 1;
    if (wait) {
      this.show("Connection lost. Retrying …");
      this.timer = window.setTimeout(() => this.send(), wait);
      return;
    }
    this.show("Connection lost. Try again when you are back online.", { ended: true, again: true });
    this.queue.ended(this, false);
  }

  cancel() {
    window.clearTimeout(this.timer);
    this.request?.abort();
    this.show("Upload cancelled.", { ended: true, again: true });
    this.queue.ended(this, false);
  }

  again() {
    this.tries = 0;
    this.show("Queued.");
    this.queue.add(this);
  }
}

class Uploads {
  constructor(form) {
    this.form = form;
    this.url = form.dataset.upload;
    this.page = window.location.pathname;
    this.token = form.querySelector("[name=csrfmiddlewaretoken]").value;
    this.input = form.querySelector("[type=file]");
    this.list = form.querySelector(".uploads");
    this.template = form.querySelector("template");
    this.waiting = [];
    this.running = new Set();
    this.input.multiple = true;
    for (const each of form.querySelectorAll("[data-script-only]")) each.hidden = false;
    form.addEventListener("submit", (event) => this.submitted(event));
    form.addEventListener("dragover", (event) => this.over(event));
    form.addEventListener("dragleave", () => form.classList.remove("over"));
    form.addEventListener("drop", (event) => this.dropped(event));
    window.addEventListener("beforeunload", (event) => this.running.size && event.preventDefault());
  }

  submitted(event) {
    event.preventDefault();
    event.stopPropagation(); // page.js would disable the button
    this.addFiles(this.input.files);
    this.input.value = "";
  }

  over(event) {
    if (![...event.dataTransfer.types].includes("Files")) return;
    event.preventDefault();
    this.form.classList.add("over");
  }

  dropped(event) {
    event.preventDefault();
    this.form.classList.remove("over");
    this.addFiles(event.dataTransfer.files);
  }

  addFiles(files) {
    const rule = this.form.elements.rule_id.value;
    for (const file of files) {
      const upload = new Upload(this, file, rule);
      if (file.size > Number(this.form.dataset.maxBytes)) upload.show(`Not uploaded: the file is larger than ${this.form.dataset.limit}.`, { ended: true });
      else this.add(upload);
    }
    this.list.hidden = !this.list.children.length;
  }

  add(upload) {
    this.waiting.push(upload);
    this.next();
  }

  next() {
    while (this.running.size < PARALLEL_UPLOADS && this.waiting.length) {
      const upload = this.waiting.shift();
      this.running.add(upload);
      upload.send();
    }
  }

  ended(upload, accepted) {
    this.running.delete(upload);
    this.waiting = this.waiting.filter((each) => each !== upload);
    if (accepted) htmx.trigger("#rows", "refresh");
    this.next();
  }
}

function key() {
  const bytes = window.crypto.getRandomValues(new Uint8Array(16)); // randomUUID needs https
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return {};
  }
}

// ---- The list ------------------------------------------------------------------------------------------------------
// Rows are polled while a document is unfinished. Selected rows stay selected.
const ROWS_MS = 3000;
const selectedIds = new Set();

function boxes() {
  return [...document.querySelectorAll("#rows [name=task]")];
}

function showSelection() {
  const visible = boxes();
  for (const id of selectedIds) if (!visible.some((box) => box.value === id)) selectedIds.delete(id);
  const several = document.getElementById("several");
  several.hidden = !selectedIds.size;
  several.querySelector("[data-chosen]").textContent = `${selectedIds.size} selected:`;
  for (const button of several.querySelectorAll("[data-word]")) button.textContent = `${button.dataset.word} ${selectedIds.size}`;
  const all = document.querySelector("[data-all]");
  if (!all) return;
  all.hidden = false;
  all.checked = visible.length > 0 && selectedIds.size === visible.length;
}

function restoreSelection() {
  for (const box of boxes()) box.checked = selectedIds.has(box.value);
  showSelection();
}

function followRows() {
  restoreSelection();
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-all]")) for (const box of boxes()) box.checked = event.target.checked;
    if (!event.target.matches("#rows [type=checkbox]")) return;
    selectedIds.clear();
    for (const box of boxes()) if (box.checked) selectedIds.add(box.value);
    showSelection();
  });
  document.addEventListener("htmx:afterSettle", restoreSelection);
  window.setInterval(() => {
    if (!document.hidden && document.querySelector("#rows[data-open]")) htmx.trigger("#rows", "refresh");
  }, ROWS_MS);
}

// The progress of a batch is polled while it has unfinished documents, but not while the page is hidden or an element of
// the batch has the focus.
function followBatch(place) {
  window.setInterval(() => {
    if (!document.hidden && !place.contains(document.activeElement)) htmx.trigger(place, "refresh");
  }, ROWS_MS);
}

// ---- Citations -----------------------------------------------------------------------------------------------------
// A quote is Markdown, and the page is HTML, so only letters and digits are compared.
const LETTER = /[\p{L}\p{N}]/u;

function unmark() {
  for (const mark of document.querySelectorAll("mark.quoted")) {
    const parent = mark.parentNode;
    mark.replaceWith(...mark.childNodes);
    parent.normalize();
  }
}

function letters(text) {
  return [...text].filter((char) => LETTER.test(char)).join("").toLowerCase();
}

function letterPositions(sheets) {
  const found = [];
  for (const sheet of sheets) {
    const walker = document.createTreeWalker(sheet, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      let offset = 0;
      for (const char of node.data) {
        if (LETTER.test(char)) for (const small of char.toLowerCase()) found.push({ small, node, offset, end: offset + char.length });
        offset += char.length;
      }
    }
  }
  return found;
}

function highlight(sheets, quote) {
  const found = letterPositions(sheets);
  const units = found.flatMap((place) => Array(place.small.length).fill(place));
  const text = found.map((place) => place.small).join("");
  // Only the source view contains tags.
  const candidates = [letters(quote.replace(/<[^<>]*>/g, " ")), letters(quote)];
  const wanted = candidates.find((each) => each && text.includes(each));
  if (!wanted) return null;
  const start = text.indexOf(wanted);
  const parts = new Map();
  for (const { node, offset, end } of units.slice(start, start + wanted.length)) {
    parts.set(node, { from: parts.get(node)?.from ?? offset, to: end });
  }
  return [...parts].map(([node, { from, to }]) => wrapInMark(node, from, to))[0];
}

function wrapInMark(node, from, to) {
  const range = document.createRange();
  range.setStart(node, from);
  range.setEnd(node, to);
  const mark = document.createElement("mark");
  mark.className = "quoted";
  range.surroundContents(mark);
  return mark;
}

function sheetsOf(page) {
  const bodies = document.querySelectorAll(`#sheets [id="page-${page}"], #sheets [id^="page-${page}-"]`);
  return [...bodies].map((sheet) => sheet.querySelector(".rendered, .source"));
}

async function showCitation(link) {
  const { page, quote } = link.dataset;
  const sheets = document.getElementById("sheets");
  if (!sheetsOf(page).length) await htmx.ajax("GET", sheets.dataset.pages + page, { target: sheets, swap: "innerHTML" });
  const found = sheetsOf(page);
  if (!found.length) return;
  unmark();
  const article = found[0].closest("article");
  const place = (quote && highlight(found, quote)) || article;
  article.focus({ preventScroll: true });
  place.scrollIntoView({ block: "center" });
  article.classList.add("highlighted");
  window.setTimeout(() => article.classList.remove("highlighted"), 2000);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a.cite");
  if (!link || !document.getElementById("sheets")) return;
  event.preventDefault();
  showCitation(link);
});

// ---- The last result -----------------------------------------------------------------------------------------------
// While a document is processed again, the page shows its last text and result below the part that updates replace.
// Remove them when the new ones are available.
document.addEventListener("htmx:afterSwap", () => {
  if (document.querySelector("#document [data-ended]")) document.getElementById("last")?.remove();
});

// ---- Elapsed time --------------------------------------------------------------------------------------------------
// The server renders the seconds of a running attempt. They are counted up here until the next update.
window.setInterval(() => {
  for (const each of document.querySelectorAll("[data-elapsed]")) {
    each.started ??= performance.now() - 1000 * Number(each.dataset.elapsed);
    each.textContent = duration(Math.floor((performance.now() - each.started) / 1000));
  }
}, 1000);

// ---- Start ---------------------------------------------------------------------------------------------------------
document.addEventListener("DOMContentLoaded", () => {
  for (const form of document.querySelectorAll("form[data-upload]")) new Uploads(form);
  if (document.getElementById("several")) followRows();
  const batch = document.querySelector("#batch[data-open]");
  if (batch) followBatch(batch);
});
