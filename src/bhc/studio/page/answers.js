// One image, two answers: of the small network and of the one it was cut from.

import { byId, h, keep, set, wordButton, write } from "./dom.js";
import { drawingPad } from "./drawing.js";
import { fullScale, paint, picture } from "./pictures.js";
import { hideProblem, showProblem } from "./problems.js";
import { latest, service } from "./service.js";
import { body, lacksDomain } from "./state.js";
import { bytes, list, whole } from "./words.js";

const EXAMPLES = 8;

/** The part of the page where a network is tried. */
export function mountAnswers(model, asked) {
  if (model.pictures === 0 && !drawable(model)) return;
  byId("try").hidden = false;
  const chosen = { image: null, truth: null };
  const replies = mountReplies(model);
  const ask = latest(
    (request, image, signal) => service.answers({ ...body(request, model), image }, signal),
    { delay: 90 },
  );
  const update = () => {
    if (chosen.image === null || lacksDomain(asked.value, model)) return replies.clear();
    return ask(asked.value, chosen.image).then((answers) => replies.show(answers, chosen.truth), replies.refuse);
  };
  const choose = (image, truth) => {
    Object.assign(chosen, { image, truth });
    update();
  };

  const pad = drawable(model) ? mountPad(model, (image) => {
    examples.release();
    choose(image, null);
  }) : null;
  if (pad === null) write(byId("try-lead"), "Take one of the pictures.");
  const examples = mountExamples(model, asked, (image, label) => {
    pad?.clear();
    pad?.see(image);
    choose(image, label);
  });
  asked.listen(update);
}

function drawable(model) {
  return model.image_shape.length === 3 && model.image_shape[0] === 1;
}

function mountPad(model, drawn) {
  const canvas = h("canvas", { class: "paper", role: "img", "aria-label": "Draw a digit here" });
  const seen = h("canvas", { class: "seen", role: "img", "aria-label": "What the networks see" });
  const empty = h("span", { class: "hint", "aria-hidden": "true" }, "Draw here");
  let waiting = false;
  const drawing = drawingPad(canvas, () => {
    empty.hidden = true;
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      const image = drawing.image(model.image_shape, fullScale(model));
      if (image === null) return;
      paint(seen, image, model);
      drawn(image);
    });
  });
  const see = (image) => paint(seen, image, model);
  const clear = () => {
    drawing.clear();
    empty.hidden = false;
    see(new Array(model.image_shape.reduce((product, side) => product * side, 1)).fill(0));
  };
  const button = wordButton("Clear", () => {
    clear();
    drawn(null);
  });
  const view = h("span", { class: "view" }, seen, h("span", { class: "note" }, "as the networks see it"));
  byId("pad").append(h("div", { class: "sheet" }, canvas, empty), h("div", { class: "row" }, view, button));
  clear();
  return { clear, see };
}

/** Pictures of the classes asked for: the way to try without a pointer. */
function mountExamples(model, asked, chosen) {
  const box = h("div", { class: "thumbs", role: "group", "aria-label": "Example pictures" });
  byId("pad").append(box);
  const release = () => [...box.children].forEach((one) => set(one, { "aria-pressed": "false" }));
  let shown = "";
  asked.listen(({ classes }) => {
    const wanted = classes.length ? exampleList(classes, model.pictures) : [];
    if (shown === wanted.join()) return;
    shown = wanted.join();
    box.replaceChildren(...wanted.map(([label, number]) => {
      const canvas = h("canvas", { width: 1, height: 1, "aria-hidden": "true" });
      const image = picture(model, label, number);
      image.then((values) => paint(canvas, values, model), () => {});
      const press = async (event) => {
        const button = event.currentTarget;
        release();
        set(button, { "aria-pressed": "true" });
        chosen(await image, label);
      };
      const name = `Picture ${number} of class ${model.classes[label]}`;
      const attributes = { class: "thumb", type: "button", "aria-pressed": "false", "aria-label": name };
      return h("button", { ...attributes, onclick: press }, canvas);
    }));
  });
  return { release };
}

/** As evenly from the classes as they go into a row; the first picture is on the class's own button. */
function exampleList(classes, pictures) {
  if (pictures === 0) return [];
  return Array.from({ length: EXAMPLES }, (_, place) => {
    const round = Math.floor(place / classes.length) + 1;
    return [classes[place % classes.length], Math.min(round, pictures - 1)];
  }).filter(([, number], place) => place < classes.length || number < pictures - 1 || pictures > EXAMPLES);
}

function mountReplies(model) {
  const columns = { tailored: reply("Tailored"), full: reply("Full network") };
  const verdict = h("p", { class: "verdict", role: "status" });
  const problem = h("div", { class: "problem", role: "alert", hidden: true });
  const pair = h("div", { class: "pair" }, columns.tailored.box, columns.full.box);
  byId("replies").append(pair, verdict, problem);
  const clear = () => {
    Object.values(columns).forEach((column) => column.show(null, model));
    write(verdict, "");
    hideProblem(problem);
  };
  clear();
  return {
    clear,
    refuse: (fault) => showProblem(problem, fault),
    show(answers, truth) {
      hideProblem(problem);
      columns.tailored.show(answers.tailored, model);
      columns.full.show(answers.full, model);
      columns.full.box.hidden = answers.full === null; // the model began untrained
      write(verdict, inWords(answers, truth, model));
    },
  };
}

function reply(title) {
  const label = h("p", { class: "label" });
  const bars = h("ol", { class: "bars" });
  const cost = h("ul", { class: "cost" });
  const show = (answer, model) => {
    write(label, answer?.name ?? "–");
    const entries = answer === null || answer === undefined ? [] : strongest(answer);
    const make = () => h("li", {}, h("span"), h("i", { "aria-hidden": "true" }, h("b")), h("span"));
    keep(bars, entries, make, (row, one) => {
      write(row.children[0], model.classes[one.label]);
      row.children[1].firstChild.style.width = `${(100 * one.probability).toFixed(1)}%`;
      write(row.children[2], `${(100 * one.probability).toFixed(1)} %`);
      row.classList.toggle("best", one.label === answer.label);
    });
    keep(cost, answer ? costs(answer) : [], () => h("li"), write);
  };
  return { box: h("div", { class: "reply" }, h("h3", { class: "eyebrow" }, title), label, cost, bars), show };
}

function costs({ bytes: size, weights, flops }) {
  return [bytes(size), `${whole(weights)} weights`, `${whole(flops)} FLOPs`];
}

function strongest({ classes, probabilities }) {
  const all = classes.map((label, place) => ({ label, probability: probabilities[place] }));
  if (all.length <= 10) return all;
  return all.toSorted((a, b) => b.probability - a.probability).slice(0, 10);
}

function inWords({ tailored, full }, truth, model) {
  const said = [];
  if (full && tailored.label !== full.label) {
    const known = tailored.classes.map((label) => model.classes[label]);
    const foreign = !tailored.classes.includes(full.label);
    said.push(foreign ? `They differ: the tailored network knows only ${list(known)}.` : "They differ.");
  } else if (full) {
    const times = whole(full.flops / tailored.flops);
    said.push(`Both agree, with ${times} times fewer operations in the tailored one.`);
  }
  if (tailored.outside === true) said.push("The tailored network flags it: not of its context.");
  if (tailored.outside === false) said.push("The tailored network does not flag it.");
  if (truth !== null) said.push(`The picture is of class ${model.classes[truth]}.`);
  return said.join(" ");
}
