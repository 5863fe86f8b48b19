// Why one request took as long as it did.

import { byId, copy, h } from "./dom.js";
import { filter, setFilter } from "./filters.js";
import { clock, percent, seconds, UNKNOWN, whole, words } from "./format.js";
import { mark } from "./requests.js";
import { bar, STEP_NAMES, total, waterfall } from "./plots.js";

const NAMES = { ttft: "TTFT at the worker", tpot: "TPOT", e2e: "Whole answer at the worker" };
const NUMBERS = { prefill_flop: "Prefill FLOP", decode_bytes: "Decode bandwidth", kv_bytes: "KV cache" };

let cameFrom = null;
let asked = 0;

function section(title, ...children) {
  return h("section", null, h("h3", null, title), ...children);
}

function judged(figure) {
  const most = Math.max(figure.measured_seconds, figure.expected_seconds, figure.floor_seconds);
  const line = (name, value, kind) => h("div", { class: "bullet" }, h("span", null, name), bar(value / most, kind, `${name} ${seconds(value)}`), h("b", null, seconds(value)));
  const least = figure.least_expected_seconds < figure.expected_seconds ? `, ${seconds(figure.least_expected_seconds)} if all was cached` : "";
  return h("div", { class: "judged" },
    h("p", null, h("strong", null, NAMES[figure.figure]), h("small", { class: figure.deviates ? "warning" : "" }, figure.floor_ratio < 1 ? "faster than physics allows" : `${percent(figure.attained_ratio)} attained${least}`)),
    line("measured", figure.measured_seconds, figure.deviates ? "warning" : "measured"),
    line("expected", figure.expected_seconds, "expected"),
    line(`floor (${figure.binds})`, figure.floor_seconds, "floor"));
}

function gap(told) {
  if (told.excess_seconds === null) return null;
  return section(`The gap: ${seconds(Math.abs(told.excess_seconds))}`, h("ol", { class: "causes" }, ...told.causes.map((cause) => h("li", { class: cause.cause === "unexplained" ? "unexplained" : "" },
    h("div", null, h("strong", null, cause.what), h("b", null, `${seconds(cause.seconds)} · ${percent(cause.share_ratio)}`)),
    bar(cause.share_ratio, cause.cause === "unexplained" ? "track2" : "warning", `${percent(cause.share_ratio)} of the gap`),
    cause.advice ? h("small", null, cause.advice) : null))),
  told.causes.some((cause) => cause.cause === "unexplained") ? null : h("p", { class: "muted" }, "Nothing of it is left unexplained."));
}

function numbers(told) {
  const known = Object.entries(NUMBERS).filter(([name]) => told.numbers[name]);
  if (!known.length) return null;
  return section("The three numbers", ...known.map(([name, title]) => {
    const number = told.numbers[name];
    return h("div", { class: "number" }, h("p", null, h("strong", null, title), h("b", null, percent(number.share_ratio))), bar(number.share_ratio, "measured", `${title} ${percent(number.share_ratio)}`), h("small", null, number.text));
  }));
}

function times(told) {
  if (!told.parts.length) return null;
  const whole_ = total(told.parts);
  const estimate = told.prefill_from === "expected" ? "Where waiting ends and prefill begins is estimated: prefill as long as expected." : told.prefill_from === "worker" ? "Prefill as the worker itself says." : null;
  return section(`Where the time went: ${seconds(whole_)}`, h("div", { class: "fall large" }, waterfall(told.parts, whole_)),
    h("dl", { class: "parts" }, ...told.parts.map(([step, its]) => h("div", null, h("dt", null, h("i", { class: `step-${step}`, "aria-hidden": "true" }), STEP_NAMES[step] ?? step), h("dd", null, seconds(its))))),
    told.stage ? h("p", { class: "stage" }, h("strong", null, "Prefill stage: "), told.stage) : null,
    estimate && told.parts.some(([step]) => step === "prefill") ? h("p", { class: "muted" }, estimate) : null);
}

function tokens(told) {
  const known = told.cached_tokens !== null && told.prompt_tokens;
  const hit = known ? percent(told.cached_tokens / told.prompt_tokens) : "not known";
  const usual = told.expected_cached_tokens !== null ? `; ${whole(told.expected_cached_tokens)} could be expected${told.cache_lost ? `, lost: ${words(told.cache_lost)}` : ""}` : "";
  return section("Tokens", h("p", null, `${whole(told.prompt_tokens)} in, ${known ? whole(told.cached_tokens) : UNKNOWN} of them from the prefix cache (${hit})${usual}; ${whole(told.completion_tokens)} out.`));
}

function about(row) {
  const facts = [["Request", row.id], ["Ended", clock(row.time)], ["Model", row.model], ["Pool", row.pool], ["Worker", row.worker ?? UNKNOWN], ["Key", row.key ?? "none"], ["Path", `${row.endpoint}${row.stream ? ", streamed" : ""}`], ["Status", row.status ?? UNKNOWN], ["Attempts", row.attempts]];
  return h("dl", { class: "about" }, ...facts.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, String(value)))));
}

export function closeWhy() {
  const panel = byId("why");
  if (panel.hidden) return;
  asked += 1;
  panel.hidden = true;
  document.body.classList.remove("has-why");
  setFilter("request", "");
  mark(null);
  if (cameFrom?.isConnected) cameFrom.focus();
  cameFrom = null;
}

export async function openWhy(row, from) {
  const panel = byId("why");
  const mine = (asked += 1);
  cameFrom = from ?? cameFrom;
  setFilter("request", row.id);
  mark(row.id);
  const close = h("button", { type: "button", class: "close", "aria-label": "Close", on: { click: closeWhy } }, "×");
  const title = h("h2", { id: "why-title", tabindex: "-1" }, "Why");
  const body = h("div", { class: "why-body" }, h("p", { class: "muted" }, "Looking it up"));
  panel.replaceChildren(h("header", null, title, close), body);
  panel.hidden = false;
  document.body.classList.add("has-why");
  title.focus({ preventScroll: true });
  try {
    const answer = await fetch(`/api/records/${encodeURIComponent(row.id)}/why`);
    if (mine !== asked) return;
    if (!answer.ok) throw new Error(answer.status === 404 ? "It is not among the last requests any more; the JSON log has it." : `The gateway answered ${answer.status}.`);
    const told = await answer.json();
    const copyIt = async () => {
      const record = await fetch(`/api/records/${encodeURIComponent(row.id)}`);
      await copy(JSON.stringify({ record: record.ok ? await record.json() : row, why: told }, null, 2), "Request");
    };
    body.replaceChildren(...[
      h("p", { class: "summary" }, told.summary), told.advice ? h("p", { class: "advice" }, told.advice) : null, gap(told), told.figures.length ? section("Against its limits", ...told.figures.map(judged), told.hardware ? h("p", { class: "muted" }, `Limits of ${told.hardware}, for this request alone (floor) and with the batch that ran (expected).`) : null) : null, numbers(told), times(told), tokens(told), section("The request", about(row)),
      h("p", { class: "buttons" }, h("button", { type: "button", on: { click: copyIt } }, "Copy as JSON")),
    ].filter(Boolean));
  } catch (error) {
    if (mine === asked) body.replaceChildren(h("p", null, error.message), section("The request", about(row)));
  }
}

export function wantedRequest() {
  return filter("request");
}

export function watchWhy() {
  addEventListener("keydown", (event) => event.key === "Escape" && closeWhy());
}
