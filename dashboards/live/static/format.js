// Figures as people read them. What is not known is an en dash, never 0.

export const UNKNOWN = "–";

export function seconds(value) {
  if (value === null || value === undefined) return UNKNOWN;
  if (value < 0.00995) return `${trim(value * 1000, 2)} ms`;
  if (value < 0.0995) return `${trim(value * 1000, 1)} ms`;
  if (value < 0.9995) return `${Math.round(value * 1000)} ms`;
  if (value < 9.95) return `${trim(value, 2)} s`;
  if (value < 99.5) return `${trim(value, 1)} s`;
  if (value < 3 * 3600) return `${Math.round(value / 60)} min`;
  return `${Math.round(value / 3600)} h`;
}

function trim(value, digits) {
  return String(Number(value.toFixed(digits)));
}

export function percent(ratio) {
  if (ratio === null || ratio === undefined) return UNKNOWN;
  return ratio > 0 && ratio < 0.00995 ? `${trim(ratio * 100, 1)} %` : `${Math.round(ratio * 100)} %`;
}

export function whole(number) {
  return number === null || number === undefined ? UNKNOWN : Math.round(number).toLocaleString("en");
}

export function short(number) {
  if (number === null || number === undefined) return UNKNOWN;
  if (number < 10000) return whole(number);
  if (number < 999500) return `${Math.round(number / 1000)}k`;
  return `${trim(number / 1e6, 1)}M`;
}

export function count(number, one, several = `${one}s`) {
  return `${whole(number)} ${number === 1 ? one : several}`;
}

export function clock(unixSeconds) {
  return new Date(unixSeconds * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
}

export function ago(unixSeconds, now) {
  return unixSeconds === null || unixSeconds === undefined ? "" : `for ${seconds(Math.max(1, Math.round(now - unixSeconds)))}`;
}

export function words(code) {
  return code === "facts" ? "floor beaten" : code.replaceAll("_", " ");
}
