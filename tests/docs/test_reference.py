"""The reference agrees with the code, `cep docs` shows it, and README.md shows two pictures."""

import inspect
import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import cep
from cep.cli.docs import DOCS, PACKAGE, ROOMS, anchor_of, page_named, page_paths, pages_in_order, rewrite_links
from cep.cli.main import main
from cep.model.rule import RuleFile
from cep.runners.meanings import COUNTERS, FROM_ZERO, GAUGE_LABELS, GAUGES, LABELS, LOG_LINES, TOTALS_THAT_FALL
from tests.docs.commands import ROOT
from tests.docs.pages import blocks_of
from tests.docs.pictures import ALERT, REPORT, alert_picture, small_day
from tests.docs.reference import PAGES
from tests.output_of import OutputOf
from tests.tidy.source import sources

# The reference agrees with the code. After a change: `python -m tests.docs.reference`.


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_gives(name: str) -> None:
    written = (DOCS / "reference" / f"{name}.md").read_text(encoding="utf-8")
    assert written == PAGES[name](), "run `python -m tests.docs.reference`"


def test_every_public_name_of_the_library_is_on_its_page() -> None:
    """The types that public functions return count, and the types that those return."""
    page = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
    errors = [name for name in cep.__all__ if name.endswith("Error")]
    assert [
        name for name in errors if f"\n## cep.{name}\n" not in page or f"`{getattr(cep, name).code}`" not in page
    ] == []
    todo: list[Any] = [getattr(cep, name) for name in cep.__all__ if name not in errors]
    types: list[type] = []
    missing: list[str] = []
    while todo:
        value = todo.pop()
        if not isinstance(value, type):
            todo += _given_by(value)
            missing += [] if f"## `cep.{value.__name__}(" in page else [value.__name__]
            continue
        if value in types:
            continue
        types.append(value)
        section = page.partition(f"\n## {value.__name__}\n")[2].partition("\n## ")[0]
        for name in (name for name in {*vars(value), *get_type_hints(value)} if not name.startswith("_")):
            is_there = re.search(rf"^(### `{value.__name__}\.{name}[`(]|\| `{name}` \|)", section, re.MULTILINE)
            missing += [] if is_there else [f"{value.__name__}.{name}"]
            member = vars(value).get(name)
            todo += _given_by(getattr(member, "fget", None) or getattr(member, "func", member))
        todo += _classes(hint for name, hint in get_type_hints(value).items() if not name.startswith("_"))
    assert {each.__name__ for each in types} >= {
        "Alerts",
        "Rules",
        "Quality",
        "Figures",
        "Tuned",
        "Suggested",
        "Pruned",
    }
    assert missing == []


def _given_by(function: Any) -> list[type]:
    if not inspect.isfunction(function):
        return []
    return _classes([get_type_hints(function).get("return")])


def _classes(hints: Iterable[Any]) -> list[type]:
    """Return our own classes in these types, also inside tuples and unions."""
    inside = [each for hint in hints for each in (hint, *get_args(hint))]
    return [
        each for each in inside if isinstance(each, type) and each.__module__.startswith(("cep.api", "cep.analysis"))
    ]


def test_every_counter_of_the_code_has_a_sentence() -> None:
    """Both ways: a name that the code does not have is not a counter."""
    text = "\n".join(source.text for source in sources("cep") if not source.name.endswith("meanings.py"))
    counted = set(re.findall(r'(?:counters|totals)\[f?"([a-z_]+)(?:\["?|"\])', text)) | set(LABELS)
    named = FROM_ZERO.keys() | COUNTERS.keys()
    assert counted - named - TOTALS_THAT_FALL.keys() == set()
    assert GAUGES.keys() >= GAUGE_LABELS.keys()
    for name in (*COUNTERS, *GAUGES):
        first, _, last = name.partition("control_")
        assert name in text or (not first and last in text), f"nothing counts {name}"


def test_every_line_of_the_log_has_a_sentence() -> None:
    text = "\n".join(source.text for source in sources("cep"))
    assert set(re.findall(r'log\.tell\(\s*"([a-z_]+)"', text)) == LOG_LINES.keys()


def test_every_name_of_a_rule_file_is_explained() -> None:
    text = (DOCS / "reference" / "rule-files.md").read_text(encoding="utf-8")
    assert [name for name in RuleFile.model_fields if f"`{name}`" not in text and f"`[{name}]`" not in text] == []


