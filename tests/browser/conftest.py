"""The live page in Debian's Chromium, before a real gateway with simulated workers."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright

from tests.browser.fleet import Fleet, running_fleet

HERE = Path(__file__).parent
CHROMIUM = shutil.which("chromium")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder wants a browser: mark it so."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("chromium is missing (Debian package: chromium)")  # a failure under REQUIRE_REAL=1
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        await started.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def fleet() -> AsyncIterator[Fleet]:
    """Two pools and a key; their workers are well at the beginning and end of each test."""
    async with running_fleet() as one:
        yield one


Look = Callable[..., Awaitable[Page]]


@pytest_asyncio.fixture(loop_scope="session")
async def look(browser: Browser, fleet: Fleet) -> AsyncIterator[Look]:
    """Opens the page; nothing that it does may be complained of by the browser, nor leave the host."""
    complaints: list[str] = []
    async with AsyncExitStack() as stack:
        yield partial(_open, stack, browser, fleet, complaints)
    assert complaints == []


async def _open(
    stack: AsyncExitStack,
    browser: Browser,
    fleet: Fleet,
    complaints: list[str],
    path: str = "/",
    *,
    allows: str | None = None,
    **options: Any,
) -> Page:
    """``allows`` is what a console message may hold: a lost connection is told there by the browser itself."""
    context = await stack.enter_async_context(_context(browser, options))
    page = await context.new_page()
    host = urlsplit(fleet.gateway.admin_url).netloc
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console",
        lambda message: (
            complaints.append(message.text)
            if message.type in ("error", "warning") and (allows is None or allows not in message.text)
            else None
        ),
    )
    page.on("request", lambda request: None if urlsplit(request.url).netloc == host else complaints.append(request.url))
    await page.goto(fleet.gateway.admin_url + path)
    await page.wait_for_selector('#connection[data-state="live"]')
    return page


@asynccontextmanager
async def _context(browser: Browser, options: dict[str, Any]) -> AsyncIterator[Any]:
    context = await browser.new_context(**options)
    context.set_default_timeout(10_000)
    try:
        yield context
    finally:
        await context.close()
