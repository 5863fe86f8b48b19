// Small plots as SVG: how a figure is spread beside its limits, a line over the last hour, and where a request's time went.

import { s } from "./dom.js";
import { clock, percent, seconds } from "./format.js";

const WIDTH = 168;
const HEIGHT = 30;

// Buckets grow by a quarter, from a quarter of a millisecond: where among them a duration lies.
function place(value) {
  return Math.log(value / 0.00025) / Math.log(1.25) + 1;
}

// The part of the buckets in which any of these figures has something.
export function range(figures) {
  let first = Infinity;
  let last = -Infinity;
  for (const figure of figures) {
    for (const spread of [figure?.measured, figure?.expected]) {
      if (!spread) continue;
      first = Math.min(first, spread.first);
      last = Math.max(last, spread.first + spread.counts.length);
    }
    if (figure?.floor_p50_seconds) first = Math.min(first, Math.floor(place(figure.floor_p50_seconds)));
  }
  return last > first ? [first - 1, last + 1] : null;
}

// Measured as bars, expected as an outline, floor as a line at its median; on a logarithmic scale shared by `between`.
export function spread(figure, between, name) {
  const label = figure
    ? `${name}: median ${seconds(figure.p50_seconds)}, P90 ${seconds(figure.p90_seconds)}, expected ${seconds(figure.expected_p50_seconds)}, floor ${seconds(figure.floor_p50_seconds)}, ${figure.requests} requests`
    : `${name}: no request`;
  const svg = s("svg", { class: "spread", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label, preserveAspectRatio: "none" });
  svg.append(s("line", { class: "base", x1: 0, x2: WIDTH, y1: HEIGHT - 0.5, y2: HEIGHT - 0.5 }));
  if (!figure || !between) return svg;
  const [first, last] = between;
  const step = WIDTH / (last - first);
  const x = (bucket) => (bucket - first) * step;
  const top = (counts) => Math.max(...counts);
  const most = top(figure.measured.counts);
  figure.measured.counts.forEach((value, index) => {
    if (!value) return;
    const height = Math.max(1.5, (value / most) * (HEIGHT - 4));
    const bucket = figure.measured.first + index;
    svg.append(s("rect", { class: "measured", x: x(bucket) + 0.4, y: HEIGHT - height, width: Math.max(0.8, step - 0.8), height }));
  });
  if (figure.expected) {
    const peak = top(figure.expected.counts);
    let path = `M${x(figure.expected.first)} ${HEIGHT}`;
    figure.expected.counts.forEach((value, index) => {
      const y = HEIGHT - (value / peak) * (HEIGHT - 4);
      const bucket = figure.expected.first + index;
      path += `L${x(bucket)} ${y}L${x(bucket + 1)} ${y}`;
    });
    svg.append(s("path", { class: "expected", d: `${path}L${x(figure.expected.first + figure.expected.counts.length)} ${HEIGHT}` }));
  }
  if (figure.floor_p50_seconds) {
    const at = x(place(figure.floor_p50_seconds));
    svg.append(s("line", { class: "floor", x1: at, x2: at, y1: 1, y2: HEIGHT }));
  }
  return svg;
}

const CHART_WIDTH = 300;
const CHART_HEIGHT = 92;
const LEFT = 40;
const BOTTOM = 14;

function niceMost(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((each) => each >= value * 0.999);
}

