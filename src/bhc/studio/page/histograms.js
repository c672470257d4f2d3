// Log dropout rates of all units, group under group, and one threshold through all of them: a handle to drag.

import { axisBelow, figure, linear, steppedArea } from "./chart.js";
import { keep, s, set, write } from "./dom.js";
import { fitted, threshold as inWords, whole } from "./words.js";

const HEAD = 34;
const FOOT = 26;
const SIDES = { left: 96, widest: 168, right: 74 };
const LETTER = 6.8; // pixels of one in a name
const STEP = 0.05;
const WHICH = { in: "inputs", out: "outputs", weight: "weights" };

/** The chart; `choose` is given the threshold while the handle moves. One that was `asked` by hand stays under it. */
export function mountHistograms(model, box, choose, asked) {
  const { least, most } = model.thresholds;
  let shown = null;
  let value = model.thresholds.default;
  let scale = null;
  const { svg, redraw } = figure(box, "Log dropout rates", (chart, width) => {
    const [height, x] = draw(chart, width, shown, value);
    scale = x;
    return [width, height];
  });
  set(svg, { role: "group" });
  const handle = s("g", {
    class: "handle", role: "slider", tabindex: 0, "aria-label": "Threshold",
    "aria-valuemin": least, "aria-valuemax": most, "aria-orientation": "horizontal",
  });
  handle.append(
    s("rect", { class: "grip", width: 56, height: 24, x: -28, y: 0, rx: 12 }),
    s("text", { y: 16.5, "text-anchor": "middle" }),
  );
  svg.append(
    s("defs", {}, s("clipPath", { id: "stays" }, s("rect")), s("clipPath", { id: "goes" }, s("rect"))),
    s("g"), s("g", { class: "rows" }), s("line", { class: "cut" }), handle,
  );

  const move = (next) => {
    const bounded = Math.min(most, Math.max(least, Math.round(next / STEP) * STEP));
    value = Number(bounded.toFixed(4));
    redraw();
    choose(value);
  };
  drags(svg, (x) => scale && move(scale.invert(x)));
  handle.addEventListener("keydown", (event) => {
    const [near, far] = [STEP, 10 * STEP];
    const moves = {
      ArrowLeft: value - near, ArrowDown: value - near, ArrowRight: value + near, ArrowUp: value + near,
      PageDown: value - far, PageUp: value + far, Home: least, End: most,
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    move(moves[event.key]);
  });
  return {
    show(preview) {
      shown = preview;
      value = asked.value.threshold ?? preview.threshold;
      redraw();
    },
  };
}

/** Calls `move` with a horizontal place while a pointer is down. */
function drags(svg, move) {
  const at = (event) => move(event.clientX - svg.getBoundingClientRect().left);
  svg.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    svg.setPointerCapture(event.pointerId);
    svg.querySelector(".handle").focus({ preventScroll: true });
    at(event);
  });
  svg.addEventListener("pointermove", (event) => svg.hasPointerCapture(event.pointerId) && at(event));
}

function draw(svg, width, preview, value) {
  if (preview === null) return [280, null];
  const { histograms } = preview;
  const tall = histograms.length <= 8 ? 44 : 28;
  const longest = Math.max(...histograms.map((one) => nameOf(one).length)) * LETTER + 8;
  const widest = Math.min(SIDES.widest, width / 3);
  const [left, right] = [Math.min(Math.max(SIDES.left, longest), widest), width - SIDES.right];
  const floor = HEAD + tall * histograms.length;
  const x = linear(reach(histograms, value), [left, right]);
  const cut = Math.min(right, Math.max(left, x(value)));
  const [defs, axis, rows, knife, handle] = svg.children;
  set(defs.children[0].firstChild, { x: 0, y: 0, width: cut, height: floor + 2 });
  set(defs.children[1].firstChild, { x: cut, y: 0, width: Math.max(0, width - cut), height: floor + 2 });
  axisBelow(axis, x.ticks(5), x, { floor: floor + 4, top: HEAD, format: (tick) => String(tick).replace("-", "−") });
  const make = () => s("g", {},
    s("path", { class: "stays", "clip-path": "url(#stays)" }), s("path", { class: "goes", "clip-path": "url(#goes)" }),
    s("line", { class: "floor" }), s("text", { class: "name" }), s("text", { class: "count", "text-anchor": "end" }));
  const frame = { tall, left, right, width };
  keep(rows, histograms, make, (g, one, place) => drawRow(g, one, x, { base: HEAD + tall * (place + 1), ...frame }));
  set(knife, { x1: cut, x2: cut, y1: 24, y2: floor + 4 });
  set(handle, { transform: `translate(${cut.toFixed(1)} 0)` });
  set(handle, { "aria-valuenow": value, "aria-valuetext": inWords(value) });
  write(handle.querySelector("text"), inWords(value));
  return [floor + FOOT, x];
}

function drawRow(group, histogram, x, { base, tall, left, right, width }) {
  const { edges, counts, kept } = histogram;
  const most = Math.sqrt(Math.max(...counts, 1));
  // Heights are roots of counts: the few units between the heaps matter most.
  const y = (count) => base - (Math.sqrt(count) / most) * (tall - 9);
  const visible = edges.findLastIndex((edge) => x(edge) <= left + 0.5);
  const first = Math.max(0, visible);
  const last = edges.findIndex((edge) => x(edge) >= right - 0.5);
  const until = last === -1 ? edges.length - 1 : last;
  const d = steppedArea(edges.slice(first, until + 1), counts.slice(first, until), x, y, base);
  const [stays, goes, floor, name, count] = group.children;
  set(stays, { d });
  set(goes, { d });
  set(floor, { x1: left, x2: right, y1: base, y2: base });
  set(name, { x: 0, y: base - 6 });
  set(count, { x: width, y: base - 6 });
  write(name, fitted(nameOf(histogram), Math.floor((left - 4) / LETTER)));
  write(count, `${whole(kept)} of ${whole(counts.reduce((sum, one) => sum + one, 0))}`);
}

function nameOf({ layer, which }) {
  return `${layer} ${WHICH[which]}`;
}

/** The bins that hold anything, and the threshold, in whole numbers. */
function reach(histograms, value) {
  let [low, high] = [value - 1, value + 1];
  for (const { edges, counts } of histograms) {
    low = Math.min(low, edges[counts.findIndex((count) => count > 0)] ?? low);
    high = Math.max(high, edges[counts.findLastIndex((count) => count > 0) + 1] ?? high);
  }
  return [Math.floor(low), Math.ceil(high)];
}
