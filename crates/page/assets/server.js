// How is the server asked?

// Headers that the operator put calls behind. They are kept as long as this tab is open, and leave it for this server only.
const KEYS = "nerite-keys";

function keys() {
  try {
    return JSON.parse(sessionStorage.getItem(KEYS)) || {};
  } catch {
    return {};
  }
}

export function setKey(header, value) {
  sessionStorage.setItem(KEYS, JSON.stringify({ ...keys(), [header]: value }));
}

// The server answered, and refused.
export class Refused extends Error {
  constructor(status, text) {
    super(text || `the server answered with status ${status}`);
    this.status = status;
    // The header that the call wants, where the operator restricted it.
    this.header = (/expecting header '([^']+)'/.exec(this.message) || [])[1];
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
export const metrics = async () => (await ask("/metrics")).text();

const modelPath = (name, version) => `/ui/api/v2/models/${segment(name)}${version ? `/versions/${segment(version)}` : ""}`;

export const metadata = async (name, version) => (await ask(modelPath(name, version))).json();
export const config = async (name, version) => (await ask(`${modelPath(name, version)}/config`)).json();

function post(path, body, headers) {
  return ask(path, { method: "POST", body, headers });
}

export async function change(name, verb) {
  await post(`/ui/api/v2/repository/models/${segment(name)}/${verb}`, "{}", { "Content-Type": "application/json" });
}

// An inference: JSON first, then the bytes of the tensors. Gives both parts of the answer, and when they came.
export async function infer(name, version, head, parts, token) {
  const text = new TextEncoder().encode(JSON.stringify(head));
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
  const answer = JSON.parse(new TextDecoder().decode(all.subarray(0, length)));
  return { answer, tail: all.subarray(length), answeredMs: answered - begun, totalMs: ended - begun };
}

// Responses as they come, of a model that answers several times. `each` gets one object for each.
export async function stream(name, version, body, token, each) {
  const begun = performance.now();
  const response = await post(`${modelPath(name, version)}/generate_stream`, JSON.stringify(body), {
    "Content-Type": "application/json",
    "nerite-page-trace": token,
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return { totalMs: performance.now() - begun };
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) if (event.startsWith("data:")) each(JSON.parse(event.slice(5)));
  }
}

// A number that no other request of this tab has.
export const freshToken = () => crypto.getRandomValues(new BigUint64Array(1))[0].toString();

// What was noted of a request. It is there a moment after the answer: the server has first to see it sent.
export async function trace(token) {
  for (let patience = 20; patience > 0; patience -= 1) {
    const found = await (await ask(`/ui/api/traces/${token}`)).json();
    if (found) return found;
    await new Promise((wake) => setTimeout(wake, 50));
  }
  return null;
}
