// The kind of inputs: a file of samples, of which the service keeps the mean.

import { byId, h, write } from "./dom.js";
import { service } from "./service.js";
import { hideProblem, showProblem } from "./problems.js";

/** The upload of a model that knows of domains. */
export function mountDomain(model, asked) {
  if (!model.domain) return;
  byId("domain-field").hidden = false;
  const input = h("input", { type: "file", accept: ".npy", "aria-label": "Samples of the domain (.npy)" });
  const text = h("span");
  const drop = h("label", { class: "drop" }, input, text);
  const problem = h("div", { class: "problem", role: "alert", hidden: true });
  const remove = h("button", { class: "quiet", type: "button", onclick: () => asked.change({ domain: null }) }, "Forget it");
  const shape = model.domain.shape.join(" × ");
  const help = `16 or more unlabelled inputs, an array (n × ${shape}) up to ${model.domain.full_scale}.`;
  byId("domain").append(drop, problem, h("div", { class: "row" }, h("span", { class: "note" }, help), remove));

  const take = async (file) => {
    if (!file) return;
    hideProblem(problem);
    try {
      const { domain } = await service.domain(file);
      asked.change({ domain: { token: domain, name: file.name } });
    } catch (fault) {
      showProblem(problem, fault);
    }
    input.value = "";
  };
  input.addEventListener("change", () => take(input.files[0]));
  for (const [event, over] of [["dragover", true], ["dragleave", false], ["drop", false]]) {
    drop.addEventListener(event, (happened) => {
      happened.preventDefault();
      drop.classList.toggle("over", over);
      if (event === "drop") take(happened.dataTransfer.files[0]);
    });
  }
  asked.listen(({ domain }) => {
    write(text, domain === null ? "Choose a .npy file, or drop it here" : domain.name);
    remove.hidden = domain === null;
  });
}
