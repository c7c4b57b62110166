"""Counters and dead letters of a job or a replay → the report on rejected records.

A record is rejected if it was set aside, or if a value of it could not be read and is null. Verbs, jobs and Python
judge and show rejected records here alone, so that all of them say the same.

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
from cep.base.visible import visible

FLAWED_EVENTS = "flawed_events"
_FIELD = re.compile(r"field `([^`]*)`")
_DEAD_LETTERS_READ_MAX = 1_000  # of one micro-batch or replay: looking at all of them would slow down a noisy replay
_REASONS_MAX = 5
_KINDS_MAX = 32
_EXAMPLE_CHARACTERS = 200
# Counters of records that were set aside, with the code of their dead letters.
_CODES = {"events_ahead": "ahead", "late_events": "late"}


@dataclass(slots=True)
class Examples:
    """The first dead letter of each code and field."""

    dead_letters: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)

    def add(self, dead_letters: Iterable[bytes]) -> None:
        """Look at the first dead letters of a micro-batch or a replay."""
        if len(self.dead_letters) >= _KINDS_MAX:
            return
        for line in islice(dead_letters, _DEAD_LETTERS_READ_MAX):
            if is_audit(line):
                continue
            letter = orjson.loads(line)
            code, place = str(letter.get("code", "")), _FIELD.match(str(letter.get("reason", "")))
            self.dead_letters.setdefault((code, place[1] if place else ""), letter)


@dataclass(frozen=True, slots=True)
class Rejections:
    """The number of records, how many of them were rejected, how many by code, and examples."""

    records: int
    count: int
    by_code: Mapping[str, int]
    dead_letters: Sequence[Mapping[str, Any]]

    @classmethod
    def of(cls, counters: Mapping[str, int], examples: Examples) -> Rejections:
        """Read the counters of a replay, or of a job so far."""
        by_code: Counter[str] = Counter()
        for name, count in counters.items():
            base, _, label = name.rstrip("]").partition("[")
            if base in ("poison", "bad_values"):
                by_code[label.partition("@")[0]] += count
            elif base in _CODES:
                by_code[_CODES[base]] += count
        aside = sum(count for name, count in counters.items() if name.startswith("poison[") or name in _CODES)
        # Other dead letters are of refused control records and of suppressed alerts.
        dead_letters = [letter for letter in examples.dead_letters.values() if by_code[letter.get("code", "")]]
        dead_letters.sort(key=lambda letter: -by_code[letter["code"]])
        count = aside + counters.get(FLAWED_EVENTS, 0)
        return cls(counters.get("records", 0), count, by_code, dead_letters[:_REASONS_MAX])

    @property
    def share(self) -> float:
        """The share of the records that were rejected."""
        return self.count / self.records if self.records else 0.0

    def is_above(self, share_max: float) -> bool:
        """Return True if more records were rejected than allowed, if all were, or if there was none to read."""
        return self.share > share_max or self.count >= self.records

    def lines(self, limit: str, share_max: float) -> list[str]:
        """Return the report: a line for each reason, with an example, and the count. Nothing if all is well.

        `limit` names the setting that says how large the share may be.
        """
        if not self.records:
            return ["no record was read; see that the path or topic has events"]
        if not self.count:
            return []
        lines, counted = [], set()
        for letter in self.dead_letters:
            code = letter["code"]
            times = "also" if code in counted else f"{self.by_code[code]:,} times"
            counted.add(code)
            lines.append(visible(f"  {times} {_reason(letter)}; for example {_example(letter)}").replace("\n", "\\n"))
        verdict = f", more than {limit} {share_max:g} allows" if self.is_above(share_max) else ""
        return [*lines, f"{self.count:,} of {self.records:,} records ({self.share:.2%}) were rejected{verdict}"]


def rejections_of(counters: Mapping[str, int], dead_letters: Iterable[bytes]) -> Rejections:
    """Report on the rejected records of a finished replay."""
    examples = Examples()
    examples.add(dead_letters)
    return Rejections.of(counters, examples)


def _reason(letter: Mapping[str, Any]) -> str:
    reason = letter.get("reason") or "dated behind the watermark"
    return f"{letter['code']}: {reason}"


def _example(letter: Mapping[str, Any]) -> str:
    record = str(letter.get("record") or letter.get("event_id") or "a record without text")
    return record if len(record) <= _EXAMPLE_CHARACTERS else record[:_EXAMPLE_CHARACTERS] + "…"
