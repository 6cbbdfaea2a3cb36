"use strict";
// The rule editor: a text area for code, links from errors to positions, and protection of unsaved input.

const INDENT = "  ";

// ---- A text area for code ------------------------------------------------------------------------------------------
// Tab indents. To leave the field with the keyboard, press Esc, then Tab.
class Code {
  constructor(area) {
    this.area = area;
    this.gutter = area.parentElement.querySelector(".gutter");
    this.beside = area.parentElement.querySelector(".beside");
    this.tabLeaves = false;
    area.addEventListener("keydown", (event) => this.handleKey(event));
    area.addEventListener("input", () => this.numberLines());
    area.addEventListener("scroll", () => this.follow());
    area.addEventListener("blur", () => { this.tabLeaves = false; });
    this.numberLines();
  }

  handleKey(event) {
    if (event.key === "Escape") {
      this.tabLeaves = true;
      return;
    }
    if (event.key === "Tab" && !this.tabLeaves && !event.ctrlKey && !event.altKey && !event.metaKey) {
      event.preventDefault();
      if (event.shiftKey) this.outdent();
      else this.indent();
    } else if (event.key === "Enter" && !event.isComposing && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      this.insert("\n" + this.lineBefore().match(/^[ \t]*/)[0] + (/[{[]\s*$/.test(this.lineBefore()) ? INDENT : ""));
    }
    if (event.key !== "Shift") this.tabLeaves = false;
  }

  lineBefore() {
    const before = this.area.value.slice(0, this.area.selectionStart);
    return before.slice(before.lastIndexOf("\n") + 1);
  }

  // Insert as if typed, so that the browser can undo it and fires its events.
  insert(text) {
    if (!document.execCommand(text ? "insertText" : "delete", false, text)) {
      this.area.setRangeText(text, this.area.selectionStart, this.area.selectionEnd, "end");
      this.area.dispatchEvent(new Event("input", { bubbles: true }));
    }
  }

  indent() {
    if (this.area.selectionStart === this.area.selectionEnd) this.insert(INDENT);
    else this.changeLines((line) => INDENT + line);
  }

  outdent() {
    this.changeLines((line) => line.replace(/^( {1,2}|\t)/, ""));
  }

  changeLines(change) {
    const { value, selectionStart, selectionEnd } = this.area;
    const start = value.lastIndexOf("\n", selectionStart - 1) + 1;
    const last = value.indexOf("\n", Math.max(selectionStart, selectionEnd - 1));
    const end = last < 0 ? value.length : last;
    const changed = value.slice(start, end).split("\n").map(change).join("\n");
    if (changed === value.slice(start, end)) return;
    this.area.setSelectionRange(start, end);
    this.insert(changed);
    this.area.setSelectionRange(start, start + changed.length);
  }

  // Keep the focus in the table, which the user is editing.
  replaceWithoutFocus(text) {
    this.area.value = text;
    this.numberLines();
  }

  replace(text) {
    if (text === this.area.value) return;
    this.area.focus();
    this.area.select();
    this.insert(text);
    this.area.setSelectionRange(0, 0);
    this.area.scrollTop = 0;
  }

  numberLines() {
    const found = [...document.querySelectorAll("#check [data-line]")];
    const flawed = new Set(found.map((each) => Number(each.dataset.line)));
    this.annotate(found);
    const lines = this.area.value.split("\n").length;
    const drawn = `${lines}: ${[...flawed]}`;
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    this.gutter.replaceChildren(...Array.from({ length: lines }, (_, index) => {
      const number = document.createElement("span");
      number.textContent = index + 1;
      if (flawed.has(index + 1)) number.className = "flawed";
      return number;
    }));
    this.follow();
  }

  // Show the first error of a line after its end. Screen readers use the list below.
  annotate(errors) {
    const lines = this.area.value.split("\n");
    const first = new Map(errors.map((each) => [Number(each.dataset.line), each]).reverse());
    this.beside.replaceChildren(...[...first].map(([line, error]) => {
      const note = document.createElement("span");
      note.textContent = error.parentElement.querySelector(".detail").textContent;
      note.style.setProperty("--line", line - 1);
      note.style.setProperty("--column", (lines[line - 1] ?? "").length);
      return note;
    }));
  }

  follow() {
    this.gutter.scrollTop = this.area.scrollTop;
    this.beside.style.transform = `translate(${-this.area.scrollLeft}px, ${-this.area.scrollTop}px)`;
  }

  seek(start, end) {
    this.area.focus();
    this.area.setSelectionRange(start, end);
    const line = this.area.value.slice(0, start).split("\n").length;
    const height = parseFloat(getComputedStyle(this.area).lineHeight);
    this.area.scrollTop = Math.max(0, (line - 4) * height);
  }
}

let code = null;

// Mark the fields that have errors, for screen readers and in red.
function markInvalid() {
  const wrong = new Set([...document.querySelectorAll("#check [data-seek]")].map((each) => each.dataset.seek));
  for (const field of document.querySelectorAll("#editor :is(input, select, textarea)")) {
    if (!field.id || field.type === "hidden" || field.type === "checkbox") continue;
    if (wrong.has(field.id)) field.setAttribute("aria-invalid", "true");
    else field.removeAttribute("aria-invalid");
  }
}

function begin() {
  const area = document.querySelector("[data-code]");
  if (area && area !== code?.area) code = new Code(area);
  else code?.numberLines();
}

// ---- Links from errors to positions --------------------------------------------------------------------------------
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-seek]");
  if (!button) return;
  const field = document.getElementById(button.dataset.seek);
  if (field === code?.area && button.dataset.start) code.seek(Number(button.dataset.start), Number(button.dataset.end));
  else (field?.querySelector("input:checked, input") ?? field)?.focus();
});

