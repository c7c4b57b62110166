"""The metrics of a job, minute by minute → which rules of `cep job monitor alerts` ring, for which labels, and when.

It evaluates the rules' expressions as Prometheus does, if they have one of the shapes below, and refuses all others:
otherwise an alarm that it cannot evaluate would look like a silent one. `promtool` reads all rules.
Tested by: tests/faults/test_faults.py
"""

import functools
import itertools
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from prometheus_client.core import Metric

from cep.model.setting_types import duration_ms
from tests.cli.monitored import rules

Labels = frozenset[tuple[str, str]]
Found = dict[Labels, float]
_NUMBER = r"([\d.e]+)"
_UNITS = {"m": "min", "h": "h", "s": "s", "d": "d"}
_ALL: Labels = frozenset()


@dataclass
class Alarms:
    """Evaluates the alarms. `rung` holds for each alarm the times of the scrapes at which it rang.

    An alarm on a part of the job is named with it: `CepPartInTrouble{part="sinks"}`. `scale` shortens every window and
    wait, for a job whose faults last seconds: with 0.1 a minute of a rule is six seconds here.
    """

    scale: float = 1.0
    samples: list[tuple[int, dict[str, Found]]] = field(default_factory=list)
    since_ms: dict[str, int] = field(default_factory=dict)
    rung: dict[str, list[int]] = field(default_factory=dict)

    def scrape(self, now_ms: int, families: Iterable[Metric] | None) -> None:
        """Take the metrics of a moment, None without an answer, and ring the alarms whose expression holds.

        Metrics of several processes carry the label `instance`, as Prometheus adds it.

        Raises: ValueError for a rule that this cannot read.
        """
        values: dict[str, Found] = {}
        for family in families or ():
            for sample in family.samples:
                values.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
        self.samples.append((now_ms, values))
        for rule in _rules():
            wait_ms = _ms(rule.get("for", "0s")) * self.scale
            names = {_named(rule["alert"], labels) for labels in self.so(rule["expr"])}
            for name in [name for name in self.since_ms if name.partition("{")[0] == rule["alert"]]:
                if name not in names:
                    del self.since_ms[name]
            for name in names:
                since_ms = self.since_ms.setdefault(name, now_ms)
                if now_ms - since_ms >= wait_ms:
                    self.rung.setdefault(name, []).append(now_ms)

    def so(self, expression: str) -> set[Labels]:
        """Return the labels for which an expression holds now. Raises: ValueError."""
        holds: set[Labels] = set()
        for parts in parsed(expression):
            each: list[set[Labels]] = []
            for shape, groups in parts:
                each.append(shape(self, *groups))
                if not each[-1]:
                    break
            else:  # parts joined by `and` belong to one process, and the labels come from the first part
                others = [{_instance(labels) for labels in other} for other in each[1:]]
                holds |= {labels for labels in each[0] if all(_instance(labels) in other for other in others)}
        return holds

    # ------------------------------------------------------------------------------------------------------- shapes

    def _compared(self, name: str, sign: str, bound: str) -> set[Labels]:
        return {labels for labels, value in self._now(name).items() if _is(value, sign, float(bound))}

    def _least(self, name: str, sign: str, bound: str) -> set[Labels]:
        values = self._now(name).values()
        return {_ALL} if values and _is(min(values), sign, float(bound)) else set()

    def _summed(self, name: str, bound: str) -> set[Labels]:
        return {one for one, values in _by_instance(self._now(name)).items() if sum(values) > float(bound)}

    def _sloped(self, name: str, within: str, bound: str) -> set[Labels]:
        slopes = {labels: _slope(points) for labels, points in self._series(name, within).items() if len(points) > 1}
        return {one for one, values in _by_instance(slopes).items() if sum(values) > float(bound)}

    def _increased(self, name: str, within: str, bound: str) -> set[Labels]:
        return {one for one, values in _by_instance(self._risen(name, within)).items() if sum(values) > float(bound)}

    def _changed(self, name: str, within: str, bound: str) -> set[Labels]:
        series = _by_instance(
            {labels: float(_changes(points)) for labels, points in self._series(name, within).items()}
        )
        return {one for one, counts in series.items() if sum(counts) > float(bound)}

    def _shared(self, name: str, within: str, whole: str, bound: str) -> set[Labels]:
        parts, wholes = (_by_instance(self._risen(each, within)) for each in (name, whole))
        sums = {one: (sum(parts.get(one, ())), sum(values)) for one, values in wholes.items()}
        return {one for one, (part, total) in sums.items() if total > 0 and part / total > float(bound)}

    def _shared_by_two(self, name: str, within: str, other: str, whole: str, bound: str) -> set[Labels]:
        parts = [_by_instance(self._risen(each, within)) for each in (name, other)]
        wholes = _by_instance(self._risen(whole, within))
        sums = {one: (sum(sum(part.get(one, ())) for part in parts), sum(total)) for one, total in wholes.items()}
        return {one for one, (part, total) in sums.items() if total > 0 and part / total > float(bound)}

    def _divided(self, name: str, by: str, bound: str) -> set[Labels]:
        wholes = _by_instance(self._now(by))
        sums = {one: (sum(values), sum(wholes.get(one, ()))) for one, values in _by_instance(self._now(name)).items()}
        return {one for one, (part, total) in sums.items() if total > 0 and part / total > float(bound)}

    def _absent(self, name: str) -> set[Labels]:
        return set() if self._now(name) else {_ALL}

    def _there(self, name: str) -> set[Labels]:
        return set(_by_instance(self._now(name)))

    def _was_there(self, name: str, within: str) -> set[Labels]:
        return {_instance(labels) for labels in self._series(name, within)}

    def _quantile(self, share: str, name: str, within: str, bound: str) -> set[Labels]:
        below: dict[Labels, dict[float, float]] = {}
        for labels, count in self._risen(name, within).items():
            buckets, edge = below.setdefault(_instance(labels), {}), float(dict(labels)["le"])
            buckets[edge] = buckets.get(edge, 0.0) + count
        return {one for one, counts in below.items() if _at_share(float(share), sorted(counts.items())) > float(bound)}

    # -------------------------------------------------------------------------------------------------------- values

    def _now(self, name: str) -> Found:
        return self.samples[-1][1].get(name, {})

    def _series(self, name: str, within: str) -> dict[Labels, list[tuple[int, float]]]:
        """Return the values of a window by labels, with their times."""
        from_ms = self.samples[-1][0] - _ms(within) * self.scale
        series: dict[Labels, list[tuple[int, float]]] = {}
        for at_ms, values in self.samples[bisect_left(self.samples, from_ms, key=itemgetter(0)) :]:
            for labels, value in values.get(name, {}).items():
                series.setdefault(labels, []).append((at_ms, value))
        return series

    def _risen(self, name: str, within: str) -> Found:
        """Return the increase of counters in a window; a counter that was reset began at 0."""
        return {
            labels: sum(now - before if now >= before else now for (_, before), (_, now) in _pairs(points))
            for labels, points in self._series(name, within).items()
        }


