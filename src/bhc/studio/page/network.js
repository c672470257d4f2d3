// The network layer by layer: the outline is the original, what is filled is kept.

import { figure, line } from "./chart.js";
import { h, keep, s, set, write } from "./dom.js";
import { fitted, whole } from "./words.js";

const CLOSEST = 40; // pixels between two rows of units, before the picture scrolls
const BAR = 7;
const LETTER = 6.8; // pixels of a small one
const LEAST_LETTERS = 7; // fewer of a longer name say nothing

/** The picture of the network; give its `show` an answer of the service. */
export function mountNetwork(model, { box, table, lead }) {
  let shown = null;
  const title = "The network, layer by layer";
  const { svg, redraw } = figure(box, title, (chart, width) => draw(chart, width, model, shown));
  const parts = ["outline", "kept", "pixels", "bars", "labels", "names"];
  svg.append(...parts.map((name) => s("g", { class: name })));
  return {
    show(preview) {
      shown = preview;
      const { weights_after, weights_before, without_multiples: without } = preview.report;
      const rounded = without ? `, rounded up from ${whole(without.weights)}` : "";
      const kept = `${whole(weights_after)} of ${whole(weights_before)} weights stay${rounded}.`;
      const scale = "heights grow with the square root of the units";
      write(lead, `${kept} Outlined is the original, filled what is kept; ${scale}.`);
      set(svg, { "aria-label": `${kept} ${preview.layers.map(inWords).join(" ")}` });
      redraw();
      table.replaceChildren(asTable(preview.layers));
    },
  };
}

/** A small silhouette of a network for cards. */
export function silhouette(layers, width, height) {
  const columns = columnsOf(layers);
  const size = sizes(columns, height);
  const at = (place) => (place / (columns.length - 1)) * width;
  const outline = (pick) => {
    const edge = columns.map((column, place) => [at(place), size(column[pick]) / 2]);
    const below = edge.map(([x, y]) => [x, height / 2 + y]).reverse();
    return `${line([...edge.map(([x, y]) => [x, height / 2 - y]), ...below])}Z`;
  };
  return s("svg", { viewBox: `-1 -1 ${width + 2} ${height + 2}`, "aria-hidden": "true", class: "silhouette" },
    s("path", { class: "was", d: outline("before") }), s("path", { class: "is", d: outline("after") }));
}

function draw(svg, room, model, preview) {
  if (preview === null) return [room, 280];
  const { layers, report } = preview;
  const columns = columnsOf(layers);
  const picture = pixelsRead(model, layers[0]);
  const height = room < 480 ? 124 : 230;
  const side = picture === null ? 0 : height;
  const names = report.classes.map((output) => model.outputs[output]);
  const right = Math.max(...names.map((name) => name.length)) * LETTER + 24;
  const width = Math.max(room, side + (columns.length - 1) * CLOSEST + right);
  const top = 34, middle = top + height / 2, bottom = top + height;
  const size = sizes(columns, height);
  const first = side || 14;
  const at = (place) => first + (place / (columns.length - 1)) * (width - right - first - 7);

  const [outline, kept, pixels, bars, labels, nameTags] = svg.children;
  const bands = columns.slice(1).map((column, place) => ({ from: columns[place], to: column, place }));
  const band = (pick) => ({ from, to, place }) => {
    const gap = columns.length > 12 ? 4 : 9;
    const [x0, x1] = [at(place) + (place ? gap : side ? 6 : gap), at(place + 1) - gap];
    const [y0, y1] = [size(from[pick]) / 2, size(to[pick]) / 2];
    return `${line([[x0, middle - y0], [x1, middle - y1], [x1, middle + y1], [x0, middle + y0]])}Z`;
  };
  keep(outline, bands, () => s("path"), (path, one) => set(path, { d: band("before")(one) }));
  keep(kept, bands, () => s("path"), (path, one) => {
    set(path, { d: band("after")(one), class: one.to.joint ? "joint" : null });
  });
  drawPixels(pixels, picture, side, top);
  keep(bars, columns, () => s("g", {}, s("rect", { class: "was" }), s("rect", { class: "is" })), (g, column, place) => {
    g.toggleAttribute("hidden", side > 0 && place === 0);
    ["before", "after"].forEach((pick, which) => {
      const tall = size(column[pick]);
      const corner = Math.min(2, tall / 2);
      set(g.children[which], { x: at(place) - BAR / 2, y: middle - tall / 2, width: BAR, height: tall, rx: corner });
    });
  });
  const spacing = (width - right - first) / (columns.length - 1);
  const label = () => s("g", {}, s("text", { class: "count" }), s("text", { class: "of" }));
  keep(labels, columns, label, (g, column, place) => {
    const x = side > 0 && place === 0 ? side / 2 : at(place);
    g.children[0].textContent = whole(column.after);
    g.children[1].textContent = `of ${whole(column.before)}`;
    set(g.children[0], { x, y: bottom + 24 });
    set(g.children[1], { x, y: bottom + 40 });
  });
  drawNames(nameTags, bands, names, { at, middle, top, height, spacing, end: at(columns.length - 1) + 12 });
  return [width, bottom + 50];
}

