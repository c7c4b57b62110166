"""The matcher: greedy loops, `skip to`, and patterns without an end."""

from __future__ import annotations

from functools import partial

from cep.lang.lint.run import lint
from cep.lang.load import load_text
from tests.answers import Row
from tests.corpus.cases import Case
from tests.corpus.engines import by_advance

_EVENT = "event t { i id  event_time time  h string  k enum(x, y) }\n"


def matches(pattern: str, events: str, conditions: dict[str, str], skip: str = "none") -> list[str]:
    """Run a pattern on events, as in tests/corpus. Return the matches in order."""
    fields = {"name": pattern, "pattern": pattern, "events": events, "matches": [], "skip": skip}
    case = Case("answers", {**fields, "any": list(conditions), "where": conditions})
    return [str(match) for match in by_advance(case).sorted().matches]


def codes(structure: str) -> set[str]:
    """Return the codes of the mistakes and findings of a pattern with this structure."""
    variables = [name for name in "xyz" if name in structure.replace("greedy", "")]
    where = "\n".join(f"{name}: t k == x" for name in variables)
    checked = load_text(f"{_EVENT}pattern p by h {{ seq {structure} where {where} emit n = 1 }}")
    mistakes = {d.code for d in checked.diagnostics if d.is_error}
    return mistakes or {d.code for d in lint(checked)} - {"CEP704"}


ROWS = [
    Row("E5", "an event too late for a greedy loop ends the loop", ["a1 a2 b=a3 @17"],
        lambda: matches("a{2,}[5 ms] greedy -> b", "a1@0 a2@1 a3@17",
                        {"a": "true", "b": "event_time - last(a).event_time >= 5 ms"})),
    Row("E6", "greedy at the end is refused", {"CEP428"}, lambda: codes("x{2,} greedy within 1 h")),
    Row("E6", "one match of all events, with an absence", ["a1 a2 a3 a4 a5 @9"],
        lambda: matches("a{2,}[5 ms] ->[5 ms] !d", "a1@0 a2@1 a3@2 a4@3 a5@4", {"d": "kind == a"}, "past last")),
    Row("E4", "skip to a variable that is not bound skips nothing",
        ["a1 a2 @1", "a1 a2 a3 @3", "a1 a2 b=c1 b=a3 @3"],
        lambda: matches("a{2,} ->> (b{2,3} any)?", "a1 a2 c1 a3", {"b": "kind == a or kind == c"}, "to first b")),
    Row("E7", "lint of a step that a greedy loop leaves nothing for", {"CEP713"},
        lambda: codes("x+ greedy -> y within 1 h")),
    Row("E7", "such a step takes nothing", [], lambda: matches("a+ greedy -> b", "a1@0 a2@1 a3@2", {"b": "kind == a"})),
    Row("E7", "lint of a loop with an end", set(), lambda: codes("x{1,2} greedy -> y within 1 h")),
    Row("E7", "lint of an alternative that a shorter one hides", {"CEP714"}, lambda: codes("x | (y -> z) within 1 h")),
    *(Row("G5", f"lint of {text}", {"CEP707"}, partial(codes, text))
      for text in ("x -> y", "(x & y) -> z", "x -> !y -> z")),
]  # fmt: skip
