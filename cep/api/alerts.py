"""The result of a replay → alerts for a user: a frame, the events of each alert, pictures and charts.

A chart has counts, and no alert.
Tested by: tests/api/test_match.py, tests/api/test_alerts.py
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from cep.analysis.page import Chart, axis, colors, svg
from cep.api.events import Source
from cep.api.replay import GivenRules, Outcome
from cep.api.why import Why, explain
from cep.base.errors import UsageError
from cep.base.schema import Kind, Type
from cep.columnar.batch import TEXT
from cep.columnar.decode import KEY_SEPARATOR
from cep.columnar.texts import different_count, encoded
from cep.lang.diagnostics import did_you_mean
from cep.report.picture import timeline, timeline_spec
from cep.runners.output import check_writable, format_of, write_outputs
from cep.sources.csv_form import unique_names
from cep.step.rejections import rejections_of
from cep.step.step import suppressed_lines

VEGA_LITE = "application/vnd.vegalite.v5+json"


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture as SVG, its text for places without pictures, and its Vega-Lite if it is a chart."""

    svg: str
    text: str = ""
    spec: dict[str, Any] | None = None

    def __str__(self) -> str:
        return self.text or self.svg

    __repr__ = __str__

    def _repr_svg_(self) -> str:
        return self.svg

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        chart = {} if self.spec is None else {VEGA_LITE: self.spec}
        return {**chart, "image/svg+xml": self.svg, "text/plain": str(self)}


_BARS_MAX = 20


@dataclass(frozen=True, slots=True)
class Plot:
    """A chart of counts: `spec` is its Vega-Lite, `svg` the picture, and the text describes it."""

    _chart: Chart

    @property
    def spec(self) -> dict[str, Any]:
        """The chart in Vega-Lite, to change or to save."""
        return self._chart.spec()

    @property
    def svg(self) -> str:
        """The chart as SVG. Raises: UsageError without the extra `charts`."""
        return svg(self._chart)

    def __str__(self) -> str:
        return self._chart.text

    __repr__ = __str__

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        bundle = {VEGA_LITE: self.spec, "text/plain": str(self)}
        try:
            return {**bundle, "image/svg+xml": self.svg}
        except UsageError:
            return bundle


def by_day(alerts: pa.Table) -> Plot:
    """Draw the alerts of each calendar day, in UTC, by rule, for the rules with the most alerts."""
    counts = pc.value_counts(alerts["rule_id"]).to_pylist()
    rules = sorted(each["values"] for each in sorted(counts, key=lambda each: -each["counts"])[:_BARS_MAX])
    days = pc.strftime(alerts["detected_at"], "%Y-%m-%d")
    grouped = (
        pa.table({"day": days, "rule": alerts["rule_id"]}).group_by(["day", "rule"]).aggregate([([], "count_all")])
    )
    rows = [
        {"day": row["day"], "rule": row["rule"], "alerts": row["count_all"]}
        for row in grouped.sort_by([("day", "ascending"), ("rule", "ascending")]).to_pylist()
        if row["rule"] in rules
    ]
    drawing = {
        "mark": {"type": "bar", "width": {"band": 0.9}},
        "encoding": {
            "x": axis("day", "day (UTC)", "temporal", timeUnit="utcyearmonthdate"),
            "y": axis("alerts", "alerts a day", stack="zero"),
            "color": colors("rule", rules),
        },
    }
    shown = {row["day"] for row in rows}
    text = f"{sum(row['alerts'] for row in rows):,} alerts of {len(rules)} rules on {len(shown)} days"
    return Plot(Chart("Alerts a day", text, rows, drawing))


def spread(values: pa.ChunkedArray, rule_id: str, measure: str) -> Plot:
    """Draw how often which values came: numbers in ranges, others by value. Raises: UsageError."""
    measured = values.drop_null()
    type_ = measured.type
    is_number = pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_)
    title = f"{rule_id}: {measure}"
    if is_number and different_count(np.asarray(measured.cast(pa.float64()))) > _BARS_MAX:
        return Plot(_ranges(measured, title, measure))
    return Plot(_values(measured, title, measure, ordered=is_number))


