"""Tokens."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

from cep.lang.diagnostics import Collector
from cep.lang.parse.lexer import TokenKind, lex, spell

FILES = [path.read_text() for path in (Path(__file__).parents[2] / "patterns").rglob("*.cep")]


def tokens(text: str) -> list[tuple[str, object]]:
    collector = Collector()
    lexed = lex(text, "x", collector)
    assert not collector.diagnostics
    return [(t.kind.value, t.value) for t in lexed.tokens[:-1]]


def test_kinds() -> None:
    assert tokens('a_1 12 1_000 2.50 1e3 5m 1.5h "K\\"P"') == [
        ("name", "a_1"),
        ("integer", 12),
        ("integer", 1_000),
        ("decimal", Decimal("2.50")),
        ("float", 1000.0),
        ("duration", 300_000),
        ("duration", 5_400_000),
        ("text", 'K"P'),
    ]


def test_symbols_are_the_longest_that_fit() -> None:
    assert [value for _, value in tokens("->>->- > .. . 1..5 a{2,}[5 min]")] == [
        *("->>", "->", "-", ">", "..", ".", 1, "..", 5, "a", "{", 2, ",", "}", "[", 5, "min", "]")
    ]


def test_comments_are_kept_and_doc_comments_belong_to_what_follows() -> None:
    lexed = lex("# one\n## two\n## three\nevent # four\n", "x", Collector())
    assert [c.text for c in lexed.comments] == ["# one", "## two", "## three", "# four"]
    assert lexed.tokens[0].doc == "two\nthree"
    assert lexed.tokens[1].doc == ""


def test_spans_cut_the_text_as_it_was_written() -> None:
    text = 'pattern p by k { seq a -> b within 5m } # "end'
    for token in lex(text, "x", Collector()).tokens:
        assert text[token.span.start : token.span.end] == token.text


def test_what_cannot_be_read_is_reported_once_and_left_out() -> None:
    collector = Collector()
    lexed = lex("a §§§ b", "x", collector)
    assert [t.text for t in lexed.tokens if t.kind is TokenKind.NAME] == ["a", "b"]
    assert [d.code for d in collector.diagnostics] == ["CEP101"]


def test_spelled_tokens_are_those_of_the_lexer() -> None:
    for text in (
        "",
        " ",
        "# a",
        "a # b\n",
        'x 1_0 5 min 5min 2.50 1e3 "in\\"t" \'q\' "open',
        "é ->> ä..b\n\n  # c\n ",
        *FILES,
    ):
        tokens = lex(text, "x", Collector()).tokens
        valued = (TokenKind.INT, TokenKind.DURATION, TokenKind.STRING)
        assert spell(text) == [f"{t.kind} {t.value}" if t.kind in valued else t.text for t in tokens]


def test_what_is_left_out_is_read_once() -> None:
    """Reading it again from each of its places would take hours."""
    for text in (" " * 3_000_000, "\n " * 1_000_000, "#" * 3_000_000, "# x\n" * 800_000, " " * 3_000_000 + "é"):
        assert spell(text) == [""]
