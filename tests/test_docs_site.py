"""The documentation as a site: it can be made, no link in it is broken, and reading it asks no other host for anything."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration  # it writes files for some seconds

ROOT = Path(__file__).resolve().parents[1]
LOADED = re.compile(r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']([^"']+)|<link\b[^>]*\bhref=["']([^"']+)""")


def build(docs: Path, into: Path) -> subprocess.CompletedProcess[str]:
    command = ["-m", "sphinx", "-q", "-W", "--keep-going", "-E", "-b", "html", "-c", str(ROOT / "deploy" / "site")]
    return subprocess.run(
        [sys.executable, *command, str(docs), str(into)], capture_output=True, text=True, timeout=100, check=False
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, made once."""
    into = tmp_path_factory.mktemp("site")
    done = build(ROOT / "docs", into)
    assert done.returncode == 0, done.stderr
    return into


def test_every_page_is_on_the_site_and_can_be_reached_from_the_first(site: Path):
    """A page that is in no table of contents would be an error of the build; here each has its file and its entry."""
    first = (site / "README.html").read_text(encoding="utf-8")

    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        assert (site / name).is_file()
        assert name == "README.html" or f'href="{name}"' in first, name
    assert "README.html" in (site / "index.html").read_text(encoding="utf-8")


def test_nothing_is_loaded_from_other_hosts(site: Path):
    """Scripts, styles, pictures and fonts are files of the site."""
    for page in site.rglob("*.html"):
        loaded = [first or second for first, second in LOADED.findall(page.read_text(encoding="utf-8"))]
        assert loaded or page.name == "index.html"
        assert not [address for address in loaded if re.match(r"(?:https?:)?//", address)], page
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//", style.read_text(encoding="utf-8")), style


@pytest.mark.parametrize("link", ["nowhere.md", "theory.md#no-such-heading", "../examples/no-such-file.py"])
def test_a_broken_link_is_an_error(link: str, tmp_path: Path):
    """To a page, a heading or a file that is not there."""
    docs = tmp_path / "docs"
    shutil.copytree(ROOT / "docs", docs, ignore=shutil.ignore_patterns("how-to", "reference", "decisions", "runbooks"))
    for page in docs.glob("*.md"):
        page.write_text(f"# {page.stem}\n", encoding="utf-8")
    (docs / "start.md").write_text(f"# Start\n\n[here]({link})\n", encoding="utf-8")

    done = build(docs, tmp_path / "site")

    assert done.returncode != 0
    assert link.rsplit("#", maxsplit=1)[-1].removeprefix("../") in done.stderr


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")), ids=lambda page: page.name)
def test_links_of_pages_at_the_top_lead_to_files(page: Path):
    """README and its like are not part of the site, and link into it."""
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))

    assert not [link for link in links if not link.startswith("https://") and not (ROOT / link).exists()]
