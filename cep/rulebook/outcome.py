"""What the rulebook says about one control record, and about itself.

Tested by: tests/rulebook/test_rulebook.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from cep.lang.diagnostics import Diagnostic


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one control record.

    applied: the epoch went up by one. ignored: the record is older than what is known, or no change at all.
    refused: set aside with `reason` (and the diagnostics of its pattern); the rules in force stay as they are.
    `late_ms` is by how much the change came too late: events of this span were matched without it.
    """

    kind: Literal["applied", "ignored", "refused"]
    reason: str = ""
    diagnostics: tuple[Diagnostic, ...] = ()
    late_ms: int = 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """The newest refused version of a rule, until as new a one is applied."""

    rule_id: str
    version: int
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {"rule_id": self.rule_id, "version": self.version, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class RuleReport:
    """One version in force, waiting for its start, or draining. Times are event time, ms UTC."""

    rule_id: str
    version: int
    epoch: int
    status: str
    content_hash: str
    from_ms: int
    starts_until_ms: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class RulebookReport:
    """What `cep` and the runners print of a rulebook. Counters start at 0 in every process."""

    epoch: int
    rules: tuple[RuleReport, ...]
    refused: tuple[Refusal, ...]
    applied_count: int
    ignored_count: int
    refused_count: int
    rule_late_ms: int
