// How does a person make a tensor: by drawing, with a picture, as text, with a file, as JSON?

import { el, freshId } from "./dom.js";
import { encode, elementBytes, isReal, parse, resolve } from "./tensors.js";

const SHOWN_MAX = 64;
const MADE_MAX = 1 << 24;
const SIDE_MAX = 2048;
const INK = 240;
const LABELS = { draw: "Draw", image: "Image", text: "Text", json: "JSON", file: "File", made: "Generated" };

const sizeOf = (dims) => dims.reduce((product, dim) => product * (dim < 0 ? 1 : dim), 1);

// Rows, columns, channels, and the axis of the channels, if the shape could be a picture.
export function pictureOf(dims) {
  const bare = dims.filter((dim, at) => !(dim === 1 && dims.length > 3 && at === 0));
  const isSide = (dim) => dim < 0 || (dim >= 8 && dim <= 8192);
  if (bare.length === 3 && [1, 3, 4].includes(bare[0]) && isSide(bare[1]) && isSide(bare[2])) return { rows: bare[1], columns: bare[2], channels: bare[0], first: true };
  if (bare.length === 3 && [1, 3, 4].includes(bare[2]) && isSide(bare[0]) && isSide(bare[1])) return { rows: bare[0], columns: bare[1], channels: bare[2], first: false };
  if (bare.length === 2 && bare.every((dim) => dim >= 8 && dim <= 8192)) return { rows: bare[0], columns: bare[1], channels: 1, first: true };
  if (bare.length === 1 && bare[0] >= 64 && bare[0] <= 4096 && Number.isInteger(Math.sqrt(bare[0]))) return { rows: Math.sqrt(bare[0]), columns: Math.sqrt(bare[0]), channels: 1, first: true };
  return null;
}

function kindsOf(datatype, dims) {
  if (datatype === "BYTES") return ["text", "file", "json"];
  const picture = pictureOf(dims);
  const isPad = picture && picture.channels === 1 && picture.rows === picture.columns && picture.rows >= 8 && picture.rows <= 64;
  const kinds = [];
  if (isPad) kinds.push("draw");
  if (picture) kinds.push("image");
  if (sizeOf(dims) > SHOWN_MAX) kinds.push("made", "json");
  else kinds.push("json", "made");
  return [...kinds, "file"];
}

// The fields for one input. `dims` is its shape without the batch. An optional input is left out until it is asked for, as the model's author lets
// clients do. `changed` is called when a drawing is done.
export function inputEditor({ name, datatype, dims, isOptional, changed }) {
  const kinds = kindsOf(datatype, dims);
  const place = el("div");
  const made = new Map();
  let current = null;
  const buttons = kinds.map((kind) => el("button", { type: "button", "aria-pressed": "false", text: LABELS[kind], on: { click: () => choose(kind) } }));

  function choose(kind) {
    if (!made.has(kind)) made.set(kind, EDITORS[kind]({ name, datatype, dims, changed }));
    current = made.get(kind);
    buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(kinds[at] === kind)));
    place.replaceChildren(current.node);
  }

  choose(kinds[0]);
  const shape = dims.map((dim) => (dim < 0 ? "any" : dim)).join(" × ");
  const fields = el("div", { hidden: isOptional }, el("div", { class: "kinds", role: "group", "aria-label": `How to give ${name}` }, buttons), place);
  const isGiven = el("input", { type: "checkbox", id: freshId(), on: { change: () => { fields.hidden = !isGiven.checked; } } });
  isGiven.checked = !isOptional;
  const choice = isOptional ? el("label", { class: "check given", for: isGiven.id }, isGiven, `Send ${name}, which is optional`) : null;
  const node = el("fieldset", {}, el("legend", {}, name, " ", el("span", { class: "mono", text: `${datatype} ${shape}` })), choice, fields);
  return { node, isGiven: () => isGiven.checked, tensor: () => current.tensor() };
}

const EDITORS = { draw, image, text, json, file, made: generated };

function plain(dims, values) {
  return resolve(dims, values.length, []);
}

// Whether the picture is as one of scikit-learn's digits, whose values are from 0 to 16.
function isDigits(datatype, { rows, columns }) {
  return isReal(datatype) && rows === 8 && columns === 8;
}

