"""What the compiler is given for one version of one rule: a bound pattern and the interval that it sees.

Tested by: tests/rulebook/test_rulebook.py, tests/nfa/test_compile.py
"""

from __future__ import annotations

from dataclasses import dataclass

from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.lang.ir import PatternIR


@dataclass(frozen=True, slots=True)
class DeployedRule:
    """One version of one rule.

    Interval, in event time (ms, UTC): a match may start on events in [from_ms, starts_until_ms) and goes on with
    events before `until_ms`. `drain` leaves until_ms open, `restart` and retire set it to the change.
    `resumed_ms` tells the part of a version that follows a pause, which goes on with no run of the part before.
    `carries` is the version whose runs become this one's at `from_ms`, 0 for none.
    `message` is a template with measures and `key` in braces: "{probes} probes, then {amount}".
    """

    rule_id: str
    version: int
    epoch: int
    content_hash: str
    pattern: PatternIR
    status: str = "live"
    severity: str = "medium"
    priority: int = 100
    score: int = 0
    message: str = ""
    from_ms: int = TIME_MS_MIN
    starts_until_ms: int = TIME_MS_MAX
    until_ms: int = TIME_MS_MAX
    resumed_ms: int | None = None
    carries: int = 0

    @property
    def identity(self) -> tuple[str, int, str]:
        """What stored runs are tied to: another version, content or part of a version is another automaton."""
        part = self.content_hash if self.resumed_ms is None else f"{self.content_hash}@{self.resumed_ms}"
        return self.rule_id, self.version, part
