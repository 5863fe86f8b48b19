// Elements from values. Whatever comes from outside (names of workers and models, error texts) is set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    else if (name === "data") Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export function byId(id) {
  return document.getElementById(id);
}

// Set a text only where it changes, so that screen readers and selections are left alone.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Make the children of a parent be these keyed elements, in this order; an element that is there already stays, with its focus.
export function arrange(parent, elements) {
  let place = parent.firstChild;
  for (const element of elements) {
    if (element === place) place = place.nextSibling;
    else parent.insertBefore(element, place);
  }
  while (place !== null) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

export async function copy(text, what) {
  const said = byId("said");
  try {
    if (navigator.clipboard) await navigator.clipboard.writeText(text);
    else copyBySelection(text);
    said.textContent = `${what} copied as JSON`;
  } catch {
    said.textContent = "The browser did not allow copying";
  }
  said.classList.add("shown");
  clearTimeout(copy.timer);
  copy.timer = setTimeout(() => said.classList.remove("shown"), 2500);
}

// Where the page was not asked for on localhost, browsers give no clipboard.
function copyBySelection(text) {
  const area = h("textarea", { class: "offscreen", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const isDone = document.execCommand("copy");
  area.remove();
  if (!isDone) throw new Error("not copied");
}
