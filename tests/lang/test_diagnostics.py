"""Codes, rendering, and several mistakes in one run."""

from __future__ import annotations

import re
from pathlib import Path

from cep.base.limits import DIAGNOSTICS_MAX
from cep.lang.diagnostics import Collector, Diagnostic, Severity, Span, did_you_mean, nearest
from cep.lang.explain.catalogue import CATALOGUE, explain
from cep.lang.explain.render import render_text, summary, to_json
from cep.lang.load import load_text
from tests.lang.common import EVENTS, codes, shown

FIVE = (
    EVENTS
    + """
pattern five by card_id {
  seq   a -> b{4,2} -> a -> c within 1 h
  where a: transaction  amont > 1
        b: transaction  status == aproved
        c: transaction  amount > 2.005
  emit  total = sum(b.amunt)
}
"""
)


def test_five_different_mistakes_in_a_pattern_are_reported_at_once() -> None:
    reported = codes(FIVE)
    assert sorted(reported) == ["CEP201", "CEP203", "CEP304", "CEP305", "CEP406", "CEP409"]


def test_mistakes_of_syntax_do_not_hide_each_other() -> None:
    reported = codes(
        EVENTS
        + """
event other { id id  at }
pattern one by card_id { seq a -> where a: transaction ) emit x = }
pattern two by { seq a }
list l = [1, 2
pattern three by card_id { seq a where a: transaction amont > 1 }
"""
    )
    assert reported.count("CEP105") == 6
    assert "CEP201" in reported


def test_the_good_patterns_of_a_file_with_mistakes_are_there() -> None:
    checked = load_text(FIVE + "pattern good by card_id { seq a }")
    assert not checked.ok
    assert list(checked.patterns) == ["good"]


def test_every_code_in_the_source_is_in_the_catalogue_and_the_other_way_round() -> None:
    source = Path(__file__).parents[2] / "cep"
    texts = [path.read_text(encoding="utf-8") for path in source.rglob("*.py") if path.name != "catalogue.py"]
    reported = {code for text in texts for code in re.findall(r'"(CEP\d{3})"', text)}
    assert reported == set(CATALOGUE)
    assert all(len(entry.explanation) > 40 for entry in CATALOGUE.values())


def test_explain() -> None:
    text = explain("cep401")
    assert text is not None
    assert text.startswith("CEP401: absence without a window")
    assert explain("CEP999") is None


def test_json_has_lines_columns_and_labels() -> None:
    text = EVENTS + "pattern p by card_id { seq a -> a }"
    checked = load_text(text, "x.cep")
    (diagnostic,) = [to_json(d, checked.sources) for d in checked.diagnostics]
    assert diagnostic["code"] == "CEP406"
    assert diagnostic["severity"] == "error"
    line = text.count("\n") + 1
    assert diagnostic["span"] == {"file": "x.cep", "line": line, "column": 33, "end_line": line, "end_column": 34}
    assert diagnostic["labels"][0]["span"]["column"] == 28


def test_color_only_if_wanted() -> None:
    checked = load_text("pattern")
    assert "\x1b[" in render_text(checked.diagnostics, checked.sources, color=True)
    assert "\x1b[" not in render_text(checked.diagnostics, checked.sources)


def test_a_long_line_is_cut_and_control_characters_are_not_printed() -> None:
    checked = load_text("list l = [" + "1, " * 200 + "\x1b[31m\x07]")
    text = shown(checked)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert max(len(line) for line in text.splitlines()) < 200


def test_a_mark_on_the_line_just_shown_does_not_repeat_the_line() -> None:
    text = shown(load_text(EVENTS + "pattern p by card_id { seq a -> a }"))
    assert text.count("seq a -> a") == 1


def test_the_same_thing_is_said_once_but_counted() -> None:
    collector = Collector()
    for _ in range(3):
        collector.add("CEP201", "x", Span("f", 0, 1))
    assert len(collector.diagnostics) == 1
    assert collector.error_count == 3


def test_diagnostics_past_the_limit_are_counted() -> None:
    checked = load_text("list l = [" + " ".join(f"'{i}'," for i in range(DIAGNOSTICS_MAX + 20)) + "]")
    assert len(checked.diagnostics) == DIAGNOSTICS_MAX
    assert checked.dropped == 20
    assert not checked.ok


def test_summary() -> None:
    warning = Diagnostic("CEP420", "w", severity=Severity.WARNING)
    assert summary([]) == "no mistakes"
    assert summary([warning, Diagnostic("CEP201", "e"), Diagnostic("CEP201", "f")]) == "2 errors, 1 warning"


def test_nearest() -> None:
    assert nearest("amont", ["amount", "country"]) == "amount"
    assert nearest("Amount", ["amount"]) == "amount"
    assert nearest("zzz", ["amount"]) is None
    assert did_you_mean("zzz", []) == ""
    assert did_you_mean("zzz", ["a", "b"], "fields") == "fields: `a`, `b`"


def test_a_mistake_in_a_shared_list_keeps_both_patterns_out() -> None:
    body = "{ seq a where a: transaction status in l }"
    checked = load_text(EVENTS + f"list l = [aproved]\npattern p by card_id {body}\npattern q by card_id {body}")
    assert not checked.patterns
