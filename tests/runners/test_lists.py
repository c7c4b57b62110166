"""Lists from a file and from control records: two replays and one job give the same alerts, over restarts.

The job also moves through a savepoint. The alerts equal a look-up by each event's time.
"""

import json
import random
from pathlib import Path

import pytest

from cep.base.text import utc_text
from cep.cli.main import main
from cep.model.rule import ListRecord
from tests.rule_files import rule_text

PATTERN = """
event payment { tx_id id  event_time time  card_id string  ip string  amount decimal(2) }
list blocked: string from "lists/blocked.csv"
list networks: cidr
pattern listed(watch: list of string = blocked) by card_id {
  seq    x
  where  x: payment  card_id in watch or ip in networks
  skip   none
  emit   amount = x.amount
}
pattern often by card_id {
  seq    x
  where  x: payment  count(payment over 1 h where card_id in blocked) > 2
  skip   none
}
"""
START_MS = 1_772_323_200_000
STEP_MS = 60_000
COUNT = 240
BLOCKED = ["c1", "c2"]
# Version, change, entries, and the number of the event at whose time the change starts.
CHANGES = [
    (2, "add", ["c3"], 40),
    (3, "remove", ["c1"], 90),
    (4, "replace", ["c0", "c4"], 150),
    (5, "add", ["c1"], 151),
]
NETWORKS = [(1, "replace", ["10.0.0.0/24"], 100), (2, "remove", ["10.0.0.0/24"], 180)]


def events() -> list[dict[str, object]]:
    rng = random.Random(7)
    return [
        {
            "tx_id": f"t{n:04}", "event_time": utc_text(START_MS + n * STEP_MS), "card_id": f"c{rng.randrange(6)}",
            "ip": f"10.0.{rng.randrange(3)}.{rng.randrange(9)}", "amount": "1.00",
        }
        for n in range(COUNT)
    ]  # fmt: skip


def records() -> list[ListRecord]:
    list_records = []
    for name, kind, changes in (("blocked", "string", CHANGES), ("networks", "cidr", NETWORKS)):
        for version, change, entries, number in changes:
            effective_at = utc_text(START_MS + number * STEP_MS)
            fields = {"id": name, "of": kind, "version": version, "change": change, "entries": entries}
            list_records.append(ListRecord.model_validate({**fields, "effective_at": effective_at}))
    return list_records


def expected() -> set[tuple[str, str]]:
    """Return (rule, event) from plain sets and a walk over the events."""
    blocked, networks, matches = set(BLOCKED), False, set[tuple[str, str]]()
    past: dict[object, list[int]] = {}
    for n, event in enumerate(events()):
        for _, change, entries, number in CHANGES:
            if number == n:
                change_entries = set(entries)
                blocked = {
                    "add": blocked | change_entries,
                    "remove": blocked - change_entries,
                    "replace": change_entries,
                }[change]
        networks = 100 <= n < 180
        card = event["card_id"]
        if card in blocked or (networks and str(event["ip"]).startswith("10.0.0.")):
            matches.add(("listed", str(event["tx_id"])))
        if card in blocked:
            past.setdefault(card, []).append(n)
        if sum(n - then < 60 for then in past.get(card, ())) > 2:
            matches.add(("often", str(event["tx_id"])))
    return matches


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("patterns/lists", "rules", "events", "control"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "patterns" / "p.cep").write_text(PATTERN)
    (tmp_path / "patterns" / "lists" / "blocked.csv").write_text("blocked\n" + "\n".join(BLOCKED) + "\n")
    for name in ("listed", "often"):
        (tmp_path / "rules" / f"{name}.toml").write_text(rule_text(name, "../patterns/p.cep", message="listed"))
    return tmp_path


def alerts(*paths: Path) -> list[tuple[str, str]]:
    lines = [json.loads(line) for path in paths for line in path.read_bytes().splitlines()]
    return [(alert["rule_id"], alert["events"][-1]["event_id"]) for alert in lines]


