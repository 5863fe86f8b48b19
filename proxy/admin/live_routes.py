"""The live page's routes on the admin listener; who may read there is decided before, by `proxy.admin.access`."""

from __future__ import annotations

import json

import msgspec
from aiohttp import web

from dashboards.live.assets import HEADERS, Asset, assets
from proxy.control.live import LiveFeed
from telemetry.sinks.jsonlog import json_object

_INDEX = {
    "/": "the live page",
    "/metrics": "all figures, for Prometheus",
    "/api/fleet": "pools and workers now, with their figures of the last one to two minutes",
    "/api/stream": "the same and finished requests as server-sent events: fleet, hour, records",
    "/api/hour": "the last hour of each pool, minute by minute",
    "/api/records": "the last 100 requests, newest first",
    "/api/records/{id}": "one of the last 500 requests",
    "/api/records/{id}/why": "why it was slow, or how it failed: the three numbers, the gap and its causes",
    "/api/state": "pools and workers with their load",
    "/api/workers": "every worker; POST adds one, POST {name}/drain and {name}/resume, DELETE {name}",
    "/api/chains": "calls that belong together",
    "/api/drifts": "system prompts that have changed",
    "/api/advice": "what recent requests suggest to set otherwise",
    "/api/calibrations": "what workers are held against; POST {name}/accept",
}


def add_live(app: web.Application, feed: LiveFeed) -> None:
    """Add the page and its calls to the admin listener's routes."""
    found = assets()

    def give(asset: Asset, request: web.Request) -> web.Response:
        headers = {**HEADERS, "ETag": f'"{asset.etag}"'}
        if any(tag.value in (asset.etag, "*") for tag in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        return web.Response(body=asset.body, headers={**headers, "Content-Type": asset.media_type})

    async def page(request: web.Request) -> web.Response:
        return give(found["index.html"], request)

    async def file(request: web.Request) -> web.Response:
        asset = found.get(request.match_info["name"])
        if asset is None:
            raise web.HTTPNotFound(text="no such file of the live page\n")
        return give(asset, request)

    async def index(_: web.Request) -> web.Response:
        return _json(msgspec.json.encode(_INDEX))

    async def fleet(_: web.Request) -> web.Response:
        return _json(await feed.fleet())

    async def hour(_: web.Request) -> web.Response:
        return _json(feed.hour())

    async def record(request: web.Request) -> web.Response:
        found = feed.window.find(request.match_info["id"])
        return _gone() if found is None else _json(json_object(found))

    async def why(request: web.Request) -> web.Response:
        found = feed.why(request.match_info["id"])
        if found is None:
            return _gone()
        try:
            return _json(msgspec.json.encode(found))
        except UnicodeEncodeError:  # a lone surrogate out of a worker's answer
            return _json(json.dumps(msgspec.to_builtins(found)).encode())

    async def close(_: web.Application) -> None:
        feed.close()

    app.router.add_get("/", page)
    app.router.add_get("/live/{name}", file)
    app.router.add_get("/api", index)
    app.router.add_get("/api/", index)
    app.router.add_get("/api/fleet", fleet)
    app.router.add_get("/api/hour", hour)
    app.router.add_get("/api/records/{id}", record)
    app.router.add_get("/api/records/{id}/why", why)
    app.router.add_get("/api/stream", feed.stream, allow_head=False)
    app.on_shutdown.append(close)


def _gone() -> web.Response:
    body = {"error": "no such request among the last ones; the JSON log has all of them"}
    return web.Response(status=404, body=msgspec.json.encode(body), content_type="application/json")


def _json(body: bytes) -> web.Response:
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return web.Response(body=body, content_type="application/json", headers=headers)
