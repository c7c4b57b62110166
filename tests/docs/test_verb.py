"""`cep docs`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cep.cli.docs import DOCS, PACKAGE, ROOMS, anchor_of, page_named, page_paths, pages_in_order, rewrite_links
from cep.cli.main import main
from tests.docs.pages import blocks_of


def test_pages_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed if line and "`" not in line] == pages_in_order()
    assert any(line.startswith("start/first-rule ") for line in listed)


@pytest.mark.parametrize(
    "name", ["start/first-rule", "first-rule", "start/first-rule.md", "../start/first-rule.md#next"]
)
def test_a_page_is_printed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", name]) == 0
    assert "A first rule in ten minutes" in capsys.readouterr().out


def test_code_can_be_copied_from_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Every command of the page is in the output unchanged: without a margin or broken lines."""
    assert main(["docs", "first-rule"]) == 0
    shown = {line.rstrip() for line in capsys.readouterr().out.splitlines()}
    text = page_paths()["start/first-rule"].read_text()
    commands = [line for block in blocks_of(text) if block.tag == "sh" for line in block.code.splitlines()]
    assert [line for line in commands if line.rstrip() not in shown] == []


def test_an_unknown_page_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", "first-rul"]) == 2
    assert "did you mean `first-rule`" in capsys.readouterr().err


def test_pages_as_html_lead_to_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every link and picture of the written pages exists, including anchors."""
    assert main(["docs", "--html", str(tmp_path)]) == 0
    written = {path.relative_to(tmp_path).with_suffix("").as_posix() for path in tmp_path.rglob("*.html")}
    assert written == set(page_paths())
    broken = []
    for page in sorted(tmp_path.rglob("*.html")):
        for link in re.findall(r'(?:href|src)="([^"]+)"', page.read_text()):
            if "://" in link:
                continue
            file, _, anchor = link.partition("#")
            target = (page.parent / file).resolve() if file else page
            if not target.exists() or (anchor and f'id="{anchor}"' not in target.read_text()):
                broken.append(f"{page.relative_to(tmp_path)}: {link}")
    assert broken == []


def test_links_in_code_stay() -> None:
    text = "[a](x.md#y)\n```text\n[b](x.md)\n```\n[c](https://h/x.md)\n"
    changed = rewrite_links(text, DOCS / "p.md", lambda target, anchor: f"{target.name}!{anchor}")
    assert changed == "[a](x.md!#y)\n```text\n[b](x.md)\n```\n[c](https://h/x.md)\n"
    gone = rewrite_links("see [`code`](x.py).", DOCS / "p.md", lambda *_: None)
    assert gone == "see `code`."


def test_anchors_are_those_of_repositories() -> None:
    assert anchor_of("2. Check and test it") == "2-check-and-test-it"
    assert anchor_of("`cep run`: limits") == "cep-run-limits"


def test_a_guide_wins_over_the_room_of_its_name() -> None:
    assert page_named("lists") == "guides/lists"
    assert page_named("inside/rooms/lists") == "inside/rooms/lists"


def test_every_room_has_a_page() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")} - {"docs", "demo"}
    assert {room for room in rooms if f"{ROOMS}/{room}" not in page_paths()} == set()
