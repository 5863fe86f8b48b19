// The live page: what the gateway streams, put on the page.

import { byId, copy, say } from "./dom.js";
import { offerFleet, offerOutcomes, watchFilters } from "./filters.js";
import { showFleet } from "./fleet.js";
import { showHour } from "./hour.js";
import { allRows, showRequests, take, watchRequests } from "./requests.js";
import { follow } from "./stream.js";
import { showDrifts, showFindings, showKeys } from "./tables.js";
import { openWhy, wantedRequest, watchWhy } from "./why.js";

let fleet = null;
let hours = [];
let isFirst = true;
let heardAt = null;
let retryAt = 0;

function showAll() {
  if (fleet) {
    offerFleet(fleet);
    showFleet(fleet);
  }
  showHour(hours, fleet);
  offerOutcomes(allRows());
  showRequests();
}

const handlers = {
  fleet(fresh) {
    fleet = fresh;
    say(byId("version"), fleet.gateway.version);
    offerFleet(fleet);
    showFindings(fleet);
    showFleet(fleet);
    showDrifts(fleet);
    showKeys(fleet);
  },
  hour(fresh) {
    hours = fresh;
    showHour(hours, fleet);
  },
  records(fresh) {
    take(fresh);
    offerOutcomes(allRows());
    showRequests();
    if (isFirst && wantedRequest()) openWhy(allRows().find((row) => row.id === wantedRequest()) ?? { id: wantedRequest(), time: 0, model: "–", pool: "–", endpoint: "–" }, null);
    isFirst = false;
  },
};

function tell(state, at) {
  const connection = byId("connection");
  if (state === "live") heardAt = Date.now();
  retryAt = at;
  if (connection.dataset.state === state) return;
  connection.dataset.state = state;
  document.body.classList.toggle("is-stale", state === "lost");
  say(byId("connection-text"), state === "live" ? "Live" : "Connection lost");
  tick();
}

// How old the page is, as long as nothing comes.
function tick() {
  const lost = byId("lost");
  const isLost = byId("connection").dataset.state === "lost";
  lost.hidden = !isLost;
  if (!isLost) return;
  const age = heardAt === null ? "The gateway's control process has not answered yet." : `The connection to the gateway's control process is lost; this is how it was ${Math.max(1, Math.round((Date.now() - heardAt) / 1000))} s ago.`;
  const wait = Math.max(0, Math.round((retryAt - Date.now()) / 1000));
  say(lost, `${age} ${wait ? `Next try in ${wait} s.` : "Trying again."} Clients may be served all the same.`);
}

watchFilters(showAll);
watchRequests(openWhy);
watchWhy();
addEventListener("filters", showAll);
byId("copy-fleet").addEventListener("click", () => fleet && copy(JSON.stringify(fleet, null, 2), "Fleet"));
setInterval(tick, 1000);
follow("/api/stream", handlers, tell);
