"""The metrics of a job, minute by minute → which rules of `cep monitor alerts` ring, and when.

It reads the rules' expressions as Prometheus does, as far as they have one of five shapes; `promtool` reads all.
Tested by: tests/faults/test_faults.py
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.core import Metric

from cep.model.rule import duration_ms
from tests.cli.monitored import rules

Labels = frozenset[tuple[str, str]]
_NUMBER = r"([\d.e]+)"
_COMPARED = re.compile(rf"(\w+) (==|>|<) {_NUMBER}")
_INCREASE = re.compile(rf"increase\((\w+)\[(\w+)\]\) > {_NUMBER}")
_SHARE = re.compile(rf"(?:sum without \(\w+\) \()?rate\((\w+)\[(\w+)\]\)\)? / rate\((\w+)\[\w+\]\) > {_NUMBER}")
_ABSENT = re.compile(r"absent\((\w+)\)")
_UNITS = {"m": "min", "h": "h", "s": "s"}


@dataclass
class Alarms:
    """Rings what is to ring. `rung` has for each alarm the times of the scrapes at which it did."""

    samples: list[tuple[int, dict[str, dict[Labels, float]]]] = field(default_factory=list)
    since_ms: dict[str, int] = field(default_factory=dict)
    rung: dict[str, list[int]] = field(default_factory=dict)

    def scrape(self, now_ms: int, families: Iterable[Metric] | None) -> None:
        """Take the metrics of a minute, None if nobody answers, and see what rings."""
        values: dict[str, dict[Labels, float]] = {}
        for family in families or ():
            for sample in family.samples:
                values.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
        self.samples.append((now_ms, values))
        for rule in _rules():
            name, wait_ms = rule["alert"], _ms(rule.get("for", "0s"))
            if not any(self._is_so(part) for part in rule["expr"].split(" or ")):
                self.since_ms.pop(name, None)
                continue
            since_ms = self.since_ms.setdefault(name, now_ms)
            if now_ms - since_ms >= wait_ms:
                self.rung.setdefault(name, []).append(now_ms)

    def _is_so(self, expression: str) -> bool:
        values = self.samples[-1][1]
        if compared := _COMPARED.fullmatch(expression):
            name, sign, bound = compared.groups()
            return any(_is(value, sign, float(bound)) for value in values.get(name, {}).values())
        if increase := _INCREASE.fullmatch(expression):
            return self._more(increase[1], _ms(increase[2])) > float(increase[3])
        if share := _SHARE.fullmatch(expression):
            whole = self._more(share[3], _ms(share[2]))
            return whole > 0 and self._more(share[1], _ms(share[2])) / whole > float(share[4])
        if absent := _ABSENT.fullmatch(expression):
            return absent[1] not in values
        return False

    def _more(self, name: str, within_ms: int) -> float:
        """Return by how much a counter has risen; where it began again it began at 0."""
        now_ms, risen = self.samples[-1][0], 0.0
        before: Mapping[Labels, float] | None = None
        for at_ms, values in self.samples:
            if at_ms < now_ms - within_ms or name not in values:
                continue
            now = values[name]
            if before is not None:
                for labels, value in now.items():
                    earlier = before.get(labels, value)
                    risen += value - earlier if value >= earlier else value
            before = now
        return risen


@functools.cache
def _rules() -> list[dict[str, Any]]:
    return rules()


def _is(value: float, sign: str, bound: float) -> bool:
    return {"==": value == bound, ">": value > bound, "<": value < bound}[sign]


def _ms(text: str) -> int:
    """Return a duration of Prometheus in milliseconds."""
    number, unit = int(text[:-1]), text[-1]
    return duration_ms(f"{number} {_UNITS[unit]}") if number else 0