// The values of white and black.
function defaultInk(datatype, side) {
  if (isDigits(datatype, { rows: side, columns: side })) return 16;
  return datatype === "UINT8" && side !== 32 ? 255 : 1;
}

function draw({ name, datatype, dims, changed }) {
  const { rows: side } = pictureOf(dims);
  const pad = el("canvas", { class: "pad", width: INK, height: INK, tabIndex: 0, role: "application", "aria-label": `Drawing for ${name}: draw with mouse or finger; with keys, move by arrows and lower or lift the pen by Space` });
  const seen = el("canvas", { class: "seen", width: side, height: side, role: "img", "aria-label": "What the model sees" });
  const scale = el("input", { type: "number", id: freshId(), value: defaultInk(datatype, side), step: "any" });
  const ink = pad.getContext("2d", { willReadFrequently: true });
  const pen = INK / 7;
  let values = new Float64Array(side * side);
  let at = null;
  let keys = { x: INK / 2, y: INK / 2, isDown: false };

  function clear() {
    ink.fillStyle = "#fff";
    ink.fillRect(0, 0, INK, INK);
    Object.assign(ink, { lineWidth: pen, lineCap: "round", lineJoin: "round", strokeStyle: "#111" });
    look();
  }

  function line(x, y) {
    ink.beginPath();
    ink.moveTo(at ? at.x : x, at ? at.y : y);
    ink.lineTo(x + 0.01, y);
    ink.stroke();
    at = { x, y };
    look();
  }

  function look() {
    values = shrunk(ink.getImageData(0, 0, INK, INK).data, side);
    const small = seen.getContext("2d");
    const image = small.createImageData(side, side);
    values.forEach((value, cell) => image.data.set([255 * (1 - value), 255 * (1 - value), 255 * (1 - value), 255], 4 * cell));
    small.putImageData(image, 0, 0);
  }

  const position = (event) => {
    const box = pad.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * INK, ((event.clientY - box.top) / box.height) * INK];
  };
  pad.addEventListener("pointerdown", (event) => { pad.setPointerCapture(event.pointerId); at = null; line(...position(event)); });
  pad.addEventListener("pointermove", (event) => { if (at && pad.hasPointerCapture(event.pointerId)) for (const one of event.getCoalescedEvents?.() || [event]) line(...position(one)); });
  for (const end of ["pointerup", "pointercancel"]) pad.addEventListener(end, () => { if (at) changed(); at = null; });
  pad.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (event.key === " ") {
      keys = { ...keys, isDown: !keys.isDown };
      at = null;
      if (keys.isDown) line(keys.x, keys.y);
      else changed();
    } else if (step) {
      const inside = (value) => Math.min(Math.max(value, pen / 2), INK - pen / 2);
      keys = { ...keys, x: inside(keys.x + (step[0] * INK) / 16), y: inside(keys.y + (step[1] * INK) / 16) };
      if (keys.isDown) line(keys.x, keys.y);
    } else return;
    event.preventDefault();
  });
  clear();
  const node = el("div", {},
    el("div", { class: "pad-row" }, pad, el("div", {}, el("p", { class: "hint", text: "The model sees" }), seen)),
    el("div", { class: "row" }, el("button", { type: "button", text: "Clear", on: { click: clear } }), el("label", { for: scale.id, text: "Ink is" }), scale));
  return {
    node,
    tensor() {
      const full = Number(scale.value);
      const numbers = Array.from(values, (value) => (isReal(datatype) ? value * full : Math.round(value) * full));
      return { shape: plain(dims, numbers), data: encode(datatype, numbers) };
    },
  };
}