def inputs(place: Path) -> list[str]:
    paths = ["--rules", str(place / "rules"), "--control", str(place / "control.jsonl")]
    return [*paths, "--events", str(place / "all.jsonl")]


def replayed(place: Path, engine: str) -> list[tuple[str, str]]:
    (place / "all.jsonl").write_text("\n".join(json.dumps(event) for event in events()))
    (place / "control.jsonl").write_bytes(b"\n".join(record.to_json() for record in records()))
    assert main(["replay", "--engine", engine, *inputs(place), "--out", str(place / "alerts.jsonl")]) == 0
    return alerts(place / "alerts.jsonl")


def words_of_phase(place: Path, number: int, verb: str) -> list[str]:
    """Return the command of one run of a job, to the end of the events.

    It reads a third of the events, and the changes that start in it.
    """
    third = range(number * COUNT // 3, (number + 1) * COUNT // 3)
    records_and_starts = [(record, change[3]) for record, change in zip(records(), [*CHANGES, *NETWORKS], strict=True)]
    phase_records = [record.to_json() for record, start in records_and_starts if start in third]
    (place / "control" / f"{number}.jsonl").write_bytes(b"\n".join(phase_records) + b"\n")
    (place / "events" / f"{number}.jsonl").write_text("\n".join(json.dumps(events()[n]) for n in third) + "\n")
    paths = ["--rules", str(place / "rules"), "--events", str(place / "events"), "--control", str(place / "control")]
    out = ["--alerts", str(place / "alerts"), "--key-groups", "4", "--available-now"]
    return [verb, *paths, *out, "--checkpoint", str(place / "job")]


def test_the_reference_sees_every_change() -> None:
    matches = expected()
    assert {rule for rule, _ in matches} == {"listed", "often"}
    assert 60 < len(matches) < 2 * COUNT


def test_a_replay_applies_each_version_to_its_own_interval(place: Path) -> None:
    matches = replayed(place, "embedded")
    assert len(matches) == len(set(matches))
    assert set(matches) == expected()


@pytest.mark.parametrize("moves", [False, True])
def test_a_job_in_one_process_over_restarts(place: Path, moves: bool) -> None:
    """The savepoint in between brings the files of the lists; the files of the patterns are gone by then."""
    assert main(words_of_phase(place, 0, "run")) == 0
    (place / "patterns" / "lists" / "blocked.csv").write_text("blocked\nc5\n")
    assert main(words_of_phase(place, 1, "run")) == 0
    if moves:
        assert main(["job", "savepoint", "--checkpoint", str(place / "job"), "--to", str(place / "saved")]) == 0
        (place / "job").rename(place / "old")
        assert main(["job", "restore", "--from", str(place / "saved"), "--checkpoint", str(place / "job")]) == 0
    assert main(words_of_phase(place, 2, "run")) == 0
    matches = alerts(*sorted((place / "alerts").glob("*.jsonl")))
    assert len(matches) == len(set(matches))
    assert set(matches) == expected()


def test_why_asks_the_list_of_that_time(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matches = replayed(place, "embedded")
    capsys.readouterr()
    (alert,) = [
        json.loads(line)["alert_id"]
        for line, match in zip((place / "alerts.jsonl").read_bytes().splitlines(), matches, strict=True)
        if match == min(matches)
    ]
    assert main(["why", "--alert", alert, "--alerts", str(place / "alerts.jsonl"), *inputs(place)]) == 0
    assert 'card_id = "c' in capsys.readouterr().out


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_replay_on_spark(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sorted(replayed(place, "spark")) == sorted(expected())


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.always
@pytest.mark.usefixtures("spark")
def test_a_live_job_over_restarts(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each phase is a job of its own; the first one's content of the lists' file stays."""
    for number in range(3):
        assert main(words_of_phase(place, number, "live")) == 0
        (place / "patterns" / "lists" / "blocked.csv").write_text("blocked\nc5\n")
    matches = alerts(*sorted((place / "alerts").glob("*.jsonl")))
    assert len(matches) == len(set(matches))
    assert set(matches) == expected()
