// A text written by hand, for networks that read words.

import { h } from "./dom.js";

const WAIT = 250; // milliseconds after the last key

/** A place to write; `written` gets the text whenever it changed and there is one. */
export function mountText(parent, written) {
  const box = h("textarea", { rows: 3, "aria-label": "A text", placeholder: "Write here" });
  let timer;
  box.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => box.value.trim() && written(box.value), WAIT);
  });
  parent.append(box);
}
