"""Tokens, the syntax tree, and recovery after a mistake."""

from decimal import Decimal
from pathlib import Path

import pytest

from cep.lang import syntax
from cep.lang.diagnostics import Collector
from cep.lang.ir import Inner, Link, SkipKind
from cep.lang.parse.file import parse
from cep.lang.parse.lexer import TokenKind, lex, normal_tokens
from tests.lang.common import checked_pattern


def parsed(text: str) -> tuple[list[object], list[str]]:
    collector = Collector()
    file = parse(text, "x", collector)
    return list(file.declarations), [d.code for d in collector.diagnostics]


def pattern(body: str, head: str = "pattern p by k") -> syntax.PatternSyntax:
    (declaration,), codes = parsed(f"{head} {{ {body} }}")
    assert not codes
    assert isinstance(declaration, syntax.PatternSyntax)
    return declaration


def expression(text: str) -> syntax.ExprSyntax:
    (declaration,), codes = parsed(f"define f = {text}")
    assert not codes
    assert isinstance(declaration, syntax.DefineSyntax)
    return declaration.body


def shape(node: syntax.ExprSyntax) -> str:
    """Return an expression with all its parentheses."""
    match node:
        case syntax.Literal():
            return str(node.value)
        case syntax.NameRef():
            return node.name
        case syntax.UnarySyntax():
            return f"({node.op} {shape(node.argument)})"
        case syntax.BinarySyntax():
            return f"({shape(node.left)} {node.op} {shape(node.right)})"
        case syntax.ChainSyntax():
            return "(" + f" {node.op} ".join(shape(operand) for operand in node.operands) + ")"
        case syntax.Member():
            return f"{shape(node.owner)}.{node.field}"
        case syntax.InSyntax():
            items = node.items.name if isinstance(node.items, syntax.NameRef) else [shape(item) for item in node.items]
            return f"({shape(node.argument)} {'not in' if node.negated else 'in'} {items})"
    return type(node).__name__


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a + b * c - d", "((a + (b * c)) - d)"),
        ("a - b - c", "((a - b) - c)"),
        ("-a * b", "((- a) * b)"),
        ("not a == b and c or d", "(((not (a == b)) and c) or d)"),
        ("a and b and c or d", "((a and b and c) or d)"),
        ("(a or b) and c", "((a or b) and c)"),
        ("x.f > 1 and y not in l", "((x.f > 1) and (y not in l))"),
        ("a + 1 in [1, 2]", "((a + 1) in ['1', '2'])"),
        ("a not like b", "(not (a like b))"),
    ],
)
def test_precedence(text: str, expected: str) -> None:
    assert shape(expression(text)) == expected


def test_a_unit_after_a_number_is_not_the_next_entry_of_where() -> None:
    parsed_pattern = pattern("seq a -> m where a: t f > 10 m: t f > 10 m")
    assert [w.variable for w in parsed_pattern.wheres] == ["a", "m"]


def test_entries_of_where_may_be_empty() -> None:
    parsed_pattern = pattern("seq a -> b where a: t b: t c: t x > 1 skip none")
    assert [w.condition is None for w in parsed_pattern.wheres] == [True, True, False]


def test_links_and_suffixes() -> None:
    parsed_pattern = pattern(
        "seq a? , b{2,} [5 min] strict greedy -> !c ->> d* any until (x > 1) ->[1 s .. 2 s] e within 1 h"
    )
    assert parsed_pattern.structure is not None
    steps = parsed_pattern.structure.steps
    assert [s.link for s in steps[1:]] == [Link.NEXT, Link.FOLLOWED_BY, Link.FOLLOWED_BY_ANY, Link.FOLLOWED_BY]
    assert [s.negated for s in steps] == [False, False, True, False, False]
    loop = steps[1].element
    assert isinstance(loop, syntax.VariableSyntax)
    assert loop.suffix.inner is Inner.STRICT
    assert loop.suffix.greedy_span is not None
    assert loop.suffix.gap is not None
    assert steps[3].element.suffix.until is not None
    assert steps[4].gap_min is not None
    assert len(parsed_pattern.structure.windows) == 1