Shape = Callable[..., set[Labels]]
_SHAPES: tuple[tuple[str, Shape], ...] = (
    (rf"(\w+) (==|>|<) {_NUMBER}", Alarms._compared),
    (rf"sum without \(\w+\) \((\w+)\) > {_NUMBER}", Alarms._summed),
    (rf"sum without \(\w+\) \(deriv\((\w+)\[(\w+)\]\)\) > {_NUMBER}", Alarms._sloped),
    (rf"increase\((\w+)\[(\w+)\]\) > {_NUMBER}", Alarms._increased),
    (rf"changes\((\w+)\[(\w+)\]\) > {_NUMBER}", Alarms._changed),
    (rf"(?:sum without \(\w+\) \()?rate\((\w+)\[(\w+)\]\)\)? / rate\((\w+)\[\w+\]\) > {_NUMBER}", Alarms._shared),
    (
        (
            rf"\(sum without \(\w+\) \(rate\((\w+)\[(\w+)\]\)\) \+ rate\((\w+)\[\w+\]\)\)"
            rf" / rate\((\w+)\[\w+\]\) > {_NUMBER}"
        ),
        Alarms._shared_by_two,
    ),
    (rf"(\w+) / (\w+) > {_NUMBER}", Alarms._divided),
    (r"absent\((\w+)\)", Alarms._absent),
    (rf"min by \(job\) \((\w+)\) (==|>|<) {_NUMBER}", Alarms._least),
    (r"(?:on \([\w, ]+\) )?(\w+)", Alarms._there),
    (r"on \([\w, ]+\) last_over_time\((\w+)\[(\w+)\]\)", Alarms._was_there),
    (
        rf"histogram_quantile\({_NUMBER}, sum without \(\w+\) \(rate\((\w+)\[(\w+)\]\)\)\) > {_NUMBER}",
        Alarms._quantile,
    ),
)