// The drawing, cropped to its strokes and in proportion, as the share of ink in each of side × side cells. Models for digits are trained on digits
// that fill the picture (8 × 8), or have a margin (28 × 28 and more).
function shrunk(pixels, side) {
  const inked = (x, y) => 1 - pixels[4 * (y * INK + x)] / 255;
  let [left, top, right, bottom] = [INK, INK, -1, -1];
  let [count, sumX, sumY] = [0, 0, 0];
  for (let y = 0; y < INK; y += 1) {
    for (let x = 0; x < INK; x += 1) {
      if (inked(x, y) <= 0.5) continue;
      [left, right, top, bottom] = [Math.min(left, x), Math.max(right, x), Math.min(top, y), Math.max(bottom, y)];
      [count, sumX, sumY] = [count + 1, sumX + x + 0.5, sumY + y + 0.5];
    }
  }
  const values = new Float64Array(side * side);
  if (right < 0) return values;
  const margin = side < 16 ? 0 : side / 7;
  const size = Math.max(right - left + 1, bottom - top + 1);
  const step = size / (side - 2 * margin);
  // The ink is centred by its centre of mass, as in the data that such models are trained on.
  const [midX, midY] = [sumX / count, margin > 0 ? sumY / count : (top + bottom + 1) / 2];
  const parts = Math.max(2, Math.ceil(step));
  for (let row = 0; row < side; row += 1) {
    for (let column = 0; column < side; column += 1) {
      let sum = 0;
      for (let part = 0; part < parts * parts; part += 1) {
        const x = Math.floor(midX + (column + ((part % parts) + 0.5) / parts - side / 2) * step);
        const y = Math.floor(midY + (row + (Math.floor(part / parts) + 0.5) / parts - side / 2) * step);
        if (x >= 0 && y >= 0 && x < INK && y < INK) sum += inked(x, y);
      }
      values[row * side + column] = sum / (parts * parts);
    }
  }
  return values;
}

const SCALES = {
  "0 to 1": (value) => value / 255,
  "0 to 255": (value) => value,
  "0 to 16": (value) => value / 255 * 16,
  "−1 to 1": (value) => value / 127.5 - 1,
  "ImageNet mean and deviation": (value, channel) => (value / 255 - [0.485, 0.456, 0.406][channel % 3]) / [0.229, 0.224, 0.225][channel % 3],
};

function image({ name, datatype, dims }) {
  const picture = pictureOf(dims);
  const view = el("canvas", { class: "picture", hidden: true, role: "img", "aria-label": "The picture as the model gets it" });
  const field = el("input", { type: "file", accept: "image/*", "aria-label": `Picture for ${name}`, on: { change: () => take(field.files[0]) } });
  const names = Object.keys(SCALES);
  const scale = el("select", { id: freshId() }, names.map((one) => el("option", { text: one, value: one })));
  scale.value = isDigits(datatype, picture) ? names[2] : datatype === "UINT8" ? names[1] : names[0];
  const fault = el("div");
  let pixels = null;

  async function take(file) {
    fault.replaceChildren();
    if (!file) return;
    try {
      const bitmap = await createImageBitmap(file);
      view.width = picture.columns < 0 ? Math.min(bitmap.width, SIDE_MAX) : picture.columns;
      view.height = picture.rows < 0 ? Math.min(bitmap.height, SIDE_MAX) : picture.rows;
      const context = view.getContext("2d");
      context.fillStyle = "#fff";
      context.fillRect(0, 0, view.width, view.height);
      context.drawImage(bitmap, 0, 0, view.width, view.height);
      pixels = context.getImageData(0, 0, view.width, view.height);
      view.hidden = false;
    } catch {
      fault.replaceChildren(el("p", { class: "error", text: `'${file.name}' is no picture that this browser reads` }));
    }
  }

  const node = el("div", {}, field, fault, view, el("div", { class: "row" }, el("label", { for: scale.id, text: "Values" }), scale));
  return {
    node,
    tensor() {
      if (!pixels) throw new Error(`choose a picture for ${name}`);
      const { width, height, data } = pixels;
      const { channels, first } = picture;
      const count = width * height;
      const values = new Array(count * channels);
      for (let pixel = 0; pixel < count; pixel += 1) {
        for (let channel = 0; channel < channels; channel += 1) {
          const raw = channels === 1 ? 0.299 * data[4 * pixel] + 0.587 * data[4 * pixel + 1] + 0.114 * data[4 * pixel + 2] : data[4 * pixel + channel];
          const value = SCALES[scale.value](raw, channel);
          values[first ? channel * count + pixel : pixel * channels + channel] = isReal(datatype) ? value : Math.round(value);
        }
      }
      const sides = first ? [channels, height, width] : [height, width, channels];
      const ones = dims.length - sides.length;
      const written = ones > 0 ? [...new Array(ones).fill(1), ...sides] : sides;
      return { shape: resolve(dims, values.length, written), data: encode(datatype, values) };
    },
  };
}

