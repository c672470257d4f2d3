// What a network gives for an input where there are no answers to choose among: numbers, or a map of places.

import { h, keep, write } from "./dom.js";
import { large } from "./inputs.js";
import { decoded, paint } from "./pictures.js";
import { costs, figure, percent, shown, whole } from "./words.js";

const DRAWN = { numbers, map };

/** A column for what one of the two networks gives. */
export function given(title) {
  const label = h("p", { class: "label" });
  const [percents, name] = [h("strong"), h("span", { class: "note" })];
  const error = h("p", { class: "own-error" }, percents, name);
  const cost = h("ul", { class: "cost" });
  const body = h("div", { class: "gives" });
  const show = (answer, model) => {
    const alone = answer ? soleNumber(answer.shown) : "–";
    label.hidden = alone === null;
    write(label, alone ?? "");
    label.style.setProperty("--letters", label.textContent.length);
    error.hidden = !answer || answer.error === null;
    if (!error.hidden) write(percents, percent(shown(answer.error, model.measure)));
    write(name, `${model.measure.name} of this example`);
    keep(cost, answer ? costs(answer) : [], () => h("li"), write);
    if (!answer) body.replaceChildren();
    else if (alone === null) body.replaceChildren((DRAWN[answer.shown.kind] ?? large)(answer.shown, answer, model));
  };
  return { box: h("div", { class: "reply" }, h("h3", { class: "eyebrow" }, title), label, error, cost, body), show };
}

/** A number that is all there is to say, in large type; null where there is more. */
function soleNumber({ kind, values }) {
  return kind === "numbers" && values.length === 1 ? figure(values[0]) : null;
}

function numbers({ values, left_out: more }, { outputs }, model) {
  const rows = values.map((value, place) =>
    h("tr", {}, h("th", { scope: "row" }, model.outputs[outputs[place]]), h("td", {}, figure(value))));
  const box = { class: "scroll values", tabindex: "0", role: "region", "aria-label": "Outputs" };
  const caption = more ? [h("p", { class: "note" }, `and ${whole(more)} more`)] : [];
  return h("div", {}, h("div", box, h("table", {}, h("tbody", {}, ...rows))), ...caption);
}

function map({ png, parts }, _, model) {
  const canvas = h("canvas", { width: 1, height: 1, role: "img", "aria-label": "The highest output at each place" });
  decoded(png).then((pixels) => paint(canvas, pixels), () => {});
  const lines = parts.map(({ output, colour, part }) => {
    const swatch = h("i", { "aria-hidden": "true" });
    swatch.style.background = colour;
    return h("li", {}, swatch, h("span", {}, model.outputs[output]), h("span", {}, `${(100 * part).toFixed(1)} %`));
  });
  return h("div", {}, canvas, h("ol", { class: "legend" }, ...lines));
}
