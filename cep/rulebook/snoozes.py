"""Snooze records → from when to when, in event time, a person wants a rule's alerts held back.

Of one rule and key the highest version is the last word; it takes over at its start. Snoozes do not touch matching.
Tested by: tests/rulebook/test_snoozes.py
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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

    def __init__(self, known: Mapping[_At, _Snooze] | None = None) -> None:
        self._known = dict(known or {})

    def copy(self) -> Snoozes:
        return Snoozes(self._known)

    def apply(self, record: SnoozeRecord, from_ms: int) -> Outcome:
        """Apply one record, whose change starts at `from_ms`."""
        at = record.id, record.key
        known = self._known.get(at)
        if known is not None and record.version <= known.version:
            return Outcome("ignored", f"version {record.version} is not newer than {known.version}")
        if known is None and len(self._known) >= SNOOZES_MAX:
            return Outcome("refused", f"there are {SNOOZES_MAX} snoozes, which is the limit")
        spans = [(a, min(b, from_ms)) for a, b in (known.spans if known is not None else ()) if a < from_ms]
        if from_ms < record.until_ms:
            spans.append((from_ms, record.until_ms))
        self._known[at] = _Snooze(record.version, tuple(spans))
        return Outcome("applied")

    def forget(self, watermark_ms: int) -> None:
        """Drop what is over. The versions stay, or an old record would count again, until they are too many."""
        for at, known in self._known.items():
            spans = tuple(span for span in known.spans if span[1] > watermark_ms)
            if spans != known.spans:
                self._known[at] = _Snooze(known.version, spans)
        if len(self._known) >= SNOOZES_MAX:
            self._known = {at: known for at, known in self._known.items() if known.spans}

    @property
    def forget_ms(self) -> int:
        """The watermark at which a snooze is over; TIME_MS_MAX if none is known."""
        return min((end for known in self._known.values() for _, end in known.spans), default=TIME_MS_MAX)

    def report(self) -> tuple[SnoozeReport, ...]:
        """All that are not over, in the order of rule and key."""
        return tuple(SnoozeReport(*at, *span) for at, known in self._ordered() for span in known.spans)

    def versions(self) -> tuple[tuple[str, str | None, int], ...]:
        """(rule, key, last version) of all that are known."""
        return tuple((*at, known.version) for at, known in self._ordered())

    def to_json(self) -> list[Any]:
        return [[*at, known.version, [list(span) for span in known.spans]] for at, known in self._ordered()]

    @staticmethod
    def from_json(saved: Iterable[Any]) -> Snoozes:
        """What `to_json` gave. Raises: ValueError, TypeError for what it did not."""
        return Snoozes(
            {
                (rule_id, key): _Snooze(version, tuple((start, end) for start, end in spans))
                for rule_id, key, version, spans in saved
            }
        )

    def _ordered(self) -> list[tuple[_At, _Snooze]]:
        return sorted(self._known.items(), key=lambda item: (item[0][0], item[0][1] or ""))
