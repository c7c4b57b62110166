"""Counters and dead letters of a job or a replay → the report on rejected records, for verbs, jobs and Python.

A record is rejected if it was set aside, or if a value of it could not be read and is null.

Tested by: tests/cli/test_rejected.py
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import orjson

from cep.base.audit import is_audit
from cep.base.text import visible
from cep.columnar.decode import Poison
from cep.step.dead_letters import dead_letter, event_dead_letters

FLAWED_EVENTS = "flawed_events"
REJECTED_MAX = "--rejected-max"  # the flag of jobs and verbs that the report names
_FIELD = re.compile(r"field `([^`]*)`")
_DEAD_LETTERS_READ_MAX = 1_000  # of a minute of a job, or a replay: looking at all would slow down a noisy source
_REASONS_MAX = 5
_KINDS_MAX = 32
_EXAMPLE_CHARACTERS = 200
# Counters of records that were set aside, with the code of their dead letters.
_CODES = {"events_ahead": "ahead", "late_events": "late", "reused_ids": "reused_id"}


@dataclass(slots=True)
class Examples:
    """The first dead letter of each code and field, among the dead letters of a job so far."""

    dead_letters: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    looked_count: int = 0

    def add(self, dead_letters: Iterable[bytes]) -> None:
        """Add the dead letters of a micro-batch or a replay, up to a limit on all of them."""
        for line in islice(dead_letters, _DEAD_LETTERS_READ_MAX - self.looked_count):
            self.looked_count += 1
            if is_audit(line):  # lines about changes of rules travel among the dead letters
                continue
            letter = orjson.loads(line)
            code, field_match = str(letter.get("code", "")), _FIELD.match(str(letter.get("reason", "")))
            self._add((code, field_match[1] if field_match else ""), letter)

    def join(self, later: Examples) -> None:
        """Add the examples of later micro-batches."""
        for kind, letter in later.dead_letters.items():
            self._add(kind, letter)

    def _add(self, kind: tuple[str, str], letter: Mapping[str, Any]) -> None:
        if len(self.dead_letters) < _KINDS_MAX:
            self.dead_letters.setdefault(kind, letter)


@dataclass(frozen=True, slots=True)
class Rejections:
    """The number of records, how many of them were rejected, how many by code, and examples."""

    records: int
    rejected_count: int
    by_code: Mapping[str, int]
    dead_letters: Sequence[Mapping[str, Any]]

    @classmethod
    def of(cls, counters: Mapping[str, int], examples: Examples) -> Rejections:
        """Summarise the rejected records from the counters of a replay, or of a job so far.

        Their names: `poison[CODE]` counts whole records, `bad_values[CODE@field]` unreadable values, FLAWED_EVENTS the
        events that have such values, and the names in _CODES count events that were set aside.
        """
        by_code: Counter[str] = Counter()
        for name, count in counters.items():
            base, _, label = name.rstrip("]").partition("[")
            if base in ("poison", "bad_values"):
                by_code[label.partition("@")[0]] += count  # bad_values[CODE@field]
            elif base in _CODES:
                by_code[_CODES[base]] += count
        # Other dead letters, of refused control records and suppressed alerts, are not counted here.
        dead_letters = [letter for letter in examples.dead_letters.values() if by_code[letter.get("code", "")]]
        dead_letters.sort(key=lambda letter: -by_code[letter["code"]])
        count = set_aside_count(counters) + counters.get(FLAWED_EVENTS, 0)
        return cls(counters.get("records", 0), count, by_code, dead_letters[:_REASONS_MAX])

    @property
    def share(self) -> float:
        return self.rejected_count / self.records if self.records else 0.0

    def is_above(self, share_max: float) -> bool:
        """Return True if too large a share of the records was rejected, or if no record was accepted."""
        return self.share > share_max or self.rejected_count >= self.records

    def summary(self) -> str:
        """Return the count, the share and the most frequent reason in one sentence."""
        text = f"{self.rejected_count:,} of {self.records:,} records ({self.share:.2%}) were rejected"
        if not self.dead_letters:
            return text
        first = self.dead_letters[0]
        reason = visible(_reason(first)).replace("\n", "\\n")
        return f"{text}, {self.by_code[first['code']]:,} of them as {reason}"

    def code_counts(self) -> str:
        """Return the count and the fields of each code of rejected records, without a value of any record."""
        fields: dict[str, list[str]] = {}
        for letter in self.dead_letters:
            field_match = _FIELD.match(str(letter.get("reason", "")))
            fields.setdefault(letter["code"], []).extend([f"`{field_match[1]}`"] if field_match else [])
        parts = sorted(self.by_code.items(), key=lambda part: -part[1])
        return ", ".join(
            f"{count:,} {code}{' of ' if fields.get(code) else ''}{', '.join(fields.get(code, ()))}"
            for code, count in parts
            if count
        )

    def lines(self, limit: str, share_max: float) -> list[str]:
        """Write an example for each reason, and the verdict on the share of rejected records. `limit`: its setting."""
        if not self.records:
            return ["no record was read; see that the path or topic has events"]
        if not self.rejected_count:
            return []
        lines, counted = [], set()  # counted: codes whose number of records is said already
        for letter in self.dead_letters:
            code = letter["code"]
            times = "also" if code in counted else f"{self.by_code[code]:,} times"
            counted.add(code)
            lines.append(visible(f"  {times} {_reason(letter)}; for example {_example(letter)}").replace("\n", "\\n"))
        return [*lines, self.verdict(limit, share_max)]

    def verdict(self, limit: str, share_max: float) -> str:
        """Return the count and the share, and whether that is more than the limit allows."""
        verdict = f", more than {limit} {share_max:g} allows" if self.is_above(share_max) else ""
        return f"{self.rejected_count:,} of {self.records:,} records ({self.share:.2%}) were rejected{verdict}"


NO_REJECTIONS = Rejections(0, 0, {}, ())


def set_aside_count(counters: Mapping[str, int]) -> int:
    """Count the whole records that were set aside, without events whose unreadable values became null."""
    return sum(count for name, count in counters.items() if name.startswith("poison[") or name in _CODES)


def rejections_of(counters: Mapping[str, int], dead_letters: Iterable[bytes]) -> Rejections:
    """Report on the rejected records of a finished replay."""
    examples = Examples()
    examples.add(dead_letters)
    return Rejections.of(counters, examples)


def rejections_of_poison(
    events_count: int, poison: Sequence[Poison], reused_ids: Sequence[Mapping[str, Any]] = ()
) -> Rejections:
    """Report on rejected records; flawed ones and events with a reused id are among so many events."""
    counters = poison_counts(poison)
    counters["records"] = events_count + len(poison) - counters[FLAWED_EVENTS]
    counters["reused_ids"] = len(reused_ids)
    return rejections_of(counters, [*map(dead_letter, poison), *event_dead_letters(reused_ids)])


def poison_counts(poison: Iterable[Poison]) -> Counter[str]:
    """Return the counters of rejected records: records set aside by code; flawed events, and their values by field."""
    counters: Counter[str] = Counter()
    for each in poison:
        counters[FLAWED_EVENTS if each.bad_values else f"poison[{each.code}]"] += 1
        counters.update(f"bad_values[{code}@{name}]" for code, name in each.bad_values)
    return counters


def _reason(letter: Mapping[str, Any]) -> str:
    reason = letter.get("reason") or "dated behind the watermark"
    return f"{letter['code']}: {reason}"


def _example(letter: Mapping[str, Any]) -> str:
    record = str(letter.get("record") or letter.get("event_id") or "a record without text")
    return record if len(record) <= _EXAMPLE_CHARACTERS else record[:_EXAMPLE_CHARACTERS] + "…"
