"""The rules that a job can run, and the reasons against the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cep.base.schema import EventType, Field, Kind, Schema, Type
from cep.lang.ir import PatternIR
from cep.lang.load import Bundle, load_text
from cep.rulebook.compatible import Refused, checked_text, compile_rule, remember
from tests.rulebook.records import SCHEMA, SOURCE, upsert

PAYMENT = SCHEMA.event_types[0]
WITH_OTHER = SOURCE.replace("amount  ", "other int\n amount ")


def reason(schema: Schema = SCHEMA, domains: tuple[tuple[str, ...], ...] | None = None, **changes: Any) -> str:
    compiled = compile_rule(upsert(1, **changes), schema, domains)
    return compiled.reason if isinstance(compiled, Refused) else ""


def with_amount(amount: Type) -> Schema:
    fields = tuple(replace(f, type=amount) if f.name == "amount" else f for f in PAYMENT.fields)
    return Schema((replace(PAYMENT, fields=fields),))


def test_a_rule_that_fits_is_bound() -> None:
    compiled = compile_rule(upsert(1, params={"window": "5 min"}), SCHEMA, (("device_id",), ("card_id",)))
    assert isinstance(compiled, PatternIR)
    assert compiled.within_ms == 300_000


def test_rules_that_give_nothing_share_the_pattern_with_its_defaults() -> None:
    first, second = (compile_rule(upsert(version), SCHEMA, None) for version in (1, 2))
    assert first is second
    compiled = compile_rule(upsert(1, params={"window": "10 min"}), SCHEMA, None)
    assert compiled == compile_rule(upsert(1, params={"window": "10 min"}), SCHEMA, None)
    assert compiled is not first


def test_a_job_may_have_more_types_and_fields() -> None:
    wider = Schema(
        (
            EventType("login", (Field("tx_id", Type(Kind.ID)), Field("event_time", Type(Kind.TIME)))),
            replace(PAYMENT, fields=(*PAYMENT.fields, Field("country", Type(Kind.STRING)))),
        )
    )
    assert reason(wider) == ""


def test_a_job_may_lack_a_field_that_the_pattern_does_not_read() -> None:
    assert reason(source=WITH_OTHER) == ""


def test_a_job_may_have_more_symbols() -> None:
    source = SOURCE.replace("amount  ", "status enum(good, bad)\n amount ").replace(
        "< 1.00", "< 1.00 and status == bad"
    )

    def job(*symbols: str) -> Schema:
        return Schema((replace(PAYMENT, fields=(*PAYMENT.fields, Field("status", Type(Kind.ENUM, symbols=symbols)))),))

    assert reason(job("good", "bad", "ugly"), source=source) == ""
    assert "enum(good, bad) in the rule and enum(bad, good) in the job" in reason(job("bad", "good"), source=source)


def test_a_field_of_the_job_may_have_become_nullable() -> None:
    amount = Type(Kind.DECIMAL, nullable=True, scale=2)
    assert reason(with_amount(amount)) == ""
    optional = SOURCE.replace("decimal(2)", "decimal(2)?", 1)
    assert "decimal(2)? in the rule and decimal(2) in the job" in reason(source=optional)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"source": "pattern {"}, "the pattern text has mistakes"),
        ({"pattern": "large_after_smal"}, "no pattern `large_after_smal`; did you mean `large_after_small`?"),
        ({"params": {"larg": 1}}, "the parameters do not fit"),
        ({"params": {"large": "much"}}, "the parameters do not fit"),
        ({"message": "{amonut}"}, "{amonut}, which the pattern does not emit; did you mean `amount`?"),
        ({"escalate": "amount"}, "says what breaks `suppress`, which the rule does not have"),
        ({"suppress": "1 h", "escalate": "amonut"}, "is no number that the pattern emits; did you mean `amount`?"),
        ({"domains": (("account_id",), ("a", "b"))}, "by (card_id), only by: account_id; a, b"),
        ({"schema": Schema(())}, "no events `payment`"),
        ({"schema": with_amount(Type(Kind.DECIMAL, scale=3))}, "is decimal(2) in the rule and decimal(3) in the job"),
        ({"schema": with_amount(Type(Kind.DECIMAL, nullable=True, scale=3))}, "decimal(3)? in the job"),
        ({"source": WITH_OTHER.replace("amount > large", "amount > large + other")}, "a field `other` that the job's"),
    ],
)
def test_a_rule_that_does_not_fit_says_why(changes: dict[str, Any], expected: str) -> None:
    assert expected in reason(**changes)


def test_the_diagnostics_of_the_pattern_come_along() -> None:
    compiled = compile_rule(upsert(1, source=SOURCE.replace("amount >", "amuont >")), SCHEMA, None)
    assert isinstance(compiled, Refused)
    assert any("amuont" in diagnostic.message for diagnostic in compiled.diagnostics)


def test_a_text_that_a_reader_has_checked_is_not_read_again() -> None:
    text = SOURCE + "\n# of a bundle"
    checked = load_text(text).without_syntax()
    remember(Bundle(text, checked))
    assert checked_text(text) is checked
    remember(Bundle(text, load_text(text).without_syntax()))
    assert checked_text("".join([*text])) is checked
    remember(Bundle(text + " with a warning", None))
    assert checked_text(text + " with a warning") is checked_text(text + " with a warning")
