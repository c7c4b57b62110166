"""A control record or a rulebook → the report about it, for people and status records.

Tested by: tests/rulebook/test_rulebook.py
"""

from dataclasses import dataclass
from typing import Any, Literal

from cep.base.limits import EVENT_TIME_MS_MAX, TIME_MS_MIN
from cep.base.text import utc_text
from cep.lang.diagnostics import Diagnostic
from cep.lang.show import show_expr
from cep.lang.walk import histories
from cep.nfa.deployed import DeployedRule
from cep.nfa.histories import span_ms


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one control record.

    applied: the record changed the job, and the epoch (the number of its changes) went up by one. ignored: the record
    is old, or changes nothing. waiting: a list's version lacks parts or the version before it, or a pause lacks its
    rule. refused: the record has no effect, because of `reason` and the diagnostics of its pattern. `from_ms` is the
    event time from which the change applies; `late_ms` says how much later that is than the record asks. `cause` is the
    fault of invalid signatures. `is_conflict`: its author did not know a change that came first.
    """

    kind: Literal["applied", "ignored", "waiting", "refused"]
    reason: str = ""
    diagnostics: tuple[Diagnostic, ...] = ()
    late_ms: int = 0
    from_ms: int = 0
    cause: str = ""
    is_conflict: bool = False

    @property
    def full_reason(self) -> str:
        return "; ".join([self.reason, *(f"{d.code} {d.message}" for d in self.diagnostics)])


@dataclass(frozen=True, slots=True)
class Refusal:
    """The newest refused version of a rule, until as new a one is applied. `hash` tells two of one version apart."""

    rule_id: str
    version: int
    reason: str
    hash: str = ""


@dataclass(frozen=True, slots=True)
class PastReport:
    """A history (an aggregate such as `count(payment over 1 h)`) whose past events a job had not stored for a new rule.

    All events are stored from `from_ms` on, and its windows are complete from `whole_ms` on; None: it has no window.
    """

    history: str
    event_type: str
    from_ms: int
    whole_ms: int | None

    @property
    def text(self) -> str:
        start = f"the events of {self.history} are kept from {utc_text(self.from_ms)} on"
        if self.whole_ms is None:
            return f"{start}; what was before is not known"
        return (
            f"{start}, its windows are whole from {utc_text(self.whole_ms)}; a long enough `retain` in event type "
            f"{self.event_type}, and a rule by this key, would have kept them"
        )


def incomplete_histories(rule: DeployedRule) -> tuple[PastReport, ...]:
    """Report each history of the rule that looks back further than its events are kept."""
    reports: dict[PastReport, None] = {}
    for history, since_ms in zip(histories(rule.pattern), rule.complete_ms[1:], strict=False):
        if since_ms > TIME_MS_MIN:
            whole_ms = since_ms + span_ms(history) - 1
            has_end = history.window is not None and whole_ms <= EVENT_TIME_MS_MAX
            reports[PastReport(show_expr(history), history.event_type, since_ms, whole_ms if has_end else None)] = None
    return tuple(reports)


OTHER_AUTOMATON = "another automaton, other windows, counts, `until` or negations"


@dataclass(frozen=True, slots=True)
class RunsReport:
    """What becomes of the open runs of the version before, and why.

    carried: they go on under the new version. drained: they finish under the old one. restarted: they are dropped.
    """

    version: int
    outcome: Literal["carried", "drained", "restarted"]
    why: str


def runs_of_before(version: int, on_update: str, *, carries: bool) -> RunsReport:
    """Return what becomes of the runs of `version` when a later one begins with this `on_update`."""
    if on_update == "restart":
        return RunsReport(version, "restarted", "`on_update` is `restart`")
    if on_update == "carry" and carries:
        return RunsReport(version, "carried", "`on_update` is `carry`, and both have the same automaton")
    why = f"`on_update` is `carry`, and version {version} has {OTHER_AUTOMATON}" if on_update == "carry" else None
    return RunsReport(version, "drained", why or "`on_update` is `drain`")


@dataclass(frozen=True, slots=True)
class RuleReport:
    """One version in force, waiting for its start, or draining (it only finishes its open runs).

    If it has been paused, each part between two pauses has its own report. A match may start at event times from
    `from_ms` until before `starts_until_ms` (ms UTC); it goes on with events before `until_ms`. `past` lists the
    histories whose past events the job has not stored. `runs` says how the previous version's runs go on.
    """

    rule_id: str
    version: int
    epoch: int  # this version was change number `epoch` of the job
    status: str
    content_hash: str
    from_ms: int
    starts_until_ms: int
    until_ms: int
    past: tuple[PastReport, ...] = ()
    runs: RunsReport | None = None


@dataclass(frozen=True, slots=True)
class SnoozeReport:
    """Alerts of a rule (on `key`, if there is one) are suppressed in [from_ms, until_ms)."""

    rule_id: str
    key: str | None
    from_ms: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class ListReport:
    """The last version of a list: its start (ms UTC), number of entries, and a hash that is equal for equal entries.

    Version 0 means that it has none yet; `waiting` are versions that lack parts, or the previous version.
    """

    name: str
    of: str
    version: int
    from_ms: int
    entries: int
    digest: str
    waiting: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RulebookReport:
    """The report of a rulebook that `cep` and the runners print. Counters start at 0 in every process.

    `epoch` counts the changes of this job; `content_hash` is the same for every job with the same records, in any
    order. `last_versions` has the last version of each rule, also of retired rules. `taken` has the last few versions
    of every rule, pause, snooze and list, with hash, sender and reason. `paused` are the rules paused now or later.
    Rules run in `levels_count` levels, one after the other: a rule runs after the rules whose events it reads. `places`
    has two mappings by event type: the highest level of a rule that produces it, the lowest level of one that reads it.
    """

    epoch: int
    content_hash: str
    rules: tuple[RuleReport, ...]
    last_versions: dict[str, int]
    paused: tuple[str, ...]
    snoozes: tuple[SnoozeReport, ...]
    snooze_versions: tuple[tuple[str, str | None, int], ...]
    refused: tuple[Refusal, ...]
    lists: tuple[ListReport, ...]
    lists_missing: tuple[tuple[str, str], ...]  # (name, type of entries) of lists that rules read and nobody has sent
    taken: dict[str, list[dict[str, Any]]]
    levels_count: int | None
    places: list[Any] | None
    applied_count: int
    ignored_count: int
    refused_count: int
    rule_late_ms: int  # the sum of the delays of changes that came after their start