def _ranges(values: pa.ChunkedArray, title: str, measure: str) -> Chart:
    """Draw how many alerts have a value in each of _BARS_MAX equal ranges, without infinities."""
    numbers = np.asarray(values.cast(pa.float64()))
    try:
        counts, edges = np.histogram(numbers[np.isfinite(numbers)], bins=_BARS_MAX)
    except ValueError as error:
        raise UsageError(f"the values of `{measure}` are too far apart to be drawn") from error
    rows = [
        {"from": low, "to": high, "alerts": count}
        for low, high, count in zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True)
    ]
    drawing = {
        "mark": {"type": "bar"},
        "encoding": {
            "x": axis("from", measure, bin={"binned": True}),
            "x2": {"field": "to"},
            "y": axis("alerts", "alerts"),
        },
    }
    median = float(np.median(numbers))
    return Chart(title, f"{title} of {len(numbers):,} alerts, half of them up to {median:g}", rows, drawing)


def _values(values: pa.ChunkedArray, title: str, measure: str, *, ordered: bool) -> Chart:
    """Draw a bar for each of the most frequent values: the number of its alerts. `ordered`: sort the bars by value."""
    if pa.types.is_large_string(values.type) or pa.types.is_string(values.type):  # senders choose texts
        values = pa.chunked_array([encoded(values.combine_chunks().cast(TEXT))])  # a keyed hash prevents collisions
    elif pa.types.is_boolean(values.type):
        values = values.cast(TEXT)
    counts = sorted(pc.value_counts(values).to_pylist(), key=lambda each: -each["counts"])
    chosen = counts[:_BARS_MAX]
    if ordered:
        chosen = sorted(chosen, key=lambda each: float(each["values"]))
    rows = [{"value": str(each["values"]), "alerts": each["counts"]} for each in chosen]
    drawing = {
        "mark": {"type": "bar"},
        "encoding": {"x": axis("alerts", "alerts"), "y": axis("value", measure, "nominal", sort=None)},
    }
    shown = f"the {len(rows)} most frequent of {len(counts):,} values" if len(counts) > len(rows) else "all values"
    return Chart(title, f"{title} of {len(values):,} alerts: {shown}", rows, drawing, height=max(20 * len(rows), 40))


_SHOWN_MAX = 20
_SHOWN = ("detected_at", "rule_id", "key", "severity", "message")
_MEASURES = {Kind.INT: pa.int64(), Kind.FLOAT: pa.float64(), Kind.BOOL: pa.bool_()}


