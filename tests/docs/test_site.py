"""The site builds, and a broken link ends the build."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cep.cli import doc_pages
from cep.cli.doc_pages import page_paths
from tests.docs.site import build


def test_the_site_builds(tmp_path: Path) -> None:
    process = build(tmp_path / "site")
    assert process.returncode == 0, process.stdout + process.stderr
    written = {path.parent for path in (tmp_path / "site").rglob("index.html")}
    assert len(written) >= len(page_paths())
    first = (tmp_path / "site" / "index.html").read_text()
    assert not re.search(r'(?:src|href)="https?://(?!zensical\.org)', first), "a reader needs no network"


def test_a_broken_link_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "index.md"
    page.write_text("# A page\n\n[gone](guides/gone.md)\n")
    monkeypatch.setattr(doc_pages, "DOCS", tmp_path)
    monkeypatch.setattr(doc_pages, "page_paths", lambda: {"index": page})
    assert build(tmp_path / "site").returncode != 0
