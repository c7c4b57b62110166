"""A terminal shows every value unchanged, for all characters in it, and a bar on a terminal only."""

import io
import json
import sys
import unicodedata
from io import StringIO

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cep.base.terminal import Terminal, shown_progress
from cep.base.text import HIDDEN, visible
from cep.lang.diagnostics import Collector
from cep.lang.parse.lexer import lex

EVERY = "".join(map(chr, range(sys.maxunicode + 1)))


def test_characters_without_a_width_or_with_an_effect_become_escapes() -> None:
    invisible = {c for c in EVERY if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp", "Cs")} - {"\t", "\n"}
    # Visible characters of a script that Unicode counts as formats.
    shaped = {c for c in invisible if unicodedata.name(c, "").startswith(("ARABIC ", "SYRIAC ", "KAITHI "))}
    hidden = set(HIDDEN.findall(EVERY))
    assert invisible - shaped - hidden == set()
    assert all(c in invisible or not c.isascii() for c in hidden)


def test_an_escape_is_one_of_json() -> None:
    text = "a\x1b[2Kb\u202ec\U000e0041\x9b"
    assert visible(text).isprintable()
    assert json.loads(f'"{visible(text)}"') == text
    assert visible(visible(text)) == visible(text)
    assert visible("a\tb\nc ä 🂡") == "a\tb\nc ä 🂡"


@pytest.mark.parametrize("is_colored", [False, True])
def test_a_terminal_escapes_values_and_keeps_its_styles(is_colored: bool) -> None:
    file = io.StringIO()
    terminal = Terminal(file=file, force_terminal=is_colored, width=80, highlight=False)
    table = Table("name")
    table.add_row("cell\x1b[2K")
    for printed in ("text\x1b]0;x\x07", Text("styled\u202e", style="red"), table):
        terminal.print(printed, markup=False)
    shown = file.getvalue()
    assert all(part in shown for part in ("text\\u001b]0;x", "styled\\u202e", "cell\\u001b[2K"))
    assert ("\x1b[31m" in shown) == is_colored
    assert "\x1b[2K" not in shown


@pytest.mark.parametrize("place", ["# {}\n", 'x == "{}"', "a {} b"])
def test_a_pattern_holds_no_hidden_character(place: str) -> None:
    shaping = {"\u200c", "\u200d", "\xad", "\u034f", *map(chr, range(0xFE00, 0xFE10))}
    for character in dict.fromkeys(HIDDEN.findall(EVERY)):
        if character == "\r" and place.endswith("\n"):
            continue  # the end of a line
        collector = Collector()
        lex(place.format(character), "a.cep", collector)
        is_allowed = character in shaping and place.startswith("#")
        assert [d.code for d in collector.diagnostics] == ([] if is_allowed else ["CEP101"]), hex(ord(character))


def test_ends_of_lines_and_a_byte_order_mark_are_no_mistake() -> None:
    collector = Collector()
    lex("\ufeffa\r\n# ⚠\ufe0f b\r\n", "a.cep", collector)
    assert collector.diagnostics == []


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_bar_is_for_terminals(is_terminal: bool) -> None:
    text = StringIO()
    with shown_progress(Console(file=text, force_terminal=is_terminal), "reading", None) as show:
        show("mining", 1, 4)
    assert ("mining" in text.getvalue()) is is_terminal
