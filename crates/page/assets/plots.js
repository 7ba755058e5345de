// How are numbers drawn over time?

import { el, svg } from "./dom.js";

const WINDOW_MS = 120_000;
const HEIGHT = 180;
const LEFT = 58;
const RIGHT = 10;
const TOP = 10;
const BOTTOM = 22;

// Round numbers from 0 to a bit above `max`.
function ticks(max) {
  if (!(max > 0)) return [0, 1];
  const rough = max / 3;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough);
  const count = Math.ceil(max / step);
  return Array.from({ length: count + 1 }, (_, at) => at * step);
}

// A plot over the last two minutes. `update` takes lines: {name, colour, points: [[ms, value or null]…]}.
export function plot(title, format) {
  const drawing = svg("svg", { class: "drawing", role: "img", height: HEIGHT, width: "100%" });
  const legend = el("ul", { class: "legend" });
  const tip = el("div", { class: "tip", hidden: true });
  const frame = el("div", { class: "frame" }, drawing, tip);
  const node = el("section", { class: "card plot", "aria-label": title }, el("h3", { text: title }), frame, legend);
  let lines = [];
  let now = 0;
  let pointed = null;

  const width = () => Math.max(drawing.clientWidth, 160);
  const x = (at) => LEFT + (1 - (now - at) / WINDOW_MS) * (width() - LEFT - RIGHT);

  function draw() {
    const visible = lines.map((line) => ({ ...line, points: line.points.filter(([at]) => at >= now - WINDOW_MS) }));
    const values = visible.flatMap((line) => line.points.map(([, value]) => value)).filter((value) => value !== null);
    const marks = ticks(Math.max(0, ...values));
    const top = marks.at(-1);
    const y = (value) => TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM);
    const parts = marks.flatMap((mark) => [
      svg("line", { class: "grid", x1: LEFT, x2: width() - RIGHT, y1: y(mark), y2: y(mark) }),
      text(LEFT - 8, y(mark) + 4, format(mark), "end"),
    ]);
    for (const [ago, label] of [[120, "2 min ago"], [60, "1 min"], [0, "now"]]) {
      const anchor = ago === 120 ? "start" : ago === 0 ? "end" : "middle";
      parts.push(text(x(now - ago * 1000), HEIGHT - 6, label, anchor));
    }
    for (const line of visible) {
      const path = svg("path", { class: `line ${line.colour}`, d: pathOf(line.points, y) });
      parts.push(path, ...alone(line.points).map(([at, value]) => svg("circle", { class: `point ${line.colour}`, cx: x(at), cy: y(value), r: 3 })));
    }
    if (pointed !== null) parts.push(svg("line", { class: "pointer", x1: pointed, x2: pointed, y1: TOP, y2: HEIGHT - BOTTOM }));
    drawing.replaceChildren(...parts);
    drawing.setAttribute("viewBox", `0 0 ${width()} ${HEIGHT}`);
    drawing.setAttribute("aria-label", `${title}: ${lines.map((line) => `${line.name} ${format(latest(line))}`).join(", ") || "nothing yet"}`);
  }

  function text(at, height, label, anchor) {
    const node = svg("text", { x: at, y: height, "text-anchor": anchor });
    node.textContent = label;
    return node;
  }

  function pathOf(points, y) {
    let path = "";
    let isDown = false;
    for (const [at, value] of points) {
      if (value === null) { isDown = false; continue; }
      path += `${isDown ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
      isDown = true;
    }
    return path;
  }

  function point(event) {
    const box = drawing.getBoundingClientRect();
    pointed = Math.min(Math.max(event.clientX - box.left, LEFT), width() - RIGHT);
    const at = now - (1 - (pointed - LEFT) / (width() - LEFT - RIGHT)) * WINDOW_MS;
    const rows = lines.map((line) => [line, nearest(line.points, at)]).filter(([, value]) => value !== null);
    tip.hidden = rows.length === 0;
    tip.replaceChildren(el("strong", { text: `${Math.max(0, Math.round((now - at) / 1000))} s ago` }),
      ...rows.map(([line, value]) => el("div", {}, el("i", { class: `dot ${line.colour}` }), `${line.name} ${format(value)}`)));
    tip.style.setProperty("left", `${Math.min(pointed + 10, box.width - tip.offsetWidth - 4)}px`);
    draw();
  }

  drawing.addEventListener("pointermove", point);
  drawing.addEventListener("pointerleave", () => { pointed = null; tip.hidden = true; draw(); });
  new ResizeObserver(draw).observe(frame);

  return {
    node,
    update(next, at) {
      lines = next;
      now = at;
      draw();
      const entries = lines.map((line) => el("li", {}, el("i", { class: `dot ${line.colour}` }), el("span", { text: line.name }), el("b", { text: format(latest(line)) })));
      legend.replaceChildren(...entries);
    },
  };
}

// The values without a neighbour, of which no line can be drawn.
const alone = (points) => points.filter(([, value], at) => value !== null && (points[at - 1]?.[1] ?? null) === null && (points[at + 1]?.[1] ?? null) === null);

const latest = (line) => line.points.findLast(([, value]) => value !== null)?.[1] ?? NaN;

function nearest(points, at) {
  let best = null;
  for (const [time, value] of points) {
    if (value !== null && (best === null || Math.abs(time - at) < Math.abs(best[0] - at))) best = [time, value];
  }
  return best && Math.abs(best[0] - at) < 5000 ? best[1] : null;
}

// Bars beside each other: [label, value, text, colour].
export function bars(rows, empty) {
  if (rows.length === 0) return el("p", { class: "hint", text: empty });
  const max = Math.max(...rows.map(([, value]) => value), 1e-12);
  return el("ul", { class: "bars" }, rows.map(([label, value, text, colour]) => el("li", {},
    el("span", { class: "bar-label", text: label }),
    el("span", { class: "bar-track" }, el("span", { class: `bar-fill ${colour || "c0"}`, style: { width: `${Math.max(0, (100 * value) / max)}%` } })),
    el("span", { class: "bar-value", text }))));
}
