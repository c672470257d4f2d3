// One input, two answers: of the small network and of the one it was cut from.

import { byId, h, keep, wordButton, write } from "./dom.js";
import { drawingPad } from "./drawing.js";
import { drawingOf, hasExamples, mountExamples, nounOf } from "./examples.js";
import { large } from "./inputs.js";
import { given } from "./outputs.js";
import { gainOf, greys, paint, picture, sidesOf } from "./pictures.js";
import { hideProblem, sentence, showProblem } from "./problems.js";
import { latest, service } from "./service.js";
import { body, lacksDomain } from "./state.js";
import { mountText } from "./texts.js";
import { costs, list, whole } from "./words.js";

/** The part of the page where a network is tried. */
export function mountAnswers(model, asked) {
  if (!hasExamples(model) && !drawable(model) && !model.texts) return;
  byId("try").hidden = false;
  const chosen = { input: null, truth: null };
  const replies = mountReplies(model);
  const ask = latest(
    (request, input, signal) => service.answers({ ...body(request, model), ...input }, signal),
    { delay: 90 },
  );
  const update = () => {
    if (chosen.input === null || lacksDomain(asked.value, model)) return replies.clear();
    return ask(asked.value, chosen.input).then((answers) => replies.show(answers, chosen.truth), replies.refuse);
  };
  const choose = (input, truth) => {
    Object.assign(chosen, { input, truth });
    update();
  };

  const view = drawable(model) ? mountPad(model, (values) => {
    examples.release();
    choose(values === null ? null : { input: values }, null);
  }) : mountView(model);
  write(byId("try-lead"), leadOf(model));
  if (model.texts) {
    mountText(byId("pad"), (text) => {
      examples.release();
      view.see(null);
      choose({ text }, null);
    });
  }
  const examples = mountExamples(model, asked, byId("pad"), (example) => {
    view.see(example);
    choose({ example: example.place }, example.label);
  });
  asked.listen(update);
}

function leadOf(model) {
  const { kind, reason } = model.inputs;
  if (model.texts) return hasExamples(model) ? "Write a text, or take one of the examples." : "Write a text.";
  if (!hasExamples(model)) return "Draw a digit.";
  if (drawable(model)) return "Draw a digit, or take one of the pictures.";
  return kind === "none" ? `${sentence(reason)}. Take one by its number.` : `Take one of the ${nounOf(model)}s.`;
}

/** Images of one channel, of which one is to be told. */
function drawable(model) {
  return model.measure.has_answers && model.inputs.kind === "image" && model.inputs.range !== null;
}

function mountPad(model, drawn) {
  const canvas = h("canvas", { class: "paper", role: "img", "aria-label": "Draw a digit here" });
  const seen = h("canvas", { class: "seen", role: "img", "aria-label": "What the networks see" });
  const empty = h("span", { class: "hint", "aria-hidden": "true" }, "Draw here");
  const sides = sidesOf(model);
  let waiting = false;
  const drawing = drawingPad(canvas, () => {
    empty.hidden = true;
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      const ink = drawing.ink(sides);
      if (ink === null) return;
      paint(seen, greys(ink, sides));
      drawn(ink.map((grey) => valueOf(grey, model)));
    });
  });
  const clear = () => {
    drawing.clear();
    empty.hidden = false;
    paint(seen, greys(new Array(sides[0] * sides[1]).fill(0), sides));
  };
  const see = (example) => {
    clear();
    picture(example).then((pixels) => paint(seen, pixels, gainOf(model)), () => {});
  };
  const button = wordButton("Clear", () => {
    clear();
    drawn(null);
  });
  const view = h("span", { class: "view" }, seen, h("span", { class: "note" }, "as the networks see it"));
  byId("pad").append(h("div", { class: "sheet" }, canvas, empty), h("div", { class: "row" }, view, button));
  clear();
  return { see };
}

/** A grey of a drawing as the networks take it: from black to white, in whole numbers where they take such. */
function valueOf(grey, { inputs: { range: [black, white], takes: [{ dtype }] } }) {
  const value = black + (grey / 255) * (white - black);
  return dtype.startsWith("float") ? value : Math.round(value);
}

/** The example that was taken, as large as there is room; nothing where there is no drawing. */
function mountView(model) {
  if (model.inputs.kind === "none") return { see: () => {} };
  const hint = h("p", { class: "hint" }, `No ${nounOf(model)} taken yet`);
  const box = h("div", { class: "given", hidden: !hasExamples(model) }, hint);
  byId("pad").append(box);
  let last = null;
  const see = async (example) => {
    last = example;
    if (example === null) return box.replaceChildren(hint);
    const drawing = await drawingOf(example);
    if (last === example) box.replaceChildren(large(drawing));
  };
  return { see };
}

function mountReplies(model) {
  const column = model.measure.has_answers ? reply : given;
  const columns = { tailored: column("Tailored"), full: column("Full network") };
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
    label.style.setProperty("--letters", label.textContent.length);
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

function strongest({ classes, probabilities }) {
  const all = classes.map((label, place) => ({ label, probability: probabilities[place] }));
  if (all.length <= 10) return all;
  return all.toSorted((a, b) => b.probability - a.probability).slice(0, 10);
}

function inWords(answers, truth, model) {
  const said = model.measure.has_answers ? compared(answers, model) : [];
  if (truth !== null) said.push(`The ${nounOf(model)} is of class ${model.classes[truth]}.`);
  return said.join(" ");
}

function compared({ tailored, full }, model) {
  const said = [];
  if (full && tailored.label !== full.label) {
    const known = tailored.classes.map((label) => model.classes[label]);
    const foreign = !tailored.classes.includes(full.label);
    said.push(foreign ? `They differ: the tailored network knows only ${list(known)}.` : "They differ.");
  } else if (full) {
    const times = Math.round(full.flops / tailored.flops);
    said.push(times < 2 ? "Both agree." : `Both agree, with ${whole(times)} times fewer operations in the tailored one.`);
  }
  if (tailored.outside === true) said.push("The tailored network flags it: not of its context.");
  if (tailored.outside === false) said.push("The tailored network does not flag it.");
  return said;
}