// `series`: {name, class, values, is_area}; all on one axis from 0, but those with `of_one` on one from 0 to 1.
export function chart({ title, begins, series, show, least = 0 }) {
  const most = niceMost(Math.max(least, ...series.filter((each) => !each.of_one).flatMap((each) => each.values.filter((value) => value !== null))));
  const end = begins[begins.length - 1] ?? 0;
  const minutes = Math.min(60, Math.max(10, Math.ceil((end - (begins[0] ?? 0)) / 600) * 10)); // soon after a start, not yet an hour
  const x = (at) => LEFT + (CHART_WIDTH - LEFT - 4) * (1 - (end - at) / (minutes * 60));
  const y = (value, top) => 6 + (CHART_HEIGHT - BOTTOM - 6) * (1 - value / top);
  const last = series.map((each) => `${each.name} ${lastOf(each, show)}`).join(", ");
  const svg = s("svg", { class: "chart", viewBox: `0 0 ${CHART_WIDTH} ${CHART_HEIGHT}`, role: "img", "aria-label": `${title}, last minute: ${last}` });
  for (const value of [0, most / 2, most]) {
    svg.append(s("line", { class: "grid", x1: LEFT, x2: CHART_WIDTH - 4, y1: y(value, most), y2: y(value, most) }));
    svg.append(s("text", { class: "tick", x: LEFT - 5, y: y(value, most) + 3, "text-anchor": "end" }, show(value)));
  }
  for (const [before, anchor] of [[minutes, "start"], [minutes / 2, "middle"], [0, "end"]]) {
    const text = before === 0 ? "now" : `−${before} min`;
    svg.append(s("text", { class: "tick", x: x(end - before * 60), y: CHART_HEIGHT - 2, "text-anchor": anchor }, text));
  }
  for (const each of series) {
    const top = each.of_one ? 1 : most;
    let path = "";
    let started = null;
    each.values.forEach((value, index) => {
      if (value === null) {
        if (each.is_area && started !== null) path += `L${x(begins[index - 1])} ${y(0, top)}Z`;
        started = null;
        return;
      }
      const at = x(begins[index]);
      const next = each.values[index + 1] ?? null;
      if (started === null) path += each.is_area ? `M${at} ${y(0, top)}L${at} ${y(value, top)}` : `M${at} ${y(value, top)}`;
      else path += `L${at} ${y(value, top)}`;
      if (started === null && next === null) svg.append(s("circle", { class: each.class, cx: at, cy: y(value, top), r: 1.6 }));
      started = at;
    });
    if (each.is_area && started !== null) path += `L${started} ${y(0, top)}Z`;
    svg.append(s("path", { class: each.class, d: path }, s("title", null, each.name)));
  }
  svg.append(s("rect", { class: "hover", x: LEFT, y: 0, width: CHART_WIDTH - LEFT - 4, height: CHART_HEIGHT - BOTTOM }, s("title", null, `${title} at ${clock(end)}: ${last}`)));
  return svg;
}

export function lastOf(each, show) {
  const known = each.values.filter((value) => value !== null);
  const value = known.length ? known[known.length - 1] : null;
  return each.of_one ? percent(value) : value === null ? "–" : show(value);
}

export const STEPS = ["upload", "gateway", "queue", "stage", "earlier", "connect", "wait", "fetch", "prefill", "decode", "answer", "client_wait"];
export const STEP_NAMES = {
  upload: "upload", gateway: "gateway", queue: "queue", stage: "prefill stage", earlier: "failed attempts", connect: "connect",
  wait: "wait", fetch: "KV transfer", prefill: "prefill", decode: "decode", answer: "worker", client_wait: "client wait",
};

export function total(parts) {
  return parts.reduce((sum, [, its]) => sum + its, 0);
}

// One bar; `most` seconds fill it, and what is longer is cut with a mark.
export function waterfall(parts, most) {
  const whole = total(parts);
  const label = parts.map(([step, its]) => `${STEP_NAMES[step] ?? step} ${seconds(its)}`).join(", ");
  const svg = s("svg", { class: "waterfall", viewBox: "0 0 1000 20", preserveAspectRatio: "none", role: "img", "aria-label": label || "nothing measured" });
  let at = 0;
  for (const [step, its] of parts) {
    const width = Math.min((its / most) * 1000, 1000 - at);
    if (width > 0) svg.append(s("rect", { class: `step-${step}`, x: at, y: 2, width: Math.max(width, 1.5), height: 16 }, s("title", null, `${STEP_NAMES[step] ?? step} ${seconds(its)}`)));
    at = Math.min(1000, at + width);
  }
  if (whole > most * 1.001) svg.append(s("path", { class: "cut", d: "M982 0 L1000 10 L982 20 Z" }));
  return svg;
}

// A scale on which nine of ten bars fit whole, in steps that do not jump with each new request.
export function scaleOf(rows) {
  const totals = rows.map((row) => total(row.parts)).filter((value) => value > 0).sort((a, b) => a - b);
  if (!totals.length) return 1;
  return niceMost(totals[Math.min(totals.length - 1, Math.floor(totals.length * 0.9))]);
}

export function bar(ratio, kind, label) {
  const width = Math.max(0, Math.min(1, ratio ?? 0)) * 100;
  return s("svg", { class: "bar", viewBox: "0 0 100 6", preserveAspectRatio: "none", role: "img", "aria-label": label },
    s("rect", { class: "track", x: 0, y: 0, width: 100, height: 6 }), width > 0 && s("rect", { class: `value ${kind}`, x: 0, y: 0, width: Math.max(width, 1), height: 6 }));
}
