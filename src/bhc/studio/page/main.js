// The studio: one request, asked anew whenever it changes, and everything drawn from the answer.

import { mountAnswers } from "./answers.js";
import { mountClasses } from "./classes.js";
import { mountCompare, restorePins } from "./compare.js";
import { mountCurve } from "./curve.js";
import { byId, write } from "./dom.js";
import { mountDomain } from "./domain.js";
import { mountDownloads } from "./downloads.js";
import { mountFeatures } from "./features.js";
import { mountFigures } from "./figures.js";
import { mountHistograms } from "./histograms.js";
import { mountNetwork } from "./network.js";
import { hideProblem, showProblem } from "./problems.js";
import { latest, service } from "./service.js";
import { mountBudget, mountLimits } from "./sliders.js";
import { LIMITS, MOST_PINS, Store, body, fromFragment, toFragment } from "./state.js";
import { bytes, context, threshold, whole } from "./words.js";

const NOT_LIMITED = Object.fromEntries(LIMITS.map((name) => [name, null]));
const SAID_FOR = 2500; // milliseconds

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
  write(byId("model-line"), `${model.model}: ${whole(model.weights_before)} weights, ${bytes(model.bytes_before)}`);

  const restored = fromFragment(location.hash, model);
  const asked = new Store(restored.request);
  const pins = new Store({ list: [] });
  let shown = null;

  const cut = (value) => asked.change({ threshold: value, ...NOT_LIMITED });
  const figures = mountFigures(byId("figures"), byId("strip"));
  const network = mountNetwork(model, { box: byId("network"), table: byId("network-table"), lead: byId("network-lead") });
  const curve = mountCurve(byId("curve"), cut);
  const histograms = mountHistograms(model, byId("histograms"), cut);
  mountClasses(model, asked);
  mountFeatures(model, asked);
  mountDomain(model, asked);
  mountBudget(model, asked);
  mountLimits(model, asked, (name) => figureOf(shown, name));
  mountDownloads(model, asked, byId("problem"), () => stem(asked.value, model));
  mountCompare(model, asked, pins);
  mountAnswers(model, asked);

  const busy = (is) => byId("working").classList.toggle("on", is);
  const ask = latest((request, signal) => service.preview(body(request, model), signal), { busy });
  asked.listen(async (request) => {
    history.replaceState(null, "", `#${toFragment(request, pins.value.list.map((pin) => pin.request))}`);
    write(byId("context-title"), context(request, model));
    byId("threshold-reset").disabled = request.threshold === null;
    write(byId("threshold-note"), howCut(request));
    try {
      shown = await ask(request);
    } catch (fault) {
      byId("answer").classList.add("old");
      return showProblem(byId("problem"), fault);
    }
    hideProblem(byId("problem"));
    byId("answer").classList.remove("old");
    for (const part of [figures, network, curve]) part.show(shown);
    histograms.show(shown, asked.value.threshold);
    byId("notes").hidden = shown.report.notes.length === 0;
    return write(byId("notes"), shown.report.notes.map((note) => `${note}.`).join(" "));
  });

  pins.listen(({ list }) => {
    history.replaceState(null, "", `#${toFragment(asked.value, list.map((pin) => pin.request))}`);
  });
  restorePins(restored.pins, model, pins);
  byId("threshold-reset").addEventListener("click", () => asked.change({ threshold: null }));
  byId("pin").addEventListener("click", () => {
    if (shown !== null && pins.value.list.length < MOST_PINS) {
      pins.change({ list: [...pins.value.list, { request: asked.value, preview: shown }] });
    }
  });
  byId("share").addEventListener("click", share);
  addEventListener("hashchange", () => {
    const wanted = fromFragment(location.hash, model);
    asked.change(wanted.request);
    restorePins(wanted.pins, model, pins);
  });
}

async function share() {
  const said = byId("said");
  try {
    await navigator.clipboard.writeText(location.href);
    write(said, "Copied.");
  } catch {
    write(said, "The address of this page is the link.");
  }
  setTimeout(() => write(said, ""), SAID_FOR);
}

/** The figure of the network shown that a limit is about. */
function figureOf(preview, name) {
  const fields = { max_bytes: "file_bytes", max_flops: "flops_after", max_error: "error" };
  return preview?.report[fields[name]] || null;
}

function howCut(request) {
  if (request.threshold !== null) return `Cut at ${threshold(request.threshold)}, by hand.`;
  return LIMITS.some((name) => request[name] !== null) ? "Cut where the limits are kept." : "Cut where training suggests.";
}

/** The name of a file: lenet-300-100-3-4. */
function stem(request, model) {
  const some = "classes" in model.conditions && request.classes.length < model.classes.length;
  return [model.model, ...(some ? request.classes : [])].join("-").replace(/[^\w.-]+/g, "-");
}
