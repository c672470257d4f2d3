// The studio: one request, asked anew whenever it changes, and everything drawn from the answer.

import { mountAnswers } from "./answers.js";
import { mountBlocks } from "./blocks.js";
import { mountClasses } from "./classes.js";
import { fillPins, mountCompare, unfilled } from "./compare.js";
import { mountCurve } from "./curve.js";
import { byId, write } from "./dom.js";
import { mountDomain } from "./domain.js";
import { mountDownloads } from "./downloads.js";
import { mountFeatures } from "./features.js";
import { mountFigures } from "./figures.js";
import { mountForms } from "./forms.js";
import { mountHistograms } from "./histograms.js";
import { mountNetwork } from "./network.js";
import { hideProblem, sentence, showProblem } from "./problems.js";
import { latest, service } from "./service.js";
import { mountLimits } from "./sliders.js";
import { LIMITS, Store, body, fromFragment, lacksDomain, toFragment } from "./state.js";
import { bytes, context, threshold, whole } from "./words.js";

const NOT_LIMITED = Object.fromEntries(LIMITS.map((name) => [name, null]));
const SAID_FOR = 2500; // milliseconds
const NOTED_AFTER = 200;

start();

async function start() {
  byId("token-form").addEventListener("submit", (event) => {
    event.preventDefault();
    service.token = byId("token").value;
    start();
  }, { once: true });
  try {
    open(await service.model());
  } catch (fault) {
    byId("token-form").hidden = fault.status !== 401;
    if (fault.status !== 401) showProblem(byId("start-problem"), fault);
    else byId("token").focus();
  }
}

function open(model) {
  byId("token-form").hidden = true;
  byId("studio").hidden = false;
  write(byId("model-line"), sizeInWords(model));
  write(byId("measure"), `Validation ${model.measure.name}`);

  const restored = fromFragment(location.hash, model);
  const asked = new Store(restored.request);
  const pins = new Store({ list: restored.pins.map(unfilled) });
  const dial = (budget) => (model.forms.budget?.optional ? { said: { ...asked.value.said, budget } } : {});
  const cut = (value) => asked.change({ threshold: value, ...dial(null), ...NOT_LIMITED });
  const choose = ({ threshold: value, budget }) =>
    (budget === null ? cut(value) : asked.change({ threshold: null, ...dial(budget), ...NOT_LIMITED }));
  const parts = [
    mountFigures(model, byId("figures"), byId("strip")),
    mountNetwork(model, { box: byId("network"), table: byId("network-table"), lead: byId("network-lead") }),
    mountBlocks({
      part: byId("blocks-part"), box: byId("blocks"), table: byId("blocks-table"), lead: byId("blocks-lead"),
    }),
    mountCurve(model, byId("curve"), choose),
    mountHistograms(model, byId("histograms"), cut, asked),
  ];
  const shown = follow(model, asked, async (preview) => {
    parts.forEach((part) => part.show(preview));
    await fillPins(model, pins); // what is asked for comes first
  });
  mountClasses(model, asked);
  mountFeatures(model, asked);
  mountDomain(model, asked);
  mountForms(model, asked);
  mountLimits(model, asked, (name) => figureOf(shown.preview, name));
  mountDownloads(model, asked, byId("problem"), () => stem(asked.value, model));
  mountCompare(model, asked, pins);
  mountAnswers(model, asked);
  const address = remember(model, asked, pins);

  byId("threshold-reset").addEventListener("click", () => asked.change({ threshold: null }));
  byId("pin").addEventListener("click", () => {
    if (shown.preview !== null) pins.change({ list: [...pins.value.list, { ...shown }] });
  });
  byId("share").addEventListener("click", () => share(address()));
}

/** Asks anew at every change; what is returned always holds the last answer and what it was asked for. */
function follow(model, asked, show) {
  const shown = { request: null, preview: null };
  const busy = (is) => byId("working").classList.toggle("on", is);
  const ask = latest((request, signal) => service.preview(body(request, model), signal), { busy });
  asked.listen(async (request) => {
    write(byId("context-title"), context(request, model));
    byId("threshold-reset").disabled = request.threshold === null;
    write(byId("threshold-note"), howCut(request, model));
    if (lacksDomain(request, model)) return;
    try {
      Object.assign(shown, { preview: await ask(request), request });
    } catch (fault) {
      byId("answer").classList.add("old");
      showProblem(byId("problem"), fault);
      return;
    }
    hideProblem(byId("problem"));
    byId("answer").classList.remove("old", "waiting");
    const { notes } = shown.preview.report;
    byId("notes").hidden = notes.length === 0;
    write(byId("notes"), notes.map((note) => `${sentence(note)}.`).join(" "));
    await show(shown.preview);
  });
  return shown;
}

/** Keeps the address in step with what is asked, and what is asked with the address; gives the way to the address. */
function remember(model, asked, pins) {
  let timer;
  const note = () => {
    clearTimeout(timer);
    history.replaceState(null, "", `#${toFragment(asked.value, pins.value.list.map((pin) => pin.request))}`);
    return location.href;
  };
  // Browsers refuse to write the address as often as a handle moves.
  const soon = () => {
    clearTimeout(timer);
    timer = setTimeout(note, NOTED_AFTER);
  };
  asked.listen(soon);
  pins.listen(soon);
  addEventListener("hashchange", () => {
    const wanted = fromFragment(location.hash, model);
    pins.change({ list: wanted.pins.map(unfilled) });
    asked.change(wanted.request);
  });
  return note;
}

async function share(link) {
  const said = byId("said");
  try {
    await navigator.clipboard.writeText(link);
    write(said, "Copied.");
  } catch {
    write(said, "The address of this page is the link.");
  }
  setTimeout(() => write(said, ""), SAID_FOR);
}

function sizeInWords({ model, layers, weights_before: weights, bytes_before: size }) {
  return `${model}: ${layers.length} layers, ${whole(weights)} weights, ${bytes(size)}`;
}

/** The figure of the network shown that a limit is about. */
function figureOf(preview, name) {
  const fields = {
    max_bytes: "file_bytes",
    max_flops: "flops_after",
    max_error: "error",
    max_ram_bytes: "ram_bytes",
    max_latency_ms: "latency_ms",
  };
  return preview?.report[fields[name]] || null;
}

function howCut(request, model) {
  if (request.threshold !== null) return `Cut at ${threshold(request.threshold)}, by hand.`;
  const limited = LIMITS.some((name) => request[name] !== null);
  if (limited) return "Cut where the limits are kept.";
  if (!model.forms.budget?.optional) return "Cut where training suggests.";
  return request.said.budget === null ? "The smallest that is as good as the original." : "The best of this size.";
}

/** The name of a file: lenet-300-100-3-4. */
function stem(request, model) {
  const some = "classes" in model.conditions && request.classes.length < model.classes.length;
  return [model.model, ...(some ? request.classes : [])].join("-").replace(/[^\w.-]+/g, "-");
}
