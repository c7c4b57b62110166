"""Snooze records → the event times at which a person wants a rule's alerts suppressed.

For one rule and key the highest version wins; it takes effect at its start. Snoozes do not affect matching.
Tested by: tests/rulebook/test_snoozes.py
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from cep.base.limits import SNOOZES_MAX, TIME_MS_MAX
from cep.model.rule import SnoozeRecord
from cep.rulebook.intervals import Spans
from cep.rulebook.outcome import Outcome, SnoozeReport

RuleKey = tuple[str, str | None]


class Snoozes:
    """The snoozes of one job. The ledger has their versions."""

    def __init__(self, snoozes: Mapping[RuleKey, Spans] | None = None) -> None:
        self._snoozes = dict(snoozes or {})

    def copy(self) -> Snoozes:
        return Snoozes(self._snoozes)

    def apply(self, record: SnoozeRecord, from_ms: int) -> Outcome:
        """Apply one new record, whose change starts at `from_ms`."""
        rule_key = record.id, record.key
        if rule_key not in self._snoozes and len(self._snoozes) >= SNOOZES_MAX:
            return Outcome("refused", f"there are {SNOOZES_MAX} snoozes, which is the limit")
        spans = [(a, min(b, from_ms)) for a, b in self._snoozes.get(rule_key, ()) if a < from_ms]
        if from_ms < record.until_ms:
            spans.append((from_ms, record.until_ms))
        self._snoozes[rule_key] = tuple(spans)
        return Outcome("applied")

    def forget(self, watermark_ms: int) -> None:
        """Drop snoozes that are over. Their names stay until they are too many: the report has their versions."""
        for rule_key, spans in self._snoozes.items():
            self._snoozes[rule_key] = tuple(span for span in spans if span[1] > watermark_ms)
        if len(self._snoozes) >= SNOOZES_MAX:
            self._snoozes = {rule_key: spans for rule_key, spans in self._snoozes.items() if spans}

    def without(self, keys: Collection[str]) -> Snoozes:
        """Return the snoozes without these keys."""
        return Snoozes({rule_key: spans for rule_key, spans in self._snoozes.items() if rule_key[1] not in keys})

    @property
    def forget_ms(self) -> int:
        """The watermark at which a snooze ends; TIME_MS_MAX without one."""
        return min((end for spans in self._snoozes.values() for _, end in spans), default=TIME_MS_MAX)

    def report(self) -> tuple[SnoozeReport, ...]:
        """Report the snoozes that are not over, in the order of rule and key."""
        return tuple(SnoozeReport(*rule_key, *span) for rule_key in self.names() for span in self._snoozes[rule_key])

    def names(self) -> list[RuleKey]:
        """Return the rule and key of every snooze, in order."""
        return sorted(self._snoozes, key=lambda rule_key: (rule_key[0], rule_key[1] or ""))

    def to_json(self) -> list[Any]:
        return [[*rule_key, [list(span) for span in self._snoozes[rule_key]]] for rule_key in self.names()]

    @staticmethod
    def from_json(saved: Iterable[Any]) -> Snoozes:
        """Invert `to_json`. Raises: ValueError, TypeError for other values."""
        # A build before 0.3 put the version between the key and the times.
        return Snoozes(
            {(rule_id, key): tuple((start, end) for start, end in spans) for rule_id, key, *_, spans in saved}
        )
