// Branches beside a shortcut: what is left of each, of its heads, and of the stream that all add to.

import { figure } from "./chart.js";
import { h, keep, s, set, write } from "./dom.js";
import { whole } from "./words.js";

const CLOSEST = 72; // pixels between two branches, before the picture scrolls
const WIDEST = 96; // of a box
const LETTER = 6.8; // pixels of a small one
const TOP = 56; // where boxes begin, below their labels
const STEM = 16; // between a box and the stream
const SQUARE = 12, LEAST_SQUARE = 3, GAP = 3, INSET = 6; // of heads in a box

/** The picture of the branches, hidden where there are none; give its `show` an answer of the service. */
export function mountBlocks({ part, box, table, lead }) {
  let blocks = [];
  const { svg, redraw } = figure(box, "Branches beside the stream", (chart, width) => draw(chart, width, blocks));
  svg.append(...["streams", "branches", "widths"].map((name) => s("g", { class: name })));
  return {
    show(preview) {
      blocks = preview.blocks;
      part.hidden = table.hidden = blocks.length === 0;
      if (blocks.length === 0) return;
      const squares = blocks.some((block) => block.heads_before > 0) ? ", squares in them heads of attention" : "";
      write(lead, `${inAll(blocks)} Boxes are branches in the order they run${squares}, the band is the stream that `
        + "they add to. Outlined is the original, filled what is kept, dashed what went.");
      set(svg, { "aria-label": `${inAll(blocks)} ${blocks.map(inWords).join(" ")}` });
      redraw();
      table.replaceChildren(asTable(blocks));
    },
  };
}

function draw(svg, room, blocks) {
  if (blocks.length === 0) return [room, 0];
  const step = Math.max(CLOSEST, room / blocks.length);
  const width = step * blocks.length;
  const height = room < 480 ? 96 : 132;
  const size = sizes(blocks, height);
  const floor = TOP + height;
  const band = Math.max(...blocks.map((block) => size(block.stream_before)));
  const middle = floor + STEM + band / 2;

  const names = apart(blocks.map((block) => block.name), Math.floor((step - 6) / LETTER));
  const [streams, branches, widths] = svg.children;
  drawStreams(streams, widths, segmentsOf(blocks), { step, size, middle, below: middle + band / 2 });
  keep(branches, blocks, branch, (g, block, place) => {
    const wide = Math.min(WIDEST, step - 14);
    const end = middle - size(block.stream_before) / 2;
    drawBranch(g, block, { x: (place + 0.5) * step, wide, floor, end, size, text: names[place] });
  });
  return [width, middle + band / 2 + 46];
}

/** The stream below, and how many of its channels are kept. */
function drawStreams(group, labels, segments, { step, size, middle, below }) {
  const lying = (node, { from, to }, channels) =>
    set(node, { x: from * step, width: (to - from) * step, y: middle - size(channels) / 2, height: size(channels) });
  keep(group, segments, pair, (g, segment) => {
    lying(g.children[0], segment, segment.before);
    lying(g.children[1], segment, segment.after);
  });
  keep(labels, segments, () => s("g", {}, s("text", { class: "count" }), s("text", { class: "of" })), (g, segment) => {
    const x = segment.from * step + 1;
    const unit = (segment.to - segment.from) * step > 120 ? " channels" : "";
    write(set(g.children[0], { x, y: below + 22 }), whole(segment.after));
    write(set(g.children[1], { x, y: below + 38 }), `of ${whole(segment.before)}${unit}`);
  });
}

function drawBranch(g, block, { x, wide, floor, end, size, text }) {
  const [stem, was, is, heads, name, count, of, title] = g.children;
  const left = x - wide / 2;
  const tall = size(block.units_before);
  const filled = size(block.units_after);
  set(g, { class: block.gone ? "gone" : null });
  set(stem, { x1: x, x2: x, y1: floor, y2: end });
  set(was, { x: left, y: floor - tall, width: wide, height: tall, rx: 3 });
  set(is, { x: left, y: floor - filled, width: wide, height: filled, rx: Math.min(3, filled / 2) });
  drawHeads(heads, block.gone ? [] : block.heads, { left, top: floor - tall, wide, tall });
  write(set(name, { x, y: 12 }), text);
  write(set(count, { x, y: 31 }), block.gone ? "gone" : whole(block.units_after));
  write(set(of, { x, y: 47 }), `of ${whole(block.units_before)}`);
  write(title, inWords(block));
}

