// Which models exist, what is their state, and what can be done with them?

import { badge, el, micros, number, show, table } from "./dom.js";
import { exactJson } from "./json.js";
import { field, label } from "./metrics.js";
import { plot } from "./plots.js";
import * as server from "./server.js";
import { optionalInputs, tryIt } from "./tryit.js";

const STATES = { READY: "good", LOADING: "warn", UNLOADING: "warn", UNAVAILABLE: "bad" };
const linkTo = (identifier) => `#/models/${encodeURIComponent(identifier)}`;

// The models with their versions: from the server's list, or from the metrics if the visitor may not see the list.
// Models of several repositories may have the same name, so they are kept by their identifiers.
function known(state) {
  const byIdentifier = new Map();
  for (const entry of state.models?.models || []) {
    const identifier = entry.identifier ?? entry.name;
    if (!byIdentifier.has(identifier)) byIdentifier.set(identifier, []);
    byIdentifier.get(identifier).push(entry);
  }
  if (!state.models) {
    for (const [identifier, { name, versions }] of state.history.last?.models || []) {
      byIdentifier.set(identifier, [...versions].map(([version, ready]) => ({ name, version, state: ready ? "READY" : "UNAVAILABLE" })));
    }
  }
  return byIdentifier;
}

// How many models should be up, how many of them are, and how many failed. One that was unloaded need not be up.
export function countModels(state) {
  const all = [...known(state).values()];
  const isUp = (versions) => versions.some((entry) => entry.state === "READY");
  const isWanted = (versions) => versions.some((entry) => entry.state && entry.reason !== "unloaded");
  const hasFailed = (versions) => versions.some((entry) => entry.state === "UNAVAILABLE" && entry.reason && entry.reason !== "unloaded");
  return { ready: all.filter(isUp).length, wanted: all.filter(isWanted).length, failed: all.filter((versions) => !isUp(versions) && hasFailed(versions)).length };
}

const namesOf = (models) => new Map([...models].map(([identifier, [first]]) => [identifier, first?.name ?? identifier]));

function stateBadge({ state, reason }) {
  const node = badge(state ? state.toLowerCase() : "not loaded", STATES[state] || "");
  if (reason) node.title = reason;
  return node;
}

function lateRate(history, identifier) {
  const from = history.since(5000);
  const seconds = (history.last.at - from.at) / 1000;
  return seconds > 0 ? (field(identifier, "success")(history.last) - field(identifier, "success")(from)) / seconds : 0;
}

// Mean rows of a batch, as long as the server keeps count.
function meanBatch(sample, identifier) {
  const runs = field(identifier, "runs")(sample);
  return runs > 0 ? (field(identifier, "rows")(sample) / runs).toFixed(1) : "–";
}

export function modelTable(state, search = "") {
  const { history } = state;
  const models = known(state);
  const names = namesOf(models);
  const all = [...models].filter(([identifier]) => identifier.toLowerCase().includes(search.toLowerCase()));
  if (all.length === 0) return el("p", { class: "hint", text: search ? "No model is called so." : "There are no models." });
  const rows = all.map(([identifier, versions]) => [
    el("a", { class: "model-name", href: linkTo(identifier), title: identifier, text: label(names, identifier) }),
    versions.map((entry) => el("span", {}, el("span", { class: "mono", text: entry.version ? `${entry.version} ` : "" }), stateBadge(entry), " ")),
    versions.find((entry) => entry.platform)?.platform || "–",
    number(history.last ? lateRate(history, identifier) : NaN),
    number(history.last ? field(identifier, "pending")(history.last) : NaN),
    history.last ? meanBatch(history.last, identifier) : "–",
  ]);
  const headings = [["Model"], ["Versions"], ["Platform"], ["Requests/s", "num"], ["Waiting", "num"], ["Rows per batch", "num"]];
  const leftOut = state.models?.left_out ? el("p", { class: "hint", text: `${state.models.left_out} more versions are not listed.` }) : null;
  return [table("Models", headings, rows), leftOut];
}

export function modelList(state) {
  const list = el("div");
  const search = el("input", { type: "search", placeholder: "Find a model", "aria-label": "Find a model", on: { input: () => update() } });
  const node = el("div", {}, el("div", { class: "head" }, el("h1", { class: "grow", text: "Models" }), search), el("section", { class: "card" }, list));
  node.style.setProperty("display", "contents");
  const update = async () => {
    if (state.history.last) show(list, ...[modelTable(state, search.value)].flat());
  };
  return { title: "Models", node, update };
}

