"""A small campaign is clean, one with bad inputs reports them, and an interrupted one continues.

Lists in lists, thousands deep, are an error with the next step. Each role and action has a cell with a test. Senders of
events, publishers and writers of input files change no rule, stop no job and add no line to the audit.
"""

import ast
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from types import SimpleNamespace

import orjson
import pytest

from cep.base.audit import Head, Line, is_audit, is_letter, verify
from cep.base.errors import CepError
from cep.columnar.decode import Decoded
from cep.lists.store import ListStore
from cep.model.rule import ListRecord, UpsertRecord
from cep.rulebook.deploy import deploy
from cep.rulebook.saved import Saved, list_names, record_digests
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.live_checkpoint import QUERY_FOLDER
from cep.runners.spark.state import partitions_of
from cep.sources.offsets import parse_offsets
from cep.sources.pieces import read_pieces
from cep.state.memory import MemoryStore
from cep.state.packed import Shape
from cep.step.job import Job
from tests.columnar.common import GOOD
from tests.hostile import campaign
from tests.hostile.campaign import run
from tests.hostile.doors import _RECORD, _HonestJob, job_files
from tests.hostile.mutate import Part, Tally, broken_bytes, broken_value, divided, left_to_do, read_record
from tests.hostile.roles import ACTIONS, CELLS, ROLES
from tests.rulebook.people import TRUST, by_two, upsert_by_two
from tests.rulebook.records import retire
from tests.rulebook.test_trust import DATA
from tests.runners.embedded.cases import decoded


@pytest.mark.parametrize("seed", range(20))
def test_the_same_seed_makes_the_same_input(seed: int) -> None:
    tree = {"a": [1, {"b": "text"}], "c": None}
    assert broken_bytes(b"some bytes", Random(seed)) == broken_bytes(b"some bytes", Random(seed))
    before = json.dumps(tree)
    assert repr(broken_value(tree, Random(seed))) == repr(broken_value(tree, Random(seed)))
    assert json.dumps(tree) == before


def part(start: int, stop: int, outcome: str = "accepted", wrong: str = "") -> Part:
    part = Part(1, (), start, stop)
    for _ in range(start, stop):
        part.add("x", outcome, 0.25, wrong)
    return part


def test_the_last_line_has_all_counts() -> None:
    tally = Tally()
    tally.take(part(0, 5))
    assert tally.is_clean
    tally.take(part(5, 6, "hangs", "it stood still"))
    assert not tally.is_clean
    assert tally.line().startswith("6 inputs: 5 accepted, 0 refused, 0 tracebacks, 1 hangs, 0 memory")
    (row,) = tally.table()
    counted = "5 accepted, 0 refused, 0 tracebacks, 1 hangs, 0 memory, 0 differences, 0 deaths"
    assert row.split() == ["x", "6", "250.00", "ms", *counted.split()]


def test_a_record_that_was_cut_says_what_is_left(tmp_path: Path) -> None:
    path = tmp_path / "record"
    parts = [part(0, 10), part(40, 41, "hangs", "it stood still"), part(30, 40)]
    path.write_text("".join(f"{one.to_json()}\n" for one in parts) + part(41, 50).to_json()[:-9])
    for _ in range(2):
        assert read_record(path) == parts
    remaining = left_to_do(range(100), parts)
    assert remaining == [range(10, 30), range(41, 100)]
    assert left_to_do(range(35, 45), parts) == [range(41, 45)]
    for workers in (1, 2, 3, 100):
        shares = divided(remaining, workers)
        assert sorted(number for share in shares for span in share for number in span) == [
            *range(10, 30),
            *range(41, 100),
        ]
        assert max(sum(map(len, share)) for share in shares) - min(sum(map(len, share)) for share in shares) <= 1


