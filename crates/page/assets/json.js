// How are JSON texts read and written so that integers of 64 bits keep their digits?

// A text, an integer or a real number. Texts come first, so that digits in a text are no numbers.
const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?/g;

// Each text gets the first letter `t`, and an integer that a Number would round becomes a text with the first letter `i`.
function mark(token) {
  if (token.startsWith('"')) return `"t${token.slice(1)}`;
  const isRounded = /^-?\d+$/.test(token) && !Number.isSafeInteger(Number(token));
  return isRounded ? `"i${token}"` : token;
}

function unmark(_, value) {
  if (typeof value === "string") return value.startsWith("i") ? BigInt(value.slice(1)) : value.slice(1);
  if (value === null || typeof value !== "object" || Array.isArray(value)) return value;
  return Object.fromEntries(Object.entries(value).map(([name, one]) => [name.slice(1), one]));
}

// As JSON.parse, but integers that a Number would round are BigInts.
export function exactParse(text) {
  // JSON.parse complains of the text as it was written, and not of its marks.
  JSON.parse(text);
  return JSON.parse(text.replace(TOKEN, mark), unmark);
}

// As JSON.stringify, but BigInts are written as integers. With a `line` break, each element has a line of its own.
export function exactJson(value, line = "") {
  const inner = line && `${line}  `;
  const within = (open, parts, close) => (parts.length ? `${open}${inner}${parts.join(`,${inner}`)}${line}${close}` : open + close);
  if (typeof value === "bigint") return String(value);
  if (Array.isArray(value)) return within("[", value.map((one) => exactJson(one, inner)), "]");
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  return within("{", Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}:${line && " "}${exactJson(one, inner)}`), "}");
}