def test_a_window_at_the_end_is_the_sequence_s_and_one_in_the_middle_the_group_s() -> None:
    end = pattern("seq a -> (b -> c) within 1 min").structure
    assert end is not None
    assert len(end.windows) == 1
    middle = pattern("seq (a -> b) within 1 min -> c").structure
    assert middle is not None
    group = middle.steps[0].element
    assert isinstance(group, syntax.GroupSyntax)
    assert group.within is not None
    assert not middle.windows
    inside = pattern("seq (a -> b within 1 min){2} -> c").structure
    assert inside is not None
    group = inside.steps[0].element
    assert isinstance(group, syntax.GroupSyntax)
    assert len(group.body.windows) == 1


def test_a_choice_at_the_top() -> None:
    node = pattern("seq a | (b -> c) within 1 min").structure
    assert node is not None
    group = node.steps[0].element
    assert isinstance(group, syntax.GroupSyntax)
    assert isinstance(group.body, syntax.ChoiceSyntax)
    assert len(node.windows) == 1


@pytest.mark.parametrize(
    ("text", "kind", "variable", "in_order"),
    [
        ("none", SkipKind.NONE, None, False),
        ("to next in order", SkipKind.TO_NEXT, None, True),
        ("past last", SkipKind.PAST_LAST, None, False),
        ("to first x", SkipKind.TO_FIRST, "x", False),
        ("to last x in order", SkipKind.TO_LAST, "x", True),
    ],
)
def test_skip(text: str, kind: SkipKind, variable: str | None, in_order: bool) -> None:
    skip = pattern(f"seq x skip {text}").skip
    assert skip is not None
    assert (skip.kind, skip.variable.name if skip.variable else None, skip.in_order) == (kind, variable, in_order)


def test_words_of_declarations_and_suffixes_may_name_fields() -> None:
    (declaration,), codes = parsed("event t {\n list string\n event int\n pattern float\n any bool\n over id\n}")
    assert not codes
    assert isinstance(declaration, syntax.EventSyntax)
    assert [f.name for f in declaration.fields] == ["list", "event", "pattern", "any", "over"]


def test_each_broken_field_clause_and_declaration_is_reported() -> None:
    text = """
event t { a id
  b decimal(
  c strin g
  5 int
}
patern q by k { seq a }
pattern p by k {
  seq a -> {2} b
  where a: t (1
        b: t x ==
  skip sideways
  emit 5
}
define f( = 1
pattern good by k { seq a }
"""
    declarations, codes = parsed(text)
    assert len(codes) == 10
    assert any(isinstance(d, syntax.PatternSyntax) and d.name == "good" for d in declarations)


def test_the_doc_comment_of_a_pattern() -> None:
    (declaration,), _ = parsed("## What it is.\n## More.\npattern p by k { seq a }")
    assert isinstance(declaration, syntax.PatternSyntax)
    assert declaration.doc == "What it is.\nMore."


def test_bounds_and_default_of_a_parameter_in_either_order() -> None:
    orders = ("n: int = 3 in 1..20", "n: int in 1..20 = 3", "n: int = 3, in 1..20")
    params = [checked_pattern("seq a{n} within 1 h", f"pattern p({text}) by card_id").params for text in orders]
    assert [(p.default, p.minimum, p.maximum) for (p,) in params] == [(3, 1, 20)] * 3


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
        assert normal_tokens(text) == [f"{t.kind} {t.value}" if t.kind in valued else t.text for t in tokens]


def test_what_is_left_out_is_read_once() -> None:
    """Reading it again from each of its places would take hours."""
    for text in (" " * 3_000_000, "\n " * 1_000_000, "#" * 3_000_000, "# x\n" * 800_000, " " * 3_000_000 + "é"):
        assert normal_tokens(text) == [""]
