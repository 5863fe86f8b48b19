"""What an on-call person sees: figures, faults with their causes, and a page that stands what happens to it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from typing import Any

import aiohttp
import pytest
from playwright.async_api import Browser, Locator, Page, expect

from tests.browser.conftest import Look
from tests.browser.fleet import MARKUP, Fleet
from tests.chaos.workers import MODEL
from tests.integration.gateway import running_gateway
from tests.integration.steps import Send, Wait
from tests.integration.test_prefill_stage import STREAM, computed, pair

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECONDS = 15_000


def pool_of(page: Page, pool: str) -> Locator:
    return page.locator("article.pool", has=page.locator("h3", has_text=re.compile(rf"/ {pool}$")))


async def fact(page: Page, pool: str, name: str) -> str:
    """The value of one of a pool's facts, without what stands in small below it."""
    dd = pool_of(page, pool).locator(".fact", has=page.locator("dt", has_text=re.compile(rf"^{name}$"))).locator("dd")
    return str(await dd.evaluate("each => each.firstChild.textContent"))


async def all_told(fleet: Fleet, requests: int) -> None:
    """Wait until control has had the records of so many more requests than nothing."""
    await fleet.gateway.records(requests)


async def test_figures_agree_with_the_metrics(look: Look, fleet: Fleet) -> None:
    """Requests, hit share, key and outcome are those that Prometheus sees."""
    await fleet.ask(12)
    page = await look()
    metrics = await fleet.gateway.metrics()
    where = {"model": MODEL, "pool": "short"}
    requests = int(metrics.total("ridgeline_requests_total", **where))
    hit = metrics.total("ridgeline_cached_tokens_total", **where) / metrics.total(
        "ridgeline_cache_known_prompt_tokens_total", **where
    )

    await expect(page.locator("#rows tr[data-id]").first).to_be_visible()
    assert await fact(page, "short", "Since start") == str(requests)
    assert f"hit {round(hit * 100)} %" in await pool_of(page, "short").inner_text()
    key = page.locator("#key-table tbody tr")
    assert await key.locator("td").nth(0).inner_text() == "app-a"
    assert await key.locator("td").nth(1).inner_text() == str(int(metrics.total("ridgeline_key_requests_total", key="app-a")))
    async with aiohttp.ClientSession(trust_env=False) as session, session.get(fleet.gateway.admin_url + "/api/fleet") as answer:
        told = next(pool for pool in (await answer.json())["pools"] if pool["pool"] == "short")
    assert told["totals"]["outcomes"] == {"ok": requests}
    assert told["ttft"]["requests"] == metrics.total("ridgeline_ttft_seconds_count", **where)


async def test_ttft_is_never_without_the_hit_share(look: Look, fleet: Fleet) -> None:
    """Whoever reads one has the other beside it: of a pool, a worker and a request."""
    await fleet.ask(4)
    page = await look()

    for cell in (
        page.locator("#rows tr[data-id] td[data-label=TTFT]").first,
        pool_of(page, "short").locator("td[data-label=TTFT]").first,
    ):
        await expect(cell).to_contain_text(re.compile(r"ms.*hit \d+ %", re.DOTALL))
    names = await pool_of(page, "short").locator(".fact dt").all_inner_texts()
    assert names.index("Hit share") == names.index("TTFT median") + 1


async def test_a_request_is_explained_by_keyboard_alone(look: Look, fleet: Fleet) -> None:
    """Arrows walk the rows, Enter says why, Escape leads back; the panel has the three numbers and the phases."""
    await fleet.ask(4)
    page = await look()
    rows = page.locator("#rows tr[data-id]")
    await page.locator("#pause").focus()
    await page.keyboard.press("Enter")
    await rows.first.wait_for()
    await page.keyboard.press("Tab")
    await page.keyboard.press("Tab")
    await page.keyboard.press("ArrowDown")
    second = await rows.nth(1).get_attribute("data-id")
    await page.keyboard.press("Enter")

    panel = page.locator("#why")
    await expect(panel.locator(".summary")).to_contain_text(re.compile("It was as fast as can be expected|too long"))
    text = await panel.inner_text()
    for part in ("Prefill FLOP", "Decode bandwidth", "KV cache", "floor", "Where the time went", str(second)):
        assert part in text
    assert f"request={second}" in page.url
    await page.keyboard.press("Escape")
    await expect(panel).to_be_hidden()
    assert await page.evaluate("document.activeElement.dataset.id") == second


