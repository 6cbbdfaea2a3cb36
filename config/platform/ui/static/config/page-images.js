"use strict";
// Images of a document's pages: loading on scroll, zoom, and the positions of values and blocks.

const ZOOMS = [100, 150, 200, 300]; // percent; each is a class of the list
const RETRY_MS = 2500;
const MAX_RETRIES = 24;
let zoom = 0;

const list = () => document.getElementById("images-list");
const figureOf = (page) => document.getElementById(`image-${page}`);

// ---- Loading -------------------------------------------------------------------------------------------------------
// The server draws an image after the first request, and responds with 409 until it is ready.
document.addEventListener("error", (event) => {
  if (event.target.matches?.("#images img")) retry(event.target);
}, true);

async function retry(image) {
  const tries = Number(image.dataset.tries ?? 0) + 1;
  image.dataset.tries = tries;
  const url = image.src;
  const status = image.closest("figure")?.querySelector("[role=status]");
  const response = await fetch(url, { redirect: "manual" }).catch(() => null);
  const problem = response?.status === 409 ? await response.json() : {};
  const isFinal = (response?.status >= 400 && problem.code !== "image_not_ready") || tries > MAX_RETRIES;
  if (status) status.textContent = isFinal ? problem.detail ?? "The image could not be loaded." : "The image is being prepared …";
  if (isFinal) return;
  window.setTimeout(() => { image.src = url; }, response?.type === "opaqueredirect" ? 0 : RETRY_MS);
}

document.addEventListener("load", (event) => {
  if (!event.target.matches?.("#images img")) return;
  const status = event.target.closest("figure")?.querySelector("[role=status]");
  if (status) status.textContent = "";
}, true);

// ---- Pages ---------------------------------------------------------------------------------------------------------
async function showPage(page) {
  if (!figureOf(page)) await htmx.ajax("GET", list().dataset.pages + page, { target: list(), swap: "innerHTML" });
  const figure = figureOf(page);
  if (figure) list().scrollTop = figure.offsetTop; // relative to the list, which is positioned
  return figure;
}

function currentPage() {
  const top = list().getBoundingClientRect().top + list().clientHeight / 3;
  const figures = [...list().querySelectorAll("figure")];
  const figure = figures.findLast((each) => each.getBoundingClientRect().top <= top) ?? figures[0];
  return Number(figure?.dataset.page ?? 1);
}

function setZoom(change) {
  const place = list();
  const share = place.scrollTop / Math.max(1, place.scrollHeight);
  zoom = Math.min(ZOOMS.length - 1, Math.max(0, zoom + change));
  for (const each of ZOOMS) place.classList.toggle(`zoom-${each}`, each === ZOOMS[zoom]);
  place.scrollTop = share * place.scrollHeight;
  for (const image of place.querySelectorAll("img")) sharpen(image);
}

function sharpen(image) {
  const base = image.src.split("?")[0];
  const wanted = zoom > 1 ? `${base}?width=2000` : base;
  if (image.complete && image.src !== wanted && !image.src.endsWith("width=2000")) image.src = wanted;
}

document.addEventListener("keydown", (event) => {
  if (!event.target.closest("#images-list") || event.ctrlKey || event.metaKey || event.altKey) return;
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const change = { "+": 1, "=": 1, "-": -1 }[event.key];
  if (step) showPage(Math.max(1, currentPage() + step));
  if (change) setZoom(change);
  if (step || change) event.preventDefault();
});

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-zoom]");
  if (button) setZoom(Number(button.dataset.zoom));
  const thumbnail = event.target.closest(".thumbnails a");
  if (!thumbnail) return;
  event.preventDefault();
  showPage(thumbnail.dataset.page);
});

// ---- Positions -----------------------------------------------------------------------------------------------------
function drawPlace(figure, bbox) {
  for (const each of document.querySelectorAll("#images rect.cited")) each.remove();
  const drawing = figure?.querySelector("svg");
  if (!drawing || !bbox) return null;
  const [x0, y0, x1, y1] = bbox.split(" ").map(Number);
  const place = document.createElementNS(drawing.namespaceURI, "rect");
  place.setAttribute("class", "cited");
  for (const [name, value] of Object.entries({ x: x0 - 2, y: y0 - 2, width: x1 - x0 + 4, height: y1 - y0 + 4 })) place.setAttribute(name, value);
  drawing.append(place);
  return place;
}

