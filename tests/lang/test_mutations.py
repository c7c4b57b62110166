"""Broken files: never a traceback, a diagnostic for every mistake, and time linear in the size.

The first mutation tests are short; the slow ones do many more and files of a mebibyte.
"""

import json
import re
import time
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cep.base.limits import SOURCE_BYTES_MAX
from cep.lang.check.bind import bind
from cep.lang.diagnostics import Collector
from cep.lang.edit.assist import fixed, words_at
from cep.lang.edit.symbols import places
from cep.lang.explain.render import render_text, to_json
from cep.lang.format.file import format_text
from cep.lang.lint.run import lint
from cep.lang.load import load_text
from cep.lang.parse.lexer import lex
from cep.nfa.compile import compilable
from tests.lang.common import tree
from tests.lang.dump import dump_pattern
from tests.lang.generate import random_file

PATTERNS = sorted((Path(__file__).parents[2] / "patterns").rglob("*.cep"))
ODD = [
    "\x00",
    "\ufeff",
    "\u202e",
    "é",
    "💳",
    "\u2028",
    "\ud7ff",
    "\u0301",
    "”",
    "\t",
    "\r",
    "\x0b",
    "#",
    '"',
    "\\",
    "'",
]
HUGE = [
    "9" * 50,
    "1" + "0" * 5_000,
    "0." + "0" * 400 + "1",
    "1e999",
    "-9223372036854775809",
    "99999999999 weeks",
    "1_" * 60,
]


def broken_tokens(text: str, random: Random) -> str:
    """Drop, duplicate, swap or insert tokens."""
    spans = [(t.span.start, t.span.end) for t in lex(text, "x", Collector()).tokens if t.text]
    for _ in range(random.randint(1, 4)):
        start, end = random.choice(spans)
        other_start, other_end = random.choice(spans)
        other = text[other_start:other_end]
        match random.randrange(4):
            case 0:
                text = text[:start] + text[end:]
            case 1:
                text = text[:end] + " " + text[start:end] + text[end:]
            case 2:
                text = text[:start] + other + text[end:]
            case _:
                text = text[:start] + random.choice([other, *ODD, *HUGE]) + " " + text[start:]
    return text


def broken_bytes(text: str, random: Random) -> str:
    """Do the same with bytes; bytes that are not UTF-8 are replaced, as in an editor."""
    data = bytearray(text.encode())
    for _ in range(random.randint(1, 6)):
        first, other = random.randrange(len(data)), random.randrange(len(data))
        match random.randrange(4):
            case 0:
                del data[first : first + random.randint(1, 8)]
            case 1:
                data[first:first] = data[other : other + random.randint(1, 20)]
            case 2:
                data[first], data[other] = data[other], data[first]
            case _:
                data.insert(first, random.randrange(256))
    return data.decode("utf-8", "replace")


