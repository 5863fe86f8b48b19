"""Workers that a file lists: written by a script, or a mounted ConfigMap. Read again when its content is another."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

from proxy.config.errors import RefusedError
from proxy.config.values import check_name
from proxy.config.worker_url import parse_worker_url
from proxy.discovery.found import FoundWorker, SourceError, checked
from proxy.discovery.source import Listener

LOOK_SECONDS = 1.0
_MOST_BYTES = 1024 * 1024
_Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class FileSource:
    """Looks at the file every second. Content is taken once two looks have seen it: a file may be half written."""

    def __init__(self, path: Path, *, look_seconds: float = LOOK_SECONDS) -> None:
        self._path = path
        self._look_seconds = look_seconds

    def __repr__(self) -> str:
        return f"<FileSource {self._path}>"

    async def run(self, listener: Listener) -> None:
        """Tell the workers at once, and whenever the file has changed."""
        taken: bytes | str | None = None
        last = content = self._read()
        while True:
            if content == last and content != taken:
                taken = content
                try:
                    if isinstance(content, str):
                        raise SourceError(content)
                    found = read_workers(content)
                except SourceError as error:
                    listener.failed(f"{self._path}: {error}")
                else:
                    listener.found(found)
            await asyncio.sleep(self._look_seconds)
            last, content = content, self._read()

    def _read(self) -> bytes | str:
        """The content, or as text why there is none."""
        try:
            with self._path.open("rb") as file:
                content = file.read(_MOST_BYTES + 1)
        except OSError as error:
            return error.strerror or "it cannot be read"
        return content if len(content) <= _MOST_BYTES else f"it is larger than {_MOST_BYTES:,} bytes"


def read_workers(content: bytes) -> tuple[FoundWorker, ...]:
    """The workers that YAML or JSON lists; none for an empty list. Raises `SourceError` for anything that is no such list."""
    try:
        value = yaml.load(content.decode("utf-8-sig"), _Loader)  # noqa: S506 -- both are safe loaders
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        raise SourceError(f"it is no YAML{f' (line {mark.line + 1})' if mark else ''}") from None
    if not isinstance(value, list):
        raise SourceError("it holds no list of workers; an empty one is written []")
    workers = [_worker(at, entry) for at, entry in enumerate(value, start=1)]
    for what, values in (("name", [worker.name for worker in workers]), ("URL", [worker.url.url for worker in workers])):
        if (double := _first_double(values)) is not None:
            raise SourceError(f"two workers have the {what} {double}")
    return checked(workers)


def _worker(at: int, entry: object) -> FoundWorker:
    fields = {"url": entry} if isinstance(entry, str) else entry
    if not isinstance(fields, Mapping) or not {"url"} <= fields.keys() <= {"url", "name"}:
        raise SourceError(f"entry {at} is neither a URL nor {{name: …, url: …}}")
    url, name = fields["url"], fields.get("name")
    if not isinstance(url, str) or not isinstance(name, str | None):
        raise SourceError(f"entry {at} has a URL or name that is no text")
    try:
        parsed = parse_worker_url(url)
        return FoundWorker(name=parsed.default_name if name is None else check_name(name), url=parsed, source="file")
    except RefusedError as error:
        raise SourceError(f"entry {at}: {error.wrong}; {error.right}") from None


def _first_double(values: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None
