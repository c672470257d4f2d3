// Examples of the run's validation sample: which are offered, and the buttons to take one.

import { h, set } from "./dom.js";
import { small } from "./inputs.js";
import { gainOf, paint, picture } from "./pictures.js";
import { sentence } from "./problems.js";
import { service } from "./service.js";

const OFFERED = 8;
const drawn = new Map();

/** Whether there is any. */
export function hasExamples(model) {
  return model.examples.some((group) => group.length > 0);
}

/** What an example is called. */
export function nounOf(model) {
  return model.inputs.kind === "image" ? "picture" : "example";
}

/** The first example of a class, which stands for it; null where there is none. */
export function firstOf(model, label) {
  if (!model.examples_by_class || model.examples[label].length === 0) return null;
  return { label, number: 0, place: model.examples[label][0] };
}

/** How an example is drawn, asked for once. */
export function drawingOf({ place }) {
  if (!drawn.has(place)) drawn.set(place, service.example(place).then(({ drawing }) => drawing));
  return drawn.get(place);
}

/** An example on a button: an element that is filled once it is there. */
export function faceOf(model, example) {
  if (model.inputs.kind === "image") {
    const canvas = h("canvas", { class: "face", width: 1, height: 1, "aria-hidden": "true" });
    picture(example).then((pixels) => paint(canvas, pixels, gainOf(model)), () => {});
    return canvas;
  }
  const box = h("span", { class: `face ${model.inputs.kind}` }, String(example.place));
  drawingOf(example).then((drawing) => {
    const face = small(drawing);
    if (face !== null) box.replaceChildren(face);
  }, () => {});
  return box;
}

/** Buttons for examples of the classes asked for: the way to try without a pointer. */
export function mountExamples(model, asked, parent, chosen) {
  const noun = nounOf(model);
  const box = h("div", { class: `thumbs ${model.inputs.kind}`, role: "group", "aria-label": `Example ${noun}s` });
  parent.append(box);
  const release = () => [...box.children].forEach((one) => set(one, { "aria-pressed": "false" }));
  let shown = null;
  asked.listen(({ classes }) => {
    const wanted = offered(model, classes);
    const key = wanted.map(({ place }) => place).join();
    if (shown === key) return;
    shown = key;
    box.replaceChildren(...wanted.map((example) => button(model, example, (pressed) => {
      release();
      set(pressed, { "aria-pressed": "true" });
      chosen(example);
    })));
  });
  return { release };
}

function button(model, example, press) {
  const { label, number, place } = example;
  const title = sentence(nounOf(model));
  const name = label === null ? `${title} ${place}` : `${title} ${number} of class ${model.classes[label]}`;
  const attributes = { class: "thumb", type: "button", "aria-pressed": "false", "aria-label": name };
  return h("button", { ...attributes, onclick: (event) => press(event.currentTarget) }, faceOf(model, example));
}

/** As evenly from the classes as they go into a row; the first of a class comes last, as it is on the class's button. */
function offered(model, classes) {
  const groups = model.examples_by_class ? classes.map((label) => of(model, label)) : [of(model, null)];
  const longest = Math.max(0, ...groups.map((group) => group.length));
  const turns = Array.from({ length: longest }, (_, turn) => groups.flatMap((group) => group.slice(turn, turn + 1)));
  return turns.flat().slice(0, OFFERED);
}

function of(model, label) {
  const all = model.examples[label ?? 0].map((place, number) => ({ label, number, place }));
  return label === null ? all : [...all.slice(1), ...all.slice(0, 1)];
}
