// Pools and workers of this moment.

import { arrange, byId, h, say } from "./dom.js";
import { fitsPool, fitsWorker, setFilter, show as showFilters } from "./filters.js";
import { ago, count, percent, seconds, short, UNKNOWN, whole, words } from "./format.js";
import { bar, range, spread } from "./plots.js";

const FEW = 12; // workers of a pool that are shown at first
const STATES = { ok: "healthy", down: "down", errors: "left out: failing", silence: "left out: silent", slow_start: "coming back", draining: "draining", unknown: "not known yet" };
const ROOMY = 0.7;
const FULL = 0.95;
const CLOCK_BELOW = 0.9; // of the usual clock; worth saying
const CLOCK_LOW = 0.7; // no full load explains it
const LIMITS = [[0.3, "critical"], [0.5, "warning"]];

const cards = new Map();
const open = new Set();

function level(attained) {
  if (attained === null || attained === undefined) return "";
  return LIMITS.find(([most]) => attained < most)?.[1] ?? "good";
}

function fact(name, value, details, level = "") {
  return h("div", { class: "fact" }, h("dt", null, name), h("dd", { class: level }, value, ...[details].flat().map((detail) => h("small", null, detail))));
}

function medianOf(figure) {
  return figure ? seconds(figure.p50_seconds) : UNKNOWN;
}

// The first token by how much of the prompt was cached: what a GPU has to compute, and what a cache spares it.
function byHit(figure) {
  if (!figure?.cold_p50_seconds || !figure.warm_p50_seconds) return [];
  return [`TTFT cold ${seconds(figure.cold_p50_seconds)}`, `warm ${seconds(figure.warm_p50_seconds)}`];
}

function limits(figure) {
  return figure?.expected_p50_seconds ? [`expected ${seconds(figure.expected_p50_seconds)}`, `floor ${seconds(figure.floor_p50_seconds)}`] : [];
}

function trouble(worker) {
  if (["down", "silence", "errors"].includes(worker.state.code)) return 4;
  if ((attainedOf(worker).least ?? 1) < 0.5) return 3;
  if (worker.lately.failed || worker.lately.deviating) return 2;
  return worker.state.code === "ok" ? 0 : 1;
}

function attainedOf(worker) {
  const ttft = worker.ttft?.attained_p50_ratio ?? null;
  const tpot = worker.tpot?.attained_p50_ratio ?? null;
  return { ttft, tpot, least: ttft === null || tpot === null ? (ttft ?? tpot) : Math.min(ttft, tpot) };
}

function figureCell(label, figure, between, beside) {
  return h("td", { data: { label }, class: "figure" },
    spread(figure, between, label),
    h("div", { class: "under" }, h("b", null, medianOf(figure)), figure ? ` P90 ${seconds(figure.p90_seconds)}` : "", beside ? h("span", { class: "beside" }, beside) : null));
}

// What an exporter says of the worker's GPUs: one line, and what each figure is on a closer look.
function gpuLine(worker) {
  const gpus = worker.gpus;
  if (!gpus) return null;
  const known = (value, text) => (value === null || value === undefined ? null : text(value));
  const ratio = worker.clock_ratio ?? 1;
  const parts = [
    known(gpus.sm_clock_hertz, (value) => `${(value / 1e9).toFixed(2)} GHz`),
    ratio < CLOCK_BELOW ? `${percent(ratio)} of usual` : null,
    gpus.limited_by.length ? gpus.limited_by.map(words).join(", ") : null,
    known(gpus.dram_active_ratio, (value) => `memory ${percent(value)}`),
    known(gpus.tensor_active_ratio, (value) => `tensor ${percent(value)}`),
    known(gpus.power_watts, (value) => `${whole(Math.round(value))} W`),
    known(gpus.temperature_celsius, (value) => `${whole(Math.round(value))} °C`),
    gpus.xid ? `XID ${gpus.xid}` : null,
  ].filter(Boolean);
  const title = "Clock of the slowest GPU, busy share of memory (80 % is its peak) and tensor cores, power of all, temperature of the hottest";
  return h("span", { class: `reason gpus${ratio < CLOCK_LOW ? " warning" : ""}`, title }, `${count(gpus.gpus, "GPU")}: ${parts.join(" · ")}`);
}

function fillRow(row, pool, worker, scales, now) {
  const { ttft, tpot, least } = attainedOf(worker);
  const state = worker.state;
  const kv = worker.kv_usage_ratio;
  const since = state.code !== "ok" && state.since_unix_seconds ? ` ${ago(state.since_unix_seconds, now)}` : "";
  const causes = Object.entries(worker.causes).sort((a, b) => b[1] - a[1]);
  row.replaceChildren(
    h("th", { scope: "row", class: "name" },
      h("button", { type: "button", class: "plain", title: "Show only this worker", on: { click: () => { setFilter("worker", worker.worker); showFilters(); dispatchEvent(new Event("filters")); } } }, worker.worker),
      h("span", { class: `state ${state.code}`, title: [state.reason, worker.engine_version ? `vLLM ${worker.engine_version}` : null].filter(Boolean).join("; ") }, h("i", { "aria-hidden": "true" }), `${STATES[state.code] ?? state.code}${since}`),
      state.code === "ok" ? null : h("span", { class: "reason" }, state.reason),
      causes.length ? h("span", { class: "reason" }, `${worker.lately.deviating} far off: ${words(causes[0][0])}`) : null,
      worker.lately.failed ? h("span", { class: "reason critical" }, `${worker.lately.failed} failed`) : null,
      gpuLine(worker)),
    figureCell("TTFT", worker.ttft, scales.ttft, `hit ${percent(worker.hit_ratio)}`),
    figureCell("TPOT", worker.tpot, scales.tpot, null),
    h("td", { data: { label: "Attained" }, class: "num" }, h("b", { class: level(least), title: "Median of expected over measured; of TTFT, where less than half of the prompt was cached" }, percent(least)),
      h("small", null, `cold TTFT ${percent(ttft)}`), h("small", null, `TPOT ${percent(tpot)}`)),
    h("td", { data: { label: "Run, wait" }, class: "num" }, h("b", null, whole(worker.running_requests)), h("small", { class: worker.waiting_requests ? "warning" : "" }, `${whole(worker.waiting_requests)} waiting`), h("small", null, `${whole(worker.in_flight_requests)} of ours`)),
    h("td", { data: { label: "KV cache" }, class: "kv" }, bar(kv, kv >= FULL ? "critical" : kv > ROOMY ? "warning" : "good", `KV cache ${percent(kv)} in use`), h("small", null, percent(kv))),
  );
}