// `name` is an identifier, or the name in a link that somebody kept: the server knows what a name means.
export function modelPage(state, name) {
  const states = el("div", { class: "row" });
  const actions = el("div", { class: "row" });
  const outcome = el("div", { role: "status" });
  const throughput = plot("Requests per second", number);
  const latency = plot("Mean time of a request", micros);
  const body = el("div");
  body.style.setProperty("display", "contents");
  const node = el("div", {},
    el("div", { class: "head" }, el("div", { class: "grow" }, el("a", { href: "#/models", text: "← Models" }), el("h1", { text: name }), states), actions),
    outcome, body,
    el("div", { class: "columns" }, throughput.node, latency.node));
  node.style.setProperty("display", "contents");
  let shown = null;
  let busy = null;
  let isGone = false;

  const act = (verb, doing) => async () => {
    busy = doing;
    drawActions();
    show(outcome);
    try {
      await server.change(name, verb);
    } catch (error) {
      show(outcome, el("p", { class: "error", text: error.message }));
    }
    busy = null;
    try {
      // The shown state is of the previous version. It is not drawn again until the new states are known.
      await state.refreshModels(() => { shown = null; });
    } finally {
      drawActions();
    }
  };

  function drawActions() {
    const { visitor } = state;
    const versions = known(state).get(name) || [];
    const isUp = versions.some((entry) => entry.state === "READY");
    if (!visitor?.may_load) {
      // A text instead of buttons that would always be refused.
      const text = visitor?.token_lacks_scope ? "Your token may not load models (scope control)" : "Loads are off (--model-control-mode=explicit lets clients load)";
      show(actions, visitor?.why_no_loads ? el("span", { class: "hint", text, title: visitor.why_no_loads }) : "");
    } else {
      show(actions);
      const button = (label, kind, does) => el("button", { type: "button", class: kind, disabled: busy !== null, text: label, on: { click: does } });
      actions.append(...[
        busy ? el("span", { class: "hint", role: "status", text: busy }) : "",
        button(isUp ? "Reload" : "Load", isUp ? "" : "main", act("load", "Loading…")),
        isUp ? button("Unload", "danger", act("unload", "Unloading…")) : "",
      ]);
    }
  }

  async function drawBody(version) {
    const [metadata, config] = await Promise.all([server.metadata(name), server.config(name)]);
    if (isGone || shown !== version) return;
    body.replaceChildren(
      tryIt(name, metadata, config),
      el("div", { class: "columns" }, el("div", { class: "tried" }, tensors("Inputs", metadata.inputs, optionalInputs(config)), tensors("Outputs", metadata.outputs)), facts(config)),
      el("section", { class: "card" }, el("details", {}, el("summary", { text: "Configuration in force" }),
        el("pre", { class: "config", tabIndex: 0, text: exactJson(config, "\n") }))));
  }

  return {
    title: name,
    node,
    leave: () => { isGone = true; },
    async update() {
      const { history, visitor } = state;
      const versions = known(state).get(name) || [];
      show(states, ...(versions.length ? versions.flatMap((entry) => [el("span", {}, entry.version ? `Version ${entry.version} ` : "", stateBadge(entry)),
        entry.reason ? el("span", { class: "hint", text: entry.reason }) : null]) : [el("span", { class: "hint", text: "The server has no model of this name." })]));
      // Buttons are drawn again only if their state changed, so that a click does not hit a new button.
      const look = JSON.stringify([visitor?.may_load, versions.map((entry) => entry.state), busy]);
      if (look !== this.look) { this.look = look; drawActions(); }
      const up = versions.filter((entry) => entry.state === "READY").map((entry) => entry.version).join();
      if (!up && body.childNodes.length > 0) { shown = null; body.replaceChildren(); }
      if (up && up !== shown && visitor?.may_call) {
        shown = up;
        try {
          await drawBody(up);
        } catch (error) {
          // Tried again at the next update, when the user may have entered a key.
          if (shown === up) shown = null;
          throw error;
        }
      }
      if (!history.last) return;
      throughput.update([
        { name: "answered", colour: "c0", points: history.rates(field(name, "success")) },
        { name: "failed", colour: "c4", points: history.rates(field(name, "failure")) },
      ], history.last.at);
      latency.update([
        { name: "whole", colour: "c0", points: history.means(field(name, "requestUs"), field(name, "success")) },
        { name: "queue", colour: "c2", points: history.means(field(name, "queueUs"), field(name, "success")) },
        { name: "compute", colour: "c1", points: history.means(field(name, "inferUs"), field(name, "success")) },
      ], history.last.at);
    },
  };
}

function tensors(title, all, optional = new Set()) {
  const rows = all.map(({ name, datatype, shape }) => [el("span", { class: "mono", text: name }), optional.has(name) ? `${datatype}, optional` : datatype, el("span", { class: "mono", text: `[${shape.map((dim) => (dim < 0 ? "any" : dim)).join(", ")}]` })]);
  return el("section", { class: "card" }, el("h2", { text: title }), table(title, [["Name"], ["Type"], ["Shape"]], rows));
}

// The most important settings of the configuration.
function facts(config) {
  const instances = (config.instance_group || []).map(({ count, kind }) => `${count} × ${(kind || "KIND_AUTO").replace("KIND_", "").toLowerCase()}`);
  const scheduling = config.ensemble_scheduling ? `ensemble of ${config.ensemble_scheduling.step.length} steps`
    : config.sequence_batching ? "sequences" : config.dynamic_batching ? "dynamic batches" : "one request after the other";
  const rows = [
    ["Backend", config.backend || config.platform || "–"],
    ["Largest batch", config.max_batch_size > 0 ? String(config.max_batch_size) : "no batches"],
    ["Scheduling", scheduling],
    ["Instances", instances.join(", ") || "–"],
    ["Answers", config.model_transaction_policy?.decoupled ? "any number for a request (decoupled)" : "one for a request"],
    ["Response cache", config.response_cache?.enable ? "on" : "off"],
  ];
  return el("section", { class: "card" }, el("h2", { text: "Settings" }),
    el("dl", { class: "facts" }, rows.map(([name, value]) => [el("dt", { text: name }), el("dd", { text: value })])));
}