function text({ name, dims }) {
  const area = el("textarea", { id: freshId(), "aria-label": `Text for ${name}`, placeholder: "Write here" });
  const lines = el("input", { type: "checkbox", id: freshId() });
  const many = dims.some((dim) => dim !== 1) && dims.length > 0;
  lines.checked = many && sizeOf(dims) > 1;
  const node = el("div", {}, area, many ? el("label", { class: "check", for: lines.id }, lines, "Each line is an element") : null);
  const texts = () => (lines.checked ? area.value.split("\n") : [area.value]);
  return { node, tensor: () => ({ shape: plain(dims, texts()), data: encode("BYTES", texts()), values: texts() }) };
}

function json({ name, datatype, dims }) {
  const area = el("textarea", { class: "mono", spellcheck: false, "aria-label": `JSON for ${name}` });
  area.value = JSON.stringify(example(datatype, dims));
  return {
    node: area,
    tensor() {
      const { values, shape } = parse(datatype, area.value);
      return { shape: resolve(dims, values.length, shape), data: encode(datatype, values), values };
    },
  };
}

function example(datatype, dims) {
  const isOpen = dims.length === 1 && dims[0] < 0;
  const count = Math.min(isOpen ? 4 : sizeOf(dims), 4096);
  const one = (at) => (datatype === "BYTES" ? "text" : datatype === "BOOL" ? at % 2 === 0 : at % 100);
  return Array.from({ length: count }, (_, at) => one(at));
}

function file({ name, datatype, dims }) {
  const field = el("input", { type: "file", "aria-label": `File for ${name}` });
  const said = datatype === "BYTES" ? "The content of each file is one element." : `Raw ${datatype} numbers in little-endian order, or a .json array.`;
  let files = [];
  if (datatype === "BYTES") field.multiple = true;
  field.addEventListener("change", async () => {
    files = await Promise.all([...field.files].map(async (one) => ({ name: one.name, data: new Uint8Array(await one.arrayBuffer()) })));
  });
  return {
    node: el("div", {}, field, el("p", { class: "hint", text: said })),
    tensor() {
      if (files.length === 0) throw new Error(`choose a file for ${name}`);
      const contents = files.map((one) => one.data);
      if (datatype === "BYTES") return { shape: plain(dims, contents), data: encode(datatype, contents) };
      if (files[0].name.endsWith(".json")) {
        const { values, shape } = parse(datatype, new TextDecoder().decode(contents[0]));
        return { shape: resolve(dims, values.length, shape), data: encode(datatype, values) };
      }
      const size = elementBytes(datatype);
      if (contents[0].length % size !== 0) throw new Error(`'${files[0].name}' has ${contents[0].length} bytes, which are no whole ${datatype} numbers`);
      return { shape: resolve(dims, contents[0].length / size, []), data: contents[0] };
    },
  };
}

const PATTERNS = { "random numbers": () => Math.random(), zeros: () => 0, ones: () => 1, "0, 1, 2, …": (at) => at };

function generated({ name, datatype, dims }) {
  const pattern = el("select", { id: freshId() }, Object.keys(PATTERNS).map((one) => el("option", { text: one, value: one })));
  const free = dims.map((dim, at) => (dim < 0 ? el("input", { type: "number", min: 0, step: 1, value: 8, "aria-label": `Dimension ${at + 1} of ${name}` }) : null));
  const node = el("div", { class: "row" }, el("label", { for: pattern.id, text: "Filled with" }), pattern,
    free.some(Boolean) ? [el("label", { text: "Free dimensions" }), free.filter(Boolean)] : null);
  const whole = (value, at) => {
    if (isReal(datatype)) return value;
    if (datatype === "BOOL") return Math.round(value) % 2;
    return pattern.value === "random numbers" ? Math.floor(value * 100) : datatype.endsWith("INT8") ? at % 128 : value;
  };
  return {
    node,
    tensor() {
      const shape = dims.map((dim, at) => (free[at] ? Number(free[at].value) : dim));
      const count = shape.reduce((product, dim) => product * dim, 1);
      if (!(count <= MADE_MAX)) throw new Error(`${count} elements are more than this page makes (${MADE_MAX}); give a file`);
      const value = PATTERNS[pattern.value];
      return { shape, data: encode(datatype, Array.from({ length: count }, (_, at) => whole(value(at), at))) };
    },
  };
}
