// Inputs as elements, whatever they are: large where one is looked at, small on buttons.

import { h, s } from "./dom.js";
import { decoded, paint } from "./pictures.js";
import { sentence as upper } from "./problems.js";
import { figure, whole } from "./words.js";

const LANE = { width: 240, height: 40, edge: 3 }; // of a drawing that is stretched to its box
const [ALL_LANES, MOST, LEAST] = [228, 96, 18]; // pixels

const LARGE = { image, series: lanes, waveform: lanes, words, row: table, several: parts, none };
const SMALL = { image, series: lines, waveform: lines, words: sentence, row: bars, several: firstPart, none: () => null };

/** An input to look at. */
export function large(drawing) {
  return LARGE[drawing.kind](drawing);
}

/** An input on a button; null for what has no picture. */
export function small(drawing) {
  return SMALL[drawing.kind](drawing);
}

function image({ png }) {
  const canvas = h("canvas", { width: 1, height: 1, role: "img", "aria-label": "The picture" });
  decoded(png).then((pixels) => paint(canvas, pixels), () => {});
  return canvas;
}

/** Channels one above the other, each with its number. */
function lanes({ lines: channels, ranges, steps, left_out: more }) {
  const size = Math.max(LEAST, Math.min(MOST, ALL_LANES / channels.length));
  const rows = channels.map((values, channel) => {
    const lane = s("svg", { ...boxOf(1), "aria-hidden": "true" }, ...traced(values, ranges[channel], 0));
    lane.style.height = `${size}px`;
    return h("li", {}, h("span", {}, channels.length > 1 ? String(channel) : ""), lane);
  });
  const count = channels.length === 1 ? "1 channel" : `${whole(channels.length + more)} channels`;
  const told = `${count}, ${whole(steps)} steps${more ? `; the first ${channels.length} are shown` : ""}`;
  return h("figure", { class: "lanes" },
    h("ol", { role: "img", "aria-label": told }, ...rows), h("figcaption", { class: "note" }, told));
}

function lines({ lines: channels, ranges }) {
  const paths = channels.flatMap((values, channel) => traced(values, ranges[channel], channel));
  return s("svg", { ...boxOf(channels.length), "aria-hidden": "true" }, ...paths);
}

/** The line of a channel, and zero where it has both signs. A value that is missing is a gap. */
function traced(values, [least, most], lane) {
  const known = values.filter((value) => value !== null);
  const [low, high] = [Math.min(least, ...known), Math.max(most, ...known)];
  const { width, height, edge } = LANE;
  const y = (value) => (lane * height + edge + (1 - (value - low) / (high - low)) * (height - 2 * edge)).toFixed(2);
  const x = (place) => ((place / Math.max(values.length - 1, 1)) * width).toFixed(2);
  let pen = "M";
  const path = values.map((value, place) => {
    const to = value === null ? "" : `${pen}${x(place)} ${y(value)}`;
    pen = value === null ? "M" : "L";
    return to;
  });
  const zero = low < 0 && high > 0 ? [s("path", { class: "zero", d: `M0 ${y(0)}H${width}` })] : [];
  return [...zero, s("path", { class: "line", d: path.join("") })];
}

function boxOf(lanes) {
  return { class: "signal", viewBox: `0 0 ${LANE.width} ${lanes * LANE.height}`, preserveAspectRatio: "none" };
}

function words({ words: all, left_out: more }) {
  const pieces = all.flatMap((word) => [h("span", { class: word.startsWith("<") ? "unknown" : null }, word), " "]);
  return h("p", { class: "text" }, ...pieces, more ? h("span", { class: "note" }, `and ${whole(more)} more`) : null);
}

function sentence({ words: all }) {
  return h("span", { class: "sentence" }, all.join(" "));
}

function table({ columns, values, sizes, left_out: more }) {
  const rows = columns.map((name, place) => h("tr", {},
    h("th", { scope: "row" }, name), h("td", {}, bar(sizes[place])), h("td", {}, figure(values[place]))));
  const caption = more ? [h("p", { class: "note" }, `and ${whole(more)} more`)] : [];
  const box = { class: "scroll values", tabindex: "0", role: "region", "aria-label": "Values of the example" };
  return h("div", {}, h("div", box, h("table", {}, h("tbody", {}, ...rows))), ...caption);
}

function bar(size) {
  const filled = h("b");
  filled.style.width = `${100 * (size ?? 0)}%`;
  return h("i", { class: "bar", "aria-hidden": "true" }, filled);
}

/** Where each value lies in the range of its column. */
function bars({ sizes }) {
  const cells = sizes.map((size, place) => {
    const tall = Math.max(1, (size ?? 0) * LANE.height);
    return s("rect", { x: place + 0.1, y: LANE.height - tall, width: 0.8, height: tall });
  });
  const box = { class: "signal", viewBox: `0 0 ${sizes.length} ${LANE.height}`, preserveAspectRatio: "none" };
  return s("svg", { ...box, "aria-hidden": "true" }, ...cells);
}

function parts({ parts: all }) {
  const each = Object.entries(all).flatMap(([name, drawing]) => [h("dt", {}, name), h("dd", {}, large(drawing))]);
  return h("dl", { class: "parts" }, ...each);
}

function firstPart({ parts: all }) {
  const drawn = Object.values(all).find(({ kind }) => kind !== "none");
  return drawn === undefined ? null : small(drawn);
}

function none({ reason }) {
  return h("p", { class: "note" }, `${upper(reason)}.`);
}
