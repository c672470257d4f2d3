// Inputs that are there: a mask to paint, with presets; or a switch for each channel.

import { byId, h, set } from "./dom.js";
import { sentence } from "./problems.js";

const PRESETS = [
  ["All", () => true],
  ["Middle", (row, column, rows, columns) => inner(row, rows) && inner(column, columns)],
  ["Top half", (row, column, rows) => row < rows / 2],
  ["Left half", (row, column, rows, columns) => column < columns / 2],
  ["Every 2nd row", (row) => row % 2 === 0],
];

/** The control of a model that knows of missing inputs. */
export function mountFeatures(model, asked) {
  if (!model.forms.features) return;
  byId("features-field").hidden = false;
  const { shape } = model.forms.features;
  const [channels, rows, columns] = shape.length === 2 ? [1, ...shape] : shape;
  if (rows === undefined) mountChannels(model, channels, asked);
  else mountMask({ channels, rows, columns, noun: model.inputs.kind === "image" ? "pixels" : "values" }, asked);
}

function mountMask(shape, asked) {
  const { rows, columns } = shape;
  const canvas = h("canvas", { class: "mask", width: columns, height: rows, role: "img" });
  const choose = (there) => asked.change({ features: places(there, shape) });
  const presets = PRESETS.map(([name, rule]) => {
    const there = grid(shape, (row, column) => rule(row, column, rows, columns));
    return h("button", { class: "quiet", type: "button", onclick: () => choose(there) }, name);
  });
  const help = h("p", { class: "note" }, `Paint over ${shape.noun} to take them away, or back.`);
  byId("features-presets").append(...presets);
  byId("features").append(canvas, help);

  let there = grid(shape, () => true);
  let brush = null;
  const touch = (event) => {
    const box = canvas.getBoundingClientRect();
    const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
    if (row < 0 || row >= rows || column < 0 || column >= columns) return;
    brush ??= !there[row * columns + column];
    there = there.slice();
    for (const [down, right] of [[0, 0], [0, 1], [1, 0], [1, 1]]) {
      if (row + down < rows && column + right < columns) there[(row + down) * columns + column + right] = brush;
    }
    choose(there);
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    brush = null;
    touch(event);
  });
  canvas.addEventListener("pointermove", (event) => canvas.hasPointerCapture(event.pointerId) && touch(event));
  asked.listen(({ features }) => {
    const told = features === null ? null : new Set(features);
    there = grid(shape, (row, column) => told === null || told.has(row * columns + column));
    set(canvas, { "aria-label": `${sentence(shape.noun)} that are there: ${there.filter(Boolean).length} of ${rows * columns}` });
    paintMask(canvas, there, shape);
  });
}

function mountChannels({ inputs }, count, asked) {
  const noun = inputs.kind === "row" ? "value" : "channel";
  const names = Array.from({ length: count }, (_, place) => inputs.names?.[place] ?? `${noun} ${place}`);
  const boxes = names.map((name) =>
    h("input", { type: "checkbox", "aria-label": sentence(name), onchange: () => choose() }),
  );
  const choose = () => {
    const chosen = boxes.flatMap((box, channel) => (box.checked ? [channel] : []));
    asked.change({ features: chosen.length === count ? null : chosen });
  };
  const labels = boxes.map((box, channel) => h("label", {}, box, names[channel]));
  byId("features").append(h("div", { class: "checks" }, ...labels));
  asked.listen(({ features }) => boxes.forEach((box, channel) => (box.checked = features?.includes(channel) ?? true)));
}

function paintMask(canvas, there, { rows, columns }) {
  const brush = canvas.getContext("2d");
  brush.clearRect(0, 0, columns, rows);
  brush.fillStyle = getComputedStyle(canvas).color;
  brush.globalAlpha = 0.36;
  there.forEach((is, place) => is && brush.fillRect(place % columns, Math.floor(place / columns), 1, 1));
}

function grid({ rows, columns }, rule) {
  return Array.from({ length: rows * columns }, (_, place) => rule(Math.floor(place / columns), place % columns));
}

/** Places in all channels; null where none is missing. */
function places(there, { channels, rows, columns }) {
  if (there.every(Boolean)) return null;
  const one = there.flatMap((is, place) => (is ? [place] : []));
  return Array.from({ length: channels }, (_, channel) => one.map((place) => channel * rows * columns + place)).flat();
}

function inner(place, size) {
  return place >= size / 4 && place < (3 * size) / 4;
}
