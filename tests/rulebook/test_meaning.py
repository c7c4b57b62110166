"""The hash of a version's meaning: the changes that affect it, and the ones that do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cep.lang.format.file import format_text
from cep.lang.load import bundle_source, load_text
from cep.rulebook.meaning import content_hash, pattern_hash
from tests.lang.generate import random_file
from tests.rulebook.records import SOURCE, upsert

ROOT = Path(__file__).parents[2]
PATTERNS = [
    pytest.param(path, name, id=name)
    for path in sorted((ROOT / "patterns").rglob("*.cep"))
    for name in load_text(bundle_source(path), "t").patterns
]


@pytest.mark.parametrize(("path", "name"), PATTERNS)
def test_formatting_comments_and_tests_do_not_change_it(path: Path, name: str) -> None:
    source = bundle_source(path)
    wide = "# a comment\n" + source.replace("\n", "\n\n  ").replace("{", "{ # more\n")
    assert pattern_hash(wide, name) == pattern_hash(source, name)
    formatted, _ = format_text(wide, "t")
    assert formatted is not None
    assert pattern_hash(formatted, name) == pattern_hash(source, name)


def test_other_patterns_of_the_file_do_not_change_it() -> None:
    other = SOURCE + SOURCE[SOURCE.index("pattern") :].replace("large_after_small", "another")
    assert pattern_hash(other, "large_after_small") == pattern_hash(SOURCE, "large_after_small")
    assert pattern_hash(other, "another") != pattern_hash(SOURCE, "large_after_small")


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("more", ["event more { more_id id  event_time time  KEY string }\n", "list more: string\n"])
def test_a_pattern_has_the_same_hash_if_it_is_the_same_beside_more(seed: int, more: str) -> None:
    source = random_file(seed)
    for key in ("k", "other"):
        longer = more.replace("KEY", key) + source
        before, after = load_text(source), load_text(longer)
        assert before.ok
        for name, pattern in before.patterns.items():
            is_same = pattern == after.patterns[name]
            assert (pattern_hash(longer, name) == pattern_hash(source, name)) is is_same


def test_another_event_type_changes_a_pattern_over_all_alone() -> None:
    over_all = SOURCE.rstrip().removesuffix("}") + "  over all\n}\n"
    login = "event login { login_id id  event_time time  KEY string }\n"
    name = "large_after_small"
    for source, key, is_same in (
        (SOURCE, "card_id", True),
        (over_all, "account_id", True),
        (over_all, "card_id", False),
    ):
        longer = login.replace("KEY", key) + source
        before, after = load_text(source), load_text(longer)
        assert after.ok, after.diagnostics
        assert (after.patterns[name].event_types == before.patterns[name].event_types) is is_same
        assert (pattern_hash(longer, name) == pattern_hash(source, name)) is is_same


@pytest.mark.parametrize("until", ["amount > 9.00", "not (amount < 9.00)", "amount is null"])
def test_what_until_reads_of_an_event_type_that_is_not_named_changes_it(until: str) -> None:
    """An event type without the field reads as null: `until` may hold for it, or not."""
    body = SOURCE.rstrip().removesuffix("}").replace("seq    small", f"seq    small{{2,}} until ({until})")
    login = "event login { login_id id  event_time time  card_id string  FIELD }\n"
    name = "large_after_small"
    texts = [login.replace("FIELD", field) + body + "over all\n}\n" for field in ("", "amount decimal(2)")]
    before, after = (load_text(text).patterns[name] for text in texts)
    assert before != after
    assert pattern_hash(texts[0], name) != pattern_hash(texts[1], name)


@pytest.mark.parametrize(
    "change",
    [
        {"source": SOURCE.replace("1.00", "1.01")},
        {"source": SOURCE.replace("card_id     string", "card_id     string?")},
        {"params": {"large": 501}},
        {"severity": "high"},
        {"message": "n"},
        {"priority": 1},
        {"status": "shadow"},
        {"suppress": "1 h"},
        {"exclusive": "cards"},
    ],
)
def test_what_decides_the_alerts_changes_it(change: dict[str, Any]) -> None:
    assert content_hash(upsert(1, **change)) != content_hash(upsert(1))


def test_who_owns_it_and_when_it_starts_do_not() -> None:
    base = upsert(1, params={"large": 500, "window": "10 min"})
    same = upsert(9, "r", 1_000, owner="else", runbook="r", params={"window": "10 min", "large": 500.0}, author="a")
    assert content_hash(base) == content_hash(same)


def test_numbers_of_repetitions_count_and_last_commas_do_not() -> None:
    texts = {
        repetition: SOURCE.replace("seq    small", f"seq    small{repetition}")
        for repetition in ("{3}", "{3,}", "{3,3}", "{3,4}", "{0,3}", "{,3}", "+", "*", "?", "")
    }
    hashes = {repetition: pattern_hash(text, "large_after_small") for repetition, text in texts.items()}
    assert hashes.pop("{3}") == hashes.pop("{3,3}"), "they match the same"
    assert len(set(hashes.values())) == len(hashes)
    commented = texts["{3,}"].replace("{3,}", "{ # three\n 3 # or more\n , }")
    assert pattern_hash(commented, "large_after_small") == hashes["{3,}"]
    with_call = SOURCE.replace("amount < 1.00", "count(payment over 1 h) > 1")
    longer = with_call.replace("1 h)", "1 h,\n)")
    assert load_text(longer).ok
    assert pattern_hash(longer, "large_after_small") == pattern_hash(with_call, "large_after_small")


def test_what_a_definition_says_counts_where_it_is_used() -> None:
    text = "define tiny(x) = x < 1.00\ndefine other(x) = x < 2.00\n" + SOURCE.replace("amount < 1.00", "tiny(amount)")
    assert pattern_hash(text, "large_after_small") != pattern_hash(text.replace("1.00", "3.00", 1), "large_after_small")
    assert pattern_hash(text, "large_after_small") == pattern_hash(text.replace("2.00", "3.00"), "large_after_small")


@pytest.mark.parametrize("name", ["test", "event", "list", "pattern", "define", "import"])
def test_what_begins_declarations_may_be_a_name(name: str) -> None:
    """Such a pattern raised IndexError in `cep.load`, and ended a job that received one."""
    source = SOURCE.replace("large_after_small", name)
    meant = content_hash(upsert(1, source=source, pattern=name))
    assert meant == content_hash(upsert(1, source=f"define other(x) = x < 2.00\n{source}", pattern=name))
    assert meant != content_hash(upsert(1, source=source.replace("1.00", "3.00"), pattern=name))
    assert meant not in {content_hash(upsert(1, source=SOURCE)), content_hash(upsert(1, source=source))}


@pytest.mark.parametrize("source", ["list x", "list x\n", "list x\nlist y\n", "event x\n", "define x\n"])
def test_a_declaration_that_breaks_off_has_a_meaning(source: str) -> None:
    """Such a record is refused, and the refusal names the hash. A truncated list raised IndexError."""
    assert content_hash(upsert(1, source=source)) != content_hash(upsert(1))
    assert content_hash(upsert(1, source=f"{source} {SOURCE}")) == content_hash(upsert(1))


@pytest.mark.parametrize("source", ["x", "", "}", "test", "pattern", '"', "event event e { }", "list list"])
def test_a_text_without_declarations_has_a_meaning(source: str) -> None:
    """Such a record is refused with a dead letter, which names the hash."""
    assert content_hash(upsert(1, source=source or " ")) != content_hash(upsert(1))
