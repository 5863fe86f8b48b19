"""The admin listener: what observers get, the state with names, and the calls that change the fleet.

Who may call it is decided before, by `proxy.admin.access`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from proxy.admin.access import LOGIN, LOGOUT, AdminAccess
from proxy.admin.audit import add_audit, name_change
from proxy.admin.live_routes import add_live
from proxy.admin.login import add_login
from proxy.config.values import check_name
from proxy.config.worker_url import parse_worker_url
from proxy.control.drifting import DriftWatch
from proxy.control.fleet import Fleet
from proxy.control.judging import Judge
from proxy.control.live import LiveFeed
from proxy.control.observer import observer_app
from proxy.control.overlay import AddedWorker, LastWorkerError, Overlay, OverlayError
from proxy.control.view import GatewayView
from routing.topology import Topology
from telemetry.chains import ChainTable

_Change = Callable[[Overlay, Topology, str], Overlay]


class _NewWorker(msgspec.Struct, forbid_unknown_fields=True):
    model: str
    url: str
    pool: str = "default"
    name: str | None = None


def admin_app(
    view: GatewayView,
    fleet: Fleet,
    address: str,
    chains: Callable[[], dict[str, Any]] = lambda: ChainTable().view(0.0),
    judge: Judge | None = None,
    watch: DriftWatch | None = None,
    feed: LiveFeed | None = None,
    access: AdminAccess | None = None,
) -> web.Application:
    """The routes of the admin listener, which is bound to ``address`` (HOST:PORT); ``access`` guards them."""
    access = access or AdminAccess(address)

    async def state(_: web.Request) -> web.Response:
        return web.Response(body=view.state(), content_type="application/json")

    async def workers(_: web.Request) -> web.Response:
        return web.Response(body=view.workers(), content_type="application/json")

    async def records(_: web.Request) -> web.Response:
        return web.Response(body=view.records(), content_type="application/json")

    async def call_chains(_: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(chains()), content_type="application/json")

    async def calibrations(_: web.Request) -> web.Response:
        shown = (judge or Judge()).calibrations.view()
        return web.Response(body=msgspec.json.encode(shown), content_type="application/json")

    async def drifts(_: web.Request) -> web.Response:
        shown = (watch or DriftWatch()).view()
        return web.Response(body=msgspec.json.encode(shown), content_type="application/json")

    async def advice(_: web.Request) -> web.Response:
        shown = (judge or Judge()).advice()
        return web.Response(body=msgspec.json.encode(shown), content_type="application/json")

    async def accept(request: web.Request) -> web.Response:
        try:
            (judge or Judge()).accept(request.match_info["name"])
        except LookupError as error:
            return _problem(404, str(error))
        return await calibrations(request)

    async def add(request: web.Request) -> web.Response:
        try:
            asked = msgspec.json.decode(await request.read(), type=_NewWorker)
            url = parse_worker_url(asked.url)
            name = check_name(asked.name) if asked.name is not None else url.default_name
            worker = AddedWorker(model=asked.model, pool=asked.pool, name=name, url=url)
            overlay = fleet.overlay.add(fleet.base, worker)
        except (msgspec.DecodeError, ValueError, OverlayError) as error:
            return _problem(400, str(error))
        name_change(request, f"worker {name} at {url.url}, pool {asked.pool} of {asked.model}")
        return _put_in_force(fleet, overlay, view)

    def changing(change: _Change) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            try:
                overlay = change(fleet.overlay, fleet.base, request.match_info["name"])
            except OverlayError as error:
                return _problem(409 if isinstance(error, LastWorkerError) else 404, str(error))
            return _put_in_force(fleet, overlay, view)

        return handle

    app = observer_app(view)
    access.guard(app)
    add_audit(app, wants_token=lambda: access.wants_token, untold=frozenset({LOGIN, LOGOUT}))
    add_login(app, access)
    add_live(app, feed or LiveFeed(view, judge or Judge(), watch or DriftWatch()))
    app.router.add_get("/api/state", state)
    app.router.add_get("/api/records", records)
    app.router.add_get("/api/chains", call_chains)
    app.router.add_get("/api/calibrations", calibrations)
    app.router.add_get("/api/drifts", drifts)
    app.router.add_get("/api/advice", advice)
    app.router.add_post("/api/calibrations/{name}/accept", accept)
    app.router.add_get("/api/workers", workers)
    app.router.add_post("/api/workers", add)
    app.router.add_post("/api/workers/{name}/drain", changing(Overlay.drain))
    app.router.add_post("/api/workers/{name}/resume", changing(Overlay.resume))
    app.router.add_delete("/api/workers/{name}", changing(Overlay.remove))
    return app


def _put_in_force(fleet: Fleet, overlay: Overlay, view: GatewayView) -> web.Response:
    try:
        fleet.change(overlay)
    except OSError as error:
        return _problem(507, f"the change could not be published: {error.strerror}")
    return web.Response(body=view.state(), content_type="application/json")


def _problem(status: int, text: str) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode({"error": text}), content_type="application/json")
