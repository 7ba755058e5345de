// How are requests sent to the server?

import { exactJson, exactParse } from "./json.js";

// Headers that the operator requires for calls. They are kept as long as this tab is open, and are sent to this server only.
const KEYS = "nerite-keys";
// The header of a token, where the operator asks for tokens.
export const TOKEN = "authorization";

function keys() {
  try {
    return JSON.parse(sessionStorage.getItem(KEYS)) || {};
  } catch {
    return {};
  }
}

export const hasKeys = () => Object.keys(keys()).length > 0;
export const forgetKeys = () => sessionStorage.removeItem(KEYS);

export function setKey(header, value) {
  sessionStorage.setItem(KEYS, JSON.stringify({ ...keys(), [header]: header === TOKEN ? `Bearer ${value}` : value }));
}

// The server answered with an error.
export class Refused extends Error {
  constructor(status, text) {
    super(text || `the server answered with status ${status}`);
    this.status = status;
    // The header that the call needs, if the operator restricted it or if the server has tokens.
    this.header = status === 401 ? TOKEN : (/expecting header '([^']+)'/.exec(this.message) || [])[1];
  }
}

async function ask(path, options = {}) {
  const response = await fetch(path, { cache: "no-store", ...options, headers: { ...keys(), ...options.headers } });
  if (!response.ok) throw new Refused(response.status, await reason(response));
  return response;
}

async function reason(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error || text;
  } catch {
    return text;
  }
}

const segment = (name) => encodeURIComponent(name);

export const visitor = async () => (await ask("/ui/api/visitor")).json();
export const models = async () => (await ask("/ui/api/models")).json();
export const memory = async () => (await ask("/ui/api/memory")).json();
export const requests = async (after) => (await ask(`/ui/api/requests/${after}`)).json();
export const metrics = async () => (await ask("/metrics")).text();

const modelPath = (name, version) => `/ui/api/v2/models/${segment(name)}${version ? `/versions/${segment(version)}` : ""}`;

export const metadata = async (name, version) => (await ask(modelPath(name, version))).json();
export const config = async (name, version) => exactParse(await (await ask(`${modelPath(name, version)}/config`)).text());

function post(path, body, headers) {
  return ask(path, { method: "POST", body, headers });
}

export async function change(name, verb) {
  await post(`/ui/api/v2/repository/models/${segment(name)}/${verb}`, "{}", { "Content-Type": "application/json" });
}

// An inference: JSON first, then the bytes of the tensors. Returns both parts of the answer, and the time of their arrival.
export async function infer(name, version, head, parts, token) {
  const text = new TextEncoder().encode(exactJson(head));
  const begun = performance.now();
  const response = await post(`${modelPath(name, version)}/infer`, new Blob([text, ...parts]), {
    "Content-Type": "application/octet-stream",
    "Inference-Header-Content-Length": String(text.length),
    "nerite-page-trace": token,
  });
  const answered = performance.now();
  const all = new Uint8Array(await response.arrayBuffer());
  const ended = performance.now();
  const length = Number(response.headers.get("inference-header-content-length") || all.length);
  const answer = exactParse(new TextDecoder().decode(all.subarray(0, length)));
  return { answer, tail: all.subarray(length), answeredMs: answered - begun, totalMs: ended - begun };
}

// The responses of a decoupled model, as they come. `each` is called with one object for each.
export async function stream(name, version, body, token, each) {
  const begun = performance.now();
  const response = await post(`${modelPath(name, version)}/generate_stream`, exactJson(body), {
    "Content-Type": "application/json",
    "nerite-page-trace": token,
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return { totalMs: performance.now() - begun };
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) if (event.startsWith("data:")) each(exactParse(event.slice(5)));
  }
}

// A unique number of a request in this tab.
export const freshToken = () => crypto.getRandomValues(new BigUint64Array(1))[0].toString();

// The trace of a request. It exists a moment after the answer, because the server first has to see the answer sent.
export async function trace(token) {
  for (let patience = 20; patience > 0; patience -= 1) {
    const found = await (await ask(`/ui/api/traces/${token}`)).json();
    if (found) return found;
    await new Promise((wake) => setTimeout(wake, 50));
  }
  return null;
}
