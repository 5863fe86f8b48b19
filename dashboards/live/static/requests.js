// The last requests as a table that can be walked through with the keyboard.

import { arrange, byId, copy, h, say } from "./dom.js";
import { fits } from "./filters.js";
import { clock, count, percent, seconds, short, UNKNOWN, words } from "./format.js";
import { scaleOf, STEP_NAMES, STEPS, total, waterfall } from "./plots.js";

const KEPT = 500;
const KEPT_ODD = 200; // of those that failed or deviated, also when more others have come since
const RARE = ["stage", "fetch"]; // in the legend once there are any
const NOT_FAILED = ["client_gone", "client_error", "rejected", "shutdown"];
const STEP = 40; // rows shown at first, and more at each wish

let rows = []; // newest first
let paused = null; // those that were there when it was paused
const elements = new Map();
let choose = () => {};
let chosenId = null;
let scale = 0;
let most = STEP;

export function take(fresh) {
  const known = new Set(fresh.map((row) => row.id + row.time));
  rows = [...fresh, ...rows.filter((row) => !known.has(row.id + row.time))];
  rows.sort((a, b) => b.time - a.time);
  rows = [...rows.slice(0, KEPT), ...rows.slice(KEPT).filter(isOdd).slice(0, KEPT_ODD)];
  const kept = new Set(rows);
  for (const row of elements.keys()) if (!kept.has(row) && !(paused ?? []).includes(row)) elements.delete(row);
}

function isOdd(row) {
  return row.deviations.length > 0 || !["ok", ...NOT_FAILED].includes(row.outcome);
}

export function allRows() {
  return rows;
}

function hit(row) {
  return row.cached === null || row.cached === undefined || !row.prompt ? null : row.cached / row.prompt;
}

function outcomeOf(row) {
  const isSlow = row.deviations.length > 0;
  const kind = row.outcome === "ok" ? (isSlow ? "slow" : "ok") : NOT_FAILED.includes(row.outcome) ? "other" : "bad";
  const cause = row.causes[0]?.[0] ?? "";
  const text = row.outcome !== "ok" ? words(row.outcome) : !isSlow ? "ok" : cause === "facts" ? "too fast" : `slow: ${words(cause)}`;
  return h("span", { class: `outcome ${kind}` }, text, row.outcome !== "ok" && row.reason ? h("small", null, words(row.reason)) : null);
}

function beside(measured, expected, more) {
  const limit = expected ? h("span", { class: measured > 2 * expected ? "warning" : "" }, `expected ${seconds(expected)}`) : null;
  return limit || more ? h("small", null, limit, limit && more ? " · " : null, more) : null;
}

function cells(row) {
  const isStream = row.ttft !== null && row.ttft !== undefined;
  return [
    h("td", { class: "time" }, clock(row.time), row.key ? h("small", null, row.key) : null),
    h("td", null, outcomeOf(row)),
    h("td", { class: "where" }, h("b", null, row.worker ?? UNKNOWN), h("small", null, `${row.model} / ${row.pool}`)),
    h("td", { class: "num", data: { label: "TTFT" } }, seconds(row.ttft), beside(row.upstream_ttft, isStream ? row.ttft_expected : null, `hit ${percent(hit(row))}`)),
    h("td", { class: "num", data: { label: "TPOT" } }, seconds(row.tpot), beside(row.tpot, isStream ? row.tpot_expected : null)),
    h("td", { class: "num", data: { label: "Tokens" } }, `${short(row.prompt)}`, h("small", null, `${short(row.completion)} out`)),
    h("td", { class: "wide" }, h("div", { class: "fall" }, waterfall(row.parts, scale), h("span", { class: "total" }, seconds(total(row.parts))))),
  ];
}

function element(row) {
  let known = elements.get(row);
  if (!known) {
    known = { row: h("tr", { tabindex: "-1", "aria-haspopup": "dialog", data: { id: row.id } }), scale: 0 };
    known.row.addEventListener("click", () => getSelection().isCollapsed && choose(row, known.row));
    elements.set(row, known);
  }
  if (known.scale !== scale) {
    known.row.replaceChildren(...cells(row));
    known.scale = scale;
  }
  known.row.classList.toggle("chosen", row.id === chosenId);
  return known.row;
}

export function showRequests() {
  const fitting = (paused ?? rows).filter(fits);
  const shown = fitting.slice(0, most);
  scale = scaleOf(shown);
  for (const step of RARE) {
    const entry = byId("steps").querySelector(`[data-step="${step}"]`);
    if (entry?.hidden && shown.some((row) => row.parts.some(([its]) => its === step))) entry.hidden = false;
  }
  const body = byId("rows");
  const trs = shown.map(element);
  arrange(body, trs.length ? trs : [h("tr", { class: "empty" }, h("td", { colspan: 7 }, rows.length ? "No request fits the filters." : "No request has ended yet."))]);
  if (trs.length && !trs.some((tr) => tr.tabIndex === 0)) trs[0].tabIndex = 0;
  byId("more-requests").hidden = fitting.length <= most;
  const fresh = paused ? rows.filter((row) => !paused.includes(row)).length : 0;
  say(byId("requests-count"), `${count(fitting.length, "request")}${fitting.length > most ? `, ${most} shown` : ""}${paused ? `, paused: ${fresh} more since` : ""}; a full bar is ${seconds(scale)}`);
}

export function mark(id) {
  chosenId = id;
  for (const { row } of elements.values()) row.classList.toggle("chosen", row.dataset.id === id);
}

function move(from, to) {
  if (!to || !to.dataset.id) return;
  from.tabIndex = -1;
  to.tabIndex = 0;
  to.focus();
}

export function watchRequests(chosen) {
  choose = chosen;
  byId("steps").append(...STEPS.filter((step) => !["earlier", "answer"].includes(step)).map((step) => h("span", { hidden: RARE.includes(step), data: { step } }, h("i", { class: `step-${step}`, "aria-hidden": "true" }), STEP_NAMES[step])));
  const body = byId("rows");
  body.addEventListener("focusin", (event) => {
    for (const tr of body.querySelectorAll('tr[tabindex="0"]')) tr.tabIndex = -1;
    event.target.closest("tr").tabIndex = 0;
  });
  body.addEventListener("keydown", (event) => {
    const tr = event.target.closest("tr");
    const row = [...elements].find(([, known]) => known.row === tr)?.[0];
    if (!row) return;
    if (event.key === "Enter" || event.key === " ") choose(row, tr);
    else if (event.key === "ArrowDown") move(tr, tr.nextElementSibling);
    else if (event.key === "ArrowUp") move(tr, tr.previousElementSibling);
    else if (event.key === "Home") move(tr, body.firstElementChild);
    else if (event.key === "End") move(tr, body.lastElementChild);
    else return;
    event.preventDefault();
  });
  const pause = byId("pause");
  pause.addEventListener("click", () => {
    paused = paused ? null : [...rows];
    pause.setAttribute("aria-pressed", String(paused !== null));
    say(pause, paused ? "Go on" : "Pause");
    showRequests();
  });
  byId("more-requests").addEventListener("click", () => {
    most += STEP;
    showRequests();
  });
  byId("copy-requests").addEventListener("click", () => copy(JSON.stringify((paused ?? rows).filter(fits), null, 2), "Requests"));
}
