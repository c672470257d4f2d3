// Up to four networks side by side.

import { byId, h, wordButton, write } from "./dom.js";
import { silhouette } from "./network.js";
import { sentence } from "./problems.js";
import { service } from "./service.js";
import { MOST_PINS, body } from "./state.js";
import { bytes, context, percent, ratio, short, shown, threshold } from "./words.js";

/** Cards of what is pinned. `pins` is a store of {list: [{request, preview}]}. */
export function mountCompare(model, asked, pins) {
  pins.listen(({ list }) => {
    byId("compare-lead").hidden = list.length > 0;
    byId("pin").disabled = list.length >= MOST_PINS;
    write(byId("pin"), list.length >= MOST_PINS ? "Four are pinned" : "Pin to compare");
    byId("cards").replaceChildren(...list.map((pin, place) => card(pin, place)));
  });

  function card({ request, preview, problem }, place) {
    const name = context(request, model);
    const remove = () => pins.change({ list: pins.value.list.filter((_, other) => other !== place) });
    const back = wordButton("Show", () => asked.change(request), `Show ${name}`);
    const drop = wordButton("Remove", remove, `Remove ${name}`);
    const inside = preview ? numbers(preview, model) : [h("p", { class: "note" }, problem ?? "…")];
    return h("li", { class: "card" }, h("h3", {}, sentence(name)), ...inside, h("div", { class: "row" }, back, drop));
  }
}

/** A pin of which only the request is known yet. */
export function unfilled(request) {
  return { request, preview: null, problem: null };
}

/** Asks for the networks of pins that came with a link. */
export async function fillPins(model, pins) {
  for (const pin of pins.value.list.filter(({ preview, problem }) => !preview && !problem)) {
    const outcome = await service.preview(body(pin.request, model)).then(
      (preview) => ({ preview }),
      (fault) => ({ problem: fault.message }),
    );
    pins.change({ list: pins.value.list.map((one) => (one === pin ? { ...pin, ...outcome } : one)) });
  }
}

function numbers({ report, layers }, { measure }) {
  const rows = [
    ["File", bytes(report.file_bytes)],
    ["FLOPs", short(report.flops_after)],
    [sentence(measure.name), percent(shown(report.error, measure))],
    ["Threshold", threshold(report.threshold)],
  ];
  return [
    silhouette(layers, 200, 64),
    h("p", { class: "times" }, ratio(report.pruning_ratio), h("small", {}, "×")),
    h("dl", {}, ...rows.flatMap(([term, value]) => [h("dt", {}, term), h("dd", {}, value)])),
  ];
}
