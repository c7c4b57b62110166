"""A field of planted fraud → the columns that a model reads: fields of the event, and functions of the past.

These are counts and sums that an analyst writes down in an hour: by event type and by key, over an hour, a day, a week.
Tested by: tests/bench/test_planted.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
