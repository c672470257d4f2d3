// What went wrong, near where it was asked: the service's message and its hint.

import { h } from "./dom.js";

/** Shows a refusal in a box made for it. Faults that are none of the service's go on. */
export function showProblem(box, fault) {
  if (fault.hint === undefined) throw fault;
  const hint = fault.hint ? h("span", {}, fault.hint) : null;
  box.replaceChildren(h("strong", {}, sentence(fault.message)), ...(hint ? [hint] : []));
  box.hidden = false;
}

/** Takes the box away. */
export function hideProblem(box) {
  box.hidden = true;
  box.replaceChildren();
}

/** The service's words begin small, as a command line's do. */
export function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
