"""`cep replay --rules --control` gives the same alerts and refusal letters as `cep run` with these records."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from cep.base.audit import is_audit
from cep.base.utc import utc_text
from cep.cli.main import main
from cep.model.rule import ControlRecord, ListRecord, PauseRecord, ResumeRecord
from tests.rulebook.test_deploy import BODIES, SEEN_MS, TOGETHER, TYPES, rule

# First rules, whether their files have all patterns, later rules, --levels, the rules that are refused then.
CASES = {
    "the chain is deeper than the job": (("flags", "reads_flag"), True, ("echoes", "reads_echo"), 2, ["reads_echo"]),
    "nobody was to produce it": (("reads_flag", "plain"), False, ("flags",), 4, ["flags"]),
    "the chain is extended in the middle": (
        ("flags", "rings", "reads_ring", "plain"),
        True,
        ("echoes",),
        2,
        ["echoes"],
    ),
    "there are levels enough": (("flags", "rings", "reads_ring"), True, ("echoes", "reads_flag"), 4, []),
}
CHANGES = 140
RULE = """\
id = "{name}"
pattern = "{name}"
file = "{name}.cep"
version = 1
status = "live"
severity = "low"
owner = "o"
message = "m"
"""


def put(folder: Path, names: tuple[str, ...], *, together: bool) -> None:
    folder.mkdir()
    for name in names:
        (folder / f"{name}.toml").write_text(RULE.format(name=name))
        (folder / f"{name}.cep").write_text(TOGETHER if together else TYPES + f"pattern {name} {BODIES[name]}")


def payments() -> bytes:
    """Return payments, the last one of another card: a job's derived events wait for events of the same time."""
    records = []
    for number in range(31):
        event = {"tx_id": f"t{number}", "event_time": utc_text(SEEN_MS + 60_000 * number), "card": "xy"[number % 2]}
        records.append(orjson.dumps({"event_type": "payment", **event, **({"card": "last"} if number == 30 else {})}))
    return b"\n".join(records)


def written(folder: Path) -> list[bytes]:
    return [line for path in folder.glob("*.jsonl") for line in path.read_bytes().splitlines()]


def letters_of(job: Path) -> list[bytes]:
    """Return the dead letters of a job without the lines of its audit, which a replay does not write."""
    return [line for line in written(job / "dead_letters") if not is_audit(line)]


def but_last(alerts: list[bytes]) -> list[bytes]:
    return sorted(alert for alert in alerts if orjson.loads(alert)["key"] != "last")


