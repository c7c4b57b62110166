"""Formatting: only the layout changes, and a second run changes nothing."""

import cProfile
from pathlib import Path

import pytest

from cep.lang.format.file import format_text
from cep.lang.load import load_text
from tests.lang.common import shown, tree
from tests.lang.generate import random_file

ROOT = Path(__file__).parents[2]
FILES = sorted([*(ROOT / "patterns").rglob("*.cep"), *(Path(__file__).parent / "golden").glob("ir/*.cep")])


def formatted(text: str) -> str:
    output, mistakes = format_text(text)
    assert output is not None, mistakes
    return output


def only_the_layout_changes(text: str, name: str) -> None:
    once = formatted(text)
    assert tree(once) == tree(text), name
    assert formatted(once) == once, name


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_files(path: Path) -> None:
    only_the_layout_changes(path.read_text(encoding="utf-8"), path.name)


@pytest.mark.parametrize("path", sorted((ROOT / "patterns").rglob("*.cep")), ids=lambda p: p.name)
def test_the_patterns_of_the_project_are_formatted(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert formatted(text) == text


def random_files_keep_their_meaning(seeds: range) -> None:
    for seed in seeds:
        text = random_file(seed)
        only_the_layout_changes(text, f"seed {seed}")


def test_random_files_are_valid() -> None:
    for seed in range(60):
        checked = load_text(random_file(seed))
        assert checked.ok, f"seed {seed}\n{shown(checked)}"


def test_random_files() -> None:
    random_files_keep_their_meaning(range(200))


@pytest.mark.slow
def test_ten_thousand_random_files() -> None:
    random_files_keep_their_meaning(range(200, 10_500))


@pytest.mark.slow
@pytest.mark.always
@pytest.mark.parametrize(
    "seeds",
    [range(25), pytest.param(range(25, 100), marks=[pytest.mark.slow, pytest.mark.always])],
    ids=["few", "more"],
)
def test_every_comment_stays(seeds: range) -> None:
    for seed in seeds:
        text = random_file(seed)
        for comment in ("# money", "# why", "# a line", "not a doc", "behind", "# no", "# the end"):
            assert formatted(text).count(comment) == text.count(comment), f"seed {seed}: {comment}"


def test_the_layout() -> None:
    text = """
list l=["A",
"B",]
define f ( x )=x==1 and(a<2)
# why
##  doc
pattern p ( n :int=3 in 1..4 , w:duration= 10 min)by k{seq a{ n , } greedy->!b ,c[ 5 min ]
 -> ( d|e )?  within   w ; where a:t x>-1,
 long:t  not(a.x in l)or - x <2 # behind
 emit a=1 , b = sum ( c.x )}"""
    assert (
        formatted(text)
        == """\
list l = ["A", "B"]
define f(x) = x == 1 and (a < 2)

# why
##  doc
pattern p(n: int = 3 in 1..4, w: duration = 10 min)
  by k
{
  seq    a{n,} greedy -> !b, c[5 min]
         -> (d | e)?  within w
  where  a:    t  x > -1
         long: t  not (a.x in l) or -x < 2  # behind
  emit   a = 1, b = sum(c.x)
}
"""
    )


def test_a_line_that_is_too_long_is_broken_at_its_weakest_operator() -> None:
    condition = " and ".join(f"amount + {i}00000 > 1234 * amount" for i in range(6))
    lines = formatted(f"pattern p by k {{ seq a where a: t {condition} }}").splitlines()
    assert max(len(line) for line in lines) <= 120
    assert [line.split()[0] for line in lines[4:6]] == ["where", "and"]


def test_a_long_list_is_broken_between_items() -> None:
    items = ", ".join(f'"country {i}"' for i in range(30))
    lines = formatted(f"list many = [{items}]").splitlines()
    assert lines[0] == "list many = ["
    assert lines[-1] == "]"
    assert max(len(line) for line in lines) <= 120


def test_one_blank_line_between_declarations_and_none_at_the_ends() -> None:
    text = '\n\n\nimport "a.cep"\n\n\n\nimport "b.cep"\nevent e { id id event_time time }\n# x\n\n\n# y\n\n\n'
    output = formatted(text)
    assert output.startswith('import "a.cep"\n\nimport "b.cep"\n\nevent e {\n')
    assert output.endswith("}\n# x\n\n# y\n")


def test_mistakes_of_syntax_stand_in_the_way() -> None:
    output, mistakes = format_text("pattern p by { seq a }")
    assert output is None
    assert [d.code for d in mistakes] == ["CEP105"]


def test_an_empty_file_stays_empty() -> None:
    assert formatted("") == ""
    assert formatted("\n \n# only this") == "# only this\n"


@pytest.mark.parametrize("keys", [1, 100])
def test_the_cost_is_linear_in_the_events_of_a_test(keys: int) -> None:
    def calls(count: int) -> int:
        events = "".join(f" {i}s t amount={i}" for i in range(count // keys))
        profile = cProfile.Profile()
        profile.runcall(formatted, 'test "x" of p {' + "".join(f"\nk{i}:{events}" for i in range(keys)) + "\n}\n")
        return sum(entry.callcount for entry in profile.getstats())

    assert calls(400) < 2.5 * calls(200)


def test_comments_of_fields_stand_in_one_column() -> None:
    text = "event t {\n  id id # x\n  amount # y\n    decimal(2)\n}\n"
    once = formatted(text)
    assert once == "event t {\n  id      id          # x\n  amount  decimal(2)  # y\n}\n"
    assert formatted(once) == once


def test_a_pattern_without_clauses() -> None:
    assert formatted("pattern p by k { }") == "pattern p\n  by k\n{\n}\n"
    assert formatted("event t { }") == "event t {\n}\n"
    assert formatted('test "x" of p { }') == 'test "x" of p {\n}\n'
    assert formatted("list l = []") == "list l = []\n"


def test_sensitive_stands_behind_its_type_or_names_a_field() -> None:
    text = "event t { a id, event_time time, b string? sensitive, c pan\nsensitive bool, d id sensitive }\n"
    formatted, mistakes = format_text(text)
    assert not mistakes
    assert formatted == (
        "event t {\n  a           id\n  event_time  time\n  b           string? sensitive\n  c           pan\n"
        "  sensitive   bool\n  d           id sensitive\n}\n"
    )
    assert format_text(formatted) == (formatted, [])


def test_an_event_type_and_a_value_may_be_called_todo() -> None:
    text = 'test "x" of p { k: 1 s todo  2 s todo a=todo  3 s todo expect none todo "later" }\n'
    only_the_layout_changes(text, "todo")
    lines = [line.strip() for line in formatted(text).splitlines()]
    assert lines == [
        'test "x" of p {',
        "k: 1 s  todo",
        "2 s  todo a=todo",
        "3 s  todo",
        "expect none",
        'todo "later"',
        "}",
    ]
