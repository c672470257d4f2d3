// Which classes: a picture of each, pressed or not; or its name alone.

import { byId, h, set, write } from "./dom.js";
import { faceOf, firstOf } from "./examples.js";

const DRAWN = ["image", "series", "waveform"]; // what a small picture tells apart

/** Buttons for the classes, in step with what is asked. */
export function mountClasses(model, asked) {
  if (!("classes" in model.conditions)) return;
  byId("classes-field").hidden = false;
  byId("classes").classList.toggle("chips", !hasFaces(model));
  byId("classes").classList.toggle("classes", hasFaces(model));
  const buttons = model.classes.map((name, label) => classButton(model, asked, name, label));
  byId("classes").append(...buttons);
  const every = model.classes.map((_, label) => label);
  byId("classes-all").addEventListener("click", () => asked.change({ classes: every }));
  asked.listen(({ classes }) => {
    buttons.forEach((button, label) => set(button, { "aria-pressed": String(classes.includes(label)) }));
    write(byId("classes-count"), `${classes.length} of ${buttons.length}`);
    byId("classes-all").disabled = classes.length === buttons.length;
  });
}

function classButton(model, asked, name, label) {
  const toggle = () => {
    const chosen = new Set(asked.value.classes);
    if (!chosen.delete(label)) chosen.add(label);
    asked.change({ classes: [...chosen].sort((a, b) => a - b) });
  };
  const attributes = { type: "button", "aria-label": `Class ${name}`, onclick: toggle };
  if (!hasFaces(model)) return h("button", { ...attributes, class: "chip" }, name);
  const example = firstOf(model, label);
  const face = example === null ? h("span", { class: "face" }) : faceOf(model, example);
  return h("button", { ...attributes, class: "class" }, face, h("span", { class: "name", "aria-hidden": "true" }, name));
}

function hasFaces(model) {
  return DRAWN.includes(model.inputs.kind) && model.classes.some((_, label) => firstOf(model, label) !== null);
}
