"""Workers behind a service, listed and watched at a scripted API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proxy.config.found import KubernetesConfig
from proxy.discovery.kubernetes import KubernetesSource
from proxy.discovery.source import Pause
from tests.integration.kubernetes_api import NAMESPACE, SERVICE, KubernetesApi, endpoint
from tests.proxy.discovery.finding import Ear, heard


@pytest.fixture
async def api() -> AsyncIterator[KubernetesApi]:
    async with KubernetesApi() as one:
        one.put("s-1", endpoint("10.0.0.1", "a"))
        yield one


def a_source(api: KubernetesApi, *, token_file: Path | None = None, silent_seconds: float = 5.0) -> KubernetesSource:
    return KubernetesSource(
        api=api.url,
        service=SERVICE,
        namespace=NAMESPACE,
        port="http",
        token_file=token_file,
        pause=Pause(0.02, 0.1),
        silent_seconds=silent_seconds,
    )


async def watching(ear: Ear, api: KubernetesApi, *names: str) -> None:
    """Wait until these workers are known and the watch is open."""
    await ear.hears_of(*names)
    await ear.hears(lambda: api.watching == 1)


async def test_changes_are_heard_as_they_happen(api: KubernetesApi) -> None:
    """Slices that come, change and go; a pod that ends drains first."""
    async with heard(a_source(api)) as ear:
        await watching(ear, api, "a")
        api.put("s-2", endpoint("10.0.0.2", "b"))
        await ear.hears_of("a", "b")
        api.put("s-1", endpoint("10.0.0.1", "a", ready=False, serving=True, terminating=True))
        await ear.hears_of("(a)", "b")
        api.put("s-1")
        await ear.hears_of("b")
        api.delete("s-2")
        await ear.hears_of()

    assert ear.failures == []
    assert len(api.lists) == 1
    assert len(api.watches) == 1


async def test_a_long_list_comes_in_pages(api: KubernetesApi) -> None:
    """All of them count, and the watch begins where the first page was."""
    for number in range(2, 8):
        api.put(f"s-{number}", endpoint(f"10.0.0.{number}", f"p{number}"))
    api.most_per_page = 3
    async with heard(a_source(api)) as ear:
        await watching(ear, api, "a", *(f"p{number}" for number in range(2, 8)))

    assert [query.get("continue") for _, query in api.lists] == [None, "1007-3", "1007-6"]
    assert api.watches[0][1]["resourceVersion"] == "1007"


async def test_a_page_that_has_expired_begins_the_list_anew(api: KubernetesApi) -> None:
    """Half a list is never believed."""
    for number in range(2, 5):
        api.put(f"s-{number}", endpoint(f"10.0.0.{number}", f"p{number}"))
    api.most_per_page = 2
    answer, expired = api._list, []

    def once_expired(query: dict[str, str]):
        if "continue" in query and not expired:
            expired.append(query)
            api.forget()
        return answer(query)

    api._list = once_expired  # type: ignore[method-assign]
    async with heard(a_source(api)) as ear:
        await watching(ear, api, "a", "p2", "p3", "p4")

    assert expired
    assert len(ear.found[0]) == 4


@pytest.mark.parametrize("piece_bytes", [1, 7, 100])
async def test_events_may_be_cut_anywhere(api: KubernetesApi, piece_bytes: int) -> None:
    """A line of the stream comes in pieces, each a chunk of its own."""
    api.piece_bytes = piece_bytes
    async with heard(a_source(api)) as ear:
        await watching(ear, api, "a")
        api.put("s-2", endpoint("10.0.0.2", "b"))
        api.put("s-3", endpoint("10.0.0.3", "c"))
        api.delete("s-1")
        await ear.hears_of("b", "c")


@pytest.mark.parametrize("how", ["ended", "cut", "away", "failing"])
async def test_a_watch_goes_on_where_it_was(api: KubernetesApi, how: str) -> None:
    """Whatever ends it: nothing is listed anew, nothing that happened meanwhile is missed, and nobody is taken away."""
    async with heard(a_source(api)) as ear:
        await watching(ear, api, "a")
        api.bookmark()
        api.put("s-2", endpoint("10.0.0.2", "b"))
        await ear.hears_of("a", "b")
        version = api._version
        if how == "ended":
            api.end_watches()
        elif how == "cut":
            api.cut()
        elif how == "failing":
            api.failing = 500
            api.cut()
        else:
            await api.__aexit__()
        if how in ("away", "failing"):
            await ear.hears(lambda: len(ear.failures) > 3)
        api.put("s-3", endpoint("10.0.0.3", "c"))
        assert "b" in ear.names
        api.failing = None
        if how == "away":
            await api.__aenter__()
        await ear.hears_of("a", "b", "c")

    assert len(api.lists) == 1
    assert int(api.watches[-1][1]["resourceVersion"]) >= version
    assert [] not in [list(found) for found in ear.found]


async def test_a_bookmark_moves_the_watch_on(api: KubernetesApi) -> None:
    """It changes nobody; the next watch begins there, where an older version may be forgotten."""
    async with heard(a_source(api)) as ear:
        await watching(ear, api, "a")
        told = len(ear.found)
        api.bookmark()
        version = api._version
        api.end_watches()
        await ear.hears(lambda: len(api.watches) == 2)

    assert api.watches[1][1]["resourceVersion"] == str(version)
    assert ear.names == ["a"]
    assert len(ear.found) <= told + 1


@pytest.mark.parametrize("by_event", [False, True])
async def test_a_forgotten_version_is_listed_anew(api: KubernetesApi, by_event: bool) -> None:
    """410, as a status or as an event: workers stay until the new list is there, and it is in force whole."""
    api.gone_by_event = by_event
    async with heard(a_source(api)) as ear:
        await watching(ear, api, "a")
        await api.__aexit__()
        api.delete("s-1")
        api.put("s-2", endpoint("10.0.0.2", "b"))
        api.forget()
        await api.__aenter__()
        await watching(ear, api, "b")

    assert len(api.lists) == 2
    assert [] not in [list(found) for found in ear.found]


async def test_a_server_that_always_forgets_is_not_asked_without_a_pause(api: KubernetesApi) -> None:
    """410 to every watch: the list is what there is, as often as failures are tried again."""
    api._oldest = 10**9
    async with heard(a_source(api)) as ear:
        await ear.hears(lambda: len(api.watches) >= 4)
        assert ear.names == ["a"]

    first, last = api.watches[0][0], api.watches[3][0]
    assert last - first > 0.05


async def test_a_token_that_was_replaced_is_read_again(api: KubernetesApi, tmp_path: Path) -> None:
    """401 to the old one; the file holds the new one by then."""
    token = tmp_path / "token"
    token.write_text("old\n")
    api.token = "old"
    async with heard(a_source(api, token_file=token)) as ear:
        await watching(ear, api, "a")
        api.token = "new"
        api.end_watches()
        await ear.hears(lambda: bool(ear.failures))
        assert "does not accept the token" in ear.failures[0]
        assert ear.names == ["a"]
        token.write_text("new\n")
        api.put("s-2", endpoint("10.0.0.2", "b"))
        await ear.hears_of("a", "b")

    assert "old" not in str(ear.failures)


@pytest.mark.parametrize(
    ("status", "said"), [(403, "may not list and watch"), (404, "no EndpointSlices"), (429, "as told"), (503, "as told")]
)
async def test_refusals_are_told_in_words_that_help(api: KubernetesApi, status: int, said: str) -> None:
    """And tried again."""
    api.failing = status
    async with heard(a_source(api)) as ear:
        await ear.hears(lambda: len(ear.failures) >= 2)
        assert str(status) in ear.failures[0]
        assert said in ear.failures[0]
        assert ear.found == []
        api.failing = None
        await ear.hears_of("a")


async def test_a_silent_watch_is_taken_up_anew(api: KubernetesApi) -> None:
    """A connection that is dead without saying so costs no more than the time of a few bookmarks."""
    async with heard(a_source(api, silent_seconds=0.1)) as ear:
        await ear.hears(lambda: len(api.watches) >= 3)

    assert ear.failures == []
    assert len(api.lists) == 1


async def test_a_port_that_is_missing_is_told_and_mended_by_an_event(api: KubernetesApi) -> None:
    """Nobody is taken away by a service whose port was renamed."""
    async with heard(a_source(api)) as ear:
        await watching(ear, api, "a")
        api.put("s-1", endpoint("10.0.0.1", "a"), ports=[{"name": "web", "port": 8000}])
        await ear.hears(lambda: "no port http; there are: web (8000)" in str(ear.failures))
        assert ear.names == ["a"]
        api.put("s-1", endpoint("10.0.0.1", "a"), endpoint("10.0.0.2", "b"))
        await ear.hears_of("a", "b")


def test_a_pod_needs_to_be_told_nothing(tmp_path: Path) -> None:
    """Address, namespace, token and certificates are where Kubernetes puts them."""
    (tmp_path / "namespace").write_text("team\n")
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}

    source = KubernetesSource.of(KubernetesConfig(service="vllm"), environ, tmp_path)

    assert source._url == "https://[fd00::1]:6443/apis/discovery.k8s.io/v1/namespaces/team/endpointslices"
    assert (source._token_file, source._ca_file) == (tmp_path / "token", tmp_path / "ca.crt")
    elsewhere = KubernetesSource.of(
        KubernetesConfig(service="vllm", namespace="n", api="http://127.0.0.1:8001"), environ, tmp_path
    )
    assert elsewhere._url.startswith("http://127.0.0.1:8001/apis/")
    assert elsewhere._token_file is None


async def test_outside_of_a_cluster_it_says_so() -> None:
    """A gateway on a laptop with the configuration of a pod."""
    async with heard(KubernetesSource.of(KubernetesConfig(service="vllm"), {})) as ear:
        await ear.hears(lambda: bool(ear.failures))

    assert "does not run in a pod" in ear.failures[0]


async def test_certificates_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    """Without them nobody is believed to be the API server."""
    source = KubernetesSource(
        api="https://127.0.0.1:1", service=SERVICE, namespace=NAMESPACE, ca_file=tmp_path / "ca.crt", pause=Pause(0.02, 0.1)
    )
    async with heard(source) as ear:
        await ear.hears(lambda: bool(ear.failures))

    assert "No such file" in ear.failures[0]
    assert str(tmp_path / "ca.crt") in ear.failures[0]
