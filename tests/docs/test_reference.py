"""The reference agrees with the code. After a change: `python -m tests.docs.reference`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any, get_args, get_type_hints

import pytest

import cep
from cep.cli.docs import DOCS
from cep.model.rule import RuleFile
from cep.runners.meanings import COUNTERS, FROM_ZERO, GAUGE_LABELS, GAUGES, LABELS, LOG_LINES, TOTALS_THAT_FALL
from tests.docs.reference import PAGES
from tests.tidy.source import sources


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
