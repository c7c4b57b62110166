"""`cep why` and `cep why-not` on planted cases, one for each kind of reason."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cep.base.limits import TIME_MS_MAX
from cep.cli import main as cli
from cep.columnar.decode import decode_json, route
from cep.model.rule import RetireRecord, UpsertRecord
from cep.rulebook.deploy import deploy
from cep.rulebook.files import read_rules
from cep.runners.output import write_outputs
from cep.sinks.json_form import json_lines
from cep.step.match import MatchOutput, match_events
from cep.step.rules import Programs
from cep.testing import inquiry
from tests.output_of import OutputOf
from tests.rule_files import rule_text

PATTERNS = """
event payment { id id  event_time time  card string  shop string  amount decimal(2)  status enum(approved, declined) }
## Small declines,
## then a large approval.
pattern testing by card {
  seq probe{2,} greedy -> !good -> hit within 10 min
  where probe: payment status == declined and amount < 2.00
        good:  payment status == approved and amount < 10
        hit:   payment status == approved and amount > 500
  emit probes = count(probe), amount = hit.amount
}
pattern waiting by card {
  seq a -> b within 1 h
  where a: payment amount > 100 and amount < 260  b: payment amount > 5000
  on timeout emit amount = a.amount
}
pattern twice by (card, shop) {
  seq a, b within 1 h
  where a: payment amount > 100  b: payment amount > a.amount
}
"""
D, A = "declined", "approved"
# Card → (minute, amount, status) of its payments; ids are card and number.
HISTORY = {
    "fires": [(0, "1.00", D), (1, "1.50", D), (2, "900.00", A)],
    "too_small": [(0, "1.00", D), (1, "1.50", D), (2, "499.99", A)],
    "one_probe": [(0, "1.00", D), (2, "900.00", A)],
    "good_between": [(0, "1.00", D), (1, "1.50", D), (2, "5.00", A), (3, "900.00", A)],
    "too_late": [(0, "1.00", D), (1, "1.50", D), (10, "900.00", A)],
    "covered": [(0, "1.00", D), (1, "1.50", D), (2, "900.00", A), (3, "900.00", A)],
    "three": [(0, "1.00", D), (1, "1.50", D), (2, "1.50", D), (3, "900.00", A)],
    "no_start": [(0, "900.00", A), (5, "3.00", D)],
    "shops": [(0, "200.00", A), (1, "150.00", A)],
    "rises": [(0, "200.00", A), (1, "250.00", A)],
    "between": [(0, "200.00", A), (1, "3.00", A), (2, "300.00", A)],
}


def card_rule(name: str, pattern: str = "testing", **fields: object) -> str:
    return rule_text(name, "p.cep", pattern=pattern, message="card {key}", severity="high", **fields)


def record(card: str, number: int, minute: int, amount: str, status: str) -> dict[str, str]:
    time = f"2026-03-01T10:{minute:02d}:00Z"
    return {
        "id": f"{card}-{number}", "event_time": time, "card": card, "shop": "s1", "amount": amount, "status": status,
    }  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Path:
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "p.cep").write_text(PATTERNS, encoding="utf-8")
    for name, pattern, status in (
        ("testing", "testing", "live"),
        ("twice", "twice", "live"),
        ("waiting", "waiting", "live"),
        ("off", "twice", "draft"),
    ):
        text = card_rule(name, pattern, status=status)
        (rules / f"{name}.toml").write_text(text, encoding="utf-8")
    records = [record(card, n, *event) for card, events in HISTORY.items() for n, event in enumerate(events)]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    return tmp_path


def alerts_of(place: Path) -> pa.Table:
    deployment = deploy(read_rules(place / "rules")[0])
    lines = pa.array((place / "events.jsonl").read_bytes().splitlines(), pa.large_binary())
    decoded = decode_json(deployment.schema, lines)
    output = MatchOutput()
    for domain, program in Programs().of(deployment.rulebook, deployment.schema).items():
        batch, _ = route(decoded, domain, deployment.schema.columns())
        match_events(program, None, batch, TIME_MS_MAX - 1, output)
    return output.alert_table()


def ask(place: Path, *arguments: str) -> int:
    return cli.main([*arguments, "--rules", str(place / "rules"), "--events", str(place / "events.jsonl")])


def why_not(place: Path, card: str, *more: str, rule: str = "testing") -> int:
    return ask(place, "why-not", "--rule", rule, "--key", card, *more)


@pytest.mark.parametrize(
    ("card", "lines"),
    [
        (
            "too_small",
            [
                "probe 2026-03-01T10:00:00Z, 2026-03-01T10:01:00Z · then waited for another probe or hit",
                "too_small-2 is no hit: amount > 500.00 is not true (amount = 499.99)",
                "the window was over at 2026-03-01T10:10:00Z (within 10 min)",
            ],
        ),
        ("one_probe", ["hit is waited for after 2 probe, there were 1", "one_probe-1 is no probe: status = approved"]),
        ("good_between", ["good_between-2 at 2026-03-01T10:02:00Z is good, which must not come (status = approved, "]),
        (
            "too_late",
            [
                "the window was over at 2026-03-01T10:10:00Z (within 10 min)",
                "too_late-2 at 2026-03-01T10:10:00Z is hit, 0 s too late",
            ],
        ),
        ("no_start", ["no run started", "no_start-1 is no probe: amount < 2.00 is not true (amount = 3.00)"]),
        ("nobody", ["the key has no events"]),
    ],
)
def test_why_not(place: Path, card: str, lines: list[str], output_of: OutputOf) -> None:
    out = output_of(why_not(place, card)).out
    assert out.startswith(f"Small declines, then a large approval.\nno alert of testing for card {card}:\n")
    for line in lines:
        assert line in out


def test_why_not_when_there_is_one(place: Path, output_of: OutputOf) -> None:
    out = output_of(why_not(place, "fires"), 1).out
    assert "there is an alert of testing for card fires" in out
    assert "match at 2026-03-01T10:02:00Z by version 1: probes = 2, amount = 900.00" in out


def test_a_match_covers_the_run_that_is_asked_for(place: Path, output_of: OutputOf) -> None:
    out = output_of(why_not(place, "covered", "--at", "2026-03-01T10:03:00Z")).out
    assert "covered-3 began no run" in out
    assert "covered-3 is no probe: status = approved, amount = 900.00" in out


def test_a_run_that_a_match_covers_is_told_beside_it(place: Path, output_of: OutputOf) -> None:
    """`skip past last` drops the run of the second probe when the run of the first one is complete."""
    out = output_of(why_not(place, "three", "--at", "2026-03-01T10:01:00Z"), 1).out
    assert "match at 2026-03-01T10:03:00Z by version 1: probes = 3" in out
    assert "what else began at 2026-03-01T10:01:00Z:\n  probe 2026-03-01T10:01:00Z, 2026-03-01T10:02:00Z" in out
    assert "the match at 2026-03-01T10:03:00Z covers it (skip past last)" in out


def changed(place: Path, rule: str, text: str, old: str = "") -> None:
    path = place / "rules" / f"{rule}.toml"
    before = path.read_text(encoding="utf-8")
    path.write_text(before.replace(old, text) if old else before + text, encoding="utf-8")


def test_a_suppressed_match(place: Path, output_of: OutputOf) -> None:
    """The second match on a key comes during the suppression of the first one."""
    again = [
        record("again", n, *event)
        for n, event in enumerate([*HISTORY["fires"], (3, "1.00", D), (4, "1.50", D), (5, "900.00", A)])
    ]
    with (place / "events.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(r) + "\n" for r in again)
    assert why_not(place, "again", "--at", "2026-03-01T10:05:00Z") == 1
    assert "match at 2026-03-01T10:05:00Z by version 1" in output_of.read().out
    changed(place, "testing", 'suppress = "1 h"\n')
    out = output_of(why_not(place, "again", "--at", "2026-03-01T10:05:00Z")).out
    assert "no alert of testing for card again, what it finds is held back:\n" in out
    assert "the match at 2026-03-01T10:05:00Z is no alert:" in out
    assert "had alerted on this key less than its `suppress` before" in out
    out = output_of(why_not(place, "again"), 1).out
    assert out.index("the match at 2026-03-01T10:05:00Z is no alert") < out.index("there is an alert of testing")


def test_a_match_in_shadow_one_that_is_snoozed_and_one_of_a_group(place: Path, output_of: OutputOf) -> None:
    snooze = {"kind": "snooze", "id": "testing", "version": 1, "until": "2026-03-02T00:00:00Z", "by": "me"}
    control = place / "control.jsonl"
    control.write_text(json.dumps({**snooze, "effective_at": "2026-03-01T00:00:00Z"}) + "\n", encoding="utf-8")
    assert "the rule was snoozed at that time" in output_of(why_not(place, "fires", "--control", str(control))).out
    changed(place, "testing", 'status = "shadow"', 'status = "live"')
    assert "the version is in shadow" in output_of(why_not(place, "fires")).out
    text = card_rule("first", priority=1, exclusive="cards")
    (place / "rules" / "first.toml").write_text(text, encoding="utf-8")
    changed(place, "testing", 'status = "live"\nexclusive = "cards"', 'status = "shadow"')
    assert "another rule of its exclusive group fired on the same event" in output_of(why_not(place, "fires")).out
    assert why_not(place, "fires", rule="first") == 1


def test_strict_steps_and_keys_of_several_fields(place: Path, output_of: OutputOf) -> None:
    assert why_not(place, "shops", "--key", "s1", rule="twice") == 0
    assert "amount > a.amount is not true (amount = 150.00, a.amount = 200.00)" in output_of.read().out
    out = output_of(why_not(place, "between", "--key", "s1", rule="twice")).out
    assert "between-1 is no b: amount > a.amount is not true (amount = 3.00, a.amount = 200.00)" in out
    assert "b had to be the very next event" in out
    assert why_not(place, "rises", "--key", "s1", rule="twice") == 1
    assert why_not(place, "rises", rule="twice") == 2


def test_the_version_was_not_yet_in_force(place: Path, output_of: OutputOf) -> None:
    path = place / "rules" / "testing.toml"
    path.write_text(path.read_text(encoding="utf-8") + "effective_at = 2026-03-01T10:00:30Z\n", encoding="utf-8")
    out = output_of(why_not(place, "fires")).out
    assert "version 1 was not yet in force: it begins at 2026-03-01T10:00:30Z" in out
    assert "2026-03-01T10:00:00Z fires-0 probe" in out


def test_the_version_was_no_longer_in_force(place: Path) -> None:
    """A folder of rules has one version of each, so a successor is added as a control topic would."""
    (record,) = (r for r in read_rules(place / "rules")[0] if r.id == "testing")
    changes = {"effective_at": "2026-03-01T10:00:00.000Z", "status": "draft"}
    ended = deploy([record, UpsertRecord(**{**record.model_dump(), "version": 2, **changes})])
    restarted = deploy([record, RetireRecord(id="testing", version=2, effective_at="2026-03-01T10:02:00.000Z")])
    lines = pa.array((place / "events.jsonl").read_bytes().splitlines()[:3], pa.large_binary())
    for deployment, line in (
        (ended, "version 1 was no longer in force: it ended at 2026-03-01T10:00:00Z"),
        (restarted, "version 1 ended at 2026-03-01T10:02:00Z, before the match was complete"),
    ):
        batch, _ = route(decode_json(deployment.schema, lines), ("card",), deployment.schema.columns())
        answer = inquiry.why_not(inquiry.World(deployment.schema), deployment.rulebook.deployed(), batch, None)
        assert answer.matches == []
        assert answer.reasons[0][0] == line


def test_the_history_of_a_control_topic(place: Path, output_of: OutputOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions come, are refused and go: each question is answered from the interval of its version."""
    (first,) = (r for r in read_rules(place / "rules")[0] if r.id == "testing")

    def version(number: int, **changes: object) -> UpsertRecord:
        return UpsertRecord(**{**first.model_dump(), "version": number, **changes})

    records: list[UpsertRecord | RetireRecord] = [
        version(2, effective_at="2026-03-01T10:01:30.000Z", source=first.source.replace("> 500", "> 5000")),
        version(3, source=first.source.replace("amount > 500", "amont > 500")),
        RetireRecord(id="testing", version=4, effective_at="2026-03-01T10:02:00.000Z"),
    ]
    control = place / "control.jsonl"
    control.write_bytes(b"\n".join(record.to_json() for record in records) + b"\n")
    out = output_of(why_not(place, "fires", "--control", str(control))).out
    assert "testing version 3 is set aside: the pattern text has mistakes\n  CEP201 `amont`" in out
    assert "version 1 ended at 2026-03-01T10:02:00Z, before the match was complete\n    it would have matched:" in out
    assert why_not(place, "too_late", "--control", str(control)) == 0
    assert "version 2 was no longer in force: it ended at 2026-03-01T10:02:00Z" not in output_of.read().out
    # Without a folder, the history must contain all rules; the same records then give an alert its path.
    control.write_bytes(version(7, effective_at="2026-03-01T10:00:00.000Z").to_json())
    events = ["--events", str(place / "events.jsonl")]
    command = ["why-not", "--rule", "testing", "--key", "fires", "--control", str(control), *events]
    assert "match at 2026-03-01T10:02:00Z by version 7" in output_of(cli.main(command), 1).out
    control.write_bytes(RetireRecord(id="testing", version=8).to_json())
    assert "testing version 8 is retired: it is not matched" in output_of(cli.main(command)).out
    # Without both, the folder `rules` is used.
    monkeypatch.chdir(place)
    assert cli.main(["why-not", "--rule", "testing", "--key", "fires", *events]) == 1
    monkeypatch.chdir(place / "rules")
    assert cli.main(["why-not", "--rule", "testing", "--key", "fires", *events]) == 2
    assert "give --rules, --control, or both; there is no folder rules here" in output_of.read().err