async def test_a_request_can_be_linked_to(look: Look, fleet: Fleet) -> None:
    """The address of an open panel opens it again for a colleague, and one that is too old says so."""
    await fleet.ask(1)
    request_id = (await fleet.gateway.records(1))[-1]["request_id"]

    page = await look(f"/?request={request_id}")
    await expect(page.locator("#why")).to_contain_text(request_id)

    other = await look("/?request=long-ago", allows="404")
    await expect(other.locator("#why")).to_contain_text("not among the last requests any more")


async def test_a_slow_worker_is_named_with_its_cause(look: Look, fleet: Fleet) -> None:
    """The headline says which worker, and that it is slower than its peers or than it was."""
    await fleet.ask(30, at_once=2)
    page = await look()
    worker = fleet.workers["short-2"]
    await worker.set_faults({"slow_factor": 8})
    try:
        await fleet.ask(34, at_once=2)
        await expect(page.locator("#headline-text")).to_contain_text(
            re.compile(r"[Ww]orker short-2 .*slower than (its peers|when its calibration)"), timeout=SECONDS
        )
        await expect(page.locator("#headline-advice")).to_contain_text("Look at its GPU")
        await page.get_by_label("Only deviating or failed").check()
        slow = page.locator("#rows tr[data-id]").first
        await expect(slow).to_contain_text("short-2")
        await slow.click()
        await expect(page.locator("#why .summary")).to_contain_text("too long")
        await expect(page.locator("#why .causes li")).not_to_have_count(0)
    finally:
        await worker.set_faults({})


async def test_a_hung_worker_is_named(look: Look, fleet: Fleet) -> None:
    """An engine that stands still behind a healthy health check is told as that, and its pool goes on."""
    worker = fleet.workers["short-2"]
    page = await look()
    await worker.set_faults({"pause": True})
    try:
        asking = asyncio.create_task(fleet.ask(6))
        row = pool_of(page, "short").locator("tbody tr", has_text="short-2")
        await expect(row).to_contain_text(re.compile("silent|failing"), timeout=3 * SECONDS)
        await expect(page.locator("#headline-text")).to_contain_text("short-2")
    finally:
        await worker.set_faults({})
        await asking


async def test_a_dead_worker_is_named_and_comes_back(look: Look, fleet: Fleet) -> None:
    """With its pool when nobody else is left there, and all is well again once it is."""
    page = await look()
    worker = fleet.workers["spare-1"]
    await worker.kill()
    try:
        await expect(page.locator("#headline")).to_have_attribute("data-severity", "critical", timeout=2 * SECONDS)
        await expect(page.locator("#headline-text")).to_contain_text("pool spare", ignore_case=True)
        await expect(page.locator("#findings")).to_contain_text("Worker spare-1 is down")
    finally:
        await worker.start()


async def test_filters_stay_in_the_address(look: Look, fleet: Fleet) -> None:
    """They narrow fleet and requests, and a reload keeps them."""
    await fleet.ask(4)
    page = await look()
    await page.get_by_label("Worker", exact=True).select_option("short-1")
    assert "worker=short-1" in page.url

    for _ in range(2):
        rows = page.locator("#rows tr[data-id]")
        await expect(rows.first).to_contain_text("short-1")
        assert all("short-1" in text for text in await rows.all_inner_texts())
        assert await page.locator("table.workers tbody tr").count() == 1
        await page.reload()

    await page.get_by_role("button", name="Clear filters").click()
    assert "worker" not in page.url
    await expect(page.locator("article.pool")).to_have_count(3)


async def test_names_are_text(look: Look) -> None:
    """A model that is named like markup is shown as its name, and makes nothing."""
    page = await look()

    await expect(page.locator("article.pool h3", has_text=MARKUP)).to_be_visible()
    await expect(page.locator("table.workers", has_text="<b>odd</b>")).to_be_visible()
    assert await page.locator("main img, .name button b").count() == 0
    assert await page.get_by_label("Model", exact=True).locator("option", has_text=MARKUP).count() == 1