@dataclass(frozen=True)
class Alerts:
    """The alerts of rules over a history, in the order (detected_at, alert_id)."""

    _given: GivenRules
    _outcome: Outcome
    _source: Source

    @property
    def table(self) -> pa.Table:
        """The alerts as Arrow, with the columns of every sink."""
        return self._outcome.replayed.alerts

    @cached_property
    def frame(self) -> Any:
        """The alerts in the kind of frame that the events came in."""
        return self._source.to_frame(self.table)

    @cached_property
    def members(self) -> Any:
        """Every event that an alert binds: its alert, its place, its variable, its id and time.

        A produced event is followed by the events of the source from which it was made, with the variables of all
        matches in between: `hop.deposit` has level 2. Events that the alert itself binds have level 1.
        """
        return self._source.to_frame(members_of(self.table))

    @cached_property
    def suppressed(self) -> Any:
        """The alerts that rules hold back, with the reason: shadow, snoozed, excluded, suppressed."""
        suppression = self._outcome.suppression
        reasons = pa.array(suppression.reasons, pa.string())
        return self._source.to_frame(suppression.suppressed.append_column("reason", reasons))

    @property
    def counters(self) -> Counter[str]:
        """The counts of records, events and runs, by the names of metrics."""
        return self._outcome.replayed.counters

    @property
    def set_aside(self) -> list[dict[str, Any]]:
        """The records that could not be read, each with a code and a reason."""
        return [json.loads(letter) for letter in self._outcome.replayed.dead_letters]

    def measures(self, rule_id: str) -> Any:
        """Return the measures of a rule's pattern: `alert_id`, `version`, and a typed column for each measure.

        A measure that is itself called `version` is the column `version#2`.

        Raises: UsageError for a rule that is not in force.
        """
        return self._source.to_frame(measures_of(self._given, self.table, rule_id))

    def why(self, which: int | str) -> Why:
        """Explain an alert, by its row or the beginning of its id: each event that it binds, and its step.

        Raises: UsageError for an unknown alert.
        """
        return explain(self._given, self._row(which), self._source)

    def timeline(self, which: int | str = 0) -> Picture:
        """Draw the events of an alert over time, a line for each variable. Raises: UsageError."""
        row = self._row(which)
        return Picture(timeline(row), spec=timeline_spec(row))

    def by_day(self) -> Plot:
        """Draw how many alerts each rule gives on each day, in UTC."""
        return by_day(self.table)

    def spread(self, rule_id: str, measure: str) -> Plot:
        """Draw the distribution of a rule's measure over its alerts. Raises: UsageError for an unknown measure."""
        table = measures_of(self._given, self.table, rule_id)
        names = table.column_names[2:]  # behind the id and the version of the alert
        if measure not in names:
            hint = did_you_mean(measure, names, "measures")
            raise UsageError(f"the rule `{rule_id}` emits no `{measure}`; {hint}")
        return spread(table[measure], rule_id, measure)

    def write(self, path: str | Path) -> list[Path]:
        """Write the files that `cep replay --out` writes, byte for byte. Raises: UsageError, SinkError."""
        file = Path(path)
        check_writable(file)
        replayed = self._outcome.replayed
        suppressed = suppressed_lines(self._outcome.suppression)
        return write_outputs(self.table, replayed.dead_letters, file, format_of(file), suppressed)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __repr__(self) -> str:
        return "\n".join([self._summary(), *in_columns([_SHOWN, *self._shown()] if len(self) else [])])

    def _repr_html_(self) -> str:
        head = f"<p>{escape(self._summary())}</p>"
        if not len(self):
            return head
        rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in self._shown())
        titles = "".join(f"<th>{name}</th>" for name in _SHOWN)
        return f"{head}<table><thead><tr>{titles}</tr></thead><tbody>{rows}</tbody></table>{self.timeline(0).svg}"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    def _summary(self) -> str:
        rejections = rejections_of(self.counters, self._outcome.replayed.dead_letters)
        suppressed_count = self._outcome.suppression.suppressed.num_rows
        parts = [f"{_counted(len(self), 'alert')} of {_counted(self.counters['events'], 'event')}"]
        parts += [f"{suppressed_count:,} suppressed"] if suppressed_count else []
        parts += [rejections.summary()] if rejections.rejected_count else []
        parts += [f"the first {_SHOWN_MAX}:"] if len(self) > _SHOWN_MAX else []
        return ", ".join(parts)

    def _shown(self) -> list[list[str]]:
        shown = self.table.slice(0, _SHOWN_MAX).select(list(_SHOWN)).to_pylist()
        return [[str(row[name]).replace(KEY_SEPARATOR, ", ") for name in _SHOWN] for row in shown]

    def _row(self, which: int | str) -> dict[str, Any]:
        if isinstance(which, str):
            rows = np.flatnonzero(np.asarray(pc.starts_with(self.table["alert_id"], which)))
            if len(rows) != 1:
                raise UsageError(f"{len(rows)} alerts have an id that begins with {which}; give the whole id of one")
            which = int(rows[0])
        if not -len(self) <= which < len(self):
            raise UsageError(f"there is no alert {which}, only {len(self)} of them")
        row: dict[str, Any] = self.table.slice(which % len(self), 1).to_pylist()[0]
        return row


