// Elements without markup: whatever a text holds, it is set as text.

export const byId = (id) => document.getElementById(id);

/** Make an element: attributes (`on…` are listeners, `data` a dataset, `style` properties), then children. */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name === "style") setStyle(element, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Set style properties one by one, which the page's policy allows, unlike a style attribute. */
export function setStyle(element, properties) {
  for (const [name, value] of Object.entries(properties)) element.style.setProperty(name, value);
}

const whole = new Intl.NumberFormat("en");

/** A count as people read it; "?" where it is not known. */
export const count = (value) => (Number.isFinite(value) ? whole.format(Math.round(value)) : "?");

export const percent = (ratio) => (Number.isFinite(ratio) ? `${(100 * ratio).toFixed(ratio < 0.0995 ? 1 : 0)} %` : "?");

/** A time in seconds with the digits that matter. */
export function seconds(value) {
  if (!Number.isFinite(value)) return "?";
  if (value < 0.0995) return `${(1000 * value).toFixed(value < 0.00995 ? 1 : 0)} ms`;
  return value < 9.95 ? `${value.toFixed(2)} s` : `${value.toFixed(1)} s`;
}

/** A number that came from outside; NaN for everything else, so that it cannot be taken for 0. */
export const number = (value) => (typeof value === "number" ? value : NaN);
