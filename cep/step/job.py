"""The description of a job: the settings on which replay and live must agree to give the same alerts.

Tested by: tests/step/test_step.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from secrets import token_hex
from typing import Any

from cep.base import limits
from cep.base.errors import UsageError
from cep.base.schema import Schema
from cep.base.text import of_type, texts
from cep.columnar.decode import KeyDomain
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.trust import Trust

_KEY_BYTES = 16
EVENT_TIME, ARRIVAL = "event_time", "arrival"
# Fields that are JSON values, with their types. An earlier build did not write those of _LATER.
_PLAIN: Mapping[str, Any] = {
    "groups_count": int,
    "pages_count": int,
    "lateness_ms": int,
    "order": str,
    "idle_ms": int,
    "dedup_ms": int,
    "levels_count": int,
    "begins_ms": int,
    "ends_ms": int,
    "ahead_ms": int | None,
}
_LATER = {"begins_ms": limits.TIME_MS_MIN, "ends_ms": limits.TIME_MS_MAX, "ahead_ms": limits.AHEAD_MS_DEFAULT}


@dataclass(frozen=True, slots=True)
class Job:
    """A job: event types, the keys that events are routed by, and the layout of keyed state.

    groups_count: key groups, which bound the parallelism for the job's whole life. pages_count: pages of a key group's
    state; few when catching up, more when keys are sparse. lateness_ms: how far events may come out of order. order:
    EVENT_TIME, where an event waits until the watermark has passed it, or ARRIVAL. The next ones are for live jobs
    only. idle_ms: how long, by the clock, a partition without new records holds the watermark back. dedup_ms: how long
    the id of an event is stored; 0: not at all. levels_count: levels of patterns that read the events which others
    produce. begins_ms: earlier events are in the state that the job began with (warm_start.py). ends_ms: later events
    belong to the job that continues this one. ahead_ms: how far ahead of the clock an event may be dated; None: without
    a limit. to_the_end: a finite history closes all windows at its end (history_end.py). trust: who may sign changes of
    its rules; None: changes need no signature. is_audited: changes go into an audit even without `trust`. digest_key:
    the secret of the digests by which repeated events are recognised (columnar/digests.py); without one anybody can
    compute them.
    """

    schema: Schema
    domains: tuple[KeyDomain, ...]
    groups_count: int = limits.KEY_GROUPS_DEFAULT
    pages_count: int = 1
    lateness_ms: int = 0
    order: str = EVENT_TIME
    idle_ms: int = limits.IDLE_MS_DEFAULT
    dedup_ms: int = 0
    levels_count: int = 1
    begins_ms: int = limits.TIME_MS_MIN
    ends_ms: int = limits.TIME_MS_MAX
    ahead_ms: int | None = limits.AHEAD_MS_DEFAULT
    trust: Trust | None = None
    is_audited: bool = False
    to_the_end: bool = False
    digest_key: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.groups_count <= limits.KEY_GROUPS_MAX:
            raise UsageError(f"key groups are 1 to {limits.KEY_GROUPS_MAX}, not {self.groups_count}")
        if self.pages_count < 1:
            raise UsageError(f"a key group has a page or more, not {self.pages_count}")
        if self.order not in (EVENT_TIME, ARRIVAL):
            raise UsageError(f"the order is {EVENT_TIME} or {ARRIVAL}, not {self.order}")
        if not 1 <= self.levels_count <= limits.PRODUCE_DEPTH_MAX + 1:
            raise UsageError(f"levels are 1 to {limits.PRODUCE_DEPTH_MAX + 1}, not {self.levels_count}")
        if not self.domains:
            raise UsageError("the job has no key to route events by; give rules, or name keys with --key")

    def begin(self) -> Job:
        """Return the job with a new key of its digests. A job that continues takes the key from its folder."""
        return replace(self, digest_key=token_hex(_KEY_BYTES))

    @property
    def read_ahead_ms(self) -> int | None:
        """How far a partition with a backlog is read beyond the slowest one; None, in order of arrival: no limit."""
        return None if self.order == ARRIVAL else self.lateness_ms + limits.READ_AHEAD_MS_MAX

    def latest_ms(self, now_ms: int) -> int:
        """Return the latest time that an event or a heartbeat may have at this clock."""
        return limits.TIME_MS_MAX if self.ahead_ms is None else now_ms + self.ahead_ms

    def govern(self, rulebook: Rulebook) -> None:
        rulebook.trust, rulebook.is_audited = self.trust, self.is_audited

    def to_json(self) -> dict[str, Any]:
        return {
            "event_types": self.schema.to_json(),
            "key_domains": [list(domain) for domain in self.domains],
            **{name: getattr(self, name) for name in _PLAIN},
            **({} if self.trust is None else {"trust": self.trust.to_json()}),
            **({"is_audited": True} if self.is_audited else {}),
            **({"digest_key": self.digest_key} if self.digest_key else {}),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Job:
        """Invert `to_json`. Raises: KeyError, TypeError or ValueError for other values."""
        return Job(
            Schema.from_json(data["event_types"]),
            tuple(texts("a key", domain) for domain in data["key_domains"]),
            trust=None if data.get("trust") is None else Trust.from_json(data["trust"]),
            is_audited=of_type("is_audited", data.get("is_audited", False), bool),
            digest_key=bytes.fromhex(of_type("digest_key", data.get("digest_key", ""), str)).hex(),
            **{name: of_type(name, {**_LATER, **data}[name], type_) for name, type_ in _PLAIN.items()},
        )


def add_counts(counters: Counter[str], more: Mapping[str, int]) -> None:
    """Add `more`. Like `Counter.update`, without its check of the argument."""
    before = counters.get
    for name, count in more.items():
        counters[name] = before(name, 0) + count


def nonzero(counters: Counter[str]) -> Counter[str]:
    """Return the counters that say something; some are negative."""
    return counters if all(counters.values()) else Counter({name: n for name, n in counters.items() if n})
