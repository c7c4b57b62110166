"""The declarations of several rules join to one schema: each rule keeps its events and its protection."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import orjson
import pytest

from cep.base.exits import Exit
from cep.base.schema import Kind, Schema
from cep.cli.main import main
from cep.model.rule import UpsertRecord
from cep.rulebook.deploy import Deployment, deploy
from cep.rulebook.files import read_rules
from cep.rulebook.lock import read_lock
from tests.columnar.protected import VISA, keys

__all__ = ["keys"]
TIME = "2026-03-01T10:00:00Z"
IDENTITY = "tx_id id  event_time time  card string"


def rule(name: str, fields: str, body: str = "amount > 5", before: str = "", **changes: object) -> UpsertRecord:
    """Return a rule that fires on each payment for which `body` holds, and its declaration of payments."""
    source = f"event payment {{ {fields} }}\n{before}\npattern p by card {{ seq a where a: payment {body} }}"
    record = UpsertRecord(
        id=name, version=1, pattern="p", status="live", severity="low", owner="o", message="{key}", source=source
    )
    return record.model_copy(update=changes)


def types(schema: Schema) -> dict[str, str]:
    return {name: str(type_) for name, type_ in schema.event_types[0].types.items()}


def write(tmp_path: Path, records: list[UpsertRecord], events: list[dict[str, object]]) -> list[str]:
    """Write the files, and return the arguments that name them."""
    folder = tmp_path / "rules"
    folder.mkdir()
    for record in records:
        (folder / f"{record.id}.cep").write_text(record.source)
        fields = record.model_dump(exclude={"source", "kind"}, exclude_none=True)
        fields = {name: value for name, value in fields.items() if value != {}}
        lines = [f"{name} = {orjson.dumps(value).decode()}" for name, value in fields.items()]
        (folder / f"{record.id}.toml").write_text("\n".join([*lines, f'file = "{record.id}.cep"']))
    (tmp_path / "events.jsonl").write_bytes(
        b"\n".join(
            orjson.dumps({"tx_id": f"t{n}", "event_time": TIME, "card": "c", **event}) for n, event in enumerate(events)
        )
    )
    return ["--rules", str(folder), "--events", str(tmp_path / "events.jsonl")]


def fired(tmp_path: Path, records: list[UpsertRecord], events: list[dict[str, object]]) -> list[tuple[str, str]]:
    """Return the rules that fire in a replay, each with its key."""
    main(["replay", *write(tmp_path, records, events), "--out", str(tmp_path / "out.jsonl"), "--rejected-max", "1"])
    alerts = [orjson.loads(line) for line in (tmp_path / "out.jsonl").read_bytes().splitlines()]
    return sorted((alert["rule_id"], alert["key"]) for alert in alerts)


# ------------------------------------------------------------------------------------------- fields that are required


def test_a_field_is_required_where_all_rules_require_it() -> None:
    """Compare with the definition, for all orders of three drawn declarations."""
    chosen = random.Random(7)
    for _ in range(30):
        texts = [{name: chosen.choice(["int", "int?"]) for name in "abcd" if chosen.random() < 0.7} for _ in range(3)]
        for order in itertools.permutations(texts):
            records = [
                rule(f"r{n}", " ".join([IDENTITY, "amount int", *(f"{k} {v}" for k, v in text.items())]))
                for n, text in enumerate(order)
            ]
            deployment = deploy(records)
            assert deployment.set_aside == ()
            required = {n for n in "abcd" if all(text.get(n) == "int" for text in texts)}
            declared = types(deployment.schema)
            assert {n for n in "abcd" if declared.get(n) == "int"} == required
            assert {n for n in "abcd" if n in declared} == {n for text in texts for n in text}


@pytest.mark.parametrize("foo", ["y", None])
def test_a_field_of_one_rule_takes_no_event_from_another(tmp_path: Path, foo: str | None) -> None:
    plain, wide = rule("plain", f"{IDENTITY} amount int"), rule("aaa", f"{IDENTITY} amount int foo string")
    reads = rule("bbb", f"{IDENTITY} amount int foo string", 'foo != "x"')
    events: list[dict[str, object]] = [{"amount": 9}, {"amount": 9, **({"foo": foo} if foo else {})}, {"amount": 1}]
    expected = [("aaa", "c")] * 2 + [("bbb", "c")] * (foo is not None) + [("plain", "c")] * 2
    assert fired(tmp_path, [wide, reads, plain], events) == expected


def test_a_rule_that_produces_events_stays_when_a_newer_one_lacks_its_field() -> None:
    flags = "event flag { flag_id id  event_time time  card string  amount int }"
    body = "\nemit card = a.card, amount = a.amount produce flag"
    old = rule("old", f"{IDENTITY} amount int", body, flags)
    deployment = deploy([old, rule("new", IDENTITY, "")])
    assert deployment.set_aside == ()
    flag = deployment.schema.event_type("flag")
    assert flag is not None
    assert {n: str(t) for n, t in flag.types.items()} == {
        "flag_id": "id", "event_time": "time", "card": "string?", "amount": "int?",
    }  # fmt: skip


# ----------------------------------------------------------------------------------------------------- protected fields


@pytest.mark.parametrize("protection", ["pan", "string sensitive"])
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("other", ["string", "string?", "int", "pan", "string sensitive"])
def test_a_protected_field_is_protected_for_all(protection: str, other: str, is_first: bool) -> None:
    plain = rule("aaa", f"tx_id id event_time time card {other}\n amount int")
    protected = rule("zzz", f"tx_id id event_time time card {protection}\n amount int")
    deployment = deploy([protected, plain] if is_first else [plain, protected])
    (card,) = [t for n, t in deployment.schema.protected if n == "card"]
    expected = [protection] if "pan" not in other and "sensitive" not in other else [protection, other]
    assert str(card) in expected
    assert deployment.set_aside == ()
    for compiled in deployment.rulebook.deployed():
        assert compiled.pattern.key == ("card",)


@pytest.mark.usefixtures("keys")
def test_no_alert_has_a_card_number_because_another_rule_declares_a_text(tmp_path: Path) -> None:
    plain = rule("aaa", f"{IDENTITY} amount int")
    protected = rule("zzz", "tx_id id event_time time card pan amount int")
    alerts = fired(tmp_path, [plain, protected], [{"card": VISA, "amount": 9}])
    assert [name for name, _ in alerts] == ["aaa", "zzz"]
    assert len({key for _, key in alerts}) == 1
    assert VISA not in (tmp_path / "out.jsonl").read_text()


@pytest.mark.parametrize("body", [f'card == "{VISA}"', 'card in ["a"]', 'starts_with(card, "41")'])
def test_a_rule_that_reads_the_value_itself_is_set_aside(body: str) -> None:
    deployment = deploy(
        [rule("aaa", f"{IDENTITY} amount int", body), rule("zzz", IDENTITY.replace("string", "pan"), "")]
    )
    (aside,) = deployment.set_aside
    assert aside.rule_id == "aaa"
    assert "the job protects `card`" in aside.reason
    assert aside.diagnostics


def test_the_fields_that_identify_an_event_keep_their_types() -> None:
    other = "number id  event_time time  tx_id pan  card string  amount int"
    deployment = deploy([rule("old", f"{IDENTITY} amount int"), rule("new", other)])
    assert deployment.schema.event_types[0].id_field == "tx_id"
    assert deployment.schema.event_types[0].types["tx_id"].kind is Kind.ID
    assert [aside.rule_id for aside in deployment.set_aside] == ["new"]


# -------------------------------------------------------------------------------------------------------------- clashes


def test_in_a_clash_the_later_rule_is_refused() -> None:
    for first, second in itertools.permutations(["int", "string", "decimal(2)", "enum(a, b)"], 2):
        deployment = deploy([rule("b", f"{IDENTITY} x {first}", ""), rule("a", f"{IDENTITY} x {second}", "")])
        assert [aside.rule_id for aside in deployment.set_aside] == ["a"]
        assert types(deployment.schema)["x"] == first


def test_the_oldest_rule_decides_the_order_of_events() -> None:
    ordered = f"{IDENTITY} n int"
    first, second = rule("b", ordered, ""), rule("a", ordered, "")
    second = second.model_copy(update={"source": second.source.replace("n int }", "n int } order by n")})
    deployment: Deployment = deploy([first, second])
    assert deployment.schema.event_types[0].order_field == ""
    assert [aside.rule_id for aside in deployment.set_aside] == ["a"]


# ------------------------------------------------------------------------------------------------------ starts of a job


@pytest.mark.parametrize(("status", "is_refused"), [("live", True), ("shadow", False), ("draft", False)])
def test_a_job_does_not_start_without_a_live_rule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], status: str, is_refused: bool
) -> None:
    records = [rule("a", f"{IDENTITY} x int", ""), rule("b", f"{IDENTITY} x string", "", status=status)]
    words = [*write(tmp_path, records, [{"x": 1}]), "--available-now"]
    assert main(["run", *words]) == (Exit.USAGE if is_refused else 1)
    output = capsys.readouterr().err
    assert ("--start-incomplete" in output) == is_refused
    assert "`payment.x` is string in the rule and int in the job" in output
    assert main(["run", *words, "--start-incomplete"]) == 1
    assert "b version 1 is set aside" in capsys.readouterr().err


def test_a_spark_job_does_not_start_either(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = write(tmp_path, [rule("a", f"{IDENTITY} x int", ""), rule("b", f"{IDENTITY} x string", "")], [{"x": 1}])
    assert main(["live", *words, "--checkpoint", str(tmp_path / "job")]) == Exit.USAGE
    assert "live rules are set aside: b version 1" in capsys.readouterr().err
    (tmp_path / "rules" / "b.toml").write_text("nothing")
    assert main(["live", *words, "--checkpoint", str(tmp_path / "job")]) == Exit.USAGE
    assert "1 problem(s) in rule files" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------ age of versions


def test_the_oldest_version_comes_first_whatever_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, [rule("b", f"{IDENTITY} x int", "")], [{}])
    folder = tmp_path / "rules"
    lock = ["rules", "lock", "--rules", str(folder)]
    assert main(lock) == 0
    for name, type_ in (("a", "string"), ("c", "string")):
        (folder / f"{name}.cep").write_text(rule(name, f"{IDENTITY} x {type_}", "").source)
        file = (folder / "b.toml").read_text().replace('"b"', f'"{name}"').replace("b.cep", f"{name}.cep")
        (folder / f"{name}.toml").write_text(file)

    def order() -> list[str]:
        return [record.id for record in read_rules(folder)[0]]

    assert order() == ["b", "a", "c"], "a version that is not locked is the newest"
    assert [aside.rule_id for aside in deploy(read_rules(folder)[0]).set_aside] == ["a", "c"]
    assert main(lock) == 0
    assert order() == ["b", "a", "c"]
    assert main(["rules", "bump", "b", "--rules", str(folder)]) == 0
    assert order() == ["a", "c", "b"], "its new version is the newest"
    assert list(read_lock(folder)) == ["a", "c", "b"]
    (folder / "rules.lock").write_bytes(b"\xff")
    assert order() == ["a", "b", "c"], "a file that is no lock says nothing"
