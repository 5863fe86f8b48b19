// What is wrong, drifts and keys.

import { arrange, byId, h, say } from "./dom.js";
import { setFilter, show as showFilters } from "./filters.js";
import { ago, clock, percent, seconds, short, whole } from "./format.js";

let last = "";

function narrow(finding) {
  for (const name of ["model", "pool", "worker"]) if (finding[name]) setFilter(name, finding[name]);
  showFilters();
  dispatchEvent(new Event("filters"));
}

export function showFindings(fleet) {
  const { headline, findings, now_unix_seconds: now } = fleet;
  byId("headline").dataset.severity = headline.severity;
  say(byId("headline-text"), headline.text + ".");
  // The first finding is the headline itself, unless there are only notices.
  const first = headline.severity === "ok" ? null : findings[0];
  say(byId("headline-advice"), first?.advice ?? "");
  byId("headline-show").hidden = !(first && (first.pool || first.worker));
  byId("headline-show").onclick = () => first && narrow(first);
  const others = first ? findings.slice(1) : findings;
  document.title = headline.severity === "ok" ? "Ridgeline: all healthy" : `(${headline.more + 1}) ${headline.text}`;
  const text = JSON.stringify(others.map((each) => [each, ago(each.since_unix_seconds, now)]));
  if (text === last) return;
  last = text;
  arrange(byId("findings"), others.map((finding) => h("li", { class: finding.severity },
    h("span", { class: "tag" }, finding.severity),
    h("div", null, h("strong", null, finding.text), h("span", { class: "since" }, ago(finding.since_unix_seconds, now)), finding.advice ? h("p", null, finding.advice) : null),
    finding.pool || finding.worker ? h("button", { type: "button", on: { click: () => narrow(finding) } }, "Show") : null)));
}

function table(id, head, rows, none) {
  const cell = (text, index) => h("td", { class: head[index][1] ?? "", data: { label: head[index][0] } }, text);
  arrange(byId(id), [rows.length
    ? h("table", { class: "plain-table" }, h("thead", null, h("tr", null, ...head.map(([name, kind]) => h("th", { scope: "col", class: kind ?? "" }, name)))), h("tbody", null, ...rows.map((row) => h("tr", null, ...row.map(cell)))))
    : h("p", { class: "muted" }, none)]);
}

export function showDrifts(fleet) {
  const rows = [...fleet.drifts].reverse().slice(0, 20).map((drift) => [
    clock(drift.since), drift.model, Object.entries(drift.keys).map(([key, requests]) => `${key || "no key"} (${requests})`).join(", "),
    `${drift.kind} near byte ${whole(drift.position_bytes)} (${drift.change_bytes >= 0 ? "+" : "−"}${whole(Math.abs(drift.change_bytes))} bytes)`,
    whole(drift.requests), whole(drift.texts), short(drift.missed_tokens), drift.missed_seconds ? seconds(drift.missed_seconds) : "–",
  ]);
  table("drift-table", [["Since"], ["Model"], ["Keys (requests)"], ["What changed"], ["Requests", "num"], ["Texts", "num"], ["Missed tokens", "num"], ["Prefill it cost", "num"]], rows, "No system prompt that was cached has changed.");
}

export function showKeys(fleet) {
  const rows = fleet.keys.map((key) => [key.key, whole(key.requests), whole(key.failed), short(key.prompt_tokens), percent(key.prompt_tokens ? key.cached_tokens / key.prompt_tokens : null), short(key.completion_tokens)]);
  table("key-table", [["Key"], ["Requests", "num"], ["Not ok", "num"], ["Prompt tokens", "num"], ["Cached of them", "num"], ["Completion tokens", "num"]], rows, "No keys are configured: everybody who reaches the gateway may use it.");
}