def test_a_version_that_was_not_yet_effective_by_control(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (first,) = (r for r in read_rules(place / "rules")[0] if r.id == "testing")
    later = {**first.model_dump(), "version": 2, "effective_at": "2026-03-01T10:00:30.000Z"}
    control = place / "control.jsonl"
    control.write_bytes(UpsertRecord(**later).to_json())
    events = ["--events", str(place / "events.jsonl")]
    assert cli.main(["why-not", "--rule", "testing", "--key", "fires", "--control", str(control), *events]) == 0
    assert "version 2 was not yet in force: it begins at 2026-03-01T10:00:30Z" in capsys.readouterr().out


def test_an_event_that_came_late(place: Path, output_of: OutputOf) -> None:
    """An event that a live job has set aside as late is in the history and was not matched."""
    letters = place / "dead_letters"
    letters.mkdir()
    late = {"code": "late", "event_type": "payment", "event_time_ms": 0, "key_domain": "card", "key": "fires"}
    others = [{**late, "event_id": "fires-2", "key": "x"}, {"code": "missing_field", "reason": "late", "record": ""}]
    written = [{**late, "event_id": "fires-1"}, *others]
    (letters / "batch-3.jsonl").write_text("".join(json.dumps(letter) + "\n" for letter in written), encoding="utf-8")
    out = output_of(why_not(place, "fires", "--dead-letters", str(letters))).out
    assert "1 event came behind the watermark, too late to be matched\n    2026-03-01T10:01:00Z fires-1\n" in out
    assert "in time, version 1 would have matched:\n    2026-03-01T10:00:00Z fires-0 probe\n" in out
    assert "hit is waited for after 2 probe, there were 1" in out
    assert why_not(place, "fires", "--dead-letters", str(letters / "gone")) == 2
    for text in ('{"code": "late"', '["late"]', '"late"'):
        (letters / "torn.jsonl").write_text(text, encoding="utf-8")
        assert why_not(place, "fires", "--dead-letters", str(letters)) == 3
        assert "cannot be read as dead letters" in output_of.read().err, text
    (letters / "torn.jsonl").unlink()
    os.mkfifo(letters / "torn.jsonl")
    assert "it is no regular file" in output_of(why_not(place, "fires", "--dead-letters", str(letters)), 3).err


def test_rules_that_are_not_in_force(place: Path, output_of: OutputOf) -> None:
    assert "off version 1 is draft: it is not matched" in output_of(why_not(place, "fires", rule="off")).out
    assert "did you mean testing?" in output_of(why_not(place, "fires", rule="tseting"), 2).err
    broken = card_rule("broken", "testin")
    (place / "rules" / "broken.toml").write_text(broken, encoding="utf-8")
    assert why_not(place, "fires", rule="broken") == 0
    assert "broken version 1 is set aside: the text has no pattern `testin`" in output_of.read().out
    (place / "rules" / "worse.toml").write_text("id = 1", encoding="utf-8")
    assert "worse cannot be read" in output_of(why_not(place, "fires", rule="worse")).out


def test_times_that_make_no_sense(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert why_not(place, "fires", "--at", "noon") == 2
    assert why_not(place, "too_small", "--at", "2027-01-01T00:00:00Z") == 0
    assert "no run was alive at 2027-01-01T00:00:00Z" in capsys.readouterr().out


@pytest.mark.parametrize("format_", ["parquet", "jsonl"])
def test_why(place: Path, format_: str, output_of: OutputOf) -> None:
    path = place / f"alerts.{format_}"
    alerts = alerts_of(place)
    write_outputs(alerts, [], path, "parquet" if format_ == "parquet" else "jsonl")
    by_key = {alert["key"]: alert for alert in alerts.to_pylist() if alert["kind"] == "match"}
    out = output_of(ask(place, "why", "--alerts", str(path), "--alert", by_key["fires"]["alert_id"][:12])).out
    assert "testing version 1 for fires at 2026-03-01T10:02:00" in out
    assert "card fires" in out
    assert "Small declines, then a large approval.\n" in out
    assert {alert["key"]: alert["description"] for alert in alerts.to_pylist()}["rises\x1fs1"] == ""
    assert by_key["fires"]["description"] == "Small declines, then a large approval."
    assert "fires-1  probe  status = declined, amount = 1.50" in out
    assert "match at 2026-03-01T10:02:00Z by version 1: probes = 2, amount = 900.00" in out
    assert ask(place, "why", "--alerts", str(path), "--alert", by_key["rises\x1fs1"]["alert_id"]) == 0
    assert "amount = 250.00, a.amount = 200.00" in output_of.read().out


def test_why_of_a_time_out(place: Path, output_of: OutputOf) -> None:
    alerts = alerts_of(place)
    timeouts = [a for a in alerts.to_pylist() if a["kind"] == "timeout" and a["key"] == "between"]
    (alert,) = timeouts
    command = ("why", "--alerts", str(place / "alerts.jsonl"), "--alert", alert["alert_id"])
    # The window is open at the last event, so these events alone do not give the alert.
    write_outputs(alerts, [], place / "alerts.jsonl", "jsonl")
    assert "these rules and events do not give this alert" in output_of(ask(place, *command), 1).out
    index = alerts.schema.get_field_index("unconfirmed")
    marked = alerts.set_column(index, alerts.schema.field(index), pa.array([True] * len(alerts)))
    write_outputs(marked, [], place / "alerts.jsonl", "jsonl")
    out = output_of(ask(place, *command)).out
    assert "the history ended before this was certain" in out
    assert "waiting version 1 for between at 2026-03-01T11:00:00" in out
    assert "timeout at 2026-03-01T11:00:00Z by version 1: amount = 200.00" in out


def test_why_of_an_alert_that_these_rules_do_not_give(place: Path, output_of: OutputOf) -> None:
    alerts = alerts_of(place)
    pq.write_table(alerts, place / "alerts.parquet")
    (alert_id,) = (a["alert_id"] for a in alerts.to_pylist() if a["key"] == "fires")
    pattern = place / "rules" / "p.cep"
    pattern.write_text(PATTERNS.replace("amount > 500", "amount > 5000"), encoding="utf-8")
    out = output_of(ask(place, "why", "--alerts", str(place / "alerts.parquet"), "--alert", alert_id), 1).out
    assert "the rule's content has changed since" in out
    assert "fires-2 is no hit: amount > 5000.00 is not true (amount = 900.00)" in out
    (place / "rules" / "testing.toml").unlink()
    assert ask(place, "why", "--alerts", str(place / "alerts.parquet"), "--alert", alert_id) == 1
    assert "has no version 1 of testing in force" in output_of.read().out


def test_alerts_that_cannot_be_found(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(alerts_of(place), place / "alerts.parquet")
    assert ask(place, "why", "--alerts", str(place / "alerts.parquet"), "--alert", "ffffffff") == 2
    assert ask(place, "why", "--alerts", str(place / "alerts.parquet"), "--alert", "f") == 2
    assert ask(place, "why", "--alerts", str(place / "gone.parquet"), "--alert", "ffff") == 3
    for text in ("alert ffff", '["ffff"]', '"ffff"', "ffff \udcff", '{"alert_id": "ffff"}'):
        (place / "bad.jsonl").write_bytes(text.encode("utf-8", "surrogateescape"))
        assert ask(place, "why", "--alerts", str(place / "bad.jsonl"), "--alert", "ffff") == 3
        assert "cannot be read as alerts" in capsys.readouterr().err, text
    for name in ("pipe.jsonl", "pipe.parquet"):
        os.mkfifo(place / name)
        assert ask(place, "why", "--alerts", str(place / name), "--alert", "ffff") == 3
        assert "cannot be read as alerts: it is no regular file" in capsys.readouterr().err, name


def test_records_of_the_key_that_cannot_be_decoded_are_told(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = place / "events.jsonl"
    path.write_text(path.read_text(encoding="utf-8") + '{"card": "too_small"}\n', encoding="utf-8")
    assert why_not(place, "too_small") == 1
    assert "1 record of this key cannot be decoded, the first: missing_field" in capsys.readouterr().out


def test_why_says_what_a_window_lacks(place: Path, output_of: OutputOf) -> None:
    alerts = alerts_of(place).slice(0, 1)
    since = pa.array([1_772_323_200_000], pa.timestamp("ms", "UTC"))
    names = alerts.schema.names
    cut_alerts = alerts.set_column(names.index("history_cut"), "history_cut", pa.array([True]))
    cut_alerts = cut_alerts.set_column(names.index("history_folded"), "history_folded", pa.array([True]))
    cut_alerts = cut_alerts.set_column(names.index("history_from"), "history_from", since)
    (alert_id,) = cut_alerts["alert_id"].to_pylist()
    pq.write_table(cut_alerts, place / "told.parquet")
    (place / "told.jsonl").write_bytes(b"\n".join(json_lines(cut_alerts)))
    for name in ("told.parquet", "told.jsonl"):
        shown = output_of(ask(place, "why", "--alerts", str(place / name), "--alert", alert_id)).out
        assert "a value of a sub-key of which events may be forgotten" in shown
        assert "looked back at a window of more events than are kept one by one" in shown
        assert "looked back further than events were known, which is from 2026-03-01T00:00:00" in shown