function bringIntoView(place) {
  const frame = list().getBoundingClientRect();
  const box = place.getBoundingClientRect();
  list().scrollTop += box.top + box.height / 2 - frame.top - frame.height / 2;
  list().scrollLeft += box.left + box.width / 2 - frame.left - frame.width / 2;
}

async function showPlace(page, bbox) {
  const place = drawPlace(await showPage(page), bbox);
  if (place) bringIntoView(place);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a.cite");
  if (!link || !list()) return;
  event.preventDefault();
  showPlace(link.dataset.page, link.dataset.bbox);
});

// A focused value or form field shows its position as a citation does. Hovering shows it only if the page is loaded.
const citationOf = (target) => target.closest?.(".edit-field[data-page]") ?? target.closest?.("#json li")?.querySelector(":scope > a.cite[data-bbox]");

document.addEventListener("pointerover", (event) => {
  const { page, bbox } = citationOf(event.target)?.dataset ?? {};
  if (page && list()) drawPlace(figureOf(page), bbox);
});

document.addEventListener("focusin", (event) => {
  const { page, bbox } = citationOf(event.target)?.dataset ?? {};
  if (page && list()) showPlace(page, bbox);
});

// ---- Blocks --------------------------------------------------------------------------------------------------------
// Hovering over a block of the image marks its text and the values in it. Hovering over a block of the text marks its
// position on the image.
function unmarkBlocks() {
  for (const each of document.querySelectorAll("#images .lit, #json .lit, #edit .lit")) each.classList.remove("lit");
}

function isInside(bbox, block) {
  const [x0, y0, x1, y1] = bbox.split(" ").map(Number);
  const [x, y] = [(x0 + x1) / 2 - Number(block.getAttribute("x")), (y0 + y1) / 2 - Number(block.getAttribute("y"))];
  return x >= 0 && y >= 0 && x <= Number(block.getAttribute("width")) && y <= Number(block.getAttribute("height"));
}

function showText(block) {
  const page = block.closest("figure").dataset.page;
  unmarkBlocks();
  for (const link of document.querySelectorAll(`:is(#json, #edit) a.cite[data-page="${page}"][data-bbox]`)) {
    if (isInside(link.dataset.bbox, block)) link.closest("li, .edit-field").classList.add("lit");
  }
  unmark();
  const frame = document.getElementById("sheets");
  const mark = frame && highlight(sheetsOf(page), block.dataset.quote);
  if (mark) frame.scrollTop += mark.getBoundingClientRect().top - frame.getBoundingClientRect().top - frame.clientHeight / 3;
}

function blockOf(part) {
  const page = part.closest("article").id.split("-")[1];
  const wanted = letters(part.textContent);
  if (!wanted) return null; // such as an image or a rule: every text starts with ""
  const plain = (block) => letters(block.dataset.quote.replace(/<[^<>]*>/g, " "));
  const blocks = [...(figureOf(page)?.querySelectorAll("rect.block") ?? [])].filter((block) => plain(block));
  return blocks.find((block) => wanted.startsWith(plain(block)) || plain(block).startsWith(wanted))
    ?? blocks.find((block) => plain(block).includes(wanted) || wanted.includes(plain(block)));
}

document.addEventListener("pointerover", (event) => {
  if (event.target.matches?.("#images rect.block")) return showText(event.target);
  const part = event.target.closest?.("#sheets .rendered > *");
  unmarkBlocks();
  if (part && list()) blockOf(part)?.classList.add("lit");
});

// ---- Start ---------------------------------------------------------------------------------------------------------
function prepare() {
  for (const each of document.querySelectorAll("#images [data-script-only]")) each.hidden = false;
}
document.addEventListener("DOMContentLoaded", prepare);
document.addEventListener("htmx:afterSettle", prepare);
