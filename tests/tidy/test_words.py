"""The glossary has a row for each word that is frequent in names, unless every reader knows it."""

from __future__ import annotations

from tests.tidy.source import Source, sources
from tests.tidy.words import FREQUENT, PAGES, explained, frequent_words, parts_of, plain, singular


def test_a_frequent_word_is_plain_or_explained() -> None:
    unexplained = frequent_words(sources("cep")).keys() - explained() - set(plain())
    assert unexplained == set(), f"write a row in {PAGES[0].name} or {PAGES[1].name}"


def test_the_plain_words_are_frequent_and_in_order() -> None:
    """A word that is half as frequent may leave and return. A rarer word, or one with a row, is not an exception."""
    assert list(plain()) == sorted(set(plain()))
    assert set(plain()) - frequent_words(sources("cep"), FREQUENT // 2).keys() == set()
    assert set(plain()) & explained() == set()


def test_words_of_the_house_have_rows() -> None:
    words = {"span", "place", "domain", "segment", "slot", "share", "level", "pane", "tally", "chain", "lane"}
    assert words <= explained()


def test_names_are_cut_into_words() -> None:
    assert parts_of("WatermarkTracker") == ["watermark", "tracker"]
    assert parts_of("_NFA_STATES_MAX") == ["nfa", "states", "max"]
    assert parts_of("HTTPError_i") == ["http", "error"]
    assert [singular(word, {"tally", "class", "match"}) for word in ("tallies", "class", "matches", "bus")] == [
        "tally", "class", "match", "bus",
    ]  # fmt: skip
    text = "".join(f"grommet_{n} = 1\n" for n in range(FREQUENT))
    counted = frequent_words([Source("cep/x.py", text)])
    assert counted == {"grommet": FREQUENT}
    assert "grommet" not in {*explained(), *plain()}