function makeCard(pool) {
  const id = `pool-${cards.size}`;
  const card = {
    root: h("article", { class: "pool", "aria-labelledby": id }),
    title: h("h3", { id }, h("span", { class: "muted" }, `${pool.model} / `), pool.pool),
    detail: h("p", { class: "muted detail" }),
    facts: h("dl", { class: "facts" }),
    body: h("tbody"),
    more: h("button", { type: "button", class: "more", hidden: true }),
    rows: new Map(),
  };
  const name = `${pool.model}\n${pool.pool}`;
  card.more.addEventListener("click", () => {
    if (open.has(name)) open.delete(name);
    else open.add(name);
    dispatchEvent(new Event("filters"));
  });
  const head = h("thead", null, h("tr", null, ...["Worker", "TTFT, hit share", "TPOT", "Attained", "Run, wait", "KV cache"].map((text, index) => h("th", { scope: "col", class: index > 2 && index < 5 ? "num" : "" }, text))));
  card.root.append(h("header", null, card.title, card.detail), card.facts, h("table", { class: "workers" }, head, card.body), card.more);
  return card;
}

function fillCard(card, pool, now) {
  const name = `${pool.model}\n${pool.pool}`;
  say(card.detail, [count(pool.workers.length, "worker"), pool.hardware, pool.max_total_tokens ? `up to ${short(pool.max_total_tokens)} tokens` : null, pool.policy].filter(Boolean).join(" · "));
  const lately = pool.lately;
  const attained = pool.workers.filter((worker) => worker.lately.requests).map((worker) => attainedOf(worker).least).filter((value) => value !== null);
  const least = attained.length ? Math.min(...attained) : null;
  card.facts.replaceChildren(
    fact("TTFT median", medianOf(pool.ttft), limits(pool.ttft)),
    fact("Hit share", percent(pool.hit_ratio), ["of prompt tokens", ...byHit(pool.ttft), ...(lately.hit_unknown ? [`${lately.hit_unknown} not known`] : [])]),
    fact("TPOT median", medianOf(pool.tpot), limits(pool.tpot)),
    fact("Attained, worst", percent(least), ["expected over", "measured"], level(least)),
    fact("Requests", whole(lately.requests), [`${lately.failed} failed`, `${lately.deviating} far off`], lately.failed ? "critical" : ""),
    fact("In flight", whole(pool.in_flight_requests), pool.queued_requests ? `${whole(pool.queued_requests)} wait here` : "none waits here", pool.queued_requests ? "warning" : ""),
    fact("Since start", whole(pool.totals.requests), `hit ${percent(pool.totals.hit_ratio)}`),
  );
  const scales = { ttft: range(pool.workers.map((worker) => worker.ttft)), tpot: range(pool.workers.map((worker) => worker.tpot)) };
  const fitting = pool.workers.filter(fitsWorker);
  const isLong = fitting.length > FEW;
  const shown = isLong && !open.has(name) ? [...fitting].sort((a, b) => trouble(b) - trouble(a)).slice(0, FEW) : fitting;
  const rows = shown.map((worker) => {
    if (!card.rows.has(worker.worker)) card.rows.set(worker.worker, { row: h("tr"), text: "" });
    const known = card.rows.get(worker.worker);
    const text = JSON.stringify([worker, scales, ago(worker.state.since_unix_seconds, now)]);
    if (text !== known.text) {
      const hadFocus = known.row.contains(document.activeElement);
      fillRow(known.row, pool, worker, scales, now);
      known.text = text;
      if (hadFocus) known.row.querySelector("button").focus({ preventScroll: true });
    }
    return known.row;
  });
  arrange(card.body, rows);
  if (card.rows.size > pool.workers.length) for (const worker of card.rows.keys()) if (!pool.workers.some((each) => each.worker === worker)) card.rows.delete(worker);
  card.more.hidden = !isLong;
  say(card.more, open.has(name) ? "Show those in trouble first" : `Show all ${fitting.length} workers`);
}

export function showFleet(fleet) {
  const pools = fleet.pools.filter(fitsPool);
  const elements = pools.map((pool) => {
    const name = `${pool.model}\n${pool.pool}`;
    if (!cards.has(name)) cards.set(name, makeCard(pool));
    fillCard(cards.get(name), pool, fleet.now_unix_seconds);
    return cards.get(name).root;
  });
  arrange(byId("pools"), elements.length ? elements : [h("p", { class: "muted" }, "No pool fits the filters.")]);
}
