"""`cep replay`: its arguments, a job's control records, the end of a history, and records of other forms."""

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cep
from cep.base.audit import is_audit
from cep.base.text import utc_text
from cep.cli import main as cli
from cep.cli.main import main
from cep.demo.stream import StreamSize, build, json_lines
from cep.model.rule import ControlRecord, ListRecord, PauseRecord, ResumeRecord
from cep.rulebook.files import read_rules
from tests.cli.test_rules import RULE as PLAIN_RULE
from tests.cli.test_why import PATTERNS, card_rule
from tests.output_of import OutputOf
from tests.plain_avro import plain_avro
from tests.real_kafka import KafkaCluster, new_topic
from tests.rule_files import rule_text
from tests.rulebook.test_levels import BODIES, EVENTS, SEEN_MS, TOGETHER, rule

# `cep replay`: the demo's day with the rules of this repository, and every mistake in the arguments.

ROOT = Path(__file__).parents[2]
RULES = ROOT / "rules"


def usage(output_of: OutputOf, *arguments: object) -> str:
    """Return the message about wrong arguments."""
    return output_of(cli.main(["replay", *map(str, arguments)]), 2).err


def test_wrong_arguments(output_of: OutputOf, tmp_path: Path) -> None:
    events, out = ("--events", tmp_path / "events.csv"), ("--out", tmp_path / "a.jsonl")
    assert "give --rules, --control, or both" in usage(output_of, *events, *out)
    assert "is not a folder" in usage(output_of, "--rules", tmp_path / "gone", *events, *out)
    assert "cannot be read" in usage(output_of, "--control", tmp_path / "gone", *events, *out)
    assert "cannot tell the format" in usage(output_of, "--rules", RULES, *events, "--out", tmp_path / "a.xml")
    assert "there is no folder" in usage(output_of, "--rules", RULES, *events, "--out", tmp_path / "gone" / "a.jsonl")
    assert "--cores is 1 or more, not 0" in usage(output_of, "--rules", RULES, *events, *out, "--cores", 0)
    assert "key groups are 1 to" in usage(output_of, "--rules", RULES, *events, *out, "--key-groups", 0)


def test_a_time_that_is_none(output_of: OutputOf, tmp_path: Path) -> None:
    out = tmp_path / "alerts.jsonl"
    message = usage(output_of, "--rules", RULES, "--events", tmp_path, "--out", out, "--dedup", "soon")
    assert "--dedup: 'soon' is no time" in message


def test_events_that_are_not_there(output_of: OutputOf, tmp_path: Path) -> None:
    events, out = ("--events", str(tmp_path / "gone")), ("--out", str(tmp_path / "a.jsonl"))
    assert "there are no events at" in output_of(cli.main(["replay", "--rules", str(RULES), *events, *out]), 2).err
    assert list(tmp_path.iterdir()) == []


def test_no_rule_in_force_is_a_finding(output_of: OutputOf, tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "bad.toml").write_text("id = 1")
    arguments = ["--rules", str(tmp_path / "rules"), "--events", "x", "--out", str(tmp_path / "a.jsonl")]
    printed = output_of(cli.main(["replay", *arguments]), 1).err
    assert "bad.toml: $.id" in printed
    assert "no rule is in force" in printed


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_the_demo_day(output_of: OutputOf, tmp_path: Path) -> None:
    stream = build(11, StreamSize(cards_count=150, payments_per_card=12))
    events, out, control = tmp_path / "events.jsonl", tmp_path / "alerts.jsonl", tmp_path / "control.jsonl"
    events.write_bytes(b"\n".join(json_lines(stream.payments)) + b"\nnot a payment\n")
    printed = output_of(cli.main(["replay", "--rules", str(RULES), "--events", str(events), "--out", str(out)])).out
    counts = Counter(json.loads(line)["rule_id"] for line in out.read_bytes().splitlines())
    assert counts == Counter(case.rule_id for case in stream.planted if case.fires)
    assert json.loads((tmp_path / "alerts.jsonl.dead.jsonl").read_text())["record"] == "not a payment"
    assert "poison[unreadable]" in printed
    for rule_id in counts:
        assert rule_id in printed
    # The same as the history of a control topic, with one broken record, to Parquet.
    records, _ = read_rules(RULES)
    control.write_bytes(b"\n".join(record.to_json() for record in records) + b"\n\n{}\n")
    arguments = ["--control", str(control), "--events", str(events), "--out", str(tmp_path / "alerts.parquet")]
    assert "control.jsonl:7: $" in output_of(cli.main(["replay", *arguments]), 1).err
    assert Counter(pq.read_table(tmp_path / "alerts.parquet")["rule_id"].to_pylist()) == counts


