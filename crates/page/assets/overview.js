// What is the state and the load of the server?

import { bytes, el, micros, number, show } from "./dom.js";
import { busiest, copies, field, label, other, total, totalOf } from "./metrics.js";
import { bars, plot } from "./plots.js";
import { countModels, modelTable } from "./models.js";

const LINES = 6;
const PHASES = [["Queue", "queueUs", "c2"], ["Batch input", "inputUs", "c1"], ["Compute", "inferUs", "c0"], ["Output", "outputUs", "c3"]];

export function overview(state) {
  const tiles = el("div", { class: "tiles" });
  const throughput = plot("Requests per second", (value) => (Number.isFinite(value) ? number(value) : "–"));
  const latency = plot("Mean time of a request", micros);
  const phases = el("div");
  const copied = el("div");
  const list = el("div");
  const node = el("div", { class: "stack-all" });
  node.style.setProperty("display", "contents");
  node.append(
    el("h1", { text: "Overview" }),
    tiles,
    el("div", { class: "columns" }, throughput.node, latency.node,
      el("section", { class: "card" }, el("h3", { text: "Where a request's time goes, last minute" }), phases),
      el("section", { class: "card" }, el("h3", { text: "Copies of tensors, by reason" }), copied)),
    el("section", { class: "card" }, el("h2", { text: "Models" }), list));

  return {
    title: "Overview",
    node,
    async update() {
      const { history } = state;
      const { last } = history;
      if (!last) return;
      show(tiles, ...tileNodes(history, countModels(state)));
      const names = busiest(history, LINES);
      const all = new Map([...last.models].map(([identifier, { name }]) => [identifier, name]));
      const line = (points) => (identifier, at) => ({ name: label(all, identifier), colour: `c${at}`, points: points(identifier) });
      throughput.update(names.map(line((name) => history.rates(field(name, "success")))), last.at);
      latency.update(names.map(line((name) => history.means(field(name, "requestUs"), field(name, "success")))), last.at);
      show(phases, phaseBars(history));
      show(copied, copyBars(history));
      show(list, modelTable(state));
    },
  };
}

function tileNodes(history, models) {
  const { last } = history;
  const latestOf = (points) => points.at(-1)?.[1];
  const rate = (of) => latestOf(history.rates(of)) ?? NaN;
  const mean = latestOf(history.means(totalOf("requestUs"), totalOf("success")));
  const copied = (sample) => copies(sample).reduce((sum, [, value]) => sum + value, 0);
  const memoryUsed = other("nv_cpu_memory_used_bytes")(last);
  const all = [
    ["Requests per second", number(rate(totalOf("success")))],
    ["Mean time", mean === null || mean === undefined ? "–" : micros(mean)],
    ["Failures per second", number(rate(totalOf("failure")))],
    ["Waiting in queues", number(total(last, "pending"))],
    ["Copied per second", bytes(rate(copied))],
    ["Models ready", `${models.ready} of ${models.wanted}`, models.failed ? `${models.failed} unavailable` : ""],
    ["Processor", last.others.has("nv_cpu_utilization") ? `${Math.round(100 * other("nv_cpu_utilization")(last))} %` : "–"],
    ["Memory", memoryUsed ? bytes(memoryUsed) : "–", memoryUsed ? `of ${bytes(other("nv_cpu_memory_total_bytes")(last))}` : ""],
  ];
  return all.map(([label, value, more]) => el("div", { class: "card tile" }, el("span", { text: label }), el("b", { text: value }), more ? el("small", { text: more }) : null));
}

function phaseBars(history) {
  const before = history.since(60_000);
  const { last } = history;
  const count = total(last, "success") - total(before, "success");
  const rows = PHASES.map(([label, key, colour]) => [label, (total(last, key) - total(before, key)) / Math.max(count, 1), colour]);
  if (count <= 0) return el("p", { class: "hint", text: "No request was answered in the last minute." });
  return bars(rows.map(([label, value, colour]) => [label, value, micros(value), colour]), "");
}

function copyBars(history) {
  const { last } = history;
  const before = new Map(copies(history.since(10_000)));
  const seconds = Math.max((last.at - history.since(10_000).at) / 1000, 1e-9);
  const rows = copies(last).filter(([, value]) => value > 0).sort((a, b) => b[1] - a[1]);
  const text = (reason, value) => {
    const rate = (value - (before.get(reason) ?? value)) / seconds;
    return rate > 0 ? `${bytes(value)} · ${bytes(rate)}/s` : bytes(value);
  };
  return bars(rows.map(([reason, value]) => [reason.replaceAll("_", " "), value, text(reason, value), "c1"]),
    "No tensor has been copied since the server started.");
}