/** Bits and names over the bands, classes at the end. */
function drawNames(group, bands, classes, { at, middle, top, height, spacing, end }) {
  const letters = Math.floor((spacing - 4) / LETTER);
  const tags = bands.filter(({ to }) => !to.joint).flatMap(({ to, place }) => {
    const x = (at(place) + at(place + 1)) / 2;
    const { name } = to.layer;
    const readable = name.length <= letters || letters >= LEAST_LETTERS;
    return [
      { text: readable ? fitted(name, letters) : "", x, y: top - 20, kind: "layer" },
      { text: bitsOf(to.layer, spacing < 78), x, y: top - 5, kind: isGone(to.layer) ? "layer" : "bits" },
    ];
  });
  const step = Math.min(17, height / classes.length);
  const size = Math.min(14, step);
  const ends = size < 7 ? [] : classes.map((text, place) => ({
    text, x: end, y: middle + (place - (classes.length - 1) / 2) * step + size * 0.36, kind: "class-name", size,
  }));
  keep(group, [...tags, ...ends], () => s("text"), (node, { text, x, y, kind, size: points = null }) => {
    write(node, text);
    set(node, { x, y, class: kind, "font-size": points });
  });
}

function drawPixels(group, picture, side, top) {
  if (picture === null) return group.replaceChildren();
  const { rows, columns, places } = picture;
  const [across, down] = [side / columns, side / rows];
  const cells = [...places].map((place) => {
    const [x, y] = [(place % columns) * across, top + Math.floor(place / columns) * down];
    return `M${x.toFixed(2)} ${y.toFixed(2)}h${across.toFixed(2)}v${down.toFixed(2)}h${(-across).toFixed(2)}z`;
  });
  if (group.children.length === 0) group.append(s("rect", { class: "was", rx: 4 }), s("path", { class: "is" }));
  set(group.children[0], { x: 0.5, y: top + 0.5, width: side - 1, height: side - 1 });
  set(group.children[1], { d: cells.join("") });
  return undefined;
}

/** Pixels that a first layer still reads; null where it reads no single pixels. */
function pixelsRead(model, layer) {
  const shape = model.image_shape;
  const [channels, rows, columns] = shape.length === 2 ? [1, ...shape] : shape;
  const first = model.inputs.kind === "image" && (channels === 1 || channels === 3); // and not last
  const single = first && layer.kind === "linear" && layer.inputs_before === channels * rows * columns;
  if (!single || layer.kept_inputs === null) return null;
  return { rows, columns, places: new Set(layer.kept_inputs.map((place) => place % (rows * columns))) };
}

/** Units between the layers. Where maps become rows of values, both counts stand side by side. */
function columnsOf(layers) {
  const columns = [{ before: layers[0].inputs_before, after: layers[0].inputs_after, layer: null, joint: false }];
  for (const layer of layers) {
    const last = columns.at(-1);
    if (layer.inputs_before !== last.before || layer.inputs_after !== last.after) {
      columns.push({ before: layer.inputs_before, after: layer.inputs_after, layer: null, joint: true });
    }
    columns.push({ before: layer.outputs_before, after: layer.outputs_after, layer, joint: false });
  }
  return columns;
}

function sizes(columns, height) {
  const most = Math.max(...columns.map((column) => column.before));
  return (units) => (units === 0 ? 0 : Math.max(2, Math.sqrt(units / most) * height));
}

/** Whether a layer went with its branch. */
function isGone(layer) {
  return layer.bits === null;
}

function bitsOf(layer, short = false) {
  if (isGone(layer)) return "gone";
  const unit = layer.bits === 1 ? "bit" : "bits";
  return `${layer.bits} ${short ? "b" : unit}`;
}

function inWords(layer) {
  if (isGone(layer)) return `${layer.name}: gone with its branch.`;
  const inputs = `${layer.inputs_after} of ${layer.inputs_before} inputs`;
  const outputs = `${layer.outputs_after} of ${layer.outputs_before} outputs`;
  return `${layer.name}: ${inputs}, ${outputs}, ${bitsOf(layer)}.`;
}

function asTable(layers) {
  const titles = ["layer", "inputs", "outputs", "weights", "bits"];
  const rows = layers.map((layer) => h("tr", {},
    h("th", { scope: "row" }, layer.name),
    h("td", {}, `${whole(layer.inputs_after)} of ${whole(layer.inputs_before)}`),
    h("td", {}, `${whole(layer.outputs_after)} of ${whole(layer.outputs_before)}`),
    h("td", {}, `${whole(layer.weights_after)} of ${whole(layer.weights_before)}`),
    h("td", {}, isGone(layer) ? "gone" : String(layer.bits))));
  return h("table", {},
    h("thead", {}, h("tr", {}, ...titles.map((title) => h("th", { scope: "col" }, title)))), h("tbody", {}, ...rows));
}