@pytest.mark.parametrize("engine", ["embedded", pytest.param("spark", marks=pytest.mark.spark)])
def test_events_that_were_sent_twice(
    engine: str, output_of: OutputOf, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if engine == "spark":
        request.getfixturevalue("spark")
    lines = list(json_lines(build(12, StreamSize(cards_count=60, payments_per_card=8)).payments))
    once, twice = tmp_path / "once.jsonl", tmp_path / "twice.jsonl"
    once.write_bytes(b"\n".join(lines))
    twice.write_bytes(b"\n".join([*lines, *reversed(lines)]))

    def replayed(events: Path, *more: str) -> tuple[bytes, str]:
        out = tmp_path / "alerts.jsonl"
        arguments = ["--rules", str(RULES), "--events", str(events), "--out", str(out), "--engine", engine]
        assert cli.main(["replay", *arguments, *more]) == 0
        return out.read_bytes(), output_of.read().out

    expected, _ = replayed(once)
    alerts, printed = replayed(twice, "--dedup", "1 d")
    assert alerts == expected == replayed(twice)[0] != replayed(twice, "--dedup", "0 s")[0]
    assert f"duplicates {len(lines):>}" in " ".join(printed.split()).replace(",", "")


# `cep replay --rules --control` gives the same alerts and refusal letters as `cep run` with these records.

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


def put(folder: Path, names: tuple[str, ...], *, together: bool) -> None:
    folder.mkdir()
    for name in names:
        (folder / f"{name}.toml").write_text(rule_text(name, f"{name}.cep"))
        (folder / f"{name}.cep").write_text(TOGETHER if together else EVENTS + f"pattern {name} {BODIES[name]}")


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
def test_a_replay_refuses_what_the_job_refused(name: str, tmp_path: Path, output_of: OutputOf) -> None:
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
    output_of.read()
    replay = ["replay", *inputs, "--control", str(control), "--out", str(out), "--engine", "embedded"]
    printed = output_of(main(replay), 1 if refused else 0)
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
    source = EVENTS + "list suspects: string\npattern plain by card { seq a where a: payment  tx_id in suspects }"
    first = rule("plain", 0).model_copy(update={"source": source})
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "plain.toml").write_text(rule_text("plain", "plain.cep"))
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


# `--to-the-end` closes the open windows at the end of a history, in each verb that replays it.

ABSENCE = """event tx { i id  event_time time  card string  amount decimal(2) }
pattern p(least: decimal = 1.00) by card { seq a -> !b within 1 d  where a: tx amount > least  b: tx amount > 2.00 }
"""
ROWS = [
    {"i": f"{card}{n}", "event_time": f"2026-01-0{1 + n // 10}T00:{n % 60:02}:00Z", "card": f"c{card}", "amount": 1.5}
    for card in range(3)
    for n in range(20)
]