@pytest.mark.parametrize("name", CASES)
def test_a_replay_refuses_what_the_job_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, together, later, levels, refused = CASES[name]
    put(tmp_path / "rules", first, together=together)
    for folder, lines in (
        ("events", [payments()]),
        ("control", [rule(other, 600_000 * (index + 1)).to_json() for index, other in enumerate(later)]),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "1.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    inputs = ["--rules", str(tmp_path / "rules"), "--levels", str(levels), "--events", str(tmp_path / "events")]
    places = ["--alerts", str(tmp_path / "alerts"), "--checkpoint", str(tmp_path / "job")]
    assert main(["run", *inputs, "--control", str(tmp_path / "control"), *places, "--available-now"]) == 0
    out, control = tmp_path / "replayed.jsonl", tmp_path / "control" / "1.jsonl"
    capsys.readouterr()
    replay = ["replay", *inputs, "--control", str(control), "--out", str(out), "--engine", "embedded"]
    assert main(replay) == (1 if refused else 0)
    printed = capsys.readouterr()
    letters = Path(f"{out}.dead.jsonl")
    refusals = letters.read_bytes().splitlines() if letters.exists() else []
    assert refusals == letters_of(tmp_path / "job")
    assert [orjson.loads(letter)["rule_id"] for letter in refusals] == refused
    assert [f"rule {rule_id} version 1 is set aside" in printed.err for rule_id in refused] == [True] * len(refused)
    assert ("control refused" in printed.out) == bool(refused)
    alerts = but_last(out.read_bytes().splitlines())
    assert alerts == but_last(written(tmp_path / "alerts"))
    assert alerts


def test_a_job_that_goes_on_from_the_replay_has_the_same_rules(tmp_path: Path) -> None:
    """The warm start leaves out refused rules. Otherwise the job would accept them."""
    put(tmp_path / "rules", ("flags", "reads_flag"), together=True)
    (tmp_path / "events.jsonl").write_bytes(payments())
    control = tmp_path / "control.jsonl"
    control.write_bytes(b"\n".join([rule("echoes", 1).to_json(), rule("reads_echo", 2).to_json()]))
    inputs = ["--rules", str(tmp_path / "rules"), "--events", str(tmp_path / "events.jsonl"), "--control", str(control)]
    whole, half = tmp_path / "whole.jsonl", tmp_path / "half.jsonl"
    assert main(["replay", *inputs, "--out", str(whole), "--engine", "embedded"]) == 1
    cut = ["--savepoint", str(tmp_path / "warm"), "--until", utc_text(SEEN_MS + 900_000)]
    assert main(["replay", *inputs, *cut, "--out", str(half), "--engine", "embedded"]) == 1
    goes_on = ["--events", str(tmp_path / "events.jsonl"), "--alerts", str(tmp_path / "rest"), "--available-now"]
    assert main(["run", "--from", str(tmp_path / "warm"), *goes_on, "--checkpoint", str(tmp_path / "job")]) == 0
    both = half.read_bytes().splitlines() + written(tmp_path / "rest")
    assert but_last(both) == but_last(whole.read_bytes().splitlines())


@pytest.mark.parametrize("is_warm", [False, True])
def test_a_long_history_of_changes(is_warm: bool, tmp_path: Path) -> None:
    """There are more versions of a rule and of a list, and more pauses, than may wait in a job at one time."""
    source = TYPES + "list suspects: string\npattern plain by card { seq a where a: payment  tx_id in suspects }"
    first = rule("plain", 0).model_copy(update={"source": source})
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "plain.toml").write_text(RULE.format(name="plain"))
    (tmp_path / "rules" / "plain.cep").write_text(source)
    records: list[ControlRecord] = []
    for number in range(CHANGES):
        effective_at = utc_text(SEEN_MS + 1 + 6_000 * number)
        listed = {"id": "suspects", "of": "string", "version": number + 1, "change": "add", "entries": [f"t{number}"]}
        records.append(ListRecord.model_validate({**listed, "effective_at": effective_at}))
        records.append(first.model_copy(update={"version": number + 2, "effective_at": effective_at}))
        turn = PauseRecord if number % 2 == 0 else ResumeRecord
        records.append(turn(id="plain", version=number + 1, effective_at=effective_at))
    (tmp_path / "control").mkdir()
    control = tmp_path / "control" / "1.jsonl"
    control.write_bytes(b"\n".join(record.to_json() for record in records) + b"\n")
    events = [orjson.loads(line) for line in payments().splitlines()]
    for number, event in enumerate(events):
        event["event_time"] = utc_text(SEEN_MS + 30_000 * number)
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "1.jsonl").write_bytes(b"\n".join(map(orjson.dumps, events)))
    inputs = ["--rules", str(tmp_path / "rules"), "--events", str(tmp_path / "events")]
    out = tmp_path / "replayed.jsonl"
    until = ["--savepoint", str(tmp_path / "warm"), "--until", utc_text(SEEN_MS + 400_000)] if is_warm else []
    replay = ["replay", *inputs, "--control", str(control), "--out", str(out), "--engine", "embedded", *until]
    assert main(replay) == 0
    places = ["--alerts", str(tmp_path / "alerts"), "--checkpoint", str(tmp_path / "job"), "--available-now"]
    goes_on = ["--events", str(tmp_path / "events"), "--from", str(tmp_path / "warm")]
    begins = [*inputs, "--control", str(tmp_path / "control")]
    assert main(["run", *(goes_on if is_warm else begins), *places]) == 0
    alerts = but_last(out.read_bytes().splitlines() if out.exists() else [])
    live = but_last(written(tmp_path / "alerts"))
    assert not letters_of(tmp_path / "job")
    # Five changes lie between two payments; an even one pauses the rule, and the last one resumes it.
    expected_ids = {f"t{n}" for n in range(1, 30) if n % 2 == 0 or 5 * n >= CHANGES}
    assert {orjson.loads(a)["events"][0]["event_id"] for a in (alerts + live if is_warm else alerts)} == expected_ids
    assert is_warm or alerts == live
