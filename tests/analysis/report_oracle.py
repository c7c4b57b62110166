"""Compare the numbers of a report with DuckDB: days, weeks, budget, sets of rules, kinds, fields, curves, near lines.

The views are those in `oracle.py`. Curves and lines are compared for rules of one condition, `amount > PARAM`.
"""

from collections.abc import Iterator, Mapping
from math import isclose
from typing import Any

_DAY_MS = 86_400_000
_WEEK = "strftime(date_trunc('week', make_timestamp({}t * 1000)), '%Y-%m-%d')"
_SHARES = ("precision", "fraud_recall")


def differences(
    connection: Any, numbers: Mapping[str, Any], maturity_ms: int, single: str = "", review_cost: float = 0.0
) -> tuple[int, list[str]]:
    """Return the count of compared numbers of a report's JSON, and the differences.

    `single` is the rule whose curves are compared.
    """
    count, wrong = 0, []
    budget = [_flat(row) for row in numbers["budget"]], list(_budget(connection, numbers, review_cost))
    for name, mine, theirs in (("budget", *budget), *_pairs(connection, numbers, maturity_ms, single)):
        for place, one, other in _leaves(name, mine, theirs):
            count += 1
            if one != other and not (
                isinstance(one, int | float) and isinstance(other, int | float)
                and isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
            ):  # fmt: skip
                wrong.append(f"{place}: {one} is {other}")
    return count, wrong


