// What is asked for, as one value; kept in the fragment of the address, so that a link restores it.

export const LIMITS = ["max_bytes", "max_flops", "max_error", "max_ram_bytes", "max_latency_ms"];
export const OPTIONS = ["confidence", "flag_outside", "round_to"]; // kept whatever else is limited
const NUMBERS = ["threshold", ...LIMITS, ...OPTIONS];
export const MOST_PINS = 4;

const SIMPLE = ["range", "choice", "text"]; // controls that any context may ask for

/** Name and form of each condition that is a number, a choice or a text. */
export function simpleForms(model) {
  return Object.entries(model.forms).filter(([, { kind }]) => SIMPLE.includes(kind));
}

/** What a control shows at first; nothing, where nothing need be said. */
function usual(form) {
  return form.optional ? null : form.default ?? form.low ?? null;
}

/** What the page asks for at first: two classes side by side, the run's own threshold, no limits. */
export function initialRequest(model) {
  const middle = Math.min(3, Math.max(0, model.classes.length - 2));
  const classes = "classes" in model.conditions ? [middle, middle + 1] : model.classes.map((_, one) => one);
  const unsaid = Object.fromEntries(NUMBERS.map((name) => [name, null]));
  const said = Object.fromEntries(simpleForms(model).map(([name, form]) => [name, usual(form)]));
  return { classes, said, features: null, domain: null, ...unsaid };
}

/** The JSON the service takes: only conditions the model has, only limits that are set. */
export function body(request, model) {
  const has = (condition) => condition in model.conditions;
  const asked = {};
  if (has("classes")) asked.classes = request.classes;
  for (const [name, value] of Object.entries(request.said)) if (value !== null) asked[name] = value;
  const missing = request.features !== null;
  if (has("features") && (missing || !model.optional)) asked.features = request.features ?? every(model);
  if (has("domain") && request.domain !== null) asked.domain = request.domain.token;
  for (const name of NUMBERS) if (request[name] !== null) asked[name] = request[name];
  if (!canProve(request, model)) delete asked.confidence;
  if (!canFlag(request, model)) delete asked.flag_outside;
  return asked;
}

/** Whether there is something to be sure of, and images that could prove it. */
export function canProve(request, model) {
  return model.calibration_images > 0 && request.max_error !== null;
}

/** Whether there are answers that could be doubted. */
export function canFlag(_, model) {
  return model.measure.has_answers;
}

/** Whether something must be said that is not said yet: a model for domains alone needs one. */
export function lacksDomain(request, model) {
  return "domain" in model.conditions && !model.optional && request.domain === null;
}

/** The places of all features. */
function every(model) {
  return Array.from({ length: model.forms.features.shape.reduce((product, side) => product * side, 1) }, (_, place) => place);
}

/** A value that tells its listeners when it changes. */
export class Store {
  #value;
  #listeners = [];

  constructor(value) {
    this.#value = value;
  }

  get value() {
    return this.#value;
  }

  /** Changes some fields; listeners get the new value and the old one. */
  change(patch) {
    const before = this.#value;
    this.#value = { ...before, ...patch };
    for (const listener of this.#listeners) listener(this.#value, before);
  }

  listen(listener) {
    this.#listeners.push(listener);
    listener(this.#value, this.#value);
  }
}

/** The state as the fragment of an address; each pin is a fragment of its own. */
export function toFragment(request, pins = []) {
  const fields = new URLSearchParams();
  fields.set("classes", request.classes.join("."));
  for (const [name, value] of Object.entries(request.said)) if (value !== null) fields.set(name, String(value));
  if (request.features !== null) fields.set("features", packPlaces(request.features));
  if (request.domain !== null) fields.set("domain", `${request.domain.token}.${request.domain.name}`);
  for (const name of NUMBERS) if (request[name] !== null) fields.set(name, String(request[name]));
  for (const pin of pins) fields.append("pin", toFragment(pin));
  return fields.toString();
}

/** What a fragment says, on top of what is asked at first; fields that make no sense for the model are passed over. */
export function fromFragment(fragment, model) {
  const fields = new URLSearchParams(fragment.replace(/^#/, ""));
  const pins = fields.getAll("pin").slice(0, MOST_PINS);
  return { request: readRequest(fields, model), pins: pins.map((pin) => fromFragment(pin, model).request) };
}

function readRequest(fields, model) {
  const request = initialRequest(model);
  if (fields.has("classes") && "classes" in model.conditions) {
    const named = fields.get("classes").split(".").filter(Boolean).map(Number);
    const known = [...new Set(named)].filter((one) => Number.isInteger(one) && one >= 0 && one < model.classes.length);
    request.classes = known.sort((a, b) => a - b);
  }
  for (const [name, form] of simpleForms(model)) request.said[name] = readSaid(fields, name, form);
  if (fields.has("features") && model.forms.features) request.features = unpackPlaces(fields.get("features"), model);
  if (fields.has("domain") && "domain" in model.conditions) {
    const [token, ...name] = fields.get("domain").split(".");
    request.domain = { token, name: name.join(".") };
  }
  for (const name of NUMBERS) request[name] = readNumber(fields, name);
  return request;
}

/** What a fragment says of a condition; what its control cannot show is passed over. */
function readSaid(fields, name, form) {
  const text = fields.get(name);
  const number = readNumber(fields, name);
  if (form.kind === "range") return number === null ? usual(form) : Math.min(form.high, Math.max(form.low, number));
  return (form.kind === "text" ? text : form.choices.find((choice) => String(choice) === text)) ?? usual(form);
}

function readNumber(fields, name) {
  const text = fields.get(name);
  return text === null || text.trim() === "" || !Number.isFinite(Number(text)) ? null : Number(text);
}

/** Places as lengths of runs, absent first: a painted mask has few. */
function packPlaces(places) {
  const runs = [];
  let end = 0;
  for (const place of places) {
    if (runs.length > 0 && place === end) runs[runs.length - 1] += 1;
    else runs.push(place - end, 1);
    end = place + 1;
  }
  return runs.map((run) => run.toString(36)).join(".");
}

function unpackPlaces(text, model) {
  const places = [];
  const size = every(model).length;
  let place = 0;
  text.split(".").forEach((run, turn) => {
    for (let left = Number.parseInt(run, 36) || 0; left > 0 && place < size; left -= 1, place += 1) {
      if (turn % 2 === 1) places.push(place);
    }
  });
  return places;
}
