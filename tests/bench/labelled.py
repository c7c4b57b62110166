"""Labelled data, simulated or next to the repository → events and labels, with the columns that rules and models read.

`cards` are payments with a report of each fraud days later, `laundering` transfers, each as money that leaves one
account and comes into another, `charged_back` one month of a payments company, `logged_in` logins to servers with
planted break-ins, `among_honest` frauds of a field planted among the events of honest people.

Logins are real logs of SSH servers, without labels of break-ins. A break-in is therefore planted for each address that
has only failures: a success ten seconds after the last failure, with its user name. For a field of planted fraud, a
model reads fields of the event and functions of the past: counts and sums that an analyst writes down in an hour, by
event type and by key, over an hour, a day, a week.
Tested by: tests/bench/test_baselines.py
"""

import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cep.lang.load import bundle_source
from cep.model.rule import ParamValue, UpsertRecord
from tests.bench.peer_data import SHARED, ULB, upsert
from tests.bench.planted import FIELDS, planted
from tests.bench.simulated_data import simulated, simulated_transfers
from tests.runners.embedded.cases import replayed_at
from tests.testing.library import PATTERNS

ROOT = Path(__file__).parents[2]
SSH = ULB.with_name("ssh_login_events.parquet")
TRANSFERS = SHARED / "data" / "amlsim_typologies_12k_accounts.parquet"
CHARGEBACKS = SHARED / "data" / "cloudwalk_card_transactions.parquet"
_CARD = """'transaction' as event_type, {id} as tx_id, event_time, {card}::varchar as card_id,
    {account}::varchar as account_id, round(amount, 2) as amount, 'approved' as status, '{channel}' as channel,
    '' as country, null::double as lat, null::double as lon, {device} as device_id,
    {merchant}::varchar as merchant_id"""


def rule(file: str, pattern: str, name: str, params: Mapping[str, ParamValue]) -> UpsertRecord:
    record = upsert(bundle_source(ROOT / "patterns" / file), pattern)
    return record.model_copy(update={"id": name, "params": dict(params)})


def found(records: Iterable[UpsertRecord], events: pa.Table) -> pa.Table:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.parquet"
        pq.write_table(events, path)
        replayed = replayed_at(path, records)
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


def money_moves(table: pa.Table) -> tuple[pa.Table, pa.Table]:
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


_SPANS = {"1h": "1 h", "1d": "1 d", "7d": "7 d"}


@dataclass(frozen=True, slots=True)
class Read:
    """The raw columns of a set, and its features by name."""

    raw: Sequence[str]
    features: Mapping[str, str]


def _counts(event: str, key: str, field: str, values: Sequence[str]) -> dict[str, str]:
    return {
        f"n_{value}_{span}": f"count({event} over previous {window} by {key} where {field} == {value})"
        for value in values
        for span, window in _SPANS.items()
    }


def _over(function: str, name: str, key: str, where: str = "") -> dict[str, str]:
    """Return a function over each span."""
    return {f"{name}_{span}": f"{function} over {window} by {key}{where})" for span, window in _SPANS.items()}


