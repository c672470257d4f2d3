// The trade-off of a context, with the place of the network that is shown.

import { axisBelow, axisLeft, figure, line, logarithmic, root } from "./chart.js";
import { s, set, write } from "./dom.js";
import { measured, percent, ratio, shown } from "./words.js";

const HEIGHT = 300;
const MARGIN = { top: 30, right: 14, bottom: 46, left: 46 };

/** The chart; a click on it asks for the nearest point, given to `choose`. */
export function mountCurve(model, box, choose) {
  const { measure } = model;
  let latest = null;
  let places = [];
  const { svg, redraw } = figure(box, `Validation ${measure.name} against ratio`, (chart, width) => {
    places = draw(chart, width, latest, measure);
    return [width, HEIGHT];
  });
  svg.append(
    s("g"), s("g"), s("line", { class: "reference" }), s("text", { class: "tick", "text-anchor": "end" }),
    s("path", { class: "curve" }), s("g", { class: "dots" }),
    s("g", { class: "here" }, s("circle", { r: 11, class: "halo" }), s("circle", { r: 5.5 }), s("text")),
    s("text", { class: "axis", "text-anchor": "end" }, "times fewer weights →"),
    s("text", { class: "axis" }, `${measure.name}, %, root scale`),
    s("text", { class: "missing", y: 24 }, missingOf(measure)),
  );
  svg.addEventListener("click", (event) => {
    const x = event.clientX - svg.getBoundingClientRect().left;
    const nearest = places.toSorted((a, b) => Math.abs(a.x - x) - Math.abs(b.x - x))[0];
    if (nearest) choose(nearest);
  });
  return {
    show(preview) {
      latest = preview;
      const { here } = preview;
      const known = here.error !== null || preview.curve.some((point) => point.error !== null);
      const place = `You are here: ${ratio(here.ratio)} times fewer weights, ${measured(here.error, model)}`;
      set(svg, { "aria-label": known ? place : `No ${measure.name} is known`, class: known ? "chart" : "chart unknown" });
      redraw();
    },
  };
}

function missingOf({ name }) {
  const which = name === "error" ? "labelled images" : "examples with targets";
  return `No ${name} is known: the run has no ${which} of this kind.`;
}

function draw(svg, width, preview, measure) {
  if (preview === null) return [];
  const { here, report } = preview;
  const known = preview.curve.filter((point) => point.error !== null);
  const points = here.error === null ? known : [...known, here];
  if (points.length === 0) return [];
  const ratios = points.map((point) => point.ratio);
  const errors = [...points.map((point) => point.error), report.error_before ?? 0];
  const [left, right] = [MARGIN.left, width - MARGIN.right];
  const [top, floor] = [MARGIN.top, HEIGHT - MARGIN.bottom];
  const x = logarithmic([Math.min(...ratios) / 1.12, Math.max(...ratios) * 1.12], [left, right]);
  // What is right is at the end that the name says: no error below, all of an overlap above.
  const ends = measure.higher_is_better ? [top, floor] : [floor, top];
  const y = root([0, Math.max(...errors, 0.5) * 1.08], ends);
  const [below, beside, reference, pretrained, curve, dots, mark, across, up] = svg.children;

  const ticks = x.ticks();
  const room = Math.ceil(ticks.length / Math.max(2, Math.floor((right - left) / 52)));
  const some = ticks.filter((_, place) => place % room === 0);
  axisBelow(below, some, x, { floor, format: (value) => `${Number(value.toPrecision(3))}×` });
  axisLeft(beside, y.ticks(4), y, { left, right, format: (value) => String(Number(shown(value, measure).toFixed(2))) });
  set(across, { x: right, y: HEIGHT - 4 });
  set(up, { x: 0, y: 14 });

  const full = report.error_before;
  const before = full === null ? floor : y(full);
  const visibility = full === null ? "hidden" : null;
  set(reference, { x1: left, x2: right, y1: before, y2: before, visibility });
  set(pretrained, { x: right, y: floor - before > 20 ? before + 15 : before - 6, visibility });
  write(pretrained, `full network ${percent(shown(full, measure))}`);

  const place = (point) => [x(point.ratio), y(point.error)];
  set(curve, { d: line(known.map(place)) });
  dots.replaceChildren(...known.map((point) => {
    const [cx, cy] = place(point);
    return s("circle", { cx, cy, r: 2.5 });
  }));
  const titled = up.getComputedTextLength();
  drawHere(mark, here.error === null ? null : place(here), { left, titled, falls: measure.higher_is_better });
  return known.map(({ ratio, threshold, budget = null }) => ({ x: x(ratio), threshold, budget }));
}

function drawHere(mark, place, { left, titled, falls }) {
  set(mark, { visibility: place === null ? "hidden" : null });
  if (place === null) return;
  const [x, y] = place;
  const late = x > left + 96; // the curve rises to the right, or falls, so the room is on the left
  const below = falls || (y < MARGIN.top + 12 && x - 92 < titled); // the title of the axis is there
  set(mark, { transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})` });
  set(mark.children[2], { x: late ? -12 : -4, y: (late ? -12 : -20) * (below ? -1.6 : 1), "text-anchor": late ? "end" : "start" });
  write(mark.children[2], "you are here");
}
