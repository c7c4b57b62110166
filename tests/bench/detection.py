"""Public labelled data → events and labels, and the alerts of patterns on them.

Transfers are of a generator of laundering: each is money that leaves one account, and money that comes into another.
Card payments are labelled with chargebacks.

Logins are real logs of SSH servers, without labels of break-ins. A break-in is therefore planted for each address that
has only failures: a success ten seconds after the last failure, with its user name.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from cep.lang.load import bundle_source
from cep.model.rule import ParamValue, UpsertRecord
from cep.rulebook.deploy import deploy
from cep.runners.embedded.replay import replay
from cep.sources.pieces import read_pieces
from cep.step.job import Job
from tests.bench.peer_data import SHARED, ULB, upsert

ROOT = Path(__file__).parents[2]
SSH = ULB.with_name("ssh_login_events.parquet")
TRANSFERS = SHARED / "data" / "amlsim_typologies_12k_accounts.parquet"
CHARGEBACKS = SHARED / "data" / "cloudwalk_card_transactions.parquet"
_CARD = """'transaction' as event_type, {id} as tx_id, event_time, {card}::varchar as card_id,
    {account}::varchar as account_id, round(amount, 2) as amount, 'approved' as status, '{channel}' as channel,
    '' as country, null::double as lat, null::double as lon, {device} as device_id,
    {merchant}::varchar as merchant_id"""


def rule(file: str, pattern: str, name: str, params: Mapping[str, ParamValue]) -> UpsertRecord:
    """Return a rule for a pattern of `patterns/`."""
    record = upsert(bundle_source(ROOT / "patterns" / file), pattern)
    return record.model_copy(update={"id": name, "params": dict(params)})


def found(records: Iterable[UpsertRecord], events: pa.Table) -> pa.Table:
    """Return the alerts on a table of events."""
    deployment = deploy(list(records))
    assert deployment.set_aside == (), deployment.set_aside
    job = Job(deployment.schema, deployment.key_domains)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.parquet"
        pq.write_table(events, path)
        replayed = replay(job, deployment.rulebook, read_pieces(path, job.schema), 2)
    assert replayed.dead_letters == (), replayed.dead_letters[:2]
    return replayed.alerts


def _labels(event: str, kind: str) -> str:
    """Return the SQL of the label columns, in which the two data sets differ."""
    return f"{event} as event_id, true as label, {kind} as kind, null::varchar as episode, 0::bigint as reported_at"


def _asked(events: str, labels: str, **tables: pa.Table) -> tuple[pa.Table, pa.Table]:
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        return connection.sql(events).to_arrow_table(), connection.sql(labels).to_arrow_table()


def chargebacks() -> tuple[pa.Table, pa.Table]:
    """Return (events, labels) of card payments online, some of which were charged back."""
    columns = _CARD.format(
        id="tx_id::varchar", card="card_masked", account="user_id", channel="ecom", device="device_id::varchar",
        merchant="merchant_id",
    )  # fmt: skip
    labels = _labels("tx_id::varchar", "'chargeback'")
    return _asked(f"select {columns} from '{CHARGEBACKS}'", f"select {labels} from '{CHARGEBACKS}' where is_chargeback")


def transfers(table: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return (events, labels) of transfers: each is money that leaves an account, and money that comes into another."""
    half = """select 'money' as event_type, '{way}' || tx_id as money_id, event_time, {own}::varchar as account_id,
        '{direction}' as direction, 'transfer' as means, {other}::varchar as counterparty,
        round(amount, 2) as sum_of_money, null::varchar as to_country from given"""
    halves = [
        half.format(way=way, own=account, other=other, direction=direction)
        for way, account, other, direction in (
            ("a", "orig_account_id", "dest_account_id", "outgoing"),
            ("b", "dest_account_id", "orig_account_id", "incoming"),
        )
    ]
    labels = [
        f"select {columns} from given where is_sar"
        for columns in (_labels(f"'{way}' || tx_id", "typology") for way in "ab")
    ]
    return _asked(" union all ".join(halves) + " order by event_time", " union all ".join(labels), given=table)


def logins() -> tuple[pa.Table, pa.Table]:
    """Return (events, labels) of logins to servers, with a break-in after the failures of each address."""
    with duckdb.connect() as connection:
        connection.sql(f"""create table logins as
            select source || '-' || seq as login_id, event_time, source || ' ' || source_ip as source_ip, user_name,
                   event_type = 'login_success' as ok
            from '{SSH}' where event_type in ('login_failed', 'login_success') and source_ip is not null""")
        connection.sql("""create table planted as
            select 'planted-' || row_number() over (order by source_ip), max(event_time) + interval 10 second,
                   source_ip, arg_max(user_name, event_time), true
            from logins group by source_ip having not bool_or(ok)""")
        connection.sql("create table events as from logins union all from planted")
        columns = _labels("login_id", "'break-in'")
        labels = f"select {columns} from events where login_id like 'planted-%'"
        table = connection.sql("select 'login' as event_type, * from events order by event_time").to_arrow_table()
        return table, connection.sql(labels).to_arrow_table()
