// The figures of a network in large type.

import { h, write } from "./dom.js";
import { bytes, measured, milliseconds, percent, ratio, shown, whole } from "./words.js";

/** What was proved of the error on new data, or else the full network's. */
function besideError({ error_before: before, guarantee }, measure) {
  if (guarantee === null) return before === null ? "" : `full network ${percent(shown(before, measure))}`;
  const most = `${measure.higher_is_better ? "≥" : "≤"} ${shown(guarantee.max_error, measure)} %`;
  return `proved: ${most}, ${Number((100 * guarantee.confidence).toPrecision(4))} % sure`;
}

/** One large number and five others, each with what it was before. */
export function mountFigures(model, box, strip) {
  const { measure } = model;
  const large = h("strong");
  const cells = ["File", "FLOPs", `Validation ${measure.name}`, "With bits", "Emitted in"].map((name) => {
    const [value, note] = [h("dd"), h("dd", { class: "note" })];
    return { value, note, box: h("div", {}, h("dt", {}, name), value, note) };
  });
  const unit = [h("span", { class: "times" }, "×"), h("span", { class: "note" }, "fewer weights")];
  box.append(h("p", { class: "large" }, large, ...unit), h("dl", {}, ...cells.map((cell) => cell.box)));
  return {
    show({ report, emit_ms: spent }) {
      const rows = [
        [bytes(report.file_bytes), `${ratio(report.file_ratio)} × smaller`],
        [whole(report.flops_after), `of ${whole(report.flops_before)}`],
        [percent(shown(report.error, measure)), besideError(report, measure)],
        [`${ratio(report.bits_ratio)} ×`, "smaller, in bits"],
        [milliseconds(spent), "context to file"],
      ];
      write(large, ratio(report.pruning_ratio));
      rows.forEach(([value, note], place) => {
        write(cells[place].value, value);
        write(cells[place].note, note);
      });
      const words = [`${ratio(report.pruning_ratio)} ×`, bytes(report.file_bytes), measured(report.error, model)];
      strip.replaceChildren(h("b", {}, words[0]), ...words.slice(1).map((word) => h("span", {}, word)));
    },
  };
}