def survives(text: str, label: str) -> None:
    """Check that every reader of pattern text returns, and that a refused text has a diagnostic."""
    checked = load_text(text)
    render_text(checked.diagnostics, checked.sources)
    declared = re.findall(r"^pattern ([A-Za-z_]\w*)", text, re.MULTILINE)
    if set(declared) - checked.patterns.keys():
        assert checked.diagnostics, f"{label}: a pattern is lost without a word"
    formatted, mistakes = format_text(text)
    assert (formatted is None) == bool(mistakes), label
    if formatted is not None:
        assert tree(formatted) == tree(text), label
        assert format_text(formatted)[0] == formatted, label
    lint(compilable(checked))
    places(checked.files, checked.resolved)
    fixed(checked.diagnostics, checked.sources)
    words_at(checked, "<text>", text, len(text) // 2)


def source(seed: int, files: int) -> str:
    """Return a random file; one in four begins with some of our patterns and their declarations."""
    if seed % 4:
        return random_file(seed)
    declaring = [path for path in PATTERNS if "events" in path.stem]
    others = [path for path in PATTERNS if path not in declaring]
    chosen = [*declaring, *Random(seed).sample(others, min(files, len(others)))]
    text = "\n".join(path.read_text(encoding="utf-8") for path in chosen)
    return re.sub(r'^import ".*"$', "", text, flags=re.MULTILINE)


def mutate(seeds: range, files: int = len(PATTERNS)) -> None:
    for seed in seeds:
        random = Random(seed)
        text = source(seed, files)
        survives(broken_tokens(text, random), f"tokens, seed {seed}")
        survives(broken_bytes(text, random), f"bytes, seed {seed}")


def test_some_mutations() -> None:
    mutate(range(25), files=2)


@pytest.mark.slow
def test_many_mutations() -> None:
    mutate(range(25, 2_000))


@pytest.mark.parametrize("word", [*ODD, *HUGE], ids=[ascii(w)[:16] for w in (*ODD, *HUGE)])
def test_odd_characters_and_huge_numbers_everywhere(word: str) -> None:
    text = random_file(3)
    for end in range(0, len(text), max(1, len(text) // 12)):
        survives(text[:end] + word + text[end:], f"{word!r} at {end}")


# A repeated part, and the text around it.
_EVENT = "event t { i id event_time time k string a int }\n"
_IN_WHERE = (_EVENT + "pattern p by k { seq v where v: t ", " }")
REPEATED = {
    "spaces": ("", " ", ""),
    "comments": ("", "# x\n", ""),
    "unknown characters": ("", "§", ""),
    "open texts": ("", '"x\n', ""),
    "braces": ("", "{", ""),
    "parentheses": (_IN_WHERE[0], "(", _IN_WHERE[1]),
    "and": (_IN_WHERE[0] + "a > 1", " and a > 1", _IN_WHERE[1]),
    "plus": (_IN_WHERE[0] + "a > 1", " + 1", _IN_WHERE[1]),
    "not": (_IN_WHERE[0], "not ", _IN_WHERE[1]),
    "unknown names": (_IN_WHERE[0] + "bb > 1", " and amout > 1", _IN_WHERE[1]),
    "items": ("list l = [1", ", 22", "]"),
    "fields": ("event t { ", "a int ", "}"),
    "empty patterns": ("", "pattern p by k { }\n", ""),
    "half patterns": ("", "pattern p by k { seq a -> where\n", ""),
    "sums of bound events": (_IN_WHERE[0] + "a > 1 emit x = v.a", " + sum(v.a)", " }"),
    "steps": (_EVENT + "pattern p by k { seq a", " -> a", " }"),
    "one long name": ("list ", "x", " = [1]"),
    "one long number": ("list l = [", "9", "]"),
    "half tests": ("", 'test "x" of p { c: 0s t a=1\n', ""),
    "silences": ("", "# allow(CEP701): x\n", ""),
    "dots": (_IN_WHERE[0] + "a", ".a", _IN_WHERE[1]),
    "histories": (_IN_WHERE[0] + "a > 1", " and count(t over 1 h) > 1", _IN_WHERE[1]),
}


def seconds(text: str) -> float:
    start = time.process_time()
    lint(compilable(load_text(text)))
    format_text(text)
    return time.process_time() - start


@pytest.mark.slow
@pytest.mark.parametrize("name", REPEATED)
def test_time_is_linear(name: str) -> None:
    before, part, after = REPEATED[name]
    small, large = (
        before + part * ((size - len(before) - len(after)) // len(part.encode())) + after
        for size in (SOURCE_BYTES_MAX // 16, SOURCE_BYTES_MAX)
    )
    survives(large, name)
    seconds(small)
    first, second = seconds(small), seconds(large)
    assert second < 16 * 3 * first + 1.0, f"{first:.3f} s for a sixteenth, {second:.3f} s for all"


def test_a_file_that_is_too_large_is_refused() -> None:
    checked = load_text("# " + "x" * SOURCE_BYTES_MAX)
    assert [d.code for d in checked.diagnostics] == ["CEP110"]


GOLDEN = Path(__file__).parent / "golden"
EVENT = "event t { i id event_time time k string a decimal(2) s enum(x, y) c string? n int b bool d float }\n"
WORDS = (  # noqa: SIM905
    "event list define pattern import by seq where skip emit within over all on timeout and or not in between is null "
    "true false if then else like greedy strict any until none to next past last first order events t p k a s x y c n "
    "b d event_time v w u count sum avg min max prev abs sqrt least distance_km starts_with id time string decimal "
    "enum { } ( ) [ ] , -> ->> ! ? * + - / % | & == != <> = < <= > >= : ; . .. 0 1 2 3 2.00 0.005 1e3 10 5m 10min min "
    '"KP" \' " # ## \n'
).split(" ")


def never_a_traceback(text: str) -> None:
    checked = load_text(text)
    rendered = render_text(checked.diagnostics, checked.sources, color=True)
    assert bool(rendered) == bool(checked.diagnostics)
    json.dumps([to_json(d, checked.sources) for d in checked.diagnostics])
    for pattern in checked.patterns.values():
        dump_pattern(pattern)
        bind(pattern, {})


@given(st.text(max_size=200))
@example("\ufeff")
@example("pattern p by by where by: where: seq:")
@example("pattern p by k { seq a where where: t }")
@example("pattern p by k { seq a where a: t skip: t seq: emit: }")
@example("1" * 5_000)
@example("event t { " + "a " * 50)
@settings(deadline=None, max_examples=150)
def test_any_text(text: str) -> None:
    never_a_traceback(text)


@given(st.lists(st.sampled_from(WORDS), max_size=60))
@settings(deadline=None, max_examples=300)
def test_any_words(words: list[str]) -> None:
    never_a_traceback(EVENT + "pattern p by k { seq v -> w where v: t " + " ".join(words))


@given(st.lists(st.sampled_from(WORDS), max_size=25), st.lists(st.sampled_from(WORDS), max_size=25))
@settings(deadline=None, max_examples=300)
def test_any_structure_and_condition(structure: list[str], condition: list[str]) -> None:
    body = f"seq v {' '.join(structure)}\n where v: t {' '.join(condition)}\n w: t emit r = v.a"
    never_a_traceback(f"{EVENT} pattern p(n1: int = 2, w1: duration = 5 min) by k {{ {body} }}")


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_a_good_file_with_a_cut_or_a_swap(data: st.DataObject) -> None:
    files = sorted(GOLDEN.glob("ir/*.cep"))
    text = data.draw(st.sampled_from(files)).read_text(encoding="utf-8")
    start = data.draw(st.integers(0, len(text)))
    length = data.draw(st.integers(0, 30))
    insert = data.draw(st.sampled_from(["", *WORDS]))
    never_a_traceback(text[:start] + insert + text[start + length :])


def test_nesting_is_bounded() -> None:
    for deep in ("(" * 5_000, "not " * 5_000, "-" * 5_000, "if " * 5_000, "abs(" * 5_000, "1 + (" * 5_000, "[" * 5_000):
        never_a_traceback(EVENT + "pattern p by k { seq v where v: t " + deep + " a > 1 }")
        never_a_traceback(EVENT + "pattern p by k { seq " + deep + "v where v: t a > 1 }")
        never_a_traceback(f"list l = {deep}")
        never_a_traceback(f"define f(x) = {deep}")
        never_a_traceback(f"pattern p(x: int = {deep}1) by k {{ }}")


def test_long_chains_are_bounded() -> None:
    for operator in ("and", "or", "+", "*", "==", ".", ","):
        chain = f" {operator} ".join(["a > 1" if operator in ("and", "or") else "a"] * 3_000)
        never_a_traceback(EVENT + "pattern p by k { seq v where v: t " + chain + " }")
    never_a_traceback(EVENT + "pattern p by k { seq " + " -> ".join(f"v{i}" for i in range(3_000)) + " }")


def test_definitions_that_double_are_bounded() -> None:
    lines = ["define f0(x) = x + x"] + [f"define f{i}(x) = f{i - 1}(x) + f{i - 1}(x)" for i in range(1, 40)]
    body = "pattern p by k { seq v where v: t f39(a) > 1 }"
    never_a_traceback(EVENT + "\n".join(lines) + "\n" + body)
    assert "CEP311" in [d.code for d in load_text(EVENT + "\n".join(lines) + "\n" + body).diagnostics]
