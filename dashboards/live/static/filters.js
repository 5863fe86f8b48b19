// What is shown of everything, kept in the page's address so that it can be sent to a colleague.

import { arrange, byId, h } from "./dom.js";
import { words } from "./format.js";

const NAMES = ["model", "pool", "worker", "outcome"];
const form = byId("filters");
const chosen = Object.fromEntries([...new URLSearchParams(location.search)].filter(([name]) => [...NAMES, "deviating", "request"].includes(name)));

export function filter(name) {
  return chosen[name] ?? "";
}

export function setFilter(name, value) {
  if (value) chosen[name] = value;
  else delete chosen[name];
  const query = new URLSearchParams(chosen).toString();
  history.replaceState(null, "", `${location.pathname}${query ? `?${query}` : ""}${location.hash}`);
  byId("clear").hidden = ![...NAMES, "deviating"].some((each) => chosen[each]);
}

export function fits(row) {
  const { model, pool, worker, outcome, deviating } = chosen;
  return (
    (!model || row.model === model) && (!pool || row.pool === pool) && (!worker || row.worker === worker) &&
    (!outcome || row.outcome === outcome) && (!deviating || row.deviations.length > 0 || row.outcome !== "ok")
  );
}

export function fitsPool(pool) {
  const { model, pool: name, worker } = chosen;
  return (!model || pool.model === model) && (!name || pool.pool === name) && (!worker || pool.workers.some((each) => each.worker === worker));
}

export function fitsWorker(worker) {
  return !chosen.worker || worker.worker === chosen.worker;
}

function offer(name, values) {
  const select = form.elements[name];
  const all = [...new Set([...values, ...(chosen[name] ? [chosen[name]] : [])])].sort();
  const wanted = ["", ...all];
  const there = [...select.options].map((option) => option.value);
  if (wanted.length === there.length && wanted.every((value, index) => value === there[index])) return;
  arrange(select, wanted.map((value) => h("option", { value }, value ? (name === "outcome" ? words(value) : value) : "all")));
  select.value = chosen[name] ?? "";
}

export function offerFleet(fleet) {
  const pools = fleet.pools.filter((pool) => !chosen.model || pool.model === chosen.model);
  offer("model", fleet.pools.map((pool) => pool.model));
  offer("pool", pools.map((pool) => pool.pool));
  offer("worker", pools.filter((pool) => !chosen.pool || pool.pool === chosen.pool).flatMap((pool) => pool.workers.map((worker) => worker.worker)));
}

export function offerOutcomes(rows) {
  offer("outcome", ["ok", ...rows.map((row) => row.outcome)]);
}

export function watchFilters(changed) {
  form.elements.deviating.checked = Boolean(chosen.deviating);
  for (const name of NAMES) offer(name, []);
  setFilter("", "");
  form.addEventListener("change", (event) => {
    const { name, type, checked, value } = event.target;
    setFilter(name, type === "checkbox" ? (checked ? "1" : "") : value);
    changed();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  byId("clear").addEventListener("click", () => {
    for (const name of [...NAMES, "deviating"]) setFilter(name, "");
    show();
    changed();
  });
}

export function show() {
  for (const name of NAMES) form.elements[name].value = chosen[name] ?? "";
  form.elements.deviating.checked = Boolean(chosen.deviating);
}
