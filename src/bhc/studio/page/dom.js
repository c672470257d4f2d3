// Elements made from code: HTML and SVG, and the few lists of them that are kept in step with data.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element: `h("button", { class: "quiet", onclick: act }, "Pin")`. */
export function h(name, attributes = {}, ...children) {
  return furnish(document.createElement(name), attributes, children);
}

/** An SVG element, made the same way. */
export function s(name, attributes = {}, ...children) {
  return furnish(document.createElementNS(SVG, name), attributes, children);
}

/** A button of plain words; `label` is its name where the words alone would not do. */
export function wordButton(words, onclick, label = null) {
  return h("button", { class: "quiet", type: "button", "aria-label": label, onclick }, words);
}

/** The element with this id; that there is none is a fault of the page. */
export function byId(id) {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`the page has no #${id}`);
  return found;
}

/** Sets attributes of an element; null and false take one away, functions listen. */
export function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === null || value === undefined || value === false) element.removeAttribute(name);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  return element;
}

/** Writes a text only where it changed, so that a screen reader is not told the same thing again. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Keeps as many children as there are items: makes those that lack, drops those left over, updates all. */
export function keep(parent, items, make, update) {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  while (parent.children.length < items.length) parent.append(make(parent.children.length));
  items.forEach((item, place) => update(parent.children[place], item, place));
}

function furnish(element, attributes, children) {
  set(element, attributes);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}
