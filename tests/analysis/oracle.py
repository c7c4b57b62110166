"""The figures of a backtest, computed by DuckDB from the alerts, the events and the labels: a second opinion."""

from typing import Any

import duckdb
import pyarrow as pa

# `f`: known labelled events with their fraud. `b`: pairs (alert, event); the events that a produced event was made of
# stand in its place. `d`: alerts with their verdict.
_VIEWS = """
create view l as select * from labels where reported_at <= {as_of};
create view e as select *, epoch_ms(event_time) as t from events
    where epoch_ms(event_time) <= {as_of};
create view f as select e.*, coalesce(l.episode, 'alone ' || l.event_id) as fraud,
    l.kind from e join l on l.event_id = e.tx_id where l.label and e.t <= {as_of} - {maturity};
create view fr as select fraud, min(t) as first_t, max(t) as last_t, sum(amount) as money from f group by 1;
create view kinds as select fraud, arg_min(kind, n) as kind from (
    select coalesce(episode, 'alone ' || event_id) as fraud, kind, n from numbered
    where label and reported_at <= {as_of} and event_id in (select tx_id from f)) group by 1;
create view a as select *, epoch_ms(detected_at) as t from alerts where epoch_ms(detected_at) <= {as_of};
create view u as select a.alert_id, a.rule_id, a.key, a.t, unnest(a.events).event_id as id from a;
create view m as select alert_id as match, unnest(events).event_id as id from made;
create table b as with recursive w as (
    select alert_id, rule_id, key, t, id, regexp_extract(id, '~([0-9a-f]+)$', 1) as match from u
    union select w.alert_id, w.rule_id, w.key, w.t, m.id, regexp_extract(m.id, '~([0-9a-f]+)$', 1)
    from w join m using (match) where w.match <> '')
    select * exclude (match) from w where match = '';
create view d as select a.alert_id, a.rule_id, a.key, a.t,
    bool_or(f.tx_id is not null) and not bool_or(e.t > {as_of} - {maturity}) as is_right,
    bool_or(e.t > {as_of} - {maturity}) as is_immature
    from a join b using (alert_id) left join f on f.tx_id = b.id left join e on e.tx_id = b.id
    group by all;
create view cases as select *, sum(begins) over (partition by rule_id, key order by t rows unbounded preceding) as n
    from (select *, case when t - lag(t) over (partition by rule_id, key order by t) <= 86400000 then 0 else 1 end
          as begins from d);
create view hit as select b.rule_id, f.fraud, min(b.t) as t from b join f on f.tx_id = b.id group by all;
"""
_FIGURES = """
with d as (select * from d where {rule}), hit as (select fraud, min(t) as t from hit where {rule} group by 1),
     b as (select * from b where {rule}),
     others as (select distinct fraud from hit_all where not ({rule})),
     spread as (select rule_id, fraud, 1 / count(*) over (partition by fraud) as part from hit_all)
select
    (select count(*) from d) as alerts,
    (select count(distinct key) from d) as keys,
    (select count(*) from d where is_right) as right,
    (select count(*) from d where is_immature) as immature,
    (select count(distinct f.tx_id) from f join b on b.id = f.tx_id) as found_events,
    (select count(*) from f) as bad_events,
    (select count(*) from hit) as found_frauds,
    (select count(*) from fr) as frauds,
    (select coalesce(sum(money), 0) from fr join hit using (fraud)) as money_found,
    (select coalesce(sum(amount), 0) from f join hit using (fraud) where f.t >= hit.t) as money_after_alert,
    (select coalesce(sum(money), 0) from fr anti join hit using (fraud)) as money_missed,
    (select median(hit.t - first_t) / 1000 from hit join fr using (fraud)) as seconds_to_alert,
    (select median(last_t - hit.t) / 1000 from hit join fr using (fraud)) as seconds_ahead,
    (select count(*) from hit anti join others using (fraud)) as adds,
    (select coalesce(sum(part), 0) from spread where {rule}) as share,
    (select count(*) from e, terms where e.t <= terms.mature_ms) as mature_events
"""


def views(
    alerts: pa.Table,
    events: pa.Table,
    labels: pa.Table,
    as_of_ms: int,
    maturity_ms: int,
    produced: pa.Table | None = None,
) -> Any:
    """Create the views. `produced` are the matches that produced events, as alerts."""
    connection = duckdb.connect()
    produced = alerts.slice(0, 0) if produced is None else produced
    alerts = alerts.append_column("n", pa.array(range(alerts.num_rows)))
    for name, table in (("alerts", alerts), ("events", events), ("labels", labels), ("made", produced)):
        connection.register(name, table)
    connection.register("numbered", labels.append_column("n", pa.array(range(labels.num_rows))))
    connection.execute(_VIEWS.format(as_of=as_of_ms, maturity=maturity_ms))
    connection.execute("create view hit_all as from hit")
    connection.execute(
        f"create view terms as select {as_of_ms}::bigint as as_of, {as_of_ms - maturity_ms}::bigint as mature_ms"
    )
    return connection


def figures(connection: Any, rule: str | None) -> dict[str, Any]:
    """Return the figures of one rule, or of all together for None."""
    query = connection.sql(_FIGURES.format(rule="true" if rule is None else f"rule_id = '{rule}'"))
    return dict(zip(query.columns, query.fetchall()[0], strict=True))


def group_precision(connection: Any, rule: str, groups: str) -> tuple[int, int]:
    """Return the right groups of one rule's alerts and all its groups, without groups with an immature alert."""
    row = connection.sql(f"""select count(*) filter (is_right), count(*) from (
        select bool_or(is_right) as is_right from cases where rule_id = '{rule}' group by {groups}
        having not bool_or(is_immature))""").fetchall()[0]  # fmt: skip
    return int(row[0]), int(row[1])
