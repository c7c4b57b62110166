"""The language and the matcher: several times in an event, habits from SQL, greedy loops, `skip to`."""

from functools import partial
from typing import Any

import pyarrow as pa

import cep
from cep.lang.edit.assist import keyword_meaning, meaning
from cep.lang.edit.symbols import Named
from cep.lang.lint.run import lint
from cep.lang.load import load_text
from tests.answers import Row
from tests.corpus.cases import Case
from tests.corpus.engines import by_advance

_ACCOUNTS = "event tx { id id  event_time time  opened time?  expiry time  card string  amount int }\n"
_PAYMENTS = [
    {"id": f"{n}", "event_time": f"2026-03-{n + 1:02}T05:00:00Z", "opened": opened, "expiry": "2026-03-05T00:00:00Z",
     "card": "c", "amount": 100 * n + n % 2}
    for n, opened in enumerate(["2026-02-20T00:00:00Z", "2025-02-20T00:00:00Z", None, "2026-03-04T04:59:59Z", None])
]  # fmt: skip


def matched(body: str, events: str = _ACCOUNTS, rows: list[dict[str, Any]] | None = None) -> list[str]:
    """Return the ids of the events that each alert binds, joined."""
    alerts = cep.parse(f"{events}pattern p by card {{ {body} }}").match(pa.Table.from_pylist(rows or _PAYMENTS))
    return [" ".join(event["event_id"] for event in bound) for bound in alerts.table["events"].to_pylist()]


_KINDS = (
    'event tx { id id  event_time time  card string  kind enum("3DS", "card-present", other)  n int?  m decimal(2) }\n'
)
_KIND_ROWS = [
    {"id": f"{n}", "event_time": f"2026-03-{n + 1:02}T05:00:00Z", "card": "c", "kind": kind, "n": number, "m": amount}
    for n, (kind, number, amount) in enumerate(
        [("3DS", 1, "100.00"), ("card-present", None, "250.50"), ("other", 2, "-300.00"), ("3DS", None, "0.01")]
    )
]


def kinds(condition: str) -> list[str]:
    """Return the ids of the events that fulfil a condition."""
    return matched(f"seq a where a: tx {condition}", _KINDS, _KIND_ROWS)


def waited() -> list[str]:
    """Return the ids of the requests without a reply within their own limit: the reply to 0 is too late."""
    events = "event tx { id id  event_time time  card string  limit_ms duration?  reply bool }\n"
    rows = [
        {
            "id": f"{n}",
            "event_time": f"2026-03-0{day}T05:{minute:02}:00Z",
            "card": card,
            "limit_ms": limit,
            "reply": not limit,
        }
        for n, (card, day, minute, limit) in enumerate(
            [("c", 1, 0, 600_000), ("c", 1, 20, None), ("d", 1, 0, 1_800_000), ("d", 1, 20, None), ("e", 9, 0, None)]
        )
    ]  # fmt: skip
    where = "a: tx limit_ms is not null  r: tx reply and event_time - a.event_time < a.limit_ms"
    return matched(f"seq a -> !r within 1 d where {where}", events, rows)


def help_of(body: str, key: str = "card") -> str:
    """Return the help of the first mistake of a pattern."""
    try:
        cep.parse(f"{_KINDS}pattern p by {key} {{ {body} }}")
    except cep.PatternError as error:
        return str(error.mistakes[0]["help"])
    return "no mistake"


def hover(word: str) -> str:
    """Return what an editor shows for a keyword, or for a function."""
    return keyword_meaning(word) or meaning(load_text(_KINDS), Named("function", word))


ROWS = [
    Row("E7", "the hover text of greedy", True, lambda: "gives none back" in hover("greedy")),
    Row("E7", "the hover text of skip", True, lambda: "where SQL stops with an error" in hover("skip")),
    Row("G3", "the hover text of avg", True, lambda: "which SQL:2016 includes" in hover("avg")),
    Row("F1", "an account is younger than 30 days", ["0", "3"],
        lambda: matched("seq a where a: tx event_time - opened < 30 d")),
    Row("F1", "a card has expired", ["4"], lambda: matched("seq a where a: tx event_time > expiry")),
    Row("F1", "a null time", ["2", "4"], lambda: matched("seq a where a: tx opened is null")),
    Row("F1", "the time of an earlier event", ["0 3"],
        lambda: matched("seq a -> b where a: tx  b: tx opened > a.event_time")),
    Row("F4", "a symbol that begins with a digit", ["0", "3"], lambda: kinds('kind == "3DS"')),
    Row("F4", "a symbol with a hyphen", ["1", "2"], lambda: kinds('kind in ["card-present", other]')),
    Row("F4", "a key that is computed", True, lambda: "field of its own" in help_of("seq a", "lower(card)")),
    Row("F4", "an absence within a time of the event", True,
        lambda: "event_time - a.event_time < a.limit" in help_of("seq a -> !r within a.limit")),
    Row("F4", "an absence within a time of the event, by a condition", ["0"], waited),
    Row("F4", "the second event of a loop", True,
        lambda: "x1 -> x2 -> x*" in help_of("seq a{2,3} -> b where a: tx b: tx a[2].n > 1")),
    Row("H", "round amounts", ["0", "2"], lambda: kinds("m % 100 == 0")),
    Row("H", "a list with a field that may be null", ["0", "2"], lambda: kinds("m in [100.00, -300.00, n]")),
    Row("H", "a list with a null field is unknown, not false", ["2"], lambda: kinds("m not in [100.00, 7.00, n]")),
    Row("H", "a key of several fields", "write `by (card, kind)`", lambda: help_of("seq a", "card, kind")),
]  # fmt: skip


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


ROWS += [
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