@pytest.fixture
def silence(tmp_path: Path) -> Path:
    for name, text in (("patterns/p.cep", ABSENCE), ("rules/p.toml", PLAIN_RULE), ("labels.csv", "i,fraud\n00,true\n")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tmp_path


def shown(silence: Path, output_of: OutputOf, *words: str) -> str:
    main([word.replace("@", f"{silence}/") for word in words])
    return output_of.read().out


@pytest.mark.parametrize("verb", ["backtest", "diff", "report"])
def test_more_windows_close_at_the_end(verb: str, silence: Path, output_of: OutputOf) -> None:
    (silence / "empty").mkdir()
    words = {
        "backtest": ["--rules", "@rules", "--labels", "@labels.csv", "--json", "@f.json"],
        "diff": ["@rules", "@rules"],
        "report": ["--rules", "@rules", "--labels", "@labels.csv", "--out", "@f.html", "--thresholds", "none"],
    }[verb]
    counts = []
    for more in ([], ["--to-the-end"]):
        printed = shown(silence, output_of, verb, *words, "--events", "@events.jsonl", *more)
        if verb == "diff":
            counts.append(int(printed.split("kept ")[1].split(",")[0]))
        else:
            written: dict[str, Any] = json.loads((silence / "f.json").read_text())
            counts.append((written.get("figures") or written)["together"]["alerts"])
    assert counts[0] < counts[1]


def test_python_does_the_same() -> None:
    rules, table = cep.parse(ABSENCE), pa.Table.from_pylist([{**row, "fraud": False} for row in ROWS])
    by_match = [len(rules.match(table, to_the_end=to_the_end)) for to_the_end in (False, True)]
    assert by_match[0] < by_match[1]
    for count, to_the_end in zip(by_match, (False, True), strict=True):
        assert rules.diff(rules, table, to_the_end=to_the_end).kept_count == count
        assert rules.backtest(table, "fraud", to_the_end=to_the_end).figures.together.alerts == count


# Verbs and jobs over records of other names and forms: the alerts equal the alerts of plain records.

PAYMENTS = [
    {"id": f"{card}-{n}", "event_time": f"2026-03-01T10:{n:02d}:00Z", "card": card, "shop": "s1", "amount": a,
     "status": s}
    for card, events in {
        "c1": [("1.00", "declined"), ("1.50", "declined"), ("900.00", "approved")],
        "c2": [("1.00", "declined"), ("900.00", "approved")],
    }.items()
    for n, (a, s) in enumerate(events)
]  # fmt: skip
MAPPING = [
    "--columns", "*=payload.after", "--columns", "id=payload.after.pk", "--columns", "card=payload.after.card.no",
    "--columns", "event_time=payload.after.ts", "--columns", "amount=payload.after.cents",
    "--minor", "amount", "--time-unit", "s", "--fixed", "shop=s1",
]  # fmt: skip

VIEWS = {"sent": "from", "received": "to"}


def envelope(payment: dict[str, Any]) -> dict[str, Any]:
    minute = int(payment["event_time"][14:16])
    after = {
        "pk": payment["id"], "card": {"no": payment["card"]}, "ts": 1_772_359_200 + 60 * minute,
        "cents": int(payment["amount"].replace(".", "")), "status": payment["status"],
    }  # fmt: skip
    return {"payload": {"op": "c", "after": after}}


def lines(records: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(r).encode() + b"\n" for r in records)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return make_place(tmp_path)


def make_place(tmp_path: Path) -> Path:
    """Write a rule, plain payments and the same payments in envelopes."""
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "p.cep").write_text(PATTERNS, encoding="utf-8")
    (rules / "testing.toml").write_text(card_rule("testing"), encoding="utf-8")
    (tmp_path / "plain.jsonl").write_bytes(lines(PAYMENTS))
    (tmp_path / "raw.jsonl").write_bytes(lines([envelope(p) for p in PAYMENTS]))
    return tmp_path


def replay(place: Path, *words: str, code: int = 0) -> bytes:
    out = place / "alerts.jsonl"
    assert cli.main(["replay", "--rules", str(place / "rules"), "--out", str(out), *words]) == code
    return out.read_bytes()


def test_replay_run_and_why_read_one_mapping(place: Path, output_of: OutputOf) -> None:
    plain = replay(place, "--events", str(place / "plain.jsonl"))
    assert plain.count(b"\n") == 1
    raw = str(place / "raw.jsonl")
    assert replay(place, "--events", raw, *MAPPING) == plain
    output_of.read()
    flags = ["--rules", str(place / "rules"), "--events", raw, "--alerts", str(place / "out"), "--available-now"]
    assert cli.main(["run", *flags, *MAPPING]) == 0
    (file,) = (place / "out").glob("*.jsonl")
    ids = [json.loads(line)["alert_id"] for line in (plain.strip(), file.read_bytes().strip())]
    assert ids[0] == ids[1]
    why = ["why", "--alerts", str(place / "alerts.jsonl"), "--alert", ids[0], "--rules", str(place / "rules")]
    assert cli.main([*why, "--events", raw, *MAPPING]) == 0
    command = ["why-not", "--rule", "testing", "--key", "c2", "--rules", str(place / "rules"), "--events", raw]
    assert "there were 1" in output_of(cli.main([*command, *MAPPING])).out


