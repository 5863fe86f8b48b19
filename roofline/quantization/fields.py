"""Reading a quantisation config: typed fields, and errors that say which field is wrong and what it may be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

_MISSING = object()


@dataclass(frozen=True, slots=True)
class Section:
    """One mapping of a config with the place it has there. A field that is null counts as absent."""

    fields: Mapping[str, object]
    place: str

    def __contains__(self, key: str) -> bool:
        return self.fields.get(key) is not None

    def wrong(self, key: str, wanted: str) -> ValueError:
        """The error for a field that is absent or not what it should be."""
        value = self.fields.get(key, _MISSING)
        found = "is missing" if value is _MISSING or value is None else f"is {value!r}"
        return ValueError(f"{self.place}: {key} {found}; it should be {wanted}")

    def integer(self, *keys: str, default: int | None = None, least: int = 1) -> int:
        """The first of the keys that is there; ``least`` is the smallest sound value."""
        key = self._first(keys)
        value = self.fields.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.wrong(key, f"an integer of at least {least}")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """A truth value."""
        value = self.fields.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str, *, default: str | None = None) -> str:
        """A string, in lower case."""
        value = self.fields.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or not value:
            raise self.wrong(key, "a string")
        return value.lower()

    def choice(self, key: str, allowed: Iterable[str], *, default: str | None = None) -> str:
        """A string out of a few, in lower case."""
        if key not in self and default is not None:
            return default
        value = self.fields.get(key)
        options = tuple(allowed)
        if not isinstance(value, str) or value.lower() not in options:
            raise self.wrong(key, "one of " + ", ".join(options))
        return value.lower()

    def names(self, *keys: str) -> tuple[str, ...]:
        """Strings under the first of the keys that is there and not empty, lists inside the list flattened."""
        for key in keys:
            value = self.fields.get(key)
            if value is None:
                continue
            if not isinstance(value, list | tuple):
                raise self.wrong(key, "a list of module names")
            flat = [name for entry in value for name in (entry if isinstance(entry, list | tuple) else [entry])]
            if not all(isinstance(name, str) and name for name in flat):
                raise self.wrong(key, "a list of module names")
            if flat:
                return tuple(flat)
        return ()

    def pair(self, key: str) -> tuple[int, int] | None:
        """Two positive integers, rows and columns; ``None`` if absent."""
        value = self.fields.get(key)
        if value is None:
            return None
        match value:
            case [int(rows), int(columns)] if rows > 0 and columns > 0:
                return rows, columns
        raise self.wrong(key, "two positive integers, [rows, columns]")

    def section(self, key: str) -> Section | None:
        """A mapping inside; ``None`` if absent."""
        value = self.fields.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.wrong(key, "a mapping")
        return Section(value, f"{self.place}.{key}")

    def sections(self, key: str) -> Iterator[tuple[str, Section]]:
        """Mappings inside a mapping, by their names; none if absent."""
        outer = self.section(key)
        if outer is None:
            return
        for name in outer.fields:
            inner = outer.section(name)
            if inner is None:
                raise outer.wrong(name, "a mapping")
            yield name, inner

    def _first(self, keys: tuple[str, ...]) -> str:
        return next((key for key in keys if key in self), keys[0])
