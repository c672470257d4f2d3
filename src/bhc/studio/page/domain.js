// The kind of inputs, told by samples of which the service keeps the mean: a file, or pictures of some classes.

import { byId, h, set, wordButton, write } from "./dom.js";
import { npyOf } from "./npy.js";
import { picture, valuesOf } from "./pictures.js";
import { hideProblem, showProblem } from "./problems.js";
import { service } from "./service.js";
import { lacksDomain } from "./state.js";
import { list } from "./words.js";

const PICTURES = "pictures of";

/** The upload of a model that knows of domains. */
export function mountDomain(model, asked) {
  if (!model.forms.domain) return;
  byId("domain-field").hidden = false;
  const problem = h("div", { class: "problem", role: "alert", hidden: true });
  const forget = wordButton("Forget it", () => asked.change({ domain: null }));
  const shape = model.forms.domain.shape.join(" × ");
  const help = `16 or more unlabelled inputs, an array (n × ${shape}) up to ${model.forms.domain.full_scale}.`;

  const take = async (samples, name) => {
    hideProblem(problem);
    try {
      const { domain } = await service.domain(await samples);
      asked.change({ domain: { token: domain, name } });
    } catch (fault) {
      showProblem(problem, fault);
    }
  };
  const upload = fileDrop((file) => take(file, file.name));
  const pictures = pictureChips(model, (labels) => {
    take(samplesOf(model, labels), `${PICTURES} ${list(labels.map((label) => model.classes[label]))}`);
  });
  const row = h("div", { class: "row" }, h("span", { class: "note" }, help), forget);
  byId("domain").append(upload.box, problem, row, ...(pictures ? [pictures.box] : []));

  asked.listen(({ domain }) => {
    const byFile = domain !== null && !domain.name.startsWith(PICTURES);
    upload.say(byFile ? domain.name : "Choose a .npy file, or drop it here");
    forget.hidden = domain === null;
    if (byFile || domain === null) pictures?.release();
  });
  if (lacksDomain(asked.value, model)) pictures?.choose([0, 1]);
}

function fileDrop(take) {
  const input = h("input", { type: "file", accept: ".npy", "aria-label": "Samples of the domain (.npy)" });
  const text = h("span");
  const box = h("label", { class: "drop" }, input, text);
  input.addEventListener("change", () => {
    if (input.files[0]) take(input.files[0]);
    input.value = "";
  });
  for (const [event, over] of [["dragover", true], ["dragleave", false], ["drop", false]]) {
    box.addEventListener(event, (happened) => {
      happened.preventDefault();
      box.classList.toggle("over", over);
      if (event === "drop" && happened.dataTransfer.files[0]) take(happened.dataTransfer.files[0]);
    });
  }
  return { box, say: (words) => write(text, words) };
}

/** Classes whose pictures may stand for a domain; null where there are none. */
function pictureChips(model, chosen) {
  if (model.pictures === 0 || !model.examples_by_class || !model.inputs.pixels) return null;
  const pressed = new Set();
  const press = () => chips.forEach((chip, label) => set(chip, { "aria-pressed": String(pressed.has(label)) }));
  const chips = model.classes.map((name, label) => {
    const toggle = () => {
      if (!pressed.delete(label)) pressed.add(label);
      press();
      if (pressed.size > 0) chosen([...pressed].sort((a, b) => a - b));
    };
    const attributes = { class: "chip", type: "button", "aria-pressed": "false", "aria-label": `Pictures of ${name}` };
    return h("button", { ...attributes, onclick: toggle }, name);
  });
  const choose = (labels) => {
    pressed.clear();
    labels.filter((label) => label < chips.length).forEach((label) => pressed.add(label));
    press();
    if (labels.length > 0) chosen(labels);
  };
  const row = h("div", { class: "chips", role: "group", "aria-label": "Inputs as in pictures of" }, ...chips);
  const box = h("div", {}, h("p", { class: "note" }, "Or as in pictures of"), row);
  return { box, choose, release: () => choose([]) };
}

async function samplesOf(model, labels) {
  const numbers = Array.from({ length: model.pictures }, (_, number) => number);
  const images = await Promise.all(labels.flatMap((label) => numbers.map((number) => picture({ label, number }))));
  return npyOf(images.map((image) => valuesOf(image, model.image_shape)), model.image_shape);
}
