// The small part of charting that this page needs: scales, ticks, a frame, and paths.

import { keep, s, set } from "./dom.js";

/** A scale from values to pixels, with ticks. */
export function linear([low, high], [from, to]) {
  const span = high - low || 1;
  const scale = (value) => from + ((value - low) / span) * (to - from);
  scale.invert = (pixel) => low + ((pixel - from) / (to - from)) * span;
  scale.ticks = (count) => steps(low, high, count);
  return scale;
}

/** The same for values that are read by their ratio. */
export function logarithmic([low, high], range) {
  const inner = linear([Math.log10(low), Math.log10(high)], range);
  const scale = (value) => inner(Math.log10(value));
  scale.invert = (pixel) => 10 ** inner.invert(pixel);
  scale.ticks = () => {
    const found = [];
    const multiples = high / low > 50 ? [1, 3] : high / low > 8 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 8];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
      for (const multiple of multiples) found.push(multiple * 10 ** power);
    }
    return found.filter((value) => value >= low * 0.999 && value <= high * 1.001);
  };
  return scale;
}

/** The same for errors: near zero is where they differ, and zero is one of them. */
export function root([low, high], range) {
  const inner = linear([Math.sqrt(low), Math.sqrt(high)], range);
  const scale = (value) => inner(Math.sqrt(value));
  scale.ticks = (count) => {
    const powers = [-2, -1, 0, 1, 2].flatMap((power) => [1, 2, 5].map((multiple) => multiple * 10 ** power));
    const apart = Math.abs(range[1] - range[0]) / (2 * count);
    const clear = (kept, value) => Math.abs(scale(value) - scale(kept.at(-1))) >= apart;
    return powers
      .filter((value) => value <= high)
      .reduce((kept, value) => (clear(kept, value) ? [...kept, value] : kept), [low]);
  };
  return scale;
}

/** Round numbers inside an interval. */
function steps(low, high, count) {
  const raw = (high - low || 1) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((multiple) => multiple * power).find((candidate) => candidate >= raw);
  const ticks = [];
  for (let number = Math.ceil(low / step - 1e-9); number * step <= high + step * 1e-9; number += 1) {
    ticks.push(number * step);
  }
  return ticks;
}

/** A line through points, or nothing where there are none. */
export function line(points) {
  return points.map(([x, y], place) => `${place ? "L" : "M"}${x.toFixed(2)} ${y.toFixed(2)}`).join("");
}

/** The outline of a histogram that stands on `floor`. */
export function steppedArea(edges, heights, x, y, floor) {
  const corners = heights.flatMap((height, bin) => [
    [x(edges[bin]), y(height)],
    [x(edges[bin + 1]), y(height)],
  ]);
  return `${line([[x(edges[0]), floor], ...corners, [x(edges.at(-1)), floor]])}Z`;
}

/** An SVG that is redrawn in true pixels whenever its box changes its width; `draw` gives its width and height. */
export function figure(box, label, draw) {
  const svg = s("svg", { role: "img", "aria-label": label, class: "chart" });
  box.replaceChildren(svg);
  let width = 0;
  const redraw = () => {
    width = box.clientWidth;
    if (width === 0) return;
    const [drawn, height] = draw(svg, width);
    set(svg, { viewBox: `0 0 ${drawn} ${height}`, width: drawn, height });
    box.classList.toggle("wide", drawn > width);
    set(box, { tabindex: drawn > width ? 0 : null }); // keys can scroll it then
  };
  new ResizeObserver(() => box.clientWidth !== width && redraw()).observe(box);
  return { svg, redraw };
}

/** Ticks along the bottom: a short text under each, a hairline above where `top` is given. */
export function axisBelow(group, ticks, scale, { floor, top = floor, format }) {
  keep(group, ticks, () => s("g", {}, s("line"), s("text", { class: "tick", "text-anchor": "middle" })), (g, tick) => {
    const x = scale(tick);
    set(g.children[0], { class: "grid", x1: x, x2: x, y1: top, y2: floor });
    set(g.children[1], { x, y: floor + 18 });
    g.children[1].textContent = format(tick);
  });
}

/** Ticks along the left, with hairlines across. */
export function axisLeft(group, ticks, scale, { left, right, format }) {
  keep(group, ticks, () => s("g", {}, s("line"), s("text", { class: "tick", "text-anchor": "end" })), (g, tick) => {
    const y = scale(tick);
    set(g.children[0], { class: "grid", x1: left, x2: right, y1: y, y2: y });
    set(g.children[1], { x: left - 8, y: y + 4 });
    g.children[1].textContent = format(tick);
  });
}