def _leaves(name: str, mine: Any, theirs: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(theirs, list | tuple) and isinstance(mine, list):
        yield f"{name}, length", len(mine), len(theirs)
        for index, (one, other) in enumerate(zip(mine, theirs, strict=False)):
            yield from _leaves(f"{name}[{index}]", one, other)
    elif isinstance(theirs, dict) and isinstance(mine, dict):
        yield f"{name}, keys", sorted(mine), sorted(theirs)
        for key in theirs.keys() & mine.keys():
            yield from _leaves(f"{name}.{key}", mine[key], theirs[key])
    else:
        yield name, mine, theirs


def _rows(connection: Any, query: str, *values: Any) -> list[dict[str, Any]]:
    result = connection.execute(query, list(values))
    names = [column[0] for column in result.description]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def _pairs(
    connection: Any, numbers: Mapping[str, Any], maturity_ms: int, single: str
) -> Iterator[tuple[str, Any, Any]]:
    yield "days", numbers["days"], _rows(connection, """
        select strftime(make_timestamp(t * 1000), '%Y-%m-%d') as day, rule_id as rule,
               count(*) filter (is_right) as right, count(*) filter (not is_right and not is_immature) as wrong,
               count(*) filter (is_immature) as immature from d group by 1, 2 order by 1, 2""")  # fmt: skip
    yield "overlap", numbers["overlap"], _rows(connection, """
        with s as (select fr.fraud, list_sort(coalesce(list(h.rule_id) filter (h.rule_id is not null), []::varchar[]))
                   as rules from fr left join hit h using (fraud) group by fr.fraud)
        select rules, count(*) as frauds from s group by rules order by frauds desc, rules limit 30""")  # fmt: skip
    yield from _kinds(connection, numbers)
    yield from _weeks(connection, numbers)
    yield from _fields(connection, numbers)
    for curve in numbers["thresholds"]:
        if curve["rule"] == single:
            for point in curve["points"]:
                theirs = _over(connection, maturity_ms, point["value"], None)
                yield f"{curve['param']} {point['value']}", _point(point), theirs
    for line in numbers["near_thresholds"]:
        if line["rule"] == single:
            yield from _near(connection, line, maturity_ms)


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    shares = {f"{name}_{part}": row[name][part] for name in _SHARES for part in ("part", "whole")}
    return {**{name: value for name, value in row.items() if name not in _SHARES}, **shares}


def _budget(connection: Any, numbers: Mapping[str, Any], review_cost: float) -> Iterator[dict[str, Any]]:
    days = numbers["about"]["days"]
    for row in numbers["budget"]:
        (one,) = _rows(connection, f"""
            with ranked as (select d.*, row_number() over (partition by d.t // {_DAY_MS}
                     order by a.score desc, a.t, a.n) as place from d join a using (alert_id)),
                 taken as (from ranked where place <= ?),
                 found as (select distinct fraud from taken join b using (alert_id) join f on f.tx_id = b.id)
            select count(*) as alerts, count(*) filter (is_right) as precision_part,
                   count(*) filter (not is_immature) as precision_whole,
                   (select count(*) from found) as fraud_recall_part, (select count(*) from fr) as fraud_recall_whole,
                   (select coalesce(sum(money), 0) from fr join found using (fraud)) as money_found from taken""",
            row["alerts_a_day"])  # fmt: skip
        less = one["money_found"] - review_cost * one["alerts"]
        yield {"alerts_a_day": row["alerts_a_day"], "mean_alerts_a_day": one["alerts"] / days,
               "money_less_reviews": less, **one}  # fmt: skip


def _kinds(connection: Any, numbers: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    kinds = _rows(connection, "select coalesce(kind, '') as kind, count(*) as frauds from kinds group by 1")
    yield "kinds", numbers["about"]["frauds_by_kind"], {row["kind"]: row["frauds"] for row in kinds}
    for each in [*numbers["rules"], numbers["together"]]:
        hits = _rows(connection, """
            select coalesce(kind, '') as kind, count(distinct hit.fraud) as part from kinds left join
            (from hit where ? or rule_id = ?) hit using (fraud) group by 1""",
            each is numbers["together"], each["rule"])  # fmt: skip
        mine = {kind: share["part"] for kind, share in each["recall_by_kind"].items()}
        yield f"{each['rule']} by kind", mine, {row["kind"]: row["part"] for row in hits}


def _weeks(connection: Any, numbers: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    events = _rows(connection, f"""
        select {_WEEK.format("e.")} as week, count(*) as events, count(f.tx_id) as fraud_events,
               count(*) filter (e.t <= (select mature_ms from terms)) as mature_events,
               quantile_cont(e.amount::double, [0.5, 0.95]) as amount from e left join f using (tx_id)
        group by 1 order by 1""")  # fmt: skip
    alerts = _rows(connection, f"""
        select {_WEEK.format("")} as week, rule_id as rule, count(*) as alerts,
               count(*) filter (is_right) / nullif(count(*) filter (not is_immature), 0) as precision
        from d group by 1, 2""")  # fmt: skip
    by_place = {(row.pop("week"), row["rule"]): row for row in alerts}
    for row in events:
        row["rules"] = [
            by_place.get((row["week"], each["rule"]), {"rule": each["rule"], "alerts": 0, "precision": None})
            for each in numbers["rules"]
        ]
    yield "weeks", numbers["weeks"], events


def _fields(connection: Any, numbers: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for field in numbers["fields"]:
        name = field["field"]
        if not field["values"]:
            rows = _rows(connection, f"""
                select {_WEEK.format("")} as week, quantile_cont({name}::double, [0.05, 0.25, 0.5, 0.75, 0.95]) as q
                from e where {name} is not null group by 1 order by 1""")  # fmt: skip
            mine = [row["quantiles"] for row in field["weeks"] if row["quantiles"] is not None]
            yield name, mine, [row["q"] for row in rows]
            continue
        shares = ", ".join(f"count(*) filter ({name}::varchar = ?) / count(*)" for _ in field["values"])
        rows = _rows(connection, f"""
            select {_WEEK.format("")} as week, count(distinct {name}) as distinct_values, [{shares}] as shares
            from e where {name} is not null group by 1 order by 1""", *field["values"])  # fmt: skip
        mine = [row for row in field["weeks"] if row["shares"] is not None]
        yield (
            name,
            [[row["distinct"], row["shares"]] for row in mine],
            [[row["distinct_values"], row["shares"]] for row in rows],
        )


def _over(connection: Any, maturity_ms: int, low: float, high: float | None) -> dict[str, Any]:
    """Return the figures of a rule `amount > low` on the events up to `high`."""
    (row,) = _rows(connection, """
        with m as (select e.tx_id, e.t, f.fraud from e left join f using (tx_id)
                   where round(e.amount::double * 100) > ? and (? or round(e.amount::double * 100) <= ?))
        select count(*) as alerts, count(fraud) as right, count(distinct fraud) as frauds,
               count(*) filter (fraud is null and tx_id not in (select event_id from l where not label)
                                and m.t > (select as_of from terms) - ?) as immature,
               (select coalesce(sum(money), 0) from fr where fraud in (select fraud from m)) as money from m""",
        round(low * 100), high is None, round((high or 0) * 100), maturity_ms)  # fmt: skip
    return row


def _point(point: Mapping[str, Any]) -> dict[str, Any]:
    precision = point["precision"]
    return {"alerts": point["alerts"], "right": precision["part"], "immature": point["alerts"] - precision["whole"],
            "frauds": point["fraud_recall"]["part"], "money": point["money_found"]}  # fmt: skip


def _near(connection: Any, line: Mapping[str, Any], maturity_ms: int) -> Iterator[tuple[str, Any, Any]]:
    for each in line["intervals"]:
        one = _over(connection, maturity_ms, each["looser"], each["tighter"])
        theirs = (one["right"], one["alerts"] - one["right"] - one["immature"], one["immature"])
        mine = [each["right"], each["wrong"], each["immature"]]
        yield f"near {line['param']} {each['looser']}", mine, theirs
    further = _over(connection, maturity_ms, line["intervals"][-1]["tighter"], None)["alerts"]
    yield f"near {line['param']}, further", line["further"], further
