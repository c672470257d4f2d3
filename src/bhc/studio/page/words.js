// Numbers and contexts in words.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const FEW = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const NONE = "–";

/** 266200 as 266,200. */
export function whole(number) {
  return number === null || number === undefined ? NONE : WHOLE.format(number);
}

/** 532400 as 532K. */
export function short(number) {
  return number === null || number === undefined ? NONE : SHORT.format(number);
}

/** A ratio with three digits: 8.52, 87.7, 698, 2,215. */
export function ratio(number) {
  if (number === null || number === undefined) return NONE;
  if (number >= 100) return WHOLE.format(number);
  return number >= 10 ? number.toFixed(1) : number.toFixed(2);
}

/** A value of an input with four digits: 0.1235, −12.3, 5,120. */
export function figure(number) {
  return number === null ? NONE : FEW.format(number).replace("-", "−");
}

/** An error in percent. */
export function percent(number) {
  return number === null || number === undefined ? NONE : `${number.toFixed(2)} %`;
}

/** An error as the run's task names it, with that name: "8.00 % error", "92.00 % overlap". */
export function measured(error, { measure }) {
  return `${percent(shown(error, measure))} ${measure.name}`;
}

/** An error as a number that goes by the name of the measure: 8 as an overlap of 92. */
export function shown(error, { higher_is_better: higher }) {
  return higher && error !== null && error !== undefined ? 100 - error : error;
}

/** Bytes as they are up to ten thousand, above that in kB or MB. */
export function bytes(number) {
  if (number === null || number === undefined) return NONE;
  if (number < 10_000) return `${WHOLE.format(number)} B`;
  return number < 1e6 ? `${WHOLE.format(number / 1e3)} kB` : `${(number / 1e6).toFixed(2)} MB`;
}

/** What an answer costs. */
export function costs({ bytes: size, weights, flops }) {
  return [bytes(size), `${whole(weights)} weights`, `${whole(flops)} FLOPs`];
}

/** A threshold with its sign, as wide as any other. */
export function threshold(number) {
  const text = Math.abs(number).toFixed(2);
  return number < 0 && text !== "0.00" ? `−${text}` : text;
}

/** 25.3 ms, 291 ms, 1.2 s. */
export function milliseconds(number) {
  if (number === null || number === undefined) return NONE;
  if (number >= 1000) return `${(number / 1000).toFixed(1)} s`;
  return number < 100 ? `${number.toFixed(1)} ms` : `${WHOLE.format(number)} ms`;
}

/** A name that fits: the end of a layer's name says more than its beginning. */
export function fitted(name, letters) {
  return name.length <= letters ? name : `…${name.slice(name.length - Math.max(1, letters - 1))}`;
}

/** A value of a condition, a number with as many digits as its slider tells apart. */
export function valueOf({ kind, step }, value) {
  return kind === "range" ? value.toFixed(step < 1 ? 2 : 0) : String(value);
}

/** "3, 4 and 7". */
export function list(words) {
  if (words.length < 2) return words.join("");
  return `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
}

/** What a request asks for, as a heading: "classes 3 and 4, budget 0.70". */
export function context(request, model) {
  const parts = [];
  if ("classes" in model.conditions) {
    const { classes } = request;
    if (classes.length === model.classes.length) parts.push("all classes");
    else parts.push(`${classes.length === 1 ? "class" : "classes"} ${list(classes.map((one) => model.classes[one]))}`);
  }
  if (request.features !== null) parts.push(`${whole(request.features.length)} inputs`);
  if (request.domain !== null) parts.push(`inputs like ${request.domain.name}`);
  for (const [name, value] of Object.entries(request.said)) {
    if (value !== null) parts.push(`${name} ${valueOf(model.forms[name], value)}`);
  }
  return parts.join(", ") || "inputs of every kind";
}