def in_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of text as lines, with columns of equal width."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def members_of(alerts: pa.Table) -> pa.Table:
    """Return one row for each event that an alert binds. A derived event is followed by its origins (source events)."""
    bound, bound_alerts = _flat(alerts["events"])
    counts = np.bincount(bound_alerts, minlength=len(alerts))
    place = np.arange(len(bound_alerts)) - np.repeat(np.cumsum(counts) - counts, counts)  # of an event in its alert
    origins, origin_alerts = _flat(alerts["origins"])
    alert_numbers = np.concatenate([bound_alerts, origin_alerts])  # of each row: bound events, then origins
    place = np.concatenate([place, np.asarray(origins.field("place"))]).astype(np.int32)
    level = np.concatenate([np.ones(len(bound_alerts), np.int32), np.asarray(origins.field("level"))])  # 1: bound event
    order = pa.array(np.lexsort((level > 1, place, alert_numbers)))  # an event, then its origins
    rows = pa.array(alert_numbers).take(order)
    columns = {name: alerts[name].take(rows) for name in ("alert_id", "rule_id", "version", "key")}
    columns["place"] = pa.array(place).take(order)
    for name in ("variable", "event_id", "event_time"):
        columns[name] = pa.concat_arrays([bound.field(name), origins.field(name)]).take(order)
    return pa.table(columns | {"level": pa.array(level).take(order)})


def _flat(lists: pa.ChunkedArray) -> tuple[pa.StructArray, np.ndarray]:
    """Return the items of all lists, and the number of the list of each item."""
    whole = lists.combine_chunks()
    whole = pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole
    return whole.flatten(), np.asarray(pc.list_parent_indices(whole))


def measures_of(rules: GivenRules, alerts: pa.Table, rule_id: str) -> pa.Table:
    """Return a rule's measures (values that its alerts emit) as typed columns. Raises: UsageError for unknown rules."""
    versions = rules.versions(rule_id)
    if not versions:
        raise UsageError(rules.reason_against(rule_id))
    of_rule = alerts.filter(pc.equal(alerts["rule_id"], rule_id))
    types: dict[str, pa.DataType] = {}
    for version in versions:
        pattern = version.pattern
        for measure in (*pattern.measures, *(pattern.timeout_measures or ())):
            type_ = _measure_type(measure.value.type)
            types[measure.name] = type_ if types.get(measure.name, type_) == type_ else pa.float64()
    table = of_rule.select(["alert_id", "version"])
    if not types or not of_rule.num_rows:
        return pa.Table.from_arrays(
            [*table.columns, *(pa.nulls(of_rule.num_rows, type_) for type_ in types.values())],
            unique_names([*table.column_names, *types]),
        )
    lines = "\n".join(of_rule["measures"].to_pylist()).encode()  # a line of JSON for each alert
    options = pj.ParseOptions(explicit_schema=pa.schema(list(types.items())), unexpected_field_behavior="ignore")
    read = pj.ReadOptions(use_threads=False, block_size=len(lines) + 1)  # all in one block
    try:
        values = pj.read_json(pa.py_buffer(lines), read_options=read, parse_options=options)
    except pa.ArrowInvalid:
        message = 'emit values of other types under one name; read `table["measures"]`, the JSON of each alert'
        raise UsageError(f"the versions of `{rule_id}` {message}") from None
    return pa.Table.from_arrays(
        [*table.columns, *values.columns], unique_names([*table.column_names, *values.column_names])
    )


def _measure_type(type_: Type) -> pa.DataType:
    if type_.kind is Kind.DECIMAL:
        return pa.decimal128(min(19 + type_.scale, 38), type_.scale)
    return pa.timestamp("ms", "UTC") if type_.kind is Kind.TIME else _MEASURES.get(type_.kind, pa.string())


def _counted(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