def test_a_record_seen_from_both_sides(place: Path) -> None:
    """A record that is an event of two cards gives the alerts of two records, in replay and live."""
    both = [{**p, "from": p["card"], "to": f"to-{p['card']}"} for p in PAYMENTS]
    (place / "both.jsonl").write_bytes(lines(both))
    apart = [{**p, "id": f"{p['id']}#{view}", "card": p[field]} for p in both for view, field in VIEWS.items()]
    (place / "apart.jsonl").write_bytes(lines(apart))
    expected = replay(place, "--events", str(place / "apart.jsonl"))
    assert expected.count(b"\n") == 2
    columns = [word for view, field in VIEWS.items() for word in ("--columns", f"{view}/card={field}")]
    assert replay(place, "--events", str(place / "both.jsonl"), *columns) == expected
    pq.write_table(pa.Table.from_pylist(both), place / "both.parquet")
    assert replay(place, "--events", str(place / "both.parquet"), *columns) == expected
    for name in ("both.jsonl", "both.parquet"):
        flags = ["--rules", str(place / "rules"), "--events", str(place / name), "--alerts", str(place / name[5:])]
        assert cli.main(["run", *flags, "--available-now", *columns]) == 0
        (file,) = (place / name[5:]).glob("*.jsonl")
        assert alert_ids(file.read_bytes()) == alert_ids(expected)
    command = ["why-not", "--rule", "testing", "--key", "to-c2", "--rules", str(place / "rules")]
    assert cli.main([*command, "--events", str(place / "both.parquet"), *columns]) == 0


def alert_ids(written: bytes) -> list[str]:
    return sorted(json.loads(line)["alert_id"] for line in written.splitlines())


def test_a_settings_file_says_the_same(place: Path) -> None:
    plain = json.loads(replay(place, "--events", str(place / "plain.jsonl")))
    (place / "cep.toml").write_text(
        f"""[job]
rules = "rules"
[events]
folder = "{place / "raw.jsonl"}"
fixed = {{ shop = "s1" }}
minor = ["amount"]
time_unit = "s"
[events.columns]
"*" = "payload.after"
id = "payload.after.pk"
card = "payload.after.card.no"
event_time = "payload.after.ts"
amount = "payload.after.cents"
""",
        encoding="utf-8",
    )
    assert cli.main(["run", "--conf", str(place / "cep.toml"), "--alerts", str(place / "out"), "--available-now"]) == 0
    (file,) = (place / "out").glob("*.jsonl")
    assert json.loads(file.read_bytes())["alert_id"] == plain["alert_id"]