_CASE = "(employee_id, customer_id)"
_STEPS = (
    "password_reset", "device_added", "phone_changed", "email_changed", "sim_changed", "code_sent", "code_passed",
    "payee_added", "address_changed", "limit_raised", "remote_tool_seen",
)  # fmt: skip
_MONEY = "money.sum_of_money"
READ: Mapping[str, Read] = {
    "takeover": Read(
        ("step", "paid as amount"),
        _counts("account_event", "user_id", "step", _STEPS)
        | _over("sum(account_event.paid", "paid", "user_id", " where step == payment")
        | {"usual": "median(account_event.paid over previous 60 d by user_id where step == payment)"}
        | {"payee_times": "count(account_event over previous 60 d by (user_id, payee) where step == payment)"},
    ),
    "insiders": Read(
        ("act", "case_id is null as without_case", "paid as amount"),
        _over("distinct(staff_event.customer_id", "looked_at", "employee_id", " where case_id is null")
        | _over("count(staff_event", "all_acts", "employee_id")
        | {
            f"{act}_{days}": f"count(staff_event over previous {days} d by {_CASE} where act == {act})"
            for act in ("contact_changed", "password_reset", "limit_changed", "waived")
            for days in (3, 30)
        },
    ),
    "lending": Read(
        ("loan_step", "credit as amount"),
        _counts("loan_event", "customer_id", "loan_step", ("applied", "drawn", "repaid", "returned"))
        | {
            "good": "count(loan_event over previous 400 d by customer_id where loan_step == repaid)",
            "usual": "avg(loan_event.credit over previous 400 d by customer_id where loan_step == repaid)",
            "lenders": "distinct(loan_event.lender over 7 d by customer_id where loan_step == applied)",
            "of_device": "distinct(loan_event.customer_id over 7 d by device_id where loan_step == applied)",
        },
    ),
    "money": Read(
        ("direction", "means", "to_country", "sum_of_money as amount"),
        {
            name: text
            for way in ("incoming", "outgoing")
            for name, text in (
                _over(f"sum({_MONEY}", f"sum_{way}", "account_id", f" where direction == {way}")
                | _over("count(money", f"n_{way}", "account_id", f" where direction == {way}")
                | _over("distinct(money.counterparty", f"who_{way}", "account_id", f" where direction == {way}")
            ).items()
        }
        | _over(f"sum({_MONEY}", "cash", "account_id", " where direction == incoming and means == cash")
        | _over("count(money", "coins", "account_id", " where means == exchange")
        | {"usual": f"median({_MONEY} over previous 60 d by account_id)"}
        | {"times": "count(money over previous 60 d by (account_id, counterparty))"},
    ),
    "wallets": Read(
        ("move", "worth as amount"),
        _counts("wallet_event", "wallet_id", "move", ("deposited", "bought", "withdrawn"))
        | _over("sum(wallet_event.worth", "bought", "wallet_id", " where move == bought")
        | {
            "address_times": "count(wallet_event over previous 60 d by (wallet_id, address))",
            "address_sum": "sum(wallet_event.worth over previous 60 d by (wallet_id, address))",
        },
    ),
    "sessions": Read(
        ("lat", "lon"),
        _over("distinct(session.device_id", "devices", "user_id")
        | _over("distinct(session.user_id", "users", "device_id")
        | {
            "device_times": "count(session over previous 60 d by (user_id, device_id))",
            "lat_before": "last(session over previous 2 d by user_id where lat is not null).lat",
            "lon_before": "last(session over previous 2 d by user_id where lon is not null).lon",
        },
    ),
    "guesses": Read(
        ("ok",),
        _over("count(login", "bad_of_source", "source_ip", " where not ok")
        | _over("distinct(login.user_name", "names_of_source", "source_ip")
        | _over("count(login", "bad_of_name", "user_name", " where not ok")
        | _over("distinct(login.source_ip", "sources_of_name", "user_name"),
    ),
}


