"""The admin listener asks a browser for its token, in a real one."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser

from tests.integration.gateway import running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

TOKEN = "a-long-token-of-the-tests"


async def test_a_token_opens_the_page(browser: Browser) -> None:
    """A wrong one is refused; the right one leads to the page, whose stream runs; it is in no address and no script's reach."""
    async with running_gateway({"admin_token": TOKEN}, workers=["http://127.0.0.1:9"]) as gateway:
        context = await browser.new_context(viewport={"width": 320, "height": 568})
        page = await context.new_page()
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))

        await page.goto(gateway.admin_url + "/")
        assert page.url == gateway.admin_url + "/login"
        await page.get_by_label("Admin token").fill("another-token-of-the-tests")
        await page.get_by_role("button", name="Sign in").click()
        await page.get_by_role("alert").wait_for()
        assert (
            await page.evaluate("document.documentElement.scrollWidth") == 320
        )  # nothing to scroll to the side on a small phone
        assert await page.evaluate("getComputedStyle(document.querySelector('form')).backgroundColor") == "rgb(255, 255, 255)"

        await page.get_by_label("Admin token").fill(TOKEN)
        async with page.expect_response(lambda answer: answer.url.endswith("/api/stream")) as stream:
            await page.get_by_role("button", name="Sign in").click()
        assert (await stream.value).status == 200
        assert page.url == gateway.admin_url + "/"
        assert await page.evaluate("document.cookie") == ""
        assert complaints == []
        await context.close()
