"""Workers that a file lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.discovery.file import FileSource, read_workers
from proxy.discovery.found import SourceError
from tests.proxy.discovery.finding import heard

LOOK_SECONDS = 0.02


def a_source(path: Path) -> FileSource:
    return FileSource(path, look_seconds=LOOK_SECONDS)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("- http://a:8000/v1\n- {url: 'http://b', name: second}\n", {"a:8000": "http://a:8000", "second": "http://b"}),
        (
            '["http://a:8000", {"name": "x", "url": "http://[fd00::1]:9/p"}]',
            {"a:8000": "http://a:8000", "x": "http://[fd00::1]:9/p"},
        ),
        ("[]", {}),
    ],
)
def test_yaml_and_json_are_read(text: str, found: dict[str, str]) -> None:
    """URLs, or mappings with a name, in the forms that the configuration has too."""
    workers = read_workers(text.encode())

    assert {worker.name: worker.url.url for worker in workers} == found
    assert {worker.source for worker in workers} <= {"file"}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "no list"),
        (b"workers: [http://a]", "no list"),
        (b"- http://a\n- [", "no YAML"),
        (b"\xff\xfe", "no YAML"),
        (b"[" * 100_000, "no YAML"),
        (b"- 3", "entry 1 is neither"),
        (b"- http://a\n- {url: http://b, nme: x}", "entry 2 is neither"),
        (b"- {name: x}", "entry 1 is neither"),
        (b"- {url: 3}", "no text"),
        (b"- {url: http://a, name: 3}", "no text"),
        (b"- ftp://a", "entry 1: the worker URL has the scheme ftp"),
        (b"- http://user:secret@a", "user or password"),
        (b"- {url: http://a, name: ' x'}", "entry 1: has blanks"),
        (b"- http://a\n- http://A:80/", "two workers have the name a:80"),
        (b"- {url: http://a, name: x}\n- {url: http://a, name: y}", "two workers have the URL http://a"),
        (b"\n".join(b"- http://a:%d" % port for port in range(1, 2002)), "2,001 workers"),
    ],
)
def test_a_file_with_a_mistake_is_refused_whole(content: bytes, why: str) -> None:
    """Half a set of workers would be worse than the old one."""
    with pytest.raises(SourceError, match=why) as refused:
        read_workers(content)

    assert "secret" not in str(refused.value)


async def test_a_change_is_noticed_however_it_is_made(tmp_path: Path) -> None:
    """Written over, replaced, and a link that is swung, as mounted ConfigMaps do."""
    path = tmp_path / "workers.yaml"
    path.write_text("[http://a]")
    async with heard(a_source(path)) as ear:
        await ear.hears_of("a:80")
        path.write_text("[http://a, http://b]")
        await ear.hears_of("a:80", "b:80")
        fresh = tmp_path / "fresh"
        fresh.write_text("[http://c]")
        fresh.replace(path)
        await ear.hears_of("c:80")
        for version in "12":
            (tmp_path / f"..{version}").mkdir()
            (tmp_path / f"..{version}" / "workers.yaml").write_text(f"[http://v{version}]")
        (tmp_path / "..data").symlink_to("..1")
        (tmp_path / "link").symlink_to("..data/workers.yaml")
        (tmp_path / "link").replace(path)
        await ear.hears_of("v1:80")
        (tmp_path / "..data_tmp").symlink_to("..2")
        (tmp_path / "..data_tmp").replace(tmp_path / "..data")
        await ear.hears_of("v2:80")

    assert ear.failures == []


async def test_a_bad_file_is_told_once_and_changes_nothing(tmp_path: Path) -> None:
    """Whether it is broken or gone; and a good one counts again."""
    path = tmp_path / "workers.yaml"
    path.write_text("[http://a]")
    async with heard(a_source(path)) as ear:
        await ear.hears_of("a:80")
        path.write_text("[http://a")
        await ear.hears(lambda: len(ear.failures) == 1)
        path.unlink()
        await ear.hears(lambda: len(ear.failures) == 2)
        assert "No such file" in ear.failures[1]
        assert str(path) in ear.failures[1]
        assert ear.names == ["a:80"]
        path.write_text("[http://b]")
        await ear.hears_of("b:80")

    assert len(ear.found) == 2
    assert len(ear.failures) == 2


async def test_half_a_file_is_not_taken(tmp_path: Path) -> None:
    """Content counts once it has been the same for two looks."""
    path = tmp_path / "workers.yaml"
    path.write_text("- http://a\n")
    source = a_source(path)
    reads = iter([b"- http://a\n", b"- http://a\n", b"- http://b\n", b"- http://b\n- http://c\n", b"- http://b\n- http://c\n"])
    last = b"- http://b\n- http://c\n"
    source._read = lambda: next(reads, last)  # type: ignore[method-assign]
    async with heard(source) as ear:
        await ear.hears_of("b:80", "c:80")

    assert [[worker.name for worker in found] for found in ear.found] == [["a:80"], ["b:80", "c:80"]]


async def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    """Somebody has mixed something up."""
    path = tmp_path / "workers.yaml"
    path.write_bytes(b"#" * (1024 * 1024 + 1))
    async with heard(a_source(path)) as ear:
        await ear.hears(lambda: bool(ear.failures))

    assert "larger than" in ear.failures[0]