DELAY_DAYS = 7
NAMES = ("simulated", "laundering", "payments", "transfers", "chargebacks", "logins", *FIELDS)
_RECORDING = "elastic_auth"
Tries = Mapping[str, Mapping[str, str]]
# The values of `cep rules tune --try`, by pattern: an analyst knows the size of amounts and the pace of the business.
_TRIES: dict[str, Tries] = {
    "payments": {
        "leaked_customer": {"times": "1.5..6/19", "known": "1,3,5,10", "back": "7d,14d,30d,60d"},
        "compromised_terminal": {"reports": "1,2,3,4", "back": "1d,2d,3d,4d,7d,14d"},
    },
    "transfers": {
        "pass_through": {"least": "300,1000", "share": "0.5,0.9", "window": "3d,14d"},
        "fan_in_then_out": {"payers": "3,5", "least": "300,1000", "share": "0.5,0.8", "window": "20d"},
        "fan_out": {"payees": "5", "least": "300", "part": "50,100", "window": "7d,20d"},
        "there_and_back": {"least": "100,300", "share": "0.95,1.0"},
        "split_transfer": {"limit": "200,500,1000", "parts": "2,3"},
        "small_sums_to_one": {"times": "2,5", "small": "1000", "large": "200,1000", "window": "7d,30d"},
        "passed_on": {"least": "50,100", "window": "3d,7d,14d,20d,30d"},
        "gather_scatter": {"payers": "3,4", "payees": "3,4", "known": "0,2,5"},
    },
    "takeover": {
        "contact_change_then_payout": {"large": "300,500,1000", "window": "1d,2d,3d"},
        "sim_swap": {"large": "100,300,500", "window": "1d,3d,7d"},
        "payment_without_code": {"window": "10m,30m,2h"},
        "new_payee_large_payment": {"times": "3,5,10", "window": "6h,1d,2d"},
        "whole_takeover": {"large": "100,300", "window": "6h,1d,2d"},
        "code_flood": {"codes": "3,4,6", "large": "50,100,300", "window": "10m,30m"},
        "new_device_drain": {"payments": "2,3", "large": "500,1000,1500", "window": "1h,6h"},
        "limit_raised_then_payout": {"times": "3,5,10", "large": "1000,2000", "window": "1d,2d"},
        "card_to_new_address": {"window": "10d,14d,21d"},
        "scam_series": {"payments": "2,3", "least": "100,300,500", "window": "2d,4d"},
        "remote_control_payment": {"large": "100,300,500", "window": "1h,2h"},
    },
    "insiders": {
        "record_browsing": {"customers": "10,20,30", "times": "2,5", "window": "1h,4h"},
        "change_then_payout_by_staff": {"large": "100,300,500", "window": "3d,7d,14d"},
        "favours_for_one_customer": {"favours": "2,3,4", "window": "14d,30d"},
    },
    "lending": {
        "bust_out": {"good": "2,3,4", "least": "500,1000", "share": "0.3,0.5,0.7", "window": "14d,28d"},
        "loan_stacking": {"lenders": "3,4,5", "window": "7d,14d"},
        "application_ring": {"customers": "2,3,4", "window": "7d,14d"},
        "first_payment_default": {"least": "100,500", "window": "30d,45d"},
    },
    "money": {
        "sudden_onramp": {"large": "1000,2000,5000", "window": "1d,3d"},
        "liquidated_at_exchange": {"least": "500,1000", "share": "0.8,0.9,0.95", "window": "4h,1d"},
        "peeling_chain": {"small": "1000,2000", "addresses": "3,4,5", "window": "1h,4h"},
        "pass_through": {"least": "3000,5000,10000", "share": "0.7,0.8,0.9", "window": "3d,7d"},
        "structuring": {"from": "5000,7000,8000", "deposits": "2,3", "window": "1d,3d"},
        "funnel_account": {"deposits": "3,4", "share": "0.6,0.8", "window": "7d,14d"},
        "there_and_back": {"least": "1000,3000,5000", "share": "0.85,0.95", "window": "14d,28d"},
        "new_corridor": {"least": "1000,3000"},
        "cheque_kiting": {"rounds": "1,2", "least": "300,500", "share": "0.6,0.8"},
        "fan_in_then_out": {"payers": "3,5", "least": "1000,3000", "share": "0.6,0.8", "window": "7d,14d"},
        "round_amounts": {"payees": "2,3", "least": "1000,2000,5000"},
    },
    "wallets": {
        "address_poisoning": {"tiny": "1,2,5", "large": "50,100", "window": "7d,30d"},
        "buy_and_withdraw": {"large": "1000,2000,5000", "share": "0.5,0.8,0.95", "window": "10m,1h,1d"},
    },
    "sessions": {
        "device_farm": {"customers": "3,4,5", "window": "12h,1d,2d"},
        "device_hopping": {"devices": "2,3,4", "window": "12h,1d"},
        "impossible_sessions": {"far_km": "300,500", "speed_km_h": "500,1000"},
    },
    "guesses": {
        "credential_stuffing": {"names": "3,5,10", "window": "10m,1h"},
        "password_spraying": {"names": "5,10,20", "each": "2,3"},
        "distributed_guessing": {"addresses": "3,5,10", "window": "1h,6h"},
        "guessed_password": {"tries": "3,5,10"},
        "shared_login": {"addresses": "3,4,5"},
    },
}
_PAST = {
    "n{w}": "count({e} over previous {w} d by {k})",
    "sum{w}": "sum({e}.{a} over previous {w} d by {k})",
    "max{w}": "max({e}.{a} over previous {w} d by {k})",
    "avg{w}": "avg({e}.{a} over previous {w} d by {k})",
}


