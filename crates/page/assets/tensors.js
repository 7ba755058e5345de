// How are the elements of a tensor converted to and from bytes?

import { exactParse } from "./json.js";

const ARRAYS = {
  BOOL: Uint8Array, UINT8: Uint8Array, INT8: Int8Array, UINT16: Uint16Array, INT16: Int16Array, UINT32: Uint32Array, INT32: Int32Array,
  UINT64: BigUint64Array, INT64: BigInt64Array, FP32: Float32Array, FP64: Float64Array, FP16: Uint16Array, BF16: Uint16Array,
};

export const isWide = (datatype) => datatype === "INT64" || datatype === "UINT64";
export const isReal = (datatype) => ["FP16", "BF16", "FP32", "FP64"].includes(datatype);
export const elementBytes = (datatype) => ARRAYS[datatype]?.BYTES_PER_ELEMENT;

const FLOAT = new Float32Array(1);
const BITS = new Uint32Array(FLOAT.buffer);

function toBf16(value) {
  FLOAT[0] = value;
  if (Number.isNaN(value)) return 0x7fc0;
  return ((BITS[0] + 0x7fff + ((BITS[0] >>> 16) & 1)) >>> 16) & 0xffff;
}

function fromBf16(half) {
  BITS[0] = half << 16;
  return FLOAT[0];
}

// Rounds to the nearest, ties to even.
function toFp16(value) {
  if (Number.isNaN(value)) return 0x7e00;
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0;
  const size = Math.abs(value);
  if (size >= 65520) return sign | 0x7c00;
  const exponent = Math.max(Math.floor(Math.log2(size || 2 ** -25)), -14);
  const unit = 2 ** (exponent - 10);
  const scaled = size / unit;
  const floor = Math.floor(scaled);
  const rest = scaled - floor;
  const rounded = floor + (rest > 0.5 || (rest === 0.5 && floor % 2 === 1) ? 1 : 0);
  return sign | (rounded + (exponent === -14 ? 0 : (exponent + 14) * 1024));
}

function fromFp16(half) {
  const sign = half & 0x8000 ? -1 : 1;
  const exponent = (half >> 10) & 31;
  const fraction = half & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent === 0 ? fraction * 2 ** -24 : (1024 + fraction) * 2 ** (exponent - 25));
}

const LIMITS = { INT8: [-128, 127], UINT8: [0, 255], INT16: [-32768, 32767], UINT16: [0, 65535], INT32: [-2147483648, 2147483647], UINT32: [0, 4294967295] };

function element(datatype, value) {
  if (datatype === "BOOL") {
    if (typeof value === "boolean" || value === 0 || value === 1) return Number(value);
    throw new Error(`${JSON.stringify(value)} is no truth value: write true or false`);
  }
  if (isWide(datatype)) {
    if (typeof value !== "bigint" && !Number.isInteger(value)) throw new Error(`${JSON.stringify(value)} is no integer`);
    const number = BigInt(value);
    const fits = datatype === "INT64" ? BigInt.asIntN(64, number) : BigInt.asUintN(64, number);
    if (fits !== number) throw new Error(`${number} does not fit ${datatype}`);
    return number;
  }
  if (typeof value !== "number") throw new Error(`${JSON.stringify(value)} is no number`);
  const limits = LIMITS[datatype];
  if (limits && (!Number.isInteger(value) || value < limits[0] || value > limits[1])) throw new Error(`${value} does not fit ${datatype}`);
  return datatype === "FP16" ? toFp16(value) : datatype === "BF16" ? toBf16(value) : value;
}

// The bytes of these elements.
export function encode(datatype, values) {
  if (datatype === "BYTES") return encodeTexts(values);
  const Type = ARRAYS[datatype];
  if (!Type) throw new Error(`this page cannot write tensors of type ${datatype}`);
  const array = new Type(values.length);
  for (let at = 0; at < values.length; at += 1) array[at] = element(datatype, values[at]);
  return new Uint8Array(array.buffer);
}

function encodeTexts(values) {
  const texts = values.map((value) => (value instanceof Uint8Array ? value : new TextEncoder().encode(String(value))));
  const all = new Uint8Array(texts.reduce((sum, text) => sum + 4 + text.length, 0));
  const view = new DataView(all.buffer);
  let at = 0;
  for (const text of texts) {
    view.setUint32(at, text.length, true);
    all.set(text, at + 4);
    at += 4 + text.length;
  }
  return all;
}

// The elements of these bytes. Texts that are no UTF-8 are shown by their length.
export function decode(datatype, data) {
  if (datatype === "BYTES") return decodeTexts(data);
  const Type = ARRAYS[datatype];
  if (!Type) return [];
  const array = new Type(data.slice().buffer, 0, Math.floor(data.length / Type.BYTES_PER_ELEMENT));
  if (datatype === "FP16") return Array.from(array, fromFp16);
  if (datatype === "BF16") return Array.from(array, fromBf16);
  return datatype === "BOOL" ? Array.from(array, (value) => value !== 0) : array;
}

function decodeTexts(data) {
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  const texts = [];
  for (let at = 0; at + 4 <= data.length;) {
    const length = view.getUint32(at, true);
    const bytes = data.subarray(at + 4, at + 4 + length);
    at += 4 + length;
    try {
      texts.push(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
    } catch {
      texts.push(`(${bytes.length} bytes that are no text)`);
    }
  }
  return texts;
}

// Parses JSON: its elements in order, and the shape of its brackets.
export function parse(datatype, text) {
  let value;
  try {
    value = isWide(datatype) ? exactParse(text) : JSON.parse(text);
  } catch (error) {
    throw new Error(`this is no JSON: ${error.message}`);
  }
  if (!Array.isArray(value)) value = [value];
  const shape = [];
  for (let inner = value; Array.isArray(inner); inner = inner[0]) shape.push(inner.length);
  const values = value.flat(Infinity);
  // JSON has no infinity. It is a number that is too large for a double.
  if (values.some((each) => each === Infinity || each === -Infinity)) throw new Error("a number of this array is too large");
  if (values.length !== shape.reduce((product, dim) => product * dim, 1)) throw new Error("rows of this array differ in length");
  return { values, shape };
}

// The shape for this many elements. Free dimensions take the sizes of the brackets, or the remaining elements.
export function resolve(dims, count, written) {
  if (written.length === dims.length && written.every((dim, at) => dims[at] < 0 || dims[at] === dim)) return written;
  const fixed = dims.reduce((product, dim) => (dim < 0 ? product : product * dim), 1);
  const free = dims.filter((dim) => dim < 0).length;
  const shape = (size) => dims.map((dim) => (dim < 0 ? size() : dim));
  if (free === 0) {
    if (fixed !== count) throw new Error(`the shape [${dims.join(", ")}] has ${fixed} elements, and ${count} are given`);
    return dims;
  }
  if (fixed === 0 || count % fixed !== 0) throw new Error(`${count} elements do not fit the shape [${dims.map((dim) => (dim < 0 ? "any" : dim)).join(", ")}]`);
  // The last free dimension takes all elements. The others are 1.
  let left = free;
  return shape(() => { left -= 1; return left === 0 ? count / fixed : 1; });
}
