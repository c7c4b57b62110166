"""Declared lists of files → their contents; lists that a rule gives in place."""

from __future__ import annotations

from pathlib import Path

from cep.lang.check.bind import bind
from cep.lang.load import load_files, load_text
from cep.nfa.compile import problems
from cep.nfa.given_lists import asked_lists, given_lists

TEXT = """
event e { id id  event_time time  key string  hops int }
list blocked: string from "lists/blocked.csv"
list bins: prefix = ["41", "411", "41"]
list watch: int
list fixed = ["a"]
pattern p(shops: list of string = blocked, places: list of int) by key {
  seq   a
  where a: e  key in shops and key in bins and key in fixed and hops in places and not (hops in watch)
}
"""


def test_files_beside_the_pattern_and_entries_in_place(tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "blocked.csv").write_text("blocked\nC-1\nC-2\nC-1\n")
    (tmp_path / "p.cep").write_text(TEXT)
    checked = load_files([tmp_path / "p.cep"])
    assert checked.ok
    lists = given_lists(checked)
    assert {key: len(given_list.content) for key, given_list in lists.lists.items()} == {
        ("blocked", "string"): 2,
        ("bins", "prefix"): 2,
    }
    assert lists.lists["blocked", "string"].repeated_count == 1
    assert [d.code for d in lists.diagnostics] == ["CEP804"]
    assert checked.lists == {"fixed": ("a",)}


def test_what_a_rule_asks() -> None:
    checked = load_text(TEXT)
    bound, _ = bind(checked.patterns["p"], {"shops": "vips", "places": [1, 2]})
    assert bound is not None
    assert asked_lists([bound]) == {("vips", "string"), ("bins", "prefix"), ("watch", "int")}
    assert problems(bound, checked.schema) == []


def test_a_rule_that_gives_wrong_entries() -> None:
    checked = load_text(TEXT)
    bound, _ = bind(checked.patterns["p"], {"places": [1, "x"]})
    assert bound is not None
    assert problems(bound, checked.schema) == ["CEP802 entry 2 is `x`, which is not of type int"]
    for wrong in ("Two Words", {"a": 1}, [True], list(range(1_001))):
        _, diagnostics = bind(checked.patterns["p"], {"places": wrong})
        assert [d.code for d in diagnostics] == ["CEP503"]
