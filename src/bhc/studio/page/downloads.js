// The network as a file.

import { byId, h } from "./dom.js";
import { showProblem } from "./problems.js";
import { service } from "./service.js";
import { body } from "./state.js";

/** A button for each format of the service; `named` gives the stem of the file. */
export function mountDownloads(model, asked, problem, named) {
  byId("downloads").append(...model.formats.map((format, place) => {
    const label = model.format_labels[format];
    const look = place ? "button" : "button first";
    const attributes = { class: look, type: "button", "aria-label": `Download ${label}` };
    const button = h("button", attributes, place ? label : `Download ${label}`);
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
