"""What observers get of the gateway: metrics, liveness, readiness."""

from __future__ import annotations

import asyncio

from aiohttp import web

from proxy.control.view import GatewayView
from telemetry.exposition import content_type

_MAX_SCRAPES = 8  # at the same time, each holding a page
_SCRAPE_SECONDS = 30.0  # for a scraper to take its page
_PIECE_BYTES = 64 * 1024


def observer_app(view: GatewayView) -> web.Application:
    """Return the routes for Prometheus and the kubelet."""
    scrapes = asyncio.Semaphore(_MAX_SCRAPES)

    async def metrics(request: web.Request) -> web.StreamResponse:
        if scrapes.locked():
            return web.Response(status=503, text="too many scrapes at a time\n", headers={"Retry-After": "1"})
        async with scrapes:
            openmetrics, media_type = content_type(request.headers.get("Accept"))
            page = b"".join(await view.page(openmetrics=openmetrics))
            response = web.StreamResponse(headers={"Content-Type": media_type})
            response.content_length = len(page)
            try:
                async with asyncio.timeout(_SCRAPE_SECONDS):
                    await response.prepare(request)
                    for start in range(0, len(page), _PIECE_BYTES):
                        await response.write(page[start : start + _PIECE_BYTES])
                    await response.write_eof()
            except TimeoutError:
                if request.transport is not None:
                    request.transport.abort()
            except ConnectionResetError:
                pass  # the scraper left while its page was made
            return response

    async def livez(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        if view.is_ready:
            return web.Response(text="ok\n")
        return web.Response(status=503, text="no serving process is up\n")

    app = web.Application()
    app.router.add_get("/metrics", metrics, allow_head=False)
    app.router.add_get("/livez", livez)
    app.router.add_get("/readyz", readyz)
    return app
