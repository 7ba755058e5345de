// How does a person try a model?

import { el, freshId, micros, number } from "./dom.js";
import { inputEditor, pictureOf } from "./inputs.js";
import { exactJson, exactParse } from "./json.js";
import { bars } from "./plots.js";
import * as server from "./server.js";
import { decode, isReal, isWide } from "./tensors.js";
import { waterfall } from "./waterfall.js";

const VALUES_MAX = 256;
const TOP = 10;
const RESPONSES_MAX = 200;

// The names of the inputs that a request may leave out.
export const optionalInputs = (config) => new Set((config.input || []).filter((one) => one.optional).map((one) => one.name));

export function tryIt(name, metadata, config) {
  const batches = config.max_batch_size > 0;
  const withoutBatch = (shape) => (batches ? shape.slice(1) : shape);
  const result = el("div", { class: "result", role: "status" }, el("p", { class: "hint", text: "The answer appears here." }));
  const fall = el("div");
  const run = el("button", { type: "submit", class: "main", text: "Run" });
  const isDecoupled = Boolean(config.model_transaction_policy?.decoupled);
  let isBusy = false;
  let again = false;
  const optional = optionalInputs(config);
  const changed = () => (metadata.inputs.length === 1 ? go() : null);
  const editors = metadata.inputs.map(({ name: input, datatype, shape }) => ({
    name: input, datatype, ...inputEditor({ name: input, datatype, dims: withoutBatch(shape), isOptional: optional.has(input), changed }),
  }));
  const parameters = el("textarea", { class: "mono", id: freshId(), placeholder: '{"priority": 1}', spellcheck: false });
  const form = el("form", { on: { submit: (event) => { event.preventDefault(); go(); } } },
    editors.map((editor) => editor.node),
    el("details", {}, el("summary", { text: "Parameters of the request" }), el("label", { class: "unseen", for: parameters.id, text: "Parameters as JSON" }), parameters),
    el("p", {}, run));

  async function go() {
    if (isBusy) { again = true; return; }
    isBusy = true;
    run.disabled = true;
    try {
      if (isDecoupled) await askForMany();
      else await ask();
    } catch (error) {
      result.replaceChildren(el("p", { class: "error", text: error.message }));
      // It showed an earlier request.
      fall.replaceChildren();
    }
    isBusy = false;
    run.disabled = false;
    if (again) { again = false; go(); }
  }

  function tensors() {
    return editors.filter((editor) => editor.isGiven()).map((editor) => {
      const { shape, data, values } = editor.tensor();
      return { name: editor.name, datatype: editor.datatype, shape: batches ? [1, ...shape] : shape, data, values };
    });
  }

  const given = () => (parameters.value.trim() ? exactParse(parameters.value) : {});

  async function ask() {
    const inputs = tensors();
    const outputs = metadata.outputs.map(({ name: output, shape }) => {
      const labels = (config.output || []).find((one) => one.name === output)?.label_filename;
      const count = withoutBatch(shape).at(-1);
      return labels && count > 1 ? { name: output, parameters: { classification: Math.min(count, TOP), binary_data: true } } : { name: output, parameters: { binary_data: true } };
    });
    const head = {
      inputs: inputs.map(({ name: input, datatype, shape, data }) => ({ name: input, datatype, shape, parameters: { binary_data_size: data.length } })),
      outputs,
      parameters: given(),
    };
    const token = server.freshToken();
    const { answer, tail, totalMs } = await server.infer(name, "", head, inputs.map((input) => input.data), token);
    const shown = read(answer.outputs || [], tail).map((output, at) => outputNode(output, withoutBatch, outputs[at]?.parameters.classification > 0 ? metadata.outputs[at] : null));
    result.replaceChildren(el("p", { class: "hint", text: `Version ${answer.model_version} answered in ${micros(totalMs * 1000)}, the way included.` }), ...shown);
    fall.replaceChildren(waterfall(await server.trace(token), totalMs));
    if (result.getBoundingClientRect().top > innerHeight - 80) result.scrollIntoView({ block: "center" });
  }

  async function askForMany() {
    const body = { ...given() };
    for (const { name: input, datatype, values, shape } of tensors()) {
      if (!values) throw new Error(`a model that answers several times takes its inputs here as text or JSON, and ${input} is neither`);
      // Integers of 64 bits are kept as their digits.
      const exact = isWide(datatype) ? values.map(BigInt) : values;
      body[input] = exact.length === 1 && shape.every((dim) => dim === 1) ? exact[0] : exact;
    }
    const token = server.freshToken();
    const list = el("ol");
    result.replaceChildren(list);
    let count = 0;
    const { totalMs } = await server.stream(name, "", body, token, ({ model_name: _name, model_version: _version, ...outputs }) => {
      count += 1;
      if (count <= RESPONSES_MAX) list.append(el("li", {}, el("code", { text: exactJson(outputs) })));
    });
    result.prepend(el("p", { class: "hint", text: `${count} responses in ${micros(totalMs * 1000)}.` }));
    fall.replaceChildren(waterfall(await server.trace(token), totalMs));
  }

  return el("div", { class: "tried" },
    el("section", { class: "card" }, el("h2", { text: "Try it" }), el("div", { class: "try" }, form, result)), fall);
}