@functools.cache
def parsed(expression: str) -> tuple[tuple[tuple[Shape, tuple[str, ...]], ...], ...]:
    """Return an expression as alternatives of parts that hold together. Raises: ValueError."""
    return tuple(
        tuple(_shape(part, expression) for part in either.split(" and ")) for either in expression.split(" or ")
    )


def _shape(part: str, expression: str) -> tuple[Shape, tuple[str, ...]]:
    for pattern, shape in _SHAPES:
        if match := re.fullmatch(pattern, part):
            return shape, match.groups()
    raise ValueError(f"no shape of tests/faults/alarms.py fits {part!r} of the alert rule {expression!r}")


def _instance(labels: Labels) -> Labels:
    """Return the label of the process that a value belongs to; empty if the job has only one process."""
    return frozenset(label for label in labels if label[0] == "instance")


def _by_instance(by_labels: Found) -> dict[Labels, list[float]]:
    values: dict[Labels, list[float]] = {}
    for labels, value in by_labels.items():
        values.setdefault(_instance(labels), []).append(value)
    return values


def _named(alert: str, labels: Labels) -> str:
    part = dict(labels).get("part")
    return alert if part is None else f'{alert}{{part="{part}"}}'


def _pairs(points: list[tuple[int, float]]) -> Iterator[tuple[tuple[int, float], tuple[int, float]]]:
    return itertools.pairwise(points)


def _changes(points: list[tuple[int, float]]) -> int:
    return sum(before != now for (_, before), (_, now) in _pairs(points))


def _slope(points: list[tuple[int, float]]) -> float:
    """Return the slope of the line of least squares, per second."""
    times = [at_ms / 1_000 for at_ms, _ in points]
    middle, level = sum(times) / len(times), sum(value for _, value in points) / len(points)
    spread = sum((time_s - middle) ** 2 for time_s in times)
    return sum((time_s - middle) * (value - level) for time_s, (_, value) in zip(times, points, strict=True)) / spread


def _at_share(share: float, below: list[tuple[float, float]]) -> float:
    """Return the value below which a share of a histogram lies: linear within a bucket, as in Prometheus."""
    total = below[-1][1]
    low, before = 0.0, 0.0
    for bound, count in below:
        if total > 0 and count >= share * total:
            is_last = bound == float("inf")
            return low if is_last else low + (bound - low) * (share * total - before) / max(count - before, 1e-9)
        low, before = bound, count
    return float("-inf")  # the histogram is empty


@functools.cache
def _rules() -> list[dict[str, Any]]:
    return rules()


def _is(value: float, sign: str, bound: float) -> bool:
    return {"==": value == bound, ">": value > bound, "<": value < bound}[sign]


def _ms(text: str) -> int:
    """Return a duration of Prometheus in milliseconds."""
    number, unit = int(text[:-1]), text[-1]
    return duration_ms(f"{number} {_UNITS[unit]}") if number else 0
