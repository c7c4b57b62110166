"""Snooze records → the event times at which a person wants a rule's alerts suppressed.

For one rule and key the highest version wins; it takes effect at its start. Snoozes do not affect matching.
Tested by: tests/rulebook/test_snoozes.py
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cep.base.limits import SNOOZES_MAX, TIME_MS_MAX
from cep.model.rule import SnoozeRecord
from cep.rulebook.outcome import Outcome, SnoozeReport

_At = tuple[str, str | None]  # rule, key


@dataclass(frozen=True, slots=True)
class _Snooze:
    version: int
    spans: tuple[tuple[int, int], ...]


class Snoozes:
    """The snoozes of one job."""

    def __init__(self, snoozes: Mapping[_At, _Snooze] | None = None) -> None:
        self._snoozes = dict(snoozes or {})

    def copy(self) -> Snoozes:
        return Snoozes(self._snoozes)

    def apply(self, record: SnoozeRecord, from_ms: int) -> Outcome:
        """Apply one record, whose change starts at `from_ms`."""
        rule_key = record.id, record.key
        snooze = self._snoozes.get(rule_key)
        if snooze is not None and record.version <= snooze.version:
            return Outcome("ignored", f"version {record.version} is not newer than {snooze.version}")
        if snooze is None and len(self._snoozes) >= SNOOZES_MAX:
            return Outcome("refused", f"there are {SNOOZES_MAX} snoozes, which is the limit")
        spans = [(a, min(b, from_ms)) for a, b in (snooze.spans if snooze is not None else ()) if a < from_ms]
        if from_ms < record.until_ms:
            spans.append((from_ms, record.until_ms))
        self._snoozes[rule_key] = _Snooze(record.version, tuple(spans))
        return Outcome("applied")

    def forget(self, watermark_ms: int) -> None:
        """Drop snoozes that are over. Versions stay until they are too many, or an old record would count again."""
        for rule_key, snooze in self._snoozes.items():
            spans = tuple(span for span in snooze.spans if span[1] > watermark_ms)
            if spans != snooze.spans:
                self._snoozes[rule_key] = _Snooze(snooze.version, spans)
        if len(self._snoozes) >= SNOOZES_MAX:
            self._snoozes = {rule_key: snooze for rule_key, snooze in self._snoozes.items() if snooze.spans}

    def without(self, keys: Collection[str]) -> Snoozes:
        """Return the snoozes without these keys."""
        return Snoozes({rule_key: snooze for rule_key, snooze in self._snoozes.items() if rule_key[1] not in keys})

    @property
    def forget_ms(self) -> int:
        """The watermark at which a snooze ends; TIME_MS_MAX without one."""
        return min((end for snooze in self._snoozes.values() for _, end in snooze.spans), default=TIME_MS_MAX)

    def report(self) -> tuple[SnoozeReport, ...]:
        """Report the snoozes that are not over, in the order of rule and key."""
        return tuple(SnoozeReport(*rule_key, *span) for rule_key, snooze in self._ordered() for span in snooze.spans)

    def versions(self) -> tuple[tuple[str, str | None, int], ...]:
        """Return (rule, key, last version) of every snooze."""
        return tuple((*rule_key, snooze.version) for rule_key, snooze in self._ordered())

    def to_json(self) -> list[Any]:
        return [
            [*rule_key, snooze.version, [list(span) for span in snooze.spans]] for rule_key, snooze in self._ordered()
        ]

    @staticmethod
    def from_json(saved: Iterable[Any]) -> Snoozes:
        """Invert `to_json`. Raises: ValueError, TypeError for other values."""
        return Snoozes(
            {
                (rule_id, key): _Snooze(version, tuple((start, end) for start, end in spans))
                for rule_id, key, version, spans in saved
            }
        )

    def _ordered(self) -> list[tuple[_At, _Snooze]]:
        return sorted(self._snoozes.items(), key=lambda item: (item[0][0], item[0][1] or ""))
