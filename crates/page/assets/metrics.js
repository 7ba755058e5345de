// What do the metrics say, and how have they changed?

const KEPT = 180;
const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

const FIELDS = {
  nv_inference_request_success: "success",
  nv_inference_request_failure: "failure",
  nerite_model_run_rows_total: "rows",
  nv_inference_exec_count: "runs",
  nv_inference_request_duration_us: "requestUs",
  nv_inference_queue_duration_us: "queueUs",
  nv_inference_compute_input_duration_us: "inputUs",
  nv_inference_compute_infer_duration_us: "inferUs",
  nv_inference_compute_output_duration_us: "outputUs",
  nv_inference_pending_request_count: "pending",
  nerite_model_ready: "ready",
};

const unescape = (text) => text.replace(/\\(.)/g, (_, next) => (next === "n" ? "\n" : next));

// The samples of one metrics response: by the identifier of the model, and all others by name and label.
export function read(text, at) {
  const models = new Map();
  const others = new Map();
  for (const line of text.split("\n")) {
    if (line.startsWith("#") || line === "") continue;
    const match = LINE.exec(line);
    if (!match) continue;
    const [, name, labelText = "", valueText] = match;
    const labels = Object.fromEntries([...labelText.matchAll(LABEL)].map(([, key, value]) => [key, unescape(value)]));
    const value = Number(valueText);
    const field = FIELDS[name];
    if (field && labels.model !== undefined) {
      const identifier = labels.namespace ? `${labels.namespace}::${labels.model}` : labels.model;
      if (!models.has(identifier)) models.set(identifier, { name: labels.model, versions: new Map() });
      const model = models.get(identifier);
      model[field] = (model[field] || 0) + value;
      if (field === "ready") model.versions.set(labels.version, value > 0);
    } else {
      const only = labels.reason || labels.kind || labels.state || "";
      others.set(only ? `${name}.${only}` : name, value);
    }
  }
  return { at, models, others };
}

// The last samples, oldest first.
export class History {
  constructor() {
    this.samples = [];
  }

  add(sample) {
    const last = this.samples.at(-1);
    // A counter that went back means that the server was restarted.
    const restarted = last && total(sample, "success") < total(last, "success");
    if (restarted) this.samples = [];
    this.samples.push(sample);
    if (this.samples.length > KEPT) this.samples.shift();
  }

  get last() {
    return this.samples.at(-1);
  }

  // The increase per second of a function of a sample, between each two samples: [time, rate].
  rates(of) {
    return this.pairs((before, after) => (of(after) - of(before)) / ((after.at - before.at) / 1000));
  }

  // The mean time in µs of one event, between each two samples. Null if there was no event.
  means(sum, count) {
    return this.pairs((before, after) => {
      const events = count(after) - count(before);
      return events > 0 ? (sum(after) - sum(before)) / events : null;
    });
  }

  pairs(of) {
    return this.samples.slice(1).map((after, at) => [after.at, of(this.samples[at], after)]);
  }

  values(of) {
    return this.samples.map((sample) => [sample.at, of(sample)]);
  }

  // The sample of about this many ms ago.
  since(ms) {
    const from = (this.last?.at || 0) - ms;
    return this.samples.find((sample) => sample.at >= from) || this.last;
  }
}

export const field = (identifier, key) => (sample) => sample.models.get(identifier)?.[key] || 0;
export const other = (key) => (sample) => sample.others.get(key) || 0;

export function total(sample, key) {
  let sum = 0;
  for (const model of sample.models.values()) sum += model[key] || 0;
  return sum;
}

export const totalOf = (key) => (sample) => total(sample, key);

// Bytes copied, by reason.
export function copies(sample) {
  const prefix = "nerite_copied_bytes_total.";
  return [...sample.others].filter(([name]) => name.startsWith(prefix)).map(([name, value]) => [name.slice(prefix.length), value]);
}

// What a model is called: its name, or its identifier if models of several repositories have the name. `all` has their names by their identifiers.
export function label(all, identifier) {
  const name = all.get(identifier) ?? identifier;
  let count = 0;
  for (const other of all.values()) if (other === name) count += 1;
  return count > 1 ? identifier : name;
}

// The identifiers of the models with the most recent load first.
export function busiest(history, count) {
  const { last } = history;
  if (!last) return [];
  const before = history.samples[0];
  const grown = (name) => field(name, "success")(last) - field(name, "success")(before);
  return [...last.models.keys()].sort((a, b) => grown(b) - grown(a) || (a < b ? -1 : 1)).slice(0, count);
}
