"""Two control records → the lines with their differences: `params.tries 3 → 4`; two sets of alerts → gained and lost.

Two alerts are the same finding if they have the same rule, key and bound events, in any version.
Tested by: tests/rulebook/test_publish.py
"""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from cep.model.rule import ListRecord, RollbackRecord, UpsertRecord
from cep.rulebook.meaning import pattern_hash
from cep.rulebook.trust import Signable

_NOT_COMPARED = {
    "id",
    "version",
    "changes",
    "by",
    "reason",
    "nonce",
    "signed",
    "source",
    "rule",
    "entries",
    "whole",
    "lists",
}
_SHOWN_MAX = 80  # characters of a value


def difference(before: Signable, after: Signable) -> list[str]:
    """List each field and parameter that differs between two records, and the changed lines of the pattern's text."""
    old, new = dict(_fields(before)), dict(_fields(after))
    lines = [
        f"{name} {_shown(old.get(name))} → {_shown(new.get(name))}"
        for name in dict.fromkeys((*old, *new))
        if old.get(name) != new.get(name)
    ]
    first, second = _upsert(before), _upsert(after)
    if isinstance(first, UpsertRecord) and isinstance(second, UpsertRecord):
        hashes = [pattern_hash(record.source, record.pattern) for record in (first, second)]
        if hashes[0] != hashes[1]:
            compared = list(difflib.ndiff(first.source.split("\n"), second.source.split("\n")))
            counts = [sum(line.startswith(sign) for line in compared) for sign in ("+ ", "- ")]
            lines.append(f"text of the pattern: {counts[0]} line(s) new, {counts[1]} gone")
    return lines


def _fields(record: Signable) -> Iterator[tuple[str, Any]]:
    upsert = _upsert(record)
    for name, value in upsert.model_dump(exclude=_NOT_COMPARED).items():
        if name == "params":
            for parameter, one in sorted(value.items()):
                yield f"params.{parameter}", one
        else:
            yield name, value
    if isinstance(upsert, ListRecord):
        yield "entries", len(upsert.entries)


def _upsert(record: Signable) -> Signable:
    return record.as_upsert() if isinstance(record, RollbackRecord) else record


def _shown(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


Finding = tuple[str, str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """`gained` and `lost` are rows of the tables, in their order; `kept_count` counts the common alerts."""

    gained: tuple[dict[str, Any], ...]
    lost: tuple[dict[str, Any], ...]
    kept_count: int


def compare(before: pa.Table, after: pa.Table) -> Comparison:
    """Compare one set of alerts with the one before. Cost: a Python object for each alert."""
    old, new = before.to_pylist(), after.to_pylist()
    earlier, later = {_finding(alert) for alert in old}, {_finding(alert) for alert in new}
    return Comparison(
        tuple(alert for alert in new if _finding(alert) not in earlier),
        tuple(alert for alert in old if _finding(alert) not in later),
        len(earlier & later),
    )


def _finding(alert: dict[str, Any]) -> Finding:
    return alert["rule_id"], alert["key"], tuple(event["event_id"] for event in alert["events"])