// ---- Unsaved input -------------------------------------------------------------------------------------------------
let isChanged = false;
document.addEventListener("input", (event) => {
  if (event.target.form?.matches("[data-guard]") && !["markdown", "document"].includes(event.target.name)) isChanged = true;
});
window.addEventListener("beforeunload", (event) => {
  if (isChanged) event.preventDefault();
});
document.addEventListener("submit", (event) => {
  if (event.target.matches("[data-guard]")) isChanged = false; // without htmx
});

// After a new sign-in in another tab, the CSRF token of this page is outdated.
document.addEventListener("htmx:configRequest", (event) => {
  const token = document.cookie.match(/(?:^|; )csrftoken=([^;]+)/);
  if (token && event.detail.verb !== "get") event.detail.parameters.csrfmiddlewaretoken = token[1];
});

// Runs after page.js, whose message disappears with the next successful action. This one stays until the rule is saved.
document.addEventListener("htmx:afterRequest", (event) => {
  const note = document.getElementById("trouble");
  const place = document.getElementById("unsaved");
  if (!note || !place) return;
  if ([401, 403].includes(event.detail.xhr?.status)) note.textContent = "You are signed out. Sign in in another tab, then try again here. Your input is kept.";
  if (event.detail.elt.matches("[data-guard]")) place.textContent = `Not saved. ${note.textContent}`;
});

document.addEventListener("htmx:beforeRequest", (event) => {
  if (event.detail.elt.matches("[data-guard]")) document.getElementById("unsaved").textContent = "";
});

document.addEventListener("htmx:beforeOnLoad", (event) => {
  if (event.detail.xhr?.getResponseHeader("HX-Redirect")) isChanged = false;
});

// A schema changed by the table does not replace text that the user typed in the meantime. The next check applies the
// table to the new text.
let sent = "";
document.addEventListener("htmx:beforeRequest", (event) => {
  if (event.detail.target.id === "check") sent = code?.area.value;
});

document.addEventListener("htmx:beforeSwap", (event) => {
  if (event.detail.target.id !== "check" || !code || code.area.value === sent) return;
  event.detail.shouldSwap = false;
  htmx.trigger("#check", "checkAgain");
});

document.addEventListener("htmx:afterSettle", () => {
  const formatted = document.getElementById("formatted");
  if (formatted) {
    if (formatted.matches("[data-from-table]")) {
      code?.replaceWithoutFocus(formatted.value);
      isChanged = true; // the buttons of the table fire no input event
    } else code?.replace(formatted.value);
    formatted.remove();
  }
  begin();
  markInvalid();
});

document.addEventListener("DOMContentLoaded", begin);