def test_several_inputs_packed_and_by_wildcard_are_read_once(place: Path) -> None:
    plain = replay(place, "--events", str(place / "plain.jsonl"))
    parts = place / "parts"
    parts.mkdir()
    (parts / "a.jsonl").write_bytes(lines(PAYMENTS[:2]))
    (parts / "b.jsonl.gz").write_bytes(gzip.compress(lines(PAYMENTS[2:])))
    assert replay(place, "--events", str(parts / "a.jsonl"), "--events", str(parts / "b.jsonl.gz")) == plain
    assert replay(place, "--events", str(parts / "*.jsonl*"), "--events", str(parts / "a.jsonl")) == plain
    assert replay(place, "--events", str(place / "plain.jsonl"), "--since", "2026-03-01T10:01:00Z") == b""
    assert replay(place, "--events", str(place / "plain.jsonl"), "--until", "2026-03-01T10:02:00Z") == b""
    command = ["why-not", "--rule", "testing", "--key", "c2", "--rules", str(place / "rules")]
    assert cli.main([*command, "--events", str(parts / "a.jsonl"), "--events", str(parts / "b.jsonl.gz")]) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"card": ...}, "no record has card, which the field `card` is read from; they have id, event_time, shop"),
        ({"card": ..., "crd": "c1"}, "did you mean crd?"),
        ({"event_time": 1_772_359_200}, "which is in 1970 if it is in ms; say what it is in with --time-unit s"),
        ({"event_time": "2026-03-01T10:00:00"}, "a time without a zone; say which one with --time-zone UTC"),
    ],
)
def test_what_goes_in_wrongly_is_refused_before_anything_runs(
    place: Path, changes: dict[str, Any], message: str, output_of: OutputOf
) -> None:
    records = [{n: v for n, v in {**p, **changes}.items() if v is not ...} for p in PAYMENTS]
    (place / "bad.jsonl").write_bytes(lines(records))
    flags = ["--rules", str(place / "rules"), "--events", str(place / "bad.jsonl"), "--out", str(place / "a.jsonl")]
    assert message in output_of(cli.main(["replay", *flags]), 2).err
    assert not (place / "a.jsonl").exists()


def test_a_field_that_nobody_has_is_refused(place: Path, output_of: OutputOf) -> None:
    flags = ["--rules", str(place / "rules"), "--out", str(place / "a.jsonl"), "--events", str(place / "plain.jsonl")]
    assert cli.main(["replay", *flags, "--columns", "amnt=x"]) == 2
    assert "no field `amnt`; did you mean `amount`?" in output_of.read().err
    assert cli.main(["run", "--rules", str(place / "rules"), "--events", str(place), "--columns", "amnt=x"]) == 2


def test_a_replay_that_sets_too_much_aside_ends_with_1(place: Path, output_of: OutputOf) -> None:
    (place / "odd.jsonl").write_bytes(lines([{**PAYMENTS[0], "amount": "much"}, *PAYMENTS[1:]]))
    odd = ["--events", str(place / "odd.jsonl")]
    replay(place, *odd, code=1)
    replay(place, *odd, "--rejected-max", "0.2")
    output_of.read()
    replay(place, *odd, "--rejected-max", "0.19", code=1)
    last = output_of.read().err.splitlines()[-1]
    assert last == "1 of 5 records (20.00%) were rejected, more than --rejected-max 0.19 allows"
    (place / "none.jsonl").write_bytes(lines([{**p, "amount": "much"} for p in PAYMENTS]))
    replay(place, "--events", str(place / "none.jsonl"), "--rejected-max", "1", code=1)
    assert "5 of 5 records (100.00%) were rejected" in output_of.read().err


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_spark_reads_the_same_mapping(place: Path) -> None:
    plain = replay(place, "--events", str(place / "plain.jsonl"))
    raw = [envelope(p) for p in PAYMENTS]
    pq.write_table(pa.Table.from_pylist(raw), place / "raw.parquet")
    assert replay(place, "--events", str(place / "raw.parquet"), *MAPPING) == plain
    assert replay(place, "--events", str(place / "raw.parquet"), "--engine", "spark", *MAPPING) == plain
    both = [{**p, "from": p["card"], "to": f"to-{p['card']}"} for p in PAYMENTS]
    pq.write_table(pa.Table.from_pylist(both), place / "both.parquet")
    columns = [word for view, field in VIEWS.items() for word in ("--columns", f"{view}/card={field}")]
    one_process = replay(place, "--events", str(place / "both.parquet"), *columns)
    assert one_process.count(b"\n") == 2
    assert replay(place, "--events", str(place / "both.parquet"), "--engine", "spark", *columns) == one_process


# Topics whose records have other names and forms: `cep run` and `cep live` give the alerts of plain records.

LATER = {**PAYMENTS[0], "id": "later", "event_time": "2026-03-01T10:59:00Z"}  # moves the watermark past the others
# A Debezium envelope with the card in a header of the record.
HEADED = [word.replace("card=payload.after.card.no", "card=header:card") for word in MAPPING]