def test_time_without_a_processor_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, starved_s, alarms = 0.0, 0.0, list[float]()
    monkeypatch.setattr(campaign, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(campaign, "_starved_s", lambda _: starved_s)
    monkeypatch.setattr("signal.setitimer", lambda _, seconds: alarms.append(seconds))
    clock = campaign.Clock()
    now_s, starved_s = 40.0, 36.0
    assert not clock.is_past(5)
    campaign._ring_late(clock)
    assert alarms == [26.0]
    now_s = 66.0
    assert clock.is_past(5)
    with pytest.raises(campaign._AlarmError):
        campaign._ring_late(clock)


def test_the_system_says_how_long_a_process_lacked_a_processor() -> None:
    assert campaign._starved_s("self") >= 0
    assert campaign._starved_s(2**40) == 0


def test_a_thousand_inputs() -> None:
    tally = run(11, [range(1_000)], 2)
    assert tally.is_clean, "\n".join(tally.wrong)
    assert tally.done == 1_000
    assert tally.of("accepted") > 100
    assert len({kind for kind, _ in tally.counts}) > 15


@pytest.mark.slow
def test_many_inputs() -> None:
    tally = run(12, [range(100_000)], 2)
    assert tally.is_clean, "\n".join(tally.wrong)


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        ("raises", "tracebacks"),
        ("differs", "differences"),
        ("loops", "hangs"),
        ("waits", "hangs"),
        ("sleeps", "hangs"),
        ("allocates", "memory"),
        ("dies", "deaths"),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_counted_and_the_campaign_goes_on(kind: str, outcome: str) -> None:
    tally = run(1, [range(2)], 1, (kind,), module="tests.hostile.bad_kinds")
    assert {name: tally.of(name) for _, name in tally.counts} == {outcome: 2}
    assert not tally.is_clean
    assert all(wrong.startswith(f"{outcome} 1/") for wrong in tally.wrong)


DEEP = "[" * 100_000 + "]" * 100_000


def partitions(folder: Path) -> None:
    for name in ("offsets", "commits"):
        (folder / QUERY_FOLDER / name).mkdir(parents=True)
        (folder / QUERY_FOLDER / name / "0").write_text(f"v1\n{DEEP}\n")
    partitions_of(folder)


READERS: dict[str, Callable[[Path], object]] = {
    "tasks": partitions,
    "offsets": lambda _: parse_offsets(DEEP),
    "shape": lambda _: Shape.from_bytes(DEEP.encode()),
    "rulebook": lambda _: Saved.from_bytes(DEEP.encode()),
    "records": lambda _: record_digests(DEEP.encode()),
    "lists": lambda _: list_names(DEEP.encode()),
}


@pytest.mark.parametrize("name", READERS)
def test_a_deep_value_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(CepError):
        READERS[name](tmp_path)


TESTS = Path(__file__).parents[1]


@cache
def functions(file: str) -> set[str]:
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("action", ACTIONS)
def test_a_cell_has_a_test(role: str, action: str) -> None:
    file, _, function = CELLS[role, action].test.partition("::")
    assert function in functions(file)


def test_a_test_shows_one_thing() -> None:
    """A test may appear in a few cells, but a table of a few tests would show little."""
    assert len({cell.test for cell in CELLS.values()}) > len(CELLS) * 2 // 3


FIRST: UpsertRecord = upsert_by_two(_RECORD)
_NOW_MS = 1_772_323_200_000


def lines_of_senders(audit: list[bytes]) -> list[bytes]:
    """Return changes and lines of the audit as events: plain, and as a value of a decoded event."""
    signed = by_two(retire(2).model_copy(update={"id": FIRST.id}), FIRST).to_json()
    changes = [*DATA, signed, *audit, audit[0].replace(b'"number":1', b'"number":2')]
    within = [{**GOOD, "tx_id": f"t{n}", "note": line.decode(), "lat": line.decode()} for n, line in enumerate(changes)]
    return [*changes, *map(orjson.dumps, within)]


@pytest.mark.parametrize("is_signed", [True, False])
@pytest.mark.parametrize("way", ["records", "file"])
def test_no_event_is_a_change_or_a_line_of_the_audit(is_signed: bool, way: str, tmp_path: Path) -> None:
    record = FIRST if is_signed else _RECORD
    deployed = deploy([record])
    trust = TRUST if is_signed else None
    job = Job(deployed.schema, deployed.key_domains, 2, trust=trust, is_audited=not is_signed)
    engine = Engine(job, (record.to_json(),), MemoryStore(), Workers(1))
    audit = [line for line in engine.step([], (), {}, _NOW_MS).dead_letters if is_audit(line)]
    before, head = engine.rulebook, Head(**{k: v for k, v in (engine.audit_head() or {}).items() if k != "signature"})
    assert len(audit) == head.count == 1
    stepped = engine.step(read(job, lines_of_senders(audit), way, tmp_path), (), {}, _NOW_MS)
    assert engine.rulebook == before
    assert (engine.audit_head() or {})["count"] == 1
    assert len(stepped.dead_letters) > len(DATA)
    assert all(is_letter(letter) and not is_audit(letter) for letter in stepped.dead_letters)
    assert verify([Line("", line) for line in audit], head).problems == ()
    engine.close()


def read(job: Job, lines: list[bytes], way: str, folder: Path) -> list[Decoded]:
    """Decode the lines as the records of a topic, or as a file."""
    if way == "records":
        return decoded(job, lines)
    path = folder / "events.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    return [piece.decode() for piece in read_pieces(path, job.schema).pieces]


def changes_of_strangers(random: Random) -> list[bytes]:
    """Return records of a publisher without keys: unsigned ones, signed ones with other content, and damaged bytes."""
    signed = by_two(retire(2).model_copy(update={"id": FIRST.id}), FIRST).to_json()
    unsigned = retire(2).model_copy(update={"id": FIRST.id}).to_json()
    outside = ListRecord(id="victim", of="string", version=1, change="replace", entries=["a"]).to_json()
    source = f'import "{Path(__file__)}"\n'
    return [
        unsigned, signed.replace(b'"version":2', b'"version":3'), broken_bytes(signed, random),
        json.dumps(broken_value(json.loads(signed), random)).encode(),
        outside.replace(b'"victim"', b'"../../victim"'), outside.replace(b'"victim"', b'"/victim"'),
        _RECORD.model_copy(update={"id": "reader", "source": source}).to_json(), b"[" * 10_000, b"\xff", b"",
    ]  # fmt: skip


@pytest.mark.parametrize("is_signed", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_records_of_a_publisher_stop_no_job_and_write_no_file(seed: int, is_signed: bool, tmp_path: Path) -> None:
    random, honest, folder = Random(seed), _HonestJob(), tmp_path / "job" / "lists"
    honest.engine.close()
    record = FIRST if is_signed else _RECORD
    honest.job = replace(honest.job, trust=TRUST if is_signed else None)
    honest.engine = Engine(honest.job, (record.to_json(),), MemoryStore(), Workers(1), ListStore(folder))
    letters: list[bytes] = []
    for _ in range(6):
        # Without signatures a publisher may retire a rule; that is not the question here.
        changes = changes_of_strangers(random)[0 if is_signed else 4 :]
        lines = [orjson.dumps(event) for event in honest.pair()]
        times = {"p": (honest.now_ms, False)}
        stepped = honest.engine.step(decoded(honest.job, lines), tuple(changes), times, honest.now_ms)
        honest.missed(set(stepped.alerts["key"].to_pylist()))
        letters += stepped.dead_letters
    assert {"control_refused", "control_unreadable"} <= {orjson.loads(letter).get("code") for letter in letters}
    assert list(honest.engine.rulebook.rulebook.rules) == [record.id]
    assert not any(b"def changes_of_strangers" in letter for letter in letters), "an import reads no other folder"
    outside = [path for path in tmp_path.parent.rglob("*victim*") if folder not in path.parents]
    assert outside == []
    honest.engine.close()


@pytest.mark.parametrize("seed", range(12))
def test_hostile_files_take_no_event_from_a_job(seed: int, tmp_path: Path) -> None:
    """Links, pipes, folders, damaged Parquet and text next to two honest files: the job reads both and ends."""
    feed = job_files(tmp_path)
    for number in range(3):
        feed(Random(f"{seed}/{number}"))