// The outputs with their elements.
function read(outputs, tail) {
  let at = 0;
  return outputs.map((output) => {
    const size = output.parameters?.binary_data_size;
    if (size === undefined) return { ...output, values: (output.data || []).flat(Infinity) };
    const values = decode(output.datatype, tail.subarray(at, at + size));
    at += size;
    return { ...output, values };
  });
}

function outputNode(output, withoutBatch, classified) {
  const { name, datatype, shape, values } = output;
  const kind = classified ? `${classified.datatype}, the best ${values.length}` : `${datatype} [${shape.join(", ")}]`;
  const head = el("h3", {}, name, " ", el("span", { class: "mono", text: kind }));
  const dims = withoutBatch(shape);
  const rest = classified ? classes(values) : picture(dims, datatype, values) || scores(dims, datatype, values) || listed(datatype, values);
  return el("div", { class: "output", "data-output": name }, head, rest);
}

// `value:index:label`, the best first.
function classes(values) {
  const rows = Array.from(values, (text) => {
    const [value, index, ...label] = text.split(":");
    return { value: Number(value), label: label.join(":") || index };
  });
  return ranked(rows);
}

function ranked(rows) {
  const [best] = rows;
  const share = (value) => (value >= 0 && value <= 1 ? `${(100 * value).toFixed(1)} %` : number(value));
  return [
    el("p", { class: "top-answer" }, el("span", { class: "best", text: best.label }), " ", el("small", { text: share(best.value) })),
    bars(rows.map(({ label, value }, at) => [label, Math.max(value, 0), share(value), at === 0 ? "c0" : "c1"]), ""),
  ];
}

// A vector of real numbers usually holds scores of classes.
function scores(dims, datatype, values) {
  const count = dims.at(-1);
  if (!isReal(datatype) || values.length !== count || count < 2 || count > 2000) return null;
  const rows = Array.from(values, (value, at) => ({ value, label: String(at) }));
  const all = rows.every(({ value }) => value >= 0 && value <= 1);
  if (!all) return listed(datatype, values);
  return ranked(rows.sort((a, b) => b.value - a.value).slice(0, TOP));
}

function picture(dims, datatype, values) {
  const shape = dims.length >= 2 ? pictureOf(dims) : null;
  if (!shape || datatype === "BYTES" || shape.rows < 16 || shape.columns < 16 || values.length !== shape.rows * shape.columns * shape.channels) return null;
  const { rows, columns, channels, first } = shape;
  const count = rows * columns;
  const [low, high] = Array.from(values, Number).reduce(([min, max], value) => [Math.min(min, value), Math.max(max, value)], [Infinity, -Infinity]);
  const canvas = el("canvas", { class: "picture", width: columns, height: rows, role: "img", "aria-label": "The output as a picture" });
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  const level = (value) => (high > low ? (255 * (Number(value) - low)) / (high - low) : 0);
  for (let pixel = 0; pixel < count; pixel += 1) {
    for (let channel = 0; channel < 3; channel += 1) {
      const from = Math.min(channel, channels - 1);
      image.data[4 * pixel + channel] = level(values[first ? from * count + pixel : pixel * channels + from]);
    }
    image.data[4 * pixel + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  return [canvas, el("p", { class: "hint", text: `Values from ${number(low)} to ${number(high)}.` })];
}

function listed(datatype, values) {
  const shown = Array.from(values.slice(0, VALUES_MAX), (value) => (isReal(datatype) && datatype !== "FP64" ? String(Number(value.toPrecision(7))) : String(value)));
  const text = shown.join(datatype === "BYTES" ? "\n" : "  ");
  const more = values.length > VALUES_MAX ? el("p", { class: "hint", text: `and ${number(values.length - VALUES_MAX)} more` }) : null;
  return [el("pre", { class: "values", tabIndex: 0, text }), more];
}