/** A square a head, filled by the part of its dimensions that is kept. */
function drawHeads(group, heads, { left, top, wide, tall }) {
  const { side, columns } = grid(heads.length, wide - 2 * INSET, tall - 2 * INSET);
  keep(group, heads, pair, (g, head, place) => {
    const x = left + INSET + (place % columns) * (side + GAP);
    const y = top + INSET + Math.floor(place / columns) * (side + GAP);
    const filled = head.alive ? Math.max(2, side * shareOf(head)) : 0;
    set(g.children[0], { x, y, width: side, height: side });
    set(g.children[1], { x, y: y + side - filled, width: side, height: filled });
  });
}

/** The largest squares that fit into a box. */
function grid(count, wide, tall) {
  for (let side = SQUARE; ; side -= 1) {
    const columns = Math.max(1, Math.floor((wide + GAP) / (side + GAP)));
    if (side === LEAST_SQUARE || Math.ceil(count / columns) * (side + GAP) - GAP <= tall) return { side, columns };
  }
}

function branch() {
  const labels = ["name", "count", "of"].map((name) => s("text", { class: name }));
  const outlines = [s("line", { class: "stem" }), s("rect", { class: "was" }), s("rect", { class: "is" })];
  return s("g", {}, ...outlines, s("g", { class: "heads" }), ...labels, s("title"));
}

function pair() {
  return s("g", {}, s("rect", { class: "was" }), s("rect", { class: "is" }));
}

/** Branches in a row that add to streams of one width. */
function segmentsOf(blocks) {
  const segments = [];
  blocks.forEach(({ stream_before: before, stream_after: after }, place) => {
    const last = segments.at(-1);
    if (last?.before === before && last.after === after) last.to = place + 1;
    else segments.push({ before, after, from: place, to: place + 1 });
  });
  return segments;
}

function sizes(blocks, height) {
  const most = Math.max(...blocks.flatMap((block) => [block.units_before, block.stream_before]));
  return (units) => (units === 0 ? 0 : Math.max(2, Math.sqrt(units / most) * height));
}

/** Names that fit without what all begin with: their beginning says which block, their end which layer. */
function apart(names, letters) {
  let same = 0;
  while (names.length > 1 && names.every((name) => name[same] !== undefined && name[same] === names[0][same])) same += 1;
  const start = names[0].lastIndexOf("_", same - 1) + 1;
  return names.map((name) => {
    const own = name.slice(start);
    const head = Math.floor((letters - 1) / 2);
    return own.length <= letters ? own : `${own.slice(0, head)}…${own.slice(own.length - (letters - 1 - head))}`;
  });
}

function shareOf(head) {
  const before = head.query_keys_before + head.values_before;
  return before === 0 ? 1 : (head.query_keys_after + head.values_after) / before;
}

function inAll(blocks) {
  const sum = (count) => blocks.reduce((total, block) => total + count(block), 0);
  const stay = `${whole(sum((block) => Number(!block.gone)))} of ${whole(blocks.length)} branches stay`;
  const heads = sum((block) => block.heads_before);
  return heads === 0 ? `${stay}.` : `${stay}, ${whole(sum((block) => block.heads_after))} of ${whole(heads)} heads.`;
}

function inWords(block) {
  const stream = `the stream keeps ${block.stream_after} of ${block.stream_before} channels.`;
  if (block.gone) return `${block.name}: gone, a constant is left; ${stream}`;
  const heads = block.heads_before === 0 ? "" : ` ${block.heads_after} of ${block.heads_before} heads,`;
  return `${block.name}:${heads} ${block.units_after} of ${block.units_before} units; ${stream}`;
}

/** How many dimensions each head that lives keeps: all keep equally many. */
function ofEach(block, part) {
  if (block.heads_before === 0) return "–";
  const living = block.heads.find((head) => head.alive);
  return `${whole(living ? living[`${part}_after`] : 0)} of ${whole(block.heads[0][`${part}_before`])}`;
}

function asTable(blocks) {
  const titles = ["branch", "units", "heads", "queries, keys a head", "values a head", "stream"];
  const rows = blocks.map((block) => h("tr", {},
    h("th", { scope: "row" }, block.name),
    h("td", {}, block.gone ? "gone" : `${whole(block.units_after)} of ${whole(block.units_before)}`),
    h("td", {}, block.heads_before === 0 ? "–" : `${block.heads_after} of ${block.heads_before}`),
    h("td", {}, ofEach(block, "query_keys")),
    h("td", {}, ofEach(block, "values")),
    h("td", {}, `${whole(block.stream_after)} of ${whole(block.stream_before)}`)));
  return h("table", {},
    h("thead", {}, h("tr", {}, ...titles.map((title) => h("th", { scope: "col" }, title)))), h("tbody", {}, ...rows));
}
