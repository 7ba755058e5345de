// What does the page show now, and how does it stay up to date?

import { el } from "./dom.js";
import { History, read } from "./metrics.js";
import { overview } from "./overview.js";
import { modelList, modelPage } from "./models.js";
import { memory } from "./memory.js";
import { requests } from "./requests.js";
import * as server from "./server.js";

const EVERY_MS = 1000;
const main = document.getElementById("main");
const status = document.getElementById("status");
const notices = document.getElementById("notices");

// The state that all views share.
const state = { history: new History(), visitor: null, models: null, modelsAt: -Infinity };
let view = null;
let failing = null;

function choose() {
  const [, section = "", ...rest] = location.hash.slice(1).split("/");
  const name = rest.join("/");
  view?.leave?.();
  if (section === "models" && name) view = modelPage(state, decode(name));
  else if (section === "models") view = modelList(state);
  else if (section === "requests") view = requests(state);
  else if (section === "memory") view = memory(state);
  else view = overview(state);
  for (const link of document.querySelectorAll("nav a")) {
    const isHere = link.dataset.view === (section || "overview");
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${view.title} · nerite`;
  main.replaceChildren(view.node);
  main.style.setProperty("opacity", "1");
}

function decode(name) {
  try {
    return decodeURIComponent(name);
  } catch {
    return name;
  }
}

// A message below the head. A repeated message reuses its line.
function notice(id, kind, ...children) {
  const node = el("div", { class: `notice ${kind}`, id }, ...children);
  const old = document.getElementById(id);
  if (old) old.replaceWith(node);
  else notices.append(node);
}

const dismiss = (id) => document.getElementById(id)?.remove();

function tell(error) {
  if (error instanceof server.Refused && error.header) return askForKey(error);
  if (error instanceof server.Refused) notice("refused", "warn", el("p", { text: error.message }));
  else {
    console.info("nerite:", error);
    notice("down", "bad", el("p", { text: "The server does not answer. This page tries again every few seconds." }));
    status.textContent = "no answer";
    status.className = "status down";
  }
}

function askForKey({ header, message }) {
  if (document.getElementById("key")) return;
  const field = el("input", { type: "password", "aria-label": `Value of the header ${header}`, autocomplete: "off" });
  const submit = (event) => {
    event.preventDefault();
    server.setKey(header, field.value);
    // With another key the visitor may do other things.
    state.visitor = null;
    state.modelsAt = -Infinity;
    dismiss("key");
    refresh();
  };
  // What follows tells programs how to send it.
  const [wanted] = message.split(": send the header");
  const text = header === server.TOKEN ? `${capital(wanted)}. Its secret is kept while this tab is open.` : `${message}.`;
  status.textContent = "waiting for a key";
  status.className = "status";
  notice("key", "warn", el("p", { text }), el("form", { class: "row", on: { submit } }, field, el("button", { type: "submit", text: "Use this key" })));
}

async function refreshShared() {
  state.history.add(read(await server.metrics(), performance.now()));
  status.textContent = "live";
  status.className = "status up";
  dismiss("down");
  if (!state.visitor) state.visitor = await server.visitor();
  if (state.visitor.may_call && performance.now() - state.modelsAt > 3000) await refreshModels();
}

async function refreshModels() {
  state.models = await server.models();
  state.modelsAt = performance.now();
}

// Views call this after a change. `known` is called when the new states are known, before they are shown.
state.refreshModels = async (known) => {
  await refreshModels();
  known();
  await view.update();
};

async function refresh() {
  try {
    await refreshShared();
    dismiss("refused");
    failing = null;
  } catch (error) {
    failing = error;
    if (!(error instanceof server.Refused)) state.visitor = null;
    tell(error);
  }
  tellVisitor();
  try {
    await view.update();
  } catch (error) {
    failing = error;
    tell(error);
  }
}

function tellVisitor() {
  const { visitor } = state;
  document.getElementById("forget").hidden = !server.hasKeys();
  if (!visitor) return;
  document.getElementById("server").textContent = `nerite ${visitor.version} · ${visitor.name}`;
  document.getElementById("visitor").textContent = `You are ${visitor.you}${visitor.is_operator ? ", the operator" : ""}`;
  if (!visitor.may_call) notice("no-calls", "warn", el("p", { text: `${capital(visitor.why_no_calls)}.` }));
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

// While the page is hidden, no requests are made.
async function run() {
  for (;;) {
    const begun = performance.now();
    if (!document.hidden) await refresh();
    // A server with very many models is polled less often, and so is one that refuses.
    const wait = Math.max(failing ? 4 * EVERY_MS : EVERY_MS, 5 * (performance.now() - begun));
    await new Promise((wake) => setTimeout(wake, wait));
    if (document.hidden) await new Promise((wake) => document.addEventListener("visibilitychange", wake, { once: true }));
  }
}

const THEMES = { "": ["◐", "Colours: as the system"], light: ["☀", "Colours: light"], dark: ["☾", "Colours: dark"] };

function setTheme(theme) {
  const button = document.getElementById("theme");
  const [sign, label] = THEMES[theme];
  button.textContent = sign;
  button.setAttribute("aria-label", label);
  button.title = label;
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  localStorage.setItem("nerite-theme", theme);
}

document.getElementById("theme").addEventListener("click", () => {
  const all = Object.keys(THEMES);
  setTheme(all[(all.indexOf(localStorage.getItem("nerite-theme") || "") + 1) % all.length]);
});
document.getElementById("forget").addEventListener("click", () => {
  server.forgetKeys();
  location.reload();
});
const kept = localStorage.getItem("nerite-theme") || "";
setTheme(kept in THEMES ? kept : "");
window.addEventListener("hashchange", () => {
  choose();
  main.focus({ preventScroll: true });
  window.scrollTo(0, 0);
  view.update().catch(tell);
});
choose();
run();
