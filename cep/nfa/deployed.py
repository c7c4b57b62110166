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