# `cep docs`.


def test_pages_are_listed(output_of: OutputOf) -> None:
    listed = output_of(main(["docs"])).out.splitlines()
    assert [line.split()[0] for line in listed if line and "`" not in line] == pages_in_order()
    assert any(line.startswith("start/first-rule ") for line in listed)


@pytest.mark.parametrize(
    "name", ["start/first-rule", "first-rule", "start/first-rule.md", "../start/first-rule.md#next"]
)
def test_a_page_is_printed(name: str, output_of: OutputOf) -> None:
    assert "A first rule in ten minutes" in output_of(main(["docs", name])).out


def test_code_can_be_copied_from_the_terminal(output_of: OutputOf) -> None:
    """Every command of the page is in the output unchanged: without a margin or broken lines."""
    shown = {line.rstrip() for line in output_of(main(["docs", "first-rule"])).out.splitlines()}
    text = page_paths()["start/first-rule"].read_text()
    commands = [line for block in blocks_of(text) if block.tag == "sh" for line in block.code.splitlines()]
    assert [line for line in commands if line.rstrip() not in shown] == []


def test_an_unknown_page_names_the_nearest(output_of: OutputOf) -> None:
    assert "did you mean `first-rule`" in output_of(main(["docs", "first-rul"]), 2).err
    assert "give --serve another port" in output_of(main(["docs", "--serve", "65536"]), 2).err


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


# README.md shows two pictures, and the command makes the same time line.
#
# After a change: `python -m tests.docs.pictures`.

_PNG = b"\x89PNG\r\n\x1a\n"
_CHANNELS = 3
_MARGIN = 8  # pixels


def test_the_time_line_is_that_of_the_day() -> None:
    assert ALERT.read_text(encoding="utf-8") == alert_picture(small_day()), "run `python -m tests.docs.pictures`"


def test_the_first_page_shows_both_in_words_too() -> None:
    shown = re.findall(r"!\[([^\]]*)\]\(([^)]*)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert [ROOT / path for _, path in shown] == [ALERT, REPORT]
    assert all(len(text.split()) > 10 for text, _ in shown)


def test_the_page_of_the_report_is_a_small_picture() -> None:
    data = REPORT.read_bytes()
    assert data.startswith(_PNG)
    width, height = struct.unpack(">II", data[16:24])
    assert 800 <= width <= 1_400
    assert height <= 1_400
    assert len(data) < 200_000


def test_the_page_of_the_report_ends_between_rows() -> None:
    """No line of a table, and no letter, reaches the lower or the right edge."""
    lines = list(pixels(REPORT.read_bytes()))
    white = bytes([255]) * len(lines[0])
    assert lines[-_MARGIN:] == [white] * _MARGIN
    assert {line[-_MARGIN * _CHANNELS :] for line in lines} == {white[: _MARGIN * _CHANNELS]}


def pixels(png: bytes) -> Iterator[bytes]:
    """Yield the lines of a picture with eight bits for each of red, green and blue, from the top (PNG, section 9)."""
    width, depth, color = struct.unpack(">I4xBB", png[16:26])
    assert (depth, color) == (8, 2), "a picture of the browser has three channels"
    packed, position = b"", 8
    while position < len(png):
        size = int.from_bytes(png[position : position + 4], "big")
        packed += png[position + 8 : position + 8 + size] if png[position + 4 : position + 8] == b"IDAT" else b""
        position += size + 12
    raw, size = zlib.decompress(packed), width * _CHANNELS
    above = bytes(size)
    for begin in range(0, len(raw), size + 1):
        above = bytes(_restored(raw[begin], raw[begin + 1 : begin + 1 + size], above))
        yield above


def _restored(kind: int, line: bytes, above: bytes) -> bytearray:
    """Undo the filter of one line."""
    if kind == 0:
        return bytearray(line)
    restored = bytearray(line)
    for index, value in enumerate(line):
        before, corner = (row[index - _CHANNELS] if index >= _CHANNELS else 0 for row in (restored, above))
        guess = before + above[index] - corner
        nearest = min((before, above[index], corner), key=lambda each: abs(guess - each))
        restored[index] = (value + (0, before, above[index], (before + above[index]) // 2, nearest)[kind]) % 256
    return restored