async def test_nothing_of_prompts_is_shown(look: Look, fleet: Fleet) -> None:
    """Neither on the page nor in what it fetches."""
    await fleet.ask(2, text="Kryptonite-4711")
    page = await look()
    await page.locator("#rows tr[data-id]").first.click()
    await page.locator("#why .summary").wait_for()

    shown = await page.content()
    fetched = await page.evaluate("fetch('/api/records').then(answer => answer.text())")
    assert "Kryptonite" not in shown
    assert "Kryptonite" not in fetched


async def test_everything_can_be_copied(look: Look, fleet: Fleet) -> None:
    """As JSON: the fleet, the requests that the filters leave, and one request with its explanation."""
    await fleet.ask(2)
    page = await look(permissions=["clipboard-read", "clipboard-write"])
    await page.locator("#rows tr[data-id]").first.wait_for()

    async def copied(button: Locator) -> Any:
        await page.evaluate("navigator.clipboard.writeText('')")
        await button.click()
        await page.wait_for_function("navigator.clipboard.readText().then(text => text.length > 0)")
        return json.loads(await page.evaluate("navigator.clipboard.readText()"))

    assert {pool["pool"] for pool in (await copied(page.locator("#copy-fleet")))["pools"]} == {"short", "spare", "odd"}
    assert (await copied(page.locator("#copy-requests")))[0]["model"] == MODEL
    await page.locator("#rows tr[data-id]").first.click()
    one = await copied(page.locator("#why").get_by_role("button", name="Copy as JSON"))
    assert one["record"]["request_id"] == one["why"]["id"]


async def test_it_comes_back_by_itself(look: Look, fleet: Fleet) -> None:
    """While control is away the page says that it is old; then it goes on without a reload, and with what happened since."""
    page = await look(allows="ERR_")
    await page.evaluate("window.wasReloaded = false")
    control = fleet.gateway.processes.control
    assert control is not None
    os.kill(control, signal.SIGSTOP)
    os.kill(control, signal.SIGKILL)
    await expect(page.locator("#lost")).to_contain_text("connection to the gateway's control process is lost")

    await expect(page.locator("#connection")).to_have_attribute("data-state", "live", timeout=2 * SECONDS)
    await expect(page.locator("#lost")).to_be_hidden()
    await fleet.ask(3)
    await expect(page.locator("#rows tr[data-id]")).not_to_have_count(0)
    assert await page.evaluate("window.wasReloaded") is False


@pytest.mark.parametrize("width", [320, 390])
async def test_a_phone_can_show_it(look: Look, fleet: Fleet, width: int) -> None:
    """Nothing is wider than the screen, the panel included."""
    await fleet.ask(2)
    page = await look(viewport={"width": width, "height": 800})
    row = page.locator("#rows tr[data-id]").first
    await row.wait_for()
    wide = "document.documentElement.scrollWidth > window.innerWidth"

    assert await page.evaluate(wide) is False
    await row.click()
    await page.locator("#why .summary").wait_for()
    assert await page.evaluate(wide) is False
    assert await page.evaluate("document.getElementById('why').scrollWidth > window.innerWidth") is False


async def test_dark_follows_the_system(look: Look) -> None:
    """Both are readable: what is written stands out from what is behind it."""
    read = """() => {
      const luminance = (color) => {
        const [r, g, b] = color.match(/[\\d.]+/g).map(Number).map((c) => c / 255)
          .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const card = getComputedStyle(document.querySelector('#headline')).backgroundColor;
      return [...document.querySelectorAll('#headline h1, .muted, .findings p, .fact dt, .fact dd')].map((each) => {
        const [one, other] = [luminance(getComputedStyle(each).color), luminance(card)].sort((a, b) => b - a);
        return (one + 0.05) / (other + 0.05);
      });
    }"""
    for scheme in ("light", "dark"):
        page = await look(color_scheme=scheme)
        assert min(await page.evaluate(read)) > 4.5


async def test_the_page_may_load_nothing_else(look: Look) -> None:
    """The policy that comes with it forbids what is inline, foreign, or made of text."""
    page = await look(allows="TrustedHTML")
    answer = await page.request.get(page.url)
    policy = answer.headers["content-security-policy"]

    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    attempt = "(() => { try { document.body.innerHTML = '<b>x</b>'; return false; } catch { return true; } })()"
    refused = await page.evaluate(attempt)
    assert refused is True