def produce(kafka: KafkaCluster) -> str:
    topic = new_topic(kafka, 1)
    records: list[dict[str, Any]] = []
    for payment in (*PAYMENTS, LATER):
        record = envelope(payment)
        del record["payload"]["after"]["card"]
        headers = [("card", payment["card"].encode()), ("other", None)]
        records.append({"value": json.dumps(record).encode(), "partition": 0, "headers": headers})
    records.append({"value": b"deleted: no JSON", "partition": 0})
    kafka.send(topic, records)
    return topic


def flags(place: Path, kafka: KafkaCluster, topic: str, out: str) -> list[str]:
    job = ["--rules", str(place / "rules"), "--bootstrap-servers", kafka.address, "--topic", topic]
    return [*job, "--alerts", str(place / out), "--available-now", "--rejected-max", "1", *HEADED]


def ids_in(folder: Path) -> list[str]:
    return alert_ids(b"".join(file.read_bytes() for file in sorted(folder.glob("*.jsonl"))))


def test_one_process_reads_envelopes_and_headers(place: Path, kafka_broker: KafkaCluster) -> None:
    plain = replay(place, "--events", str(place / "plain.jsonl"))
    assert cli.main(["run", *flags(place, kafka_broker, produce(kafka_broker), "out")]) == 0
    assert ids_in(place / "out") == alert_ids(plain)


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_spark_reads_envelopes_and_headers(place: Path, kafka_broker: KafkaCluster) -> None:
    plain = replay(place, "--events", str(place / "plain.jsonl"))
    checkpoint = ["--checkpoint", str(place / "checkpoint")]
    assert cli.main(["live", *flags(place, kafka_broker, produce(kafka_broker), "out"), *checkpoint]) == 0
    assert ids_in(place / "out") == alert_ids(plain)


def in_avro(folder: Path) -> tuple[list[str], list[bytes]]:
    """Write the schema of the envelopes; return the flags that name it, and the envelopes as Avro."""

    def record(name: str, **fields: Any) -> dict[str, Any]:
        return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields.items()]}

    card = record("Card", no="string")
    after = record("After", pk="string", card=card, ts="long", cents="long", status="string")
    shape = record("Envelope", payload=record("Payload", op="string", after=after))
    (folder / "envelope.avsc").write_text(json.dumps(shape), encoding="utf-8")
    values = plain_avro(shape, map(envelope, (*PAYMENTS, LATER)))
    return ["--format", "avro", "--schema-file", str(folder / "envelope.avsc")], values


@pytest.mark.parametrize("verb", ["run", pytest.param("live", marks=[pytest.mark.spark, pytest.mark.slow])])
def test_envelopes_of_avro_are_mapped(verb: str, place: Path, kafka_broker: KafkaCluster) -> None:
    plain = replay(place, "--events", str(place / "plain.jsonl"))
    form, values = in_avro(place)
    topic = new_topic(kafka_broker, 1)
    kafka_broker.send(topic, [{"value": value, "partition": 0} for value in [*values, b"no avro"]])
    arguments = [word for word in flags(place, kafka_broker, topic, "out") if word not in HEADED]
    checkpoint = ["--checkpoint", str(place / "checkpoint")]
    assert cli.main([verb, *arguments, *MAPPING, *form, *checkpoint]) == 0
    assert ids_in(place / "out") == alert_ids(plain)


def test_records_without_their_header_are_set_aside(place: Path, output_of: OutputOf) -> None:
    """A file has no headers: the mapping reads a member of this name there."""
    headed = [{**p, "header:card": p["card"]} for p in PAYMENTS]
    (place / "letters.jsonl").write_bytes(lines(headed))
    plain = replay(place, "--events", str(place / "plain.jsonl"))
    assert replay(place, "--events", str(place / "letters.jsonl"), "--columns", "card=header:card") == plain
    assert cli.main(["replay", "--rules", str(place / "rules"), "--events", str(place / "plain.jsonl"), "--out",
                     str(place / "none.jsonl"), "--columns", "card=header:card"]) == 2  # fmt: skip
    assert "no record has header:card" in output_of.read().err
