"""The reference says what the code says. After a change: `python -m tests.docs.reference`."""

from __future__ import annotations

import re

import pytest

from cep.cli.doc_pages import DOCS
from cep.model.rule import RuleFile
from cep.runners.meanings import COUNTERS, FROM_ZERO, GAUGE_LABELS, GAUGES, LABELS, LOG_LINES, TOTALS_THAT_FALL
from tests.docs.reference import PAGES
from tests.tidy.source import sources


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_gives(name: str) -> None:
    written = (DOCS / "reference" / f"{name}.md").read_text(encoding="utf-8")
    assert written == PAGES[name](), "run `python -m tests.docs.reference`"


def test_every_counter_of_the_code_has_a_sentence() -> None:
    """Both ways: a name that the code does not have is no counter."""
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
