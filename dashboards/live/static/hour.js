// The last hour, pool by pool.

import { arrange, byId, h } from "./dom.js";
import { fitsPool } from "./filters.js";
import { seconds, short } from "./format.js";
import { chart, lastOf } from "./plots.js";

const MOST_POOLS = 6;

function figure(title, begins, series, show, least = 0) {
  const legend = series.map((each) => h("span", { class: "chart-key" }, h("i", { class: each.class, "aria-hidden": "true" }), `${each.name} `, h("b", null, lastOf(each, show))));
  return h("figure", null, h("figcaption", null, h("strong", null, title), h("span", { class: "keys" }, ...legend)), chart({ title, begins, series, show, least }));
}

function charts(hour) {
  const column = (name) => hour.minutes.map((minute) => minute[name]);
  // What adds up is shown of whole minutes: the one that goes on would look like a fall.
  const counted = (name) => hour.minutes.map((minute) => (minute.is_over ? minute[name] : null));
  const begins = column("begins_unix_seconds");
  const hit = { name: "hit share", class: "area", values: column("hit_ratio"), is_area: true, of_one: true };
  return [
    figure("TTFT and hit share", begins, [hit, { name: "P99", class: "line-b", values: column("ttft_p99_seconds") }, { name: "median", class: "line-a", values: column("ttft_p50_seconds") }], seconds),
    figure("TPOT", begins, [{ name: "P99", class: "line-b", values: column("tpot_p99_seconds") }, { name: "median", class: "line-a", values: column("tpot_p50_seconds") }], seconds),
    figure("Requests a minute", begins, [{ name: "all", class: "line-a", values: counted("requests") }, { name: "far off", class: "line-b", values: counted("deviations") }, { name: "failed", class: "line-bad", values: counted("failed") }], short, 10),
    figure("Output tokens a minute", begins, [{ name: "tokens", class: "line-a", values: counted("completion_tokens") }], short, 100),
  ];
}

export function showHour(hours, fleet) {
  const workersOf = (hour) => fleet?.pools.find((pool) => pool.model === hour.model && pool.pool === hour.pool) ?? { ...hour, workers: [] };
  const fitting = hours.filter((hour) => fitsPool(workersOf(hour)));
  const shown = fitting.slice(0, MOST_POOLS);
  const elements = shown.map((hour) => h("article", { class: "hour" }, h("h3", null, h("span", { class: "muted" }, `${hour.model} / `), hour.pool), h("div", { class: "charts" }, ...charts(hour))));
  if (fitting.length > shown.length) elements.push(h("p", { class: "muted" }, `${fitting.length - shown.length} more pools; choose one above.`));
  if (!fitting.length) elements.push(h("p", { class: "muted" }, hours.length ? "No pool fits the filters." : "The first minute is not over yet."));
  arrange(byId("hours"), elements);
}

