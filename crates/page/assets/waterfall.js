// Which phases did one request spend its time in?

import { el, micros } from "./dom.js";

// A phase is the time between two points of the trace.
const PHASES = [
  ["Receive", "HTTP_RECV_START", "HTTP_RECV_END", "c5"],
  // On a stream the server waits first until the client sends.
  ["Wait, receive", "GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "c5"],
  ["Queue", "QUEUE_START", "COMPUTE_START", "c2"],
  ["Batch", "COMPUTE_START", "COMPUTE_INPUT_END", "c1"],
  ["Compute", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "c0"],
  ["Output", "COMPUTE_OUTPUT_START", "COMPUTE_END", "c3"],
  ["Send", "HTTP_SEND_START", "HTTP_SEND_END", "c4"],
  ["Send", "GRPC_SEND_START", "GRPC_SEND_END", "c4"],
];
const ROWS_MAX = 40;

// Which colour is which phase. The first of a colour stands for all of it.
export function legendOfPhases() {
  const names = new Map();
  for (const [name, , , colour] of PHASES) if (!names.has(colour)) names.set(colour, name);
  return el("ul", { class: "legend" }, [...names].map(([colour, name]) => el("li", {}, el("i", { class: `dot ${colour}` }), el("span", { text: name }))));
}

// The requests of a trace: the page's own first, then those that models made for it, each with its phases in µs.
export function phasesOf(trace) {
  const requests = new Map();
  const of = (id) => {
    if (!requests.has(id)) requests.set(id, { id, model: "", points: new Map() });
    return requests.get(id);
  };
  for (const note of trace.notes) {
    const request = of(note.id);
    if (note.model !== undefined) Object.assign(request, { model: note.model, version: note.version, parent: note.parent });
    else if (!request.points.has(note.point) || note.point.endsWith("END")) request.points.set(note.point, note.ns / 1000);
  }
  return [...requests.values()].map((request) => ({
    ...request,
    phases: PHASES.filter(([, from, to]) => request.points.has(from) && request.points.get(to) >= request.points.get(from))
      .map(([name, from, to, colour]) => ({ name, colour, from: request.points.get(from), to: request.points.get(to) })),
  })).sort((a, b) => a.id - b.id);
}

export function waterfall(trace, totalMs) {
  const heading = el("h2", { text: "Where the time of this request went" });
  if (!trace) return el("section", { class: "card" }, heading, el("p", { class: "hint", text: "The server kept no trace of this request." }));
  const end = endOf(phasesOf(trace));
  const rest = totalMs * 1000 - end;
  return el("section", { class: "card" }, heading, ...fall(trace),
    el("p", { class: "hint", text: `${micros(end)} in the server, ${micros(Math.max(rest, 0))} in the browser and between the two.` }));
}

const endOf = (requests) => Math.max(...requests.flatMap((request) => [...request.points.values()]), 1);

// The phases of a trace below each other, and a word where some are left out.
export function fall(trace) {
  const requests = phasesOf(trace);
  const end = endOf(requests);
  const rows = [];
  for (const request of requests.slice(0, ROWS_MAX)) {
    const isOwn = !request.parent;
    for (const phase of request.phases) rows.push([phase.from, row(isOwn ? phase.name : `${request.model}: ${phase.name.toLowerCase()}`, phase, end)]);
  }
  rows.sort(([a], [b]) => a - b);
  const left = requests.length > ROWS_MAX || trace.is_shortened ? el("p", { class: "hint", text: "Some of it is left out." }) : null;
  return [el("div", { class: "fall" }, rows.map(([, one]) => one)), left];
}

// Phases beside each other, between two times.
export function spansOf(phases, from, end) {
  const share = (time) => `${(100 * Math.max(time - from, 0)) / Math.max(end - from, 1e-9)}%`;
  const isIn = (phase) => phase.to > from;
  return phases.filter(isIn).map((phase) => el("span", { class: `span ${phase.colour}`, title: `${phase.name}: ${micros(phase.to - phase.from)}`, style: { left: share(phase.from), width: share(from + phase.to - Math.max(phase.from, from)) } }));
}

function row(label, { name, from, to, colour }, end) {
  const bar = el("span", { class: `span ${colour}`, style: { left: `${(100 * from) / end}%`, width: `${(100 * (to - from)) / end}%` } });
  return el("div", { class: "fall-row", "data-phase": name }, el("span", { text: label }), el("span", { class: "fall-track" }, bar), el("span", { class: "num", text: micros(to - from) }));
}