async def test_a_token_is_asked_for_once_and_again_when_the_session_is_over(browser: Browser) -> None:
    """The form leads to the page, whose scripts and stream have the session; a control process that is new asks again."""
    model = {"name": "m", "workers": ["http://127.0.0.1:9"]}
    async with running_gateway({"admin_token": "correct-horse-battery", "models": [model]}) as gateway:
        context = await browser.new_context()
        page = await context.new_page()
        await page.goto(gateway.admin_url + "/")
        assert page.url.endswith("/login")
        await page.get_by_label("Admin token").fill("correct-horse-battery")
        await page.keyboard.press("Enter")
        await expect(page.locator("#connection")).to_have_attribute("data-state", "live")
        await expect(page.locator("#headline")).not_to_have_attribute("data-severity", "none")

        control = gateway.processes.control
        assert control is not None
        os.kill(control, signal.SIGKILL)
        await page.wait_for_url("**/login", timeout=2 * SECONDS)
        await context.close()


async def test_a_prompt_from_a_prefill_stage_is_shown_as_such(browser: Browser) -> None:
    """Its leg is a part of the bar and of the legend, which has it only then; the panel says who computed the prompt."""
    async with pair() as both:
        page = await (await browser.new_context()).new_page()
        await page.goto(both.gateway.admin_url + "/")
        legend = page.locator("#steps [data-step=stage]")
        await expect(legend).to_be_attached()
        await expect(legend).to_be_hidden()
        await both.ask([Wait(0.3), Send(computed())], STREAM)

        row = page.locator("#rows tr[data-id]").first
        await expect(row.locator("rect.step-stage")).to_be_attached()
        await expect(legend).to_be_visible()
        await expect(legend).to_have_text("prefill stage")
        await row.click()
        told = page.locator("#why .stage")
        name = both.first.url.removeprefix("http://")
        await expect(told).to_contain_text(re.compile(rf"It computed the prompt, .*\({re.escape(name)}\), in 3\d\d ms"))
        await expect(page.locator("#why .parts")).to_contain_text(re.compile("prefill stage.*KV transfer", re.DOTALL))
        await page.context.close()


async def test_what_went_wrong_stays_behind_the_newest_requests(look: Look) -> None:
    """As many others as are kept have come since; what went well is gone."""
    page = await look()

    kept = await page.evaluate(
        """async () => {
            const { allRows, take } = await import("/live/requests.js");
            const row = (id, time, outcome, deviations) => ({ id, time, outcome, deviations, causes: [], parts: [] });
            take([row("fine", 3, "ok", []), row("cut", 2, "truncated", []), row("slow", 1, "ok", ["ttft"])]);
            take(Array.from({ length: 500 }, (_, number) => row(`r-${number}`, 1e10 + number, "ok", [])));
            return allRows().map((each) => each.id);
        }"""
    )

    assert (kept[0], kept[499:]) == ("r-499", ["r-0", "cut", "slow"])


async def test_a_minute_that_goes_on_is_no_fall_of_the_requests(look: Look) -> None:
    """What adds up ends with the last whole minute, what is measured goes up to now."""
    page = await look()

    keys = await page.evaluate(
        """async () => {
            const { showHour } = await import("/live/hour.js");
            const minute = (begins, requests, ttft, is_over) => ({
                begins_unix_seconds: begins, requests, failed: 0, deviations: 0, completion_tokens: 10 * requests, is_over,
                ttft_p50_seconds: ttft, ttft_p99_seconds: ttft, tpot_p50_seconds: ttft, tpot_p99_seconds: ttft, hit_ratio: 0.5,
            });
            const minutes = [minute(0, 70, 1, true), minute(60, 80, 1, true), minute(120, 3, 2, false)];
            showHour([{ model: "m", pool: "p", minutes }]);
            return [...document.querySelectorAll("#hours .chart-key")].map((each) => each.textContent.trim());
        }"""
    )

    assert {"all 80", "tokens 800", "median 2 s"} <= set(keys)
