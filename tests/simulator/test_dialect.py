"""The versions that can be imitated."""

from __future__ import annotations

import pytest

from simulator.dialect import DIALECTS, NEWEST, dialect_by_name


def test_versions_are_known_by_their_names():
    """Each of the four names leads to a version that begins with it."""
    assert list(DIALECTS) == ["0.9.2", "0.11", "0.22", "0.32"]
    assert all(dialect_by_name(name).version.startswith(name) for name in DIALECTS)


def test_the_newest_leaves_nothing_out():
    """Everything captured is there in the version it was captured from."""
    assert (NEWEST.missing_families, dict(NEWEST.older_names)) == (frozenset(), {})


def test_an_unknown_version_is_refused_with_the_known():
    """The error lists what can be imitated."""
    with pytest.raises(ValueError, match=r"unknown version '0\.1'; a worker can imitate 0\.9\.2, 0\.11, 0\.22, 0\.32"):
        dialect_by_name("0.1")
