"""The description of a job, compiled programs, and one step of matching; rules of a job to its schema."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cep.base.errors import UsageError
from cep.base.schema import Kind
from cep.rulebook.deploy import deploy, schema_of
from cep.rulebook.saved import rulebook_bytes, rulebook_from_bytes
from cep.step.job import Job
from cep.step.match import MatchOutput, match_events
from cep.step.rules import Programs
from tests.engine.rules import batch, program, rule
from tests.rulebook.records import SCHEMA, SOURCE, new_book, retire, upsert

END_MS = 2**61 - 1
DOMAIN = ("card_id",)
PAIR = "seq a -> b within 10 ms\nwhere a: e kind == a\n b: e kind == b\n"


@pytest.mark.parametrize("groups_count", [0, 32_769])
def test_a_job_has_a_sensible_number_of_key_groups(groups_count: int) -> None:
    with pytest.raises(UsageError, match="key groups are 1 to 32768"):
        Job(SCHEMA, (DOMAIN,), groups_count)


def test_a_job_routes_events_by_something() -> None:
    with pytest.raises(UsageError, match="no key to route events by"):
        Job(SCHEMA, ())


def test_a_rulebook_is_compiled_once() -> None:
    programs, book = Programs(), new_book()
    book.apply(upsert(1), None)
    first = programs.of(book, SCHEMA)
    again = programs.of(rulebook_from_bytes(rulebook_bytes(book), SCHEMA, (DOMAIN,)), SCHEMA)
    assert again is first
    book.apply(upsert(2), None)
    assert programs.of(book, SCHEMA) is not first


@pytest.mark.slow
@pytest.mark.always
def test_programs_are_kept_within_a_bound() -> None:
    programs, book = Programs(), new_book()
    for version in range(1, 80):
        book.apply(upsert(version, f"r{version}"), None)
        programs.of(book, SCHEMA)
    assert len(programs._programs) == 64


def test_a_step_counts_alerts_by_rule_and_version() -> None:
    compiled, output = program(rule(PAIR, "r1"), rule(PAIR, "r2", version=3)), MatchOutput()
    state = match_events(compiled, None, batch("x a@1", "y a@1", "x b@2"), 2, output)
    match_events(compiled, state, batch("y b@3", "z b@3"), END_MS, output)
    assert (output.counters["alerts[r1@1]"], output.counters["alerts[r2@3]"]) == (2, 2)
    assert output.alert_table().num_rows == 4
    assert output.counters["runs_started"] == 4


def test_nothing_found_is_an_empty_table() -> None:
    assert MatchOutput().alert_table().num_rows == 0


# ------------------------------------------------------------------------------------------------- deployment


def test_rules_bring_their_schema_and_their_keys() -> None:
    deployment = deploy([upsert(1, "r1"), upsert(1, "r2"), retire(2, "r2")])
    assert deployment.schema == SCHEMA
    assert deployment.key_domains == (DOMAIN,)
    assert deployment.set_aside == ()


def test_a_rule_that_does_not_compile_is_set_aside_and_the_others_run() -> None:
    broken = upsert(1, "broken", source=SOURCE.replace("amount > large", "amont > large"))
    deployment = deploy([broken, upsert(1, "good")])
    assert [r.rule_id for r in deployment.rulebook.deployed()] == ["good"]
    (aside,) = deployment.set_aside
    assert (aside.rule_id, aside.version, aside.source) == ("broken", 1, broken.source)
    assert [d.code for d in aside.diagnostics] == ["CEP201"]


def test_event_types_are_joined_where_they_agree() -> None:
    wider = SOURCE.replace("amount      decimal(2)", "amount      decimal(2)\n  country     string?")
    other = SOURCE.replace("payment", "refund").replace("tx_id ", "ref_id")
    schema = schema_of([upsert(1, "r1"), upsert(1, "r2", source=wider), upsert(1, "r3", source=other)])
    assert [e.name for e in schema.event_types] == ["payment", "refund"]
    payment, refund = schema.event_types
    assert [f.name for f in payment.fields] == ["tx_id", "event_time", "card_id", "amount", "country"]
    assert refund.id_field == "ref_id"


def test_of_two_types_for_a_field_the_first_is_right() -> None:
    finer = SOURCE.replace("decimal(2)", "decimal(3)")
    deployment = deploy([upsert(1, "r1"), upsert(1, "r2", source=finer)])
    field = deployment.schema.event_types[0].field("amount")
    assert field is not None
    assert (field.type.kind, field.type.scale) == (Kind.DECIMAL, 2)
    (aside,) = deployment.set_aside
    assert "`payment.amount` is decimal(3) in the rule and decimal(2) in the job" in aside.reason


def test_an_event_type_has_one_id() -> None:
    renamed = SOURCE.replace("tx_id ", "number")
    deployment = deploy([upsert(1, "r1"), upsert(1, "r2", source=renamed)])
    assert deployment.schema.event_types[0].id_field == "tx_id"
    assert [aside.rule_id for aside in deployment.set_aside] == ["r2"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("groups_count",), "4"),
        (("pages_count",), None),
        (("ahead_ms",), "soon"),
        (("key_domains", 0, 0), 1.5),
        (("event_types", 0, "name"), []),
        (("event_types", 0, "retain_ms"), {}),
        (("event_types", 0, "fields", 0, "name"), 7),
        (("event_types", 0, "fields", 0, "scale"), [0]),
        (("event_types", 0, "fields", 0, "nullable"), {}),
        (("event_types", 0, "fields", 0, "symbols"), [[]]),
    ],
)
def test_a_value_of_another_type_is_no_description_of_a_job(path: tuple[str | int, ...], value: Any) -> None:
    data: Any = json.loads(json.dumps(Job(SCHEMA, (DOMAIN,)).to_json()))
    assert Job.from_json(data) == Job(SCHEMA, (DOMAIN,))
    *outer, last = path
    node = data
    for step in outer:
        node = node[step]
    node[last] = value
    with pytest.raises(TypeError, match=" is "):
        Job.from_json(data)


@pytest.mark.parametrize("count", [0, -1])
def test_a_job_without_pages_is_refused(count: int) -> None:
    """A folder may say so; the kernels that put keys into pages would divide by it."""
    data = {**Job(SCHEMA, (DOMAIN,)).to_json(), "pages_count": count}
    with pytest.raises(UsageError, match="a page or more"):
        Job.from_json(data)
