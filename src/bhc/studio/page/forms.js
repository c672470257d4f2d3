// Conditions that this page knows nothing of: controls made from what the model's contexts say of themselves.

import { byId, h, write } from "./dom.js";
import { sentence } from "./problems.js";
import { fill } from "./sliders.js";
import { simpleForms } from "./state.js";
import { valueOf } from "./words.js";

const CONTROLS = { range: rangeOf, choice: choiceOf, text: textOf };

/** A fieldset for each condition that is a number, a choice or a text. */
export function mountForms(model, asked) {
  for (const [name, form] of simpleForms(model)) {
    const say = (value) => asked.change({ said: { ...asked.value.said, [name]: value } });
    const { box, show } = CONTROLS[form.kind](name, form, say);
    const legend = h("legend", {}, sentence(name.replaceAll("_", " ")));
    byId("forms").append(h("fieldset", { class: "field", id: `${name}-field` }, legend, h("div", { id: name }, box)));
    asked.listen(({ said }) => show(said[name]));
  }
}

function rangeOf(name, form, say) {
  const { low, high, step, title, words, optional = false, ends = [low, high] } = form;
  const range = h("input", { type: "range", min: low, max: high, step, "aria-label": sentence(name) });
  const output = h("output");
  range.addEventListener("input", () => say(Number(range.value)));
  const marks = h("span", { class: "ends" }, ...ends.map((end) => h("span", {}, String(end))));
  const box = h("div", { class: "slider" }, h("span", { class: "note" }, title ?? words), output, range, marks);
  const reset = h("button", { class: "quiet", type: "button" }, "Default");
  reset.addEventListener("click", () => say(null));
  if (optional) box.append(reset);
  const show = (value) => {
    range.value = String(value ?? low);
    fill(range, ((value ?? low) - low) / (high - low));
    write(output, value === null ? "by default" : valueOf(form, value));
    reset.disabled = value === null;
  };
  return { box, show };
}

function choiceOf(name, { choices, words }, say) {
  const options = choices.map((choice) => h("option", { value: String(choice) }, String(choice)));
  const select = h("select", { "aria-label": sentence(name) }, ...options);
  select.addEventListener("change", () => say(choices[select.selectedIndex]));
  const box = h("div", {}, select, h("p", { class: "note" }, words));
  return { box, show: (value) => (select.selectedIndex = choices.indexOf(value)) };
}

function textOf(name, { words }, say) {
  const input = h("input", { type: "text", "aria-label": sentence(name) });
  input.addEventListener("change", () => say(input.value.trim() === "" ? null : input.value));
  const box = h("div", {}, input, h("p", { class: "note" }, words));
  return { box, show: (value) => (input.value = value ?? "") };
}
