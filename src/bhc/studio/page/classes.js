// Which classes: a picture of each, pressed or not.

import { byId, h, set, write } from "./dom.js";
import { paint, picture } from "./pictures.js";

/** Buttons for the classes, in step with what is asked. */
export function mountClasses(model, asked) {
  if (!("classes" in model.conditions)) return;
  byId("classes-field").hidden = false;
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
  const canvas = h("canvas", { width: 1, height: 1, "aria-hidden": "true" });
  if (model.pictures > 0) picture(model, label, 0).then((image) => paint(canvas, image, model), () => {});
  const toggle = () => {
    const chosen = new Set(asked.value.classes);
    if (!chosen.delete(label)) chosen.add(label);
    asked.change({ classes: [...chosen].sort((a, b) => a - b) });
  };
  const attributes = { class: "class", type: "button", "aria-label": `Class ${name}`, onclick: toggle };
  return h("button", attributes, canvas, h("span", { "aria-hidden": "true" }, name));
}
