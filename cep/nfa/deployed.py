"""The compiler's input for one version of one rule: a bound pattern and its validity interval.

Tested by: tests/rulebook/test_rulebook.py, tests/nfa/test_compile.py
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.base.schema import DERIVED_COLUMNS, Schema
from cep.lang.ir import PatternIR

RuleIdentity = tuple[str, int, str]
FOR_EVER = TIME_MS_MAX  # the reach of a gap without a window


@dataclass(frozen=True, slots=True)
class ProducerGap:
    """A time before which a producer may have missed derived events.

    A match may be affected if it is detected in [from_ms, until_ms), while the producer starts matches, and if its
    first event is less than `reach_ms` after `since_ms`. A `since_ms` of None is the time of the job's first event.
    """

    reach_ms: int
    since_ms: int | None
    from_ms: int = TIME_MS_MIN
    until_ms: int = TIME_MS_MAX


@dataclass(frozen=True, slots=True)
class DeployedRule:
    """One version of one rule.

    Interval, in event time (ms, UTC): a match may start on events in [from_ms, starts_until_ms) and goes on with events
    before `until_ms`. `drain` leaves until_ms open, `restart` and retire set it to the change. `resumed_ms` marks the
    part of a version after a pause, which continues no run of the part before. `carries` is the version whose runs
    become this one's at `from_ms`, 0 for none. `message` is a template with measures and `key` in braces: "{probes}
    probes, then {amount}". `complete_ms` is empty if its histories lack nothing since the job's first event. Otherwise
    it has the time since when the key domain has had a rule, and then a time for each of `lang.walk.histories`.
    `folded_since_ms` has for each of them the time since when a busy key's folded events count too; empty: always.
    `level` is its place among rules that feed each other (rulebook/rulebook.py); None: nowhere yet. `patterns_after` of
    its text may follow it, each fed by the one before. `gaps` are the times before which derived events
    that it reads may be missing. They and `complete_ms` come from rulebook/completeness.py. `earlier_hash` is the hash
    of its content in builds before 0.3; None if it is the same. `identity` is what stored runs are tied to: another
    version, content or part of a version is another automaton. `mark` is all that decides what is matched, as text;
    alerts of one event come out in the order of `place`.
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
    complete_ms: tuple[int, ...] = ()
    folded_since_ms: tuple[int, ...] = ()
    level: int | None = None
    patterns_after: int = 0
    gaps: tuple[ProducerGap, ...] = ()
    earlier_hash: str | None = None
    identity: RuleIdentity = field(init=False, compare=False, repr=False)
    mark: str = field(init=False, compare=False, repr=False)
    place: tuple[int, str, int, int] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        # Computed once, because they are needed for every rule whenever any rule changes.
        object.__setattr__(self, "identity", self._identity(self.content_hash))
        parts = (*self.identity, self.from_ms, self.starts_until_ms, self.until_ms, self.carries)
        object.__setattr__(self, "mark", repr(parts))
        object.__setattr__(self, "place", (self.priority, self.rule_id, self.version, self.from_ms))

    @property
    def identities(self) -> set[RuleIdentity]:
        """The identity, and the one that stored runs have from builds before 0.3."""
        return {self.identity, self._identity(self.earlier_hash or self.content_hash)}

    def _identity(self, digest: str) -> RuleIdentity:
        part = digest if self.resumed_ms is None else f"{digest}@{self.resumed_ms}"
        return self.rule_id, self.version, part


def fingerprint(rules: Iterable[DeployedRule], schema: Schema, shared: Iterable[RuleIdentity] = ()) -> str:
    """Return the digest that identifies stored runs: of the rules in order, the schema and the shared starts."""
    # If patterns produce events, the stored fields of these belong to the layout; an earlier build stored fewer.
    derived = DERIVED_COLUMNS if any(event_type.derived for event_type in schema.event_types) else ()
    text = "\n".join([repr(schema), *derived, *(rule.mark for rule in rules), *map(repr, shared)])
    return hashlib.sha256(text.encode()).hexdigest()[:32]
