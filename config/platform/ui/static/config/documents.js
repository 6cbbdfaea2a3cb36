"use strict";
// Behavior of the document pages: uploads with progress, live updates of the list, and links to citations.

// ---- Uploads --------------------------------------------------------------------------------------------------------
// Each file is one API request, two at a time. Retries of a file keep its Idempotency-Key, so that a lost response
// creates no second task.
const AT_ONCE = 2;
const AGAIN_AFTER_MS = [1000, 4000];

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
    this.share = this.item.querySelector(".upload-share"); // not in the message, which screen readers read
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
    this.request.onload = () => this.answered();
    this.request.onerror = () => this.broken();
    this.show("Uploading …");
    this.request.send(body);
  }

  progress(event) {
    if (!event.lengthComputable) return;
    this.bar.value = (100 * event.loaded) / event.total;
    this.share.textContent = `${Math.floor(this.bar.value)} %`;
    if (event.loaded === event.total) this.show("Processing …");
  }

  answered() {
    const answer = parsed(this.request.responseText);
    if (this.request.status === 202) {
      this.show("", { ended: true });
      this.item.classList.remove("wrong");
      const link = document.createElement("a");
      link.href = `${this.queue.page}/${answer.task_id}`;
      link.textContent = "Uploaded. View progress";
      this.message.append(link);
      if (answer.duplicate_of) this.message.append(`. Same file as task ${answer.duplicate_of}.`);
      this.queue.ended(this, true);
      return;
    }
    const errors = (answer.errors ?? []).map((error) => error.detail).join(" ");
    const wait = this.request.getResponseHeader("Retry-After");
    const later = wait ? ` Try again in ${duration(Number(wait))}.` : "";
    const isOut = [401, 403].includes(this.request.status);
    const message = isOut ? "You are signed out. Reload the page to sign in." : errors || answer.detail || "Unknown error.";
    this.show(`Upload failed: ${message}${later}`, { ended: true, again: [409, 429].includes(this.request.status) || this.request.status >= 500 });
    this.queue.ended(this, false);
  }

  broken() {
    const wait = AGAIN_AFTER_MS[this.tries];
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

  refuse(why) {
    this.show(why, { ended: true });
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
    this.take(this.input.files);
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
    this.take(event.dataTransfer.files);
  }

  take(files) {
    const rule = this.form.elements.rule_id.value;
    for (const file of files) {
      const upload = new Upload(this, file, rule);
      if (file.size > Number(this.form.dataset.maxBytes)) upload.refuse(`Not uploaded: the file is larger than ${this.form.dataset.limit}.`);
      else this.add(upload);
    }
    this.list.hidden = !this.list.children.length;
  }

  add(upload) {
    this.waiting.push(upload);
    this.next();
  }

  next() {
    while (this.running.size < AT_ONCE && this.waiting.length) {
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

// ---- The list -------------------------------------------------------------------------------------------------------
// Rows are polled while a document is open. Selected rows stay selected.
const ROWS_MS = 3000;
const ticked = new Set();

function boxes() {
  return [...document.querySelectorAll("#rows [name=task]")];
}

function showSelection() {
  const there = boxes();
  for (const id of ticked) if (!there.some((box) => box.value === id)) ticked.delete(id);
  const several = document.getElementById("several");
  several.hidden = !ticked.size;
  several.querySelector("[data-chosen]").textContent = `${ticked.size} selected:`;
  for (const button of several.querySelectorAll("[data-word]")) button.textContent = `${button.dataset.word} ${ticked.size}`;
  const all = document.querySelector("[data-all]");
  if (!all) return;
  all.hidden = false;
  all.checked = there.length > 0 && ticked.size === there.length;
}

function restoreTicks() {
  for (const box of boxes()) box.checked = ticked.has(box.value);
  showSelection();
}

function followRows() {
  restoreTicks();
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-all]")) for (const box of boxes()) box.checked = event.target.checked;
    if (!event.target.matches("#rows [type=checkbox]")) return;
    ticked.clear();
    for (const box of boxes()) if (box.checked) ticked.add(box.value);
    showSelection();
  });
  document.addEventListener("htmx:afterSettle", restoreTicks);
  window.setInterval(() => {
    if (!document.hidden && document.querySelector("#rows[data-open]")) htmx.trigger("#rows", "refresh");
  }, ROWS_MS);
}

// The progress of a batch is polled while its documents are open, except while it is hidden or an element in it is used.
function followBatch(place) {
  window.setInterval(() => {
    if (!document.hidden && !place.contains(document.activeElement)) htmx.trigger(place, "refresh");
  }, ROWS_MS);
}

// ---- Citations ------------------------------------------------------------------------------------------------------
// A quote is Markdown and the page shows HTML, so only letters and digits are compared.
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

function places(sheets) {
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
  const found = places(sheets);
  const units = found.flatMap((place) => Array(place.small.length).fill(place));
  const text = found.map((place) => place.small).join("");
  // Tags are visible in the source view only.
  const ways = [letters(quote.replace(/<[^<>]*>/g, " ")), letters(quote)];
  const wanted = ways.find((way) => way && text.includes(way));
  if (!wanted) return null;
  const start = text.indexOf(wanted);
  const parts = new Map();
  for (const { node, offset, end } of units.slice(start, start + wanted.length)) {
    parts.set(node, { from: parts.get(node)?.from ?? offset, to: end });
  }
  return [...parts].map(([node, { from, to }]) => marked(node, from, to))[0];
}

function marked(node, from, to) {
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

async function lead(link) {
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
  article.classList.add("led");
  window.setTimeout(() => article.classList.remove("led"), 2000);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a.cite");
  if (!link || !document.getElementById("sheets")) return;
  event.preventDefault();
  lead(link);
});

// ---- The last result -------------------------------------------------------------------------------------------------
// While a document is processed again, its last text and result are below the part that updates replace. The end has new
// ones.
document.addEventListener("htmx:afterSwap", () => {
  if (document.querySelector("#document [data-ended]")) document.getElementById("last")?.remove();
});

// ---- Elapsed time ---------------------------------------------------------------------------------------------------
// The server renders the seconds of a running attempt; they go on here until the next update.
window.setInterval(() => {
  for (const each of document.querySelectorAll("[data-elapsed]")) {
    each.started ??= performance.now() - 1000 * Number(each.dataset.elapsed);
    each.textContent = duration(Math.floor((performance.now() - each.started) / 1000));
  }
}, 1000);

// ---- Start ----------------------------------------------------------------------------------------------------------
document.addEventListener("DOMContentLoaded", () => {
  for (const form of document.querySelectorAll("form[data-upload]")) new Uploads(form);
  if (document.getElementById("several")) followRows();
  const batch = document.querySelector("#batch[data-open]");
  if (batch) followBatch(batch);
});