@dataclass(frozen=True, slots=True)
class Given:
    """A set of data: events and labels, the event types of its rules, the models' columns, and the tuned parameters.

    `labels` has a column `spell` in addition to the usual columns: the run of frauds that an event belongs to. `scored`
    is a query of the events `e` that a model scores: the id, then `raw` columns of the event, then the columns of
    `features`.
    """

    name: str
    events: pa.Table
    labels: pa.Table
    types: frozenset[str]
    scored: str
    raw: int
    features: Mapping[str, str]
    declared: str
    tries: Tries
    gap_days: int = DELAY_DAYS


def _past(event: str, amount: str, keys: tuple[str, ...], days: tuple[int, ...]) -> dict[str, str]:
    return {
        f"{key}_{name.format(w=w)}": text.format(w=w, e=event, a=amount, k=key)
        for key in keys for w in days for name, text in _PAST.items()
    }  # fmt: skip


def cards(name: str, payments: pa.Table) -> Given:
    """Return card payments, and a report of each fraud days later."""
    with duckdb.connect() as connection:
        connection.register("p", payments)
        events = connection.sql(f"""
            select 'payment' as event_type, tx_id::varchar as tx_id, null::varchar as report_id, event_time,
                   customer_id::varchar as customer_id, terminal_id::varchar as terminal_id, round(amount, 2) as amount
            from p union all
            select 'fraud_report', null, 'r' || tx_id, event_time + interval {DELAY_DAYS} day,
                   customer_id::varchar, terminal_id::varchar, null from p
            where is_fraud and event_time + interval {DELAY_DAYS} day <= (select max(event_time) from p)
            order by event_time, report_id nulls first, tx_id""").to_arrow_table()
        labels = connection.sql("""
            with f as (select *, case fraud_scenario when 2 then 't' || terminal_id when 3 then 'c' || customer_id
                                 else 'x' || tx_id end as of from p where is_fraud),
            g as (select *, coalesce(event_time - lag(event_time) over (partition by of order by event_time)
                                     > interval 7 day, true) as begins from f)
            select tx_id::varchar as event_id, true as label, 'kind ' || fraud_scenario as kind,
                   null::varchar as episode, 0::bigint as reported_at,
                   of || '-' || sum(begins::int) over (partition by of order by event_time, tx_id) as spell from g
        """).to_arrow_table()
    features = _past("payment", "amount", ("customer_id",), (1, 7, 30)) | {
        f"terminal_{w}": f"count(fraud_report over {w} d by terminal_id)" for w in (1, 4, 7, 14, 30)
    } | {f"terminal_n{w}": f"count(payment over {w} d by terminal_id)" for w in (1, 7, 30)}  # fmt: skip
    scored = f"""select tx_id, event_time, customer_id::int, terminal_id::int, amount, {", ".join(features)}
        from e where event_type = 'payment'"""
    declared = (PATTERNS / "payments.cep").read_text(encoding="utf-8").split("## A payment far above")[0]
    return Given(
        name, events, labels, frozenset({"payment", "fraud_report"}), scored, 4, features, declared, _TRIES["payments"]
    )  # fmt: skip


def laundering(name: str, transfers: pa.Table) -> Given:
    """Return transfers as money that leaves an account and money that comes into another; a model scores the first."""
    events, labels = money_moves(transfers)
    with duckdb.connect() as connection:
        connection.register("l", labels)
        connection.register("t", transfers)
        labels = connection.sql("""
            select l.event_id, true as label, l.kind, t.alert_id::varchar as episode, 0::bigint as reported_at,
                   t.alert_id::varchar as spell
            from l join t on t.tx_id::varchar = substr(l.event_id, 2)""").to_arrow_table()
    functions = {"n": "count(money", "sum": "sum(money.sum_of_money", "who": "distinct(money.counterparty"}
    features = {"known": "count(money over previous 400 d by account_id)"}
    for way in ("incoming", "outgoing"):
        for function, text in functions.items():
            for days in (3, 10, 20):
                features[f"{way}_{function}{days}"] = f"{text} over {days} d by account_id where direction == {way})"
    both = ", ".join(f"{side}.{name} as {side}_{name}" for side in "ab" for name in features)
    scored = f"""select a.money_id, a.event_time, a.account_id::int, a.counterparty::int,
        a.sum_of_money as amount, {both}
        from e a join e b on b.money_id = 'b' || substr(a.money_id, 2) where a.direction = 'outgoing'"""
    declared = (PATTERNS / "money.cep").read_text(encoding="utf-8")
    return Given(
        name, events, labels, frozenset({"money"}), scored, 4, features, declared, _TRIES["transfers"]
    )  # fmt: skip


