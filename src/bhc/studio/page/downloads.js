// The network as a file.

import { byId, h } from "./dom.js";
import { showProblem } from "./problems.js";
import { service } from "./service.js";
import { body } from "./state.js";

const NAMES = { bhc: ".bhc", onnx: "ONNX", c: "C", pt2: ".pt2" };

/** A button for each form; `named` gives the stem of the file. */
export function mountDownloads(model, asked, problem, named) {
  const forms = Object.keys(NAMES).filter((form) => model.formats.includes(form));
  byId("downloads").append(...forms.map((format) => {
    const own = format === "bhc"; // the form that stands first
    const look = own ? "button first" : "button";
    const attributes = { class: look, type: "button", "aria-label": `Download ${NAMES[format]}` };
    const button = h("button", attributes, own ? "Download .bhc" : NAMES[format]);
    button.addEventListener("click", async () => {
      button.disabled = true;
      try {
        const { name, content } = await service.network({ ...body(asked.value, model), format });
        hand(content, name.replace(/^network/, named()));
      } catch (fault) {
        showProblem(problem, fault);
      }
      button.disabled = false;
    });
    return button;
  }));
}

function hand(content, name) {
  const address = URL.createObjectURL(content);
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
