// How are elements made and numbers written?

const SVG = "http://www.w3.org/2000/svg";

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
    else if (name === "text") node.textContent = value;
    else if (name === "style") for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
    else if (name in node && name !== "list" && typeof node[name] !== "object" && !name.includes("-")) node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

// An element. Text is added as text, so names of models and clients can never become markup.
export function el(tag, props = {}, ...children) {
  const { class: names, for: of, ...rest } = props;
  const node = document.createElement(tag);
  if (names) node.className = names;
  if (of) node.htmlFor = of;
  return fill(node, rest, children);
}

export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// Replaces the children, unless they look the same: focus and selection stay then.
export function show(parent, ...children) {
  const next = el("div", {}, ...children);
  const same = next.childNodes.length === parent.childNodes.length
    && [...next.childNodes].every((child, at) => child.isEqualNode(parent.childNodes[at]));
  if (!same) parent.replaceChildren(...next.childNodes);
}

let lastId = 0;
export const freshId = () => `id-${(lastId += 1)}`;

export function badge(text, kind) {
  return el("span", { class: `badge ${kind}`, text });
}

// A table whose rows become cards on a narrow screen.
export function table(caption, headings, rows) {
  const head = el("tr", {}, headings.map(([text, kind]) => el("th", { scope: "col", class: kind || "", text })));
  const body = rows.map((cells) => el("tr", {}, cells.map((cell, at) =>
    el("td", { class: headings[at][1] || "", "data-label": headings[at][0] }, cell))));
  return el("div", { class: "scroll" },
    el("table", {}, el("caption", { class: "unseen", text: caption }), el("thead", {}, head), el("tbody", {}, body)));
}

const UNITS = ["", "k", "M", "G", "T", "P"];

export function number(value) {
  if (!Number.isFinite(value)) return "–";
  let unit = 0;
  while (Math.abs(value) >= 1000 && unit < UNITS.length - 1) { value /= 1000; unit += 1; }
  const digits = unit === 0 && Number.isInteger(value) ? 0 : Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return `${value.toFixed(digits)}${UNITS[unit] ? ` ${UNITS[unit]}` : ""}`;
}

export function bytes(value) {
  if (!Number.isFinite(value)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${unit === 0 ? Math.round(value) : value.toFixed(value >= 100 ? 0 : 1)} ${units[unit]}`;
}

export function micros(value) {
  if (!Number.isFinite(value)) return "–";
  const short = (amount) => String(Number(amount.toPrecision(3)));
  if (value < 1000) return `${short(value)} µs`;
  return value < 1e6 ? `${short(value / 1000)} ms` : `${short(value / 1e6)} s`;
}

export function age(ms) {
  const seconds = ms / 1000;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}
