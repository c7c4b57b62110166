"""Every small pattern on every short stream: the engine agrees with the oracle.

Patterns of two or three variables over the letters a and b, also in groups and in groups of groups, with every link, a
choice of quantifiers and skip strategies; streams of up to five letters, all of them, each as a key of its own.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from random import Random

import pytest

from cep.base.schema import Kind, Type
from cep.columnar.batch import EventBatch
from cep.lang import ir
from tests.engine.bridge import batch_of, engine_answers, oracle_answers, oracle_match, program_of, whole
from tests.oracle.matcher import Event, find_matches_of_words
from tests.oracle.random_cases import SCHEMA

LETTERS = "ab"
STREAM_MAX = 5
TEXT, BOOL = Type(Kind.STRING, nullable=True), Type(Kind.BOOL, nullable=True)
QUANTIFIERS = {
    "": ir.Quantifier(),
    "?": ir.Quantifier(0, 1),
    "+": ir.Quantifier(1, None),
    "*": ir.Quantifier(0, None),
    "{2}": ir.Quantifier(2, 2),
    "+ any": ir.Quantifier(1, None, ir.Inner.ANY),
    "+ strict": ir.Quantifier(1, None, ir.Inner.STRICT),
    "+ greedy": ir.Quantifier(1, None, greedy=True),
}
ORDERS: dict[int | str, int] = {str(position): position for position in range(STREAM_MAX)}
SHARES = 4
SKIPS = (ir.SkipKind.NONE, ir.SkipKind.PAST_LAST, ir.SkipKind.TO_NEXT)


def _streams() -> dict[str, list[Event]]:
    streams: dict[str, list[Event]] = {}
    for length in range(1, STREAM_MAX + 1):
        for letters in product(LETTERS, repeat=length):
            word = "".join(letters)
            streams[word] = [
                Event(
                    str(number),
                    SCHEMA.event_types[0].name,
                    1_000 + number,
                    number,
                    {"id": str(number), "event_time": 1_000 + number, "key": word, "k": letter, "v": number},
                )
                for number, letter in enumerate(letters)
            ]
    return streams


def _is(letter: str) -> ir.Expr:
    return ir.Binary("==", ir.CurrentField("k", TEXT), ir.Const(letter, TEXT), BOOL)


def _pattern(
    letters: str, links: tuple[ir.Link, ...], words: tuple[str, ...], skip: ir.SkipKind, negated: int | None
) -> ir.PatternIR:
    names = [f"x{number}" for number in range(len(letters))]
    steps = tuple(
        ir.Step(
            link,
            ir.VarNode(name, ir.Quantifier() if number == negated else QUANTIFIERS[word]),
            negated=number == negated,
        )
        for number, (name, link, word) in enumerate(zip(names, links, words, strict=True))
    )
    variables = tuple(
        ir.Variable(name, SCHEMA.event_types[0].name, _is(letter)) for name, letter in zip(names, letters, strict=True)
    )
    return ir.PatternIR(
        "small", (), ("key",), ir.SequenceNode(steps), variables, (), (SCHEMA.event_types[0].name,), ir.Skip(skip)
    )


def _pairs() -> Iterator[ir.PatternIR]:
    for letters, link, first, second, skip in product(("ab", "aa"), ir.Link, QUANTIFIERS, QUANTIFIERS, SKIPS):
        yield _pattern(letters, (ir.Link.FOLLOWED_BY, link), (first, second), skip, None)


def _triples() -> Iterator[ir.PatternIR]:
    simple = ("", "?", "+")
    for letters, second, third, words in product(("aba", "aab"), ir.Link, ir.Link, product(simple, repeat=3)):
        yield _pattern(letters, (ir.Link.FOLLOWED_BY, second, third), words, ir.SkipKind.NONE, None)


def _absences() -> Iterator[ir.PatternIR]:
    for letters, second, third, first, last in product(
        ("aba", "abb", "aab"),
        (ir.Link.NEXT, ir.Link.FOLLOWED_BY),
        ir.Link,
        ("", "+", "{2}", "+ any", "+ greedy"),
        ("", "?", "+", "+ strict"),
    ):
        yield _pattern(letters, (ir.Link.FOLLOWED_BY, second, third), (first, "", last), ir.SkipKind.NONE, 1)


def _groups() -> Iterator[ir.PatternIR]:
    words = ("?", "+", "{2}", "+ any", "+ strict")
    for letters, inside, behind, word, last in product(("aba", "abb", "aab"), ir.Link, ir.Link, words, ("", "+")):
        flat = _pattern(letters, (ir.Link.FOLLOWED_BY, inside, behind), ("", "", last), ir.SkipKind.NONE, None)
        *group, end = flat.structure.steps
        rounds = ir.SequenceNode(tuple(group), QUANTIFIERS[word])
        yield replace(flat, structure=ir.SequenceNode((ir.Step(ir.Link.FOLLOWED_BY, rounds), end)))


def _nested() -> Iterator[ir.PatternIR]:
    """Yield repeated groups in a repeated group (at its end, at its begin, alone), followed by any event."""
    words = ("+", "{2}", "+ any", "+ strict")
    for inside, behind, inner, outer, place in product(ir.Link, ir.Link, words, words, ("end", "begin", "alone")):
        flat = _pattern("aba", (ir.Link.FOLLOWED_BY, inside, behind), ("", "", ""), ir.SkipKind.NONE, None)
        first, second, last = flat.structure.steps
        steps = {
            "end": (first, _grouped(second.link, QUANTIFIERS[inner], second)),
            "begin": (_grouped(ir.Link.FOLLOWED_BY, QUANTIFIERS[inner], first), second),
            "alone": (_grouped(ir.Link.FOLLOWED_BY, QUANTIFIERS[inner], first, second),),
        }[place]
        structure = ir.SequenceNode((_grouped(ir.Link.FOLLOWED_BY, QUANTIFIERS[outer], *steps), last))
        any_letter = replace(flat.variables[-1], where=None)
        yield replace(flat, structure=structure, variables=(*flat.variables[:-1], any_letter))


def _grouped(link: ir.Link, quantifier: ir.Quantifier, first: ir.Step, *others: ir.Step) -> ir.Step:
    """Return the steps as a group, whose first step is entered like the group."""
    return ir.Step(link, ir.SequenceNode((replace(first, link=ir.Link.FOLLOWED_BY), *others), quantifier))


KINDS = {"pairs": _pairs, "triples": _triples, "absences": _absences, "groups": _groups, "nested": _nested}


def _compare(pattern: ir.PatternIR, streams: dict[str, list[Event]], batch: EventBatch) -> None:
    actual = engine_answers(program_of(SCHEMA, pattern), whole(batch))
    # The streams differ only in their letters, so every one of them is a word of these choices.
    choices = [[streams[letter * STREAM_MAX][place] for letter in LETTERS] for place in range(STREAM_MAX)]
    expected = set()
    for word, answer in find_matches_of_words(pattern, choices):
        key = "".join(LETTERS[number] for number in word)
        expected |= {oracle_match(key, match, ORDERS) for match in answer.matches}
    differing = sorted({one[0] for one in actual.matches ^ expected})
    assert not differing, f"{pattern.structure} {pattern.skip.kind} on {differing[:5]}"


def test_walking_words_is_matching_each_stream() -> None:
    """The quick way in the tests below agrees with the plain one."""
    streams = _streams()
    patterns = [pattern for kind in KINDS.values() for pattern in list(kind())[::97]]
    for pattern in patterns:
        expected = oracle_answers(pattern, streams).matches
        choices = [[streams[letter * STREAM_MAX][place] for letter in LETTERS] for place in range(STREAM_MAX)]
        words = list(find_matches_of_words(pattern, choices))
        assert sorted("".join(LETTERS[n] for n in word) for word, _ in words) == sorted(streams)
        walked = {
            oracle_match("".join(LETTERS[n] for n in word), match, ORDERS) for word, a in words for match in a.matches
        }
        assert walked == expected


@pytest.mark.slow
@pytest.mark.parametrize("share", [pytest.param(0, marks=pytest.mark.always), *range(1, SHARES)])
@pytest.mark.parametrize("kind", KINDS)
def test_every_small_pattern_on_every_short_stream(kind: str, share: int) -> None:
    """A share of the patterns, drawn so that each has every choice: the first share in each full run."""
    streams = _streams()
    batch = batch_of(SCHEMA, streams)
    patterns = list(KINDS[kind]())
    Random("small scope").shuffle(patterns)
    for pattern in patterns[share::SHARES]:
        _compare(pattern, streams, batch)
