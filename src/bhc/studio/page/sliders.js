// Limits: numbers chosen by sliding.

import { byId, h, set } from "./dom.js";
import { sentence } from "./problems.js";
import { LIMITS, OPTIONS, canFlag, canProve } from "./state.js";
import { bytes, percent, short } from "./words.js";

const FINENESS = 200; // places of a slider
const LEAST = 100; // bytes or FLOPs
const ERRORS = [0.05, 20]; // percent
const LATENCIES = [0.01, 10]; // milliseconds

/** A switch, a number and a slider for each limit; `suggest` gives the figure of the network shown. */
export function mountLimits(model, asked, suggest) {
  const kinds = {
    max_bytes: { title: "File", label: "Most bytes of the file", ends: [LEAST, model.bytes_before], say: bytes },
    max_flops: { title: "FLOPs", label: "Most FLOPs", ends: [LEAST, model.flops_before], say: short },
    max_error: { ...errorOf(model), ends: ERRORS, say: percent },
    max_ram_bytes: { title: "Memory in C", label: "Most bytes of the C form", ends: [LEAST, model.bytes_before], say: bytes },
    max_latency_ms: { title: "Latency", label: "Longest latency in milliseconds", ends: LATENCIES, say: (ms) => `${ms} ms` },
  };
  const options = {
    confidence: { title: "Proved for new data", label: "Percent sure", unit: "% sure", usual: 0.95, fits: canProve },
    flag_outside: { title: "Flag other inputs", label: "Percent of false alarms", unit: "% false", usual: 0.05, fits: canFlag },
    round_to: { title: "Channels in multiples of", label: "Multiple of channels", unit: "", usual: 8, times: 1, most: 65_536 },
  };
  byId("limits").append(
    ...LIMITS.map((name) => limit(name, kinds[name], asked, suggest)),
    ...OPTIONS.map((name) => option(name, options[name], model, asked)),
  );
}

/** A switch and a number, `times` what is asked for, so mostly in percent; there only where it `fits` what is asked. */
function option(name, { title, label, unit, usual, times = 100, most = 100, fits = () => true }, model, asked) {
  const box = h("input", { type: "checkbox", id: name });
  const number = h("input", { type: "number", "aria-label": label, min: 0, max: most, step: "any" });
  const amount = h("span", { class: "amount" }, number, h("span", { class: "note" }, unit));
  const head = h("div", { class: "head" }, h("label", { for: name }, box, h("span", {}, title)), amount);
  const row = h("div", { class: "limit" }, head);
  const choose = (value) => asked.change({ [name]: value });
  box.addEventListener("change", () => choose(box.checked ? usual : null));
  number.addEventListener("change", () => choose(number.value === "" ? null : Number(number.value) / times));
  asked.listen((request) => {
    const value = request[name];
    row.hidden = !fits(request, model);
    box.checked = value !== null;
    amount.hidden = value === null;
    if (value !== null) number.value = String(Number((times * value).toPrecision(6)));
  });
  return row;
}

function limit(name, { title, label, note = "", ends, say }, asked, suggest) {
  const scale = geometric(ends);
  const box = h("input", { type: "checkbox", id: name });
  const number = h("input", { type: "number", "aria-label": label, min: 0, step: "any" });
  const range = h("input", { type: "range", min: 0, max: FINENESS, "aria-label": `${label}, slider` });
  const marks = h("span", { class: "ends" }, ...ends.map((end) => h("span", {}, say(end))));
  const slider = h("div", { class: "slider" }, range, marks);
  // A limit looks for the threshold by itself, so one that was set by hand goes.
  const choose = (value) => asked.change({ [name]: value, threshold: null });
  const first = () => rounded(suggest(name) ?? Math.sqrt(ends[0] * ends[1]));
  box.addEventListener("change", () => choose(box.checked ? first() : null));
  range.addEventListener("input", () => choose(rounded(scale.value(Number(range.value)))));
  number.addEventListener("change", () => choose(number.value === "" ? null : Number(number.value)));
  asked.listen((request) => {
    const value = request[name];
    box.checked = value !== null;
    number.hidden = slider.hidden = value === null;
    if (value === null) return;
    if (document.activeElement !== number || Number(number.value) !== value) number.value = String(value);
    range.value = String(scale.place(value));
    set(range, { "aria-valuetext": say(value) });
    fill(range, Number(range.value) / FINENESS);
  });
  const caption = h("label", { for: name }, box, h("span", {}, `${title} at most`));
  if (note) slider.append(h("p", { class: "note" }, note));
  return h("div", { class: "limit" }, h("div", { class: "head" }, caption, number), slider);
}

/** Limits are about the error itself, also where 100 % less the error is what has a name. */
function errorOf({ measure: { name, higher_is_better: higher } }) {
  const error = `validation ${higher ? "error" : name}`;
  const note = higher ? `100 % less the validation ${name}` : "";
  return { title: sentence(error), label: `Highest ${error} in percent`, note };
}

/** Equal steps of a slider are equal ratios. */
function geometric([low, high]) {
  const span = Math.log(high / low);
  return {
    value: (place) => low * Math.exp((place / FINENESS) * span),
    place: (value) => Math.round((Math.log(Math.max(value, low) / low) / span) * FINENESS),
  };
}

/** Two digits say enough. */
function rounded(value) {
  return Number(value.toPrecision(2));
}

/** Colours the part of a slider that is before its handle. */
export function fill(range, part) {
  range.style.setProperty("--part", `${(100 * Math.min(1, Math.max(0, part))).toFixed(1)}%`);
}