def charged_back() -> Given:
    """Return card payments online, some of which were charged back."""
    events, labels = chargebacks()
    labels = labels.append_column("spell", labels["event_id"])
    declared = (PATTERNS / "events.cep").read_text(encoding="utf-8")
    features = _past("transaction", "amount", ("card_id", "account_id", "device_id", "merchant_id"), (1, 7, 30))
    scored = f"""select tx_id, event_time, device_id::int, merchant_id::int, hash(card_id) % 1000003, amount,
        {", ".join(features)} from e"""
    return Given("chargebacks", events, labels, frozenset({"transaction"}), scored, 5, features, declared, {}, 1)


def logged_in() -> Given:
    """Return logins to a server, with a break-in after the failures of each address.

    It is the longest of the recordings, of 24 days. Another one, months later, would leave parts of the time empty.
    """
    events, labels = logins()
    events = events.filter(pc.starts_with(events["source_ip"], f"{_RECORDING} "))
    labels = labels.filter(pc.is_in(labels["event_id"], value_set=events["login_id"].combine_chunks()))
    labels = labels.append_column("spell", labels["event_id"])
    declared = (PATTERNS / "login_events.cep").read_text(encoding="utf-8")
    features = {
        f"{field}_{name}{hours}": f"{text} over previous {hours} h by {key}{where})"
        for field, key in (("source", "source_ip"), ("user", "user_name")) for hours in (1, 24)
        for name, text, where in (("n", "count(login", ""), ("bad", "count(login", " where not ok"))
    }  # fmt: skip
    scored = f"select login_id, event_time, source_ip, user_name, ok::int as ok, {', '.join(features)} from e"
    tries = {"guessed_password": {"tries": "2,3,5,10"}}
    return Given("logins", events, labels, frozenset({"login"}), scored, 4, features, declared, tries, 1)


def among_honest(name: str, seed: int) -> Given:
    """Return the events of honest people with planted frauds of a field."""
    field, read = FIELDS[name], READ[name]
    events, labels = planted(name, seed)
    scored = f"select {field.id}, event_time, {', '.join((*read.raw, *read.features))} from e"
    types = frozenset({field.event_type})
    of_files = map(_events_of, sorted(PATTERNS.glob("*.cep")))
    (declared,) = (text for text in of_files if f"event {field.event_type} {{" in text)
    return Given(name, events, labels, types, scored, 1 + len(read.raw), read.features, declared, _TRIES[name], 1)


def _events_of(path: Path) -> str:
    return "\n".join(re.findall(r"^event [^}]*\n}$", "\n" + path.read_text(encoding="utf-8"), re.MULTILINE))


def given(names: Iterable[str], days: int, customers: int, seed: int) -> list[Given]:
    """Return the available sets of these names. `customers` and `seed` are for the simulated ones."""
    sets = []
    if "simulated" in names:
        sets.append(cards("simulated", simulated(seed, customers, customers * 2, days)))
    if "payments" in names and ULB.exists():
        until = f"timestamptz '2018-04-01 00:00:00+00' + interval {days} day"
        with duckdb.connect() as connection:
            sets.append(cards("payments", connection.sql(f"from '{ULB}' where event_time < {until}").to_arrow_table()))
    if "laundering" in names:
        transfers = simulated_transfers(seed, customers, 3 * days, max(1, customers // 25))
        sets.append(laundering("laundering", transfers))
    if "transfers" in names and TRANSFERS.exists():
        sets.append(laundering("transfers", pq.read_table(TRANSFERS)))
    if "chargebacks" in names and CHARGEBACKS.exists():
        sets.append(charged_back())
    if "logins" in names and SSH.exists():
        sets.append(logged_in())
    sets += [among_honest(name, seed) for name in FIELDS if name in names]
    return sets
