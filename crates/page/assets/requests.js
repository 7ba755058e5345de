// Which requests were made lately, and where did the time of each go?

import { el, freshId, micros, show, table } from "./dom.js";
import * as server from "./server.js";
import { fall, legendOfPhases, phasesOf, spansOf } from "./waterfall.js";

const KEPT_MAX = 200;

export function requests(state) {
  const seenBy = el("p", { class: "hint" });
  const paused = el("input", { type: "checkbox", id: freshId() });
  const wanted = el("input", { type: "text", id: freshId(), placeholder: "all", autocomplete: "off", spellcheck: false, on: { input: () => list(true) } });
  const chosen = el("section", { class: "card", hidden: true });
  const rows = el("div");
  const node = el("div", {},
    el("h1", { text: "Requests" }), seenBy, chosen,
    el("section", { class: "card" },
      el("div", { class: "head" }, el("h2", { class: "grow", text: "The last ones" }),
        el("span", { class: "row" }, el("label", { for: wanted.id, text: "Model" }), wanted, el("label", { class: "check", for: paused.id }, paused, "Pause"))),
      legendOfPhases(), rows));
  node.style.setProperty("display", "contents");
  let kept = [];
  let after = 0;
  let told = null;
  let body = null;

  const shown = () => kept.filter((one) => one.model.includes(wanted.value.trim()));

  // New rows go on top, so that the focus stays where it is.
  function list(anew = false) {
    const { is_operator: isOperator } = told || {};
    const all = shown();
    if (all.length === 0) {
      body = null;
      show(rows, el("p", { class: "hint", text: kept.length ? "None of them asked this model." : "None yet. Requests are noted while this view is open." }));
      return;
    }
    if (!body || anew) {
      const headings = [["Model"], ["When"], ...(isOperator ? [["Client"]] : []), ["By"], ["Took", "num"], ["Receive to send"]];
      const made = table("Requests", headings, []);
      body = made.querySelector("tbody");
      rows.replaceChildren(made);
    }
    const first = Number(body.firstElementChild?.dataset.number || 0);
    body.prepend(...all.filter((one) => one.number > first).map((one) => row(one, isOperator)).reverse());
    const oldest = all[0].number;
    while (Number(body.lastElementChild?.dataset.number) < oldest) body.lastElementChild.remove();
  }

  function row(one, isOperator) {
    const label = `${one.model}${one.version ? ` · ${one.version}` : ""}`;
    const choose = el("button", { type: "button", class: "in-row model-name", text: label, on: { click: () => open(one) } });
    const cells = [
      ["Model", choose], ["When", one.when], ...(isOperator ? [["Client", one.client]] : []), ["By", one.by], ["Took", micros(one.took), "num"],
      ["Receive to send", el("span", { class: "fall-track small" }, spansOf(one.phases, one.from, one.end))],
    ];
    return el("tr", { "data-number": one.number }, cells.map(([name, cell, kind]) => el("td", { class: kind || "", "data-label": name }, cell)));
  }

  function open(one) {
    const facts = [["Client", one.client], ["By", one.by], ["Ended", one.when], ["Id", one.requestId || "none"]];
    chosen.hidden = false;
    show(chosen,
      el("div", { class: "head" }, el("h2", { class: "grow", text: `A request for ${one.model}` }),
        el("button", { type: "button", class: "quiet", text: "Close", on: { click: () => { chosen.hidden = true; } } })),
      el("dl", { class: "facts" }, facts.map(([name, value]) => [el("dt", { text: name }), el("dd", { text: value })])),
      el("h3", { text: `${micros(one.took)} in the server` }), fall(one.trace));
    if (chosen.getBoundingClientRect().top < 0) chosen.scrollIntoView({ block: "start" });
  }

  return {
    title: "Requests",
    node,
    async update() {
      // Whoever answers next may be another server, which counts from 1.
      if (!state.visitor) after = 0;
      if (!state.visitor?.may_call || paused.checked) return;
      told = await server.requests(after);
      seenBy.textContent = told.is_operator ? "You see the requests of all clients, a few a second of each, as root and the user who runs the server may."
        : `You see requests of ${told.seen_by}, a few a second. Root and the user who runs the server see those of all clients.`;
      after = told.requests.at(-1)?.number ?? after;
      kept = [...kept, ...told.requests.map(summary)].slice(-KEPT_MAX);
      list();
    },
  };
}

// What the list shows of a request, those that models made for it included. Times are in µs from its first point.
function summary(request) {
  const parts = phasesOf(request);
  const own = parts.find((part) => !part.parent) || parts[0];
  const points = [...own.points.keys()];
  const by = points.some((point) => point.startsWith("HTTP_")) ? "HTTP" : points.some((point) => point.startsWith("GRPC_")) ? "gRPC" : "session";
  const end = Math.max(...parts.flatMap((part) => [...part.points.values()]), 1);
  // On a stream the server waits for the client before it receives.
  const from = own.points.get("GRPC_WAITREAD_END") ?? 0;
  return {
    number: request.number, client: request.client, requestId: request.request_id, model: own.model, version: own.version, by, from, end, took: end - from,
    when: new Date(Date.now() - request.age_ms).toLocaleTimeString(), trace: request, phases: parts.flatMap((part) => part.phases),
  };
}
