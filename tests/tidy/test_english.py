"""Rates of the project's English, and the words of the glossary."""

import re
from pathlib import Path

import pytest

from tests.tidy import english
from tests.tidy.english import WORDS_MAX
from tests.tidy.source import ROOT, Source, sources
from tests.tidy.words import FREQUENT, PAGES, explained, frequent_words, parts_of, plain, singular

# Rates of English count phrases of prose, and sentences end at a stop.

ROOMS = sorted(path.name for path in (ROOT / "cep").iterdir() if path.is_dir() and path.name != "__pycache__")
FOLDERS = ("demo", "patterns", "rules", "tests")
# Folder → the multiples of the aims that its rates and its empty names may reach: 2 is the limit, 1 the aim. Only lower
# a number.
TIMES = {
    "cep/analysis": (2.5, 1.0),
    "cep/api": (2.0, 1.5),
    "cep/base": (1.0, 1.0),
    "cep/cli": (2.0, 1.5),
    "cep/columnar": (2.5, 2.5),
    "cep/demo": (1.0, 1.0),
    "cep/docs": (1.0, 1.0),
    "cep/engine": (1.5, 1.0),
    "cep/functions": (1.0, 1.0),
    "cep/histories": (2.0, 1.0),
    "cep/kernels": (1.5, 1.0),
    "cep/lang": (2.0, 2.5),
    "cep/lists": (1.0, 1.0),
    "cep/model": (1.0, 1.0),
    "cep/nfa": (1.5, 2.0),
    "cep/report": (1.0, 1.0),
    "cep/rulebook": (1.5, 1.5),
    "cep/runners": (2.0, 2.0),
    "cep/sinks": (1.5, 4.5),
    "cep/sources": (2.5, 1.5),
    "cep/state": (1.5, 1.0),
    "cep/step": (2.0, 1.5),
    "cep/testing": (1.5, 2.5),
    "tests": (1.0, 1.0),
}
EXCEPTIONS = {"cep/kernels/expressions/opcodes.py": "the comments of a table, which follow each other"}
LENGTHS = re.compile(r" (code|page|paragraph) over \d+ words: ")


def test_paragraphs_items_and_stops_end_a_sentence() -> None:
    text = "First one here. Second one: and a third; a fourth\n\n- an item\n- another item\n  that goes on"
    assert list(english.sentences(text)) == [
        "First one here.", "Second one:", "and a third;", "a fourth", "an item", "another item that goes on",
    ]  # fmt: skip


def test_code_tables_headings_and_drawings_are_no_prose() -> None:
    page = [
        "# A heading of words",
        "| a table | of words |",
        "```sh\nsome code here\n```",
        "    an indented block",
        "a ──▶ b",
    ]
    assert list(english.sentences("\n\n".join([*page, "Prose it is."]))) == ["Prose it is."]


def test_rates_count_phrases_and_empty_names() -> None:
    long = " ".join(["word"] * (WORDS_MAX + 1))
    text = f'"""Say what came. Nor those of a key."""\n\n# {long}.\n\n\ndef told(x):\n    row = x\n    return row\n'
    counts = english.check_source(Source("cep/x/y.py", text)).counts
    assert [counts[kind] for kind in ("what", "those of", "beside", "opens", "names")] == [1, 1, 1, 1, 1]
    assert counts[f"code over {WORDS_MAX} words"] == 1
    assert "told" in english.EMPTY_NAMES
    assert english.rates(counts)["names"] == pytest.approx(1_000 / 3)


def test_rates_above_a_multiple_of_the_aims_are_named() -> None:
    text = '"""' + "See what came. " * 3 + "It is plain. " * 1_000 + '"""\n'
    counts = english.check_source(Source("cep/x/y.py", text)).counts
    assert english.rates(counts)["what"] == pytest.approx(10_000 * 3 / 3_009)
    assert english.excess(counts, 1, 1).keys() == {"what"}
    assert english.excess(counts, 2, 2) == {}


def test_a_long_paragraph_of_a_page_is_listed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("A word or two. " * (english.PARAGRAPH_WORDS_MAX // 4) + "\n\n- A word or two.\n- One more.\n")
    assert english.check_page(page, tmp_path).lines == []
    page.write_text("A word or two. " * (english.PARAGRAPH_WORDS_MAX // 4) + "\nOne more.\n")
    assert [line.split(":")[0] for line in english.check_page(page, tmp_path).lines] == [
        "page.md paragraph over 80 words"
    ]


@pytest.mark.parametrize("folder", [*(f"cep/{room}" for room in ROOMS), "tests"])
def test_a_folder_has_the_rates_of_plain_english(folder: str) -> None:
    findings = english.check_folder(folder)
    assert english.excess(findings.counts, *TIMES[folder]) == {}
    if folder != "tests":
        long = [line for line in findings.lines if LENGTHS.search(line)]
        assert [line for line in long if line.split(":")[0] not in EXCEPTIONS] == []


def test_pages_outside_the_package_have_short_sentences_and_paragraphs() -> None:
    pages = [*ROOT.glob("*.md"), *(path for name in FOLDERS for path in (ROOT / name).rglob("*.md"))]
    lines = [line for path in sorted(pages) for line in english.check_page(path).lines]
    assert [line for line in lines if LENGTHS.search(line)] == []


def test_functions_begin_with_a_verb() -> None:
    assert english.not_imperative("cep") == []


# The glossary has a row for each word that is frequent in names, unless every reader knows it.


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
