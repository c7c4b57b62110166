"""The tasks of a job on Spark, most of them without Spark: packed records, the state of key groups, and their rulebook.

Every event is packed once for each key that it has. Driver and executors see one folder, or the job refuses before it
commits anything. The contract of the ports (tests/step/contract.py) runs inside a real query, a Spark group for each
check. The folder of rulebooks holds only the rulebooks that a job may go back to.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import subprocess
import sys
import traceback
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, cast

import orjson
import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from cep.base.errors import StateCorruptError, StoreError
from cep.base.limits import MICRO_BATCHES_RETAINED, TIME_MS_MAX, TIME_MS_MIN
from cep.base.text import utc_text
from cep.columnar.batch import decode_batch
from cep.columnar.decode import Poison, decode_json, key_groups
from cep.columnar.mapping import PLAIN, FieldMapping, mapping_of
from cep.engine.alerts import ALERT_SCHEMA
from cep.model.rule import HeartbeatRecord, RetireRecord
from cep.rulebook.saved import RulebookStore, rulebook_bytes, save
from cep.runners.output import decode_alerts, encode_alerts
from cep.runners.spark.group_parts import GroupParts, MatchProcessor
from cep.runners.spark.kafka import parse_options
from cep.runners.spark.live_output import RetainedRulebooks
from cep.runners.spark.match_stage import MatchStage
from cep.runners.spark.packed import (
    BY_ID,
    COUNTERS,
    DEAD,
    EVENTS,
    NO_ORDER,
    PART_COLUMN,
    DecodedPart,
    pack_parts,
    packer,
    part_packer,
    task_order,
)
from cep.runners.spark.place import SharedFolder
from cep.sources.pieces import parts_of, shares_of
from cep.sources.registry.form import RecordFormat
from cep.sources.registry.kafka import decode
from cep.state.past import SegmentCache
from cep.step import rules as group_rules
from cep.step.dead_letters import dead_letter
from cep.step.event_time import NOTHING_READ
from cep.step.job import Job
from cep.step.rules import JobRules, change_rules, forget_rules, rulebook_of, save_rulebook
from tests.columnar.common import GOOD_MS, TWO, record
from tests.rulebook.records import SCHEMA, new_book, upsert
from tests.runners.spark.live_cases import LiveRun, make_job, payments, rules
from tests.step.cases import SparkCase
from tests.step.contract import CHECKS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


JOB = Job(TWO, (("card_id",), ("device",)), 4)
RECORDS = [
    record(event_type="payment", tx_id="t1", card_id="c1"),
    record(event_type="payment", tx_id="t2", card_id="c2", event_time="2026-03-01T00:00:01Z"),
    record(event_type="login", login_id="l1", card_id="c1", device="d1"),
    record(event_type="login", login_id="l2", card_id=None, device="d2"),
    b"no record",
]


def packed(records: list[bytes], batches: int = 1) -> list[dict[str, Any]]:
    """Return the packed rows of records that come in one or more batches."""
    size = -(-len(records) // batches)
    parts = [decoded(records[i : i + size]) for i in range(0, len(records), size)]
    rows: list[dict[str, Any]] = pack_parts(JOB, parts).to_pylist()
    return rows


def decoded(values: list[bytes], mapping: FieldMapping = PLAIN) -> DecodedPart:
    return DecodedPart("source", decode_json(JOB.schema, pa.array(values, pa.binary()), mapping))


@pytest.mark.parametrize("batches", [1, 2])
def test_an_event_is_routed_once_to_each_key_that_it_has(batches: int) -> None:
    ids_by_domain: dict[int, list[str]] = {0: [], 1: []}
    for row in packed(RECORDS, batches):
        if row["kind"] == EVENTS:
            share = decode_batch(row["payload"])
            ids_by_domain[row["domain"]] += share.event_id.to_pylist()
            assert set(key_groups(share.key, JOB.groups_count).tolist()) == {row["key_group"]}
    assert {domain: sorted(ids) for domain, ids in ids_by_domain.items()} == {0: ["l1", "t1", "t2"], 1: ["l1", "l2"]}


def test_what_cannot_be_read_is_set_aside_and_all_is_counted() -> None:
    rows = packed(RECORDS)
    letters = [json.loads(row["payload"]) for row in rows if row["kind"] == DEAD]
    assert [letter["record"] for letter in letters] == ["no record"]
    counters: Counter[str] = Counter()
    for row in rows:
        if row["kind"] == COUNTERS:
            counters.update(json.loads(row["payload"]))
    assert (counters["records"], counters["events"]) == (5, 4)
    assert (counters["unkeyed[card_id]"], counters["unkeyed[device]"]) == (1, 2)
    assert counters[f"poison[{letters[0]['code']}]"] == 1


def test_nothing_is_packed_for_no_records() -> None:
    empty = pa.record_batch([pa.array([], pa.string())], names=["tx_id"])
    assert list(packer(JOB)(iter([empty]))) == []


def test_columns_are_packed_like_records() -> None:
    table = pa.table({
        "event_type": ["payment"], "tx_id": ["t1"], "card_id": ["c1"], "amount": [1.5], "status": ["approved"],
        "event_time": pa.array([GOOD_MS], pa.timestamp("ms", "UTC")),
    })  # fmt: skip
    rows = [row for batch in packer(JOB)(iter(table.to_batches())) for row in batch.to_pylist()]
    (events,) = [row for row in rows if row["kind"] == EVENTS]
    assert decode_batch(events["payload"]).event_id.to_pylist() == ["t1"]


def test_a_long_record_is_cut_in_its_dead_letter() -> None:
    letter = json.loads(dead_letter(Poison("unreadable", "why", "x" * 10_000)))
    assert (letter["code"], letter["reason"], len(letter["record"])) == ("unreadable", "why", 2_000)


def test_alerts_come_back_from_their_bytes() -> None:
    assert decode_alerts(encode_alerts(ALERT_SCHEMA.empty_table())).equals(ALERT_SCHEMA.empty_table())


def test_mapped_records_are_packed_like_plain_ones_from_folders_and_topics(tmp_path: Path) -> None:
    plain = [record(event_type="payment", tx_id=f"t{n}", card_id=f"c{n}") for n in range(5)]
    nested = [json.dumps({"after": json.loads(value), "op": "c"}).encode() for value in plain]
    mapping = mapping_of(["*=after"])
    source_options = {"bootstrap.servers": "x", "topic": "t", "mapping": mapping.to_json()}
    assert parse_options({**source_options, "startingTimestamp": "0"}).starting_ms == 0  # 1970-01-01T00:00:00Z
    form = parse_options(source_options).form
    assert form == RecordFormat(mapping=mapping)

    expected = pack_parts(JOB, [decoded(plain)], order=task_order(0)).to_pylist()
    of_topic = DecodedPart("source", decode(form, JOB.schema, pa.array(nested, pa.binary()), "t"))
    assert pack_parts(JOB, [of_topic], order=task_order(0)).to_pylist() == expected
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(nested))
    names = pa.array([share.to_json() for part in parts_of(tmp_path) for share in shares_of(part)])
    of_folder = part_packer(JOB, NOTHING_READ, mapping)(iter([pa.record_batch([names], names=[PART_COLUMN])]))
    assert [row for batch in of_folder for row in batch.to_pylist()] == expected
    table = pa.Table.from_pylist([json.loads(value) for value in nested])
    packs = packer(JOB, mapping=mapping)(iter(table.to_batches()))
    by_id = [{**row, "order": BY_ID if row["kind"] == EVENTS else NO_ORDER} for row in expected]
    assert [row for batch in packs for row in batch.to_pylist()] == by_id, "a frame has no order of rows"


def test_a_place_is_one_folder_and_one_start(tmp_path: Path) -> None:
    for name in ("driver", "executor"):
        (tmp_path / name).mkdir()
    first = SharedFolder.of_driver(tmp_path / "driver")
    first.check()
    elsewhere = replace(first, directory=tmp_path / "executor")
    with pytest.raises(StoreError, match=r"does not see the driver's checkpoint folder at .*executor"):
        elsewhere.check()
    SharedFolder.of_driver(tmp_path / "executor")  # of another job, or of an earlier start
    with pytest.raises(StoreError, match="does not see"):
        elsewhere.check()
    (tmp_path / "executor" / "place").write_bytes(b"\xff")
    with pytest.raises(StoreError, match="does not see"):
        elsewhere.check()
    SharedFolder.of_driver(tmp_path / "driver").check()


def test_a_stage_refuses_before_it_touches_anything(tmp_path: Path) -> None:
    rules_by_id = rules("card_testing")
    job_rules = JobRules(make_job(rules_by_id.values()), (), RulebookStore(tmp_path))
    untouched = cast("GroupParts", None)
    with pytest.raises(StoreError, match="does not see"):
        MatchStage(job_rules, 0, None, SharedFolder(tmp_path, "another token"), untouched)
    MatchStage(job_rules, 0, None, SharedFolder.of_driver(tmp_path), untouched)


@pytest.mark.spark
@pytest.mark.slow  # Spark takes half a minute to give up a task whose worker raises
def test_a_job_with_an_executor_elsewhere_refuses_and_goes_on_once_that_is_mended(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules_by_id = rules("card_testing")
    job = LiveRun(
        spark, tmp_path, make_job(rules_by_id.values()), tuple(rule.to_json() for rule in rules_by_id.values())
    )
    with monkeypatch.context() as elsewhere:
        seen_by_tasks = staticmethod(lambda directory: SharedFolder(directory / "of-the-executor", "token"))
        elsewhere.setattr(SharedFolder, "of_driver", seen_by_tasks)
        with pytest.raises(StoreError, match="one file system"):
            job.phase([payments(3)[:200]])
    assert job.reports == []
    assert not list((job.checkpoint / "commits").glob("[0-9]*")), "nothing was committed"
    job.phase([])
    assert job.totals["events"] == 200


_LOADED = """
import pickle, sys
processor = pickle.loads(sys.stdin.buffer.read())
print(type(processor).__name__, *{"numba", "numpy", "pyarrow", "pandas"} & sys.modules.keys())
"""


def test_what_matches_is_not_loaded_to_ask_what_is_kept(tmp_path: Path) -> None:
    rules_by_id = rules("card_testing")
    job_rules = JobRules(make_job(rules_by_id.values()), (), RulebookStore(tmp_path))
    processor = MatchProcessor(partial(MatchStage, job_rules, 0, None, None))
    words = [sys.executable, "-c", _LOADED]
    ended = subprocess.run(words, input=pickle.dumps(processor), capture_output=True, check=True)
    assert ended.stdout.split() == [b"MatchProcessor"]


BYTES_MAX = 1_000


class Checker(StatefulProcessor):
    """Runs the check named by the group on the group's state."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._parts = GroupParts(handle)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        list(rows)
        outcome = "ok"
        try:
            next(check for check in CHECKS if check.__name__ == key[0])(SparkCase(self._parts))
        except Exception:  # noqa: BLE001 the test shows it
            outcome = traceback.format_exc()
        yield Row(check=key[0], outcome=outcome)

    def close(self) -> None:
        """There is nothing to close."""


@pytest.mark.spark
def test_contract_inside_a_query(spark: SparkSession, tmp_path: Path) -> None:
    outcomes: dict[str, str] = {}
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "checks.txt").write_text("".join(f"{check.__name__}\n" for check in CHECKS))
    checks = spark.readStream.format("text").load(str(tmp_path / "in")).groupBy("value")
    check_outcomes = checks.transformWithState(Checker(), "check string, outcome string", "Append", "None")
    query = (
        check_outcomes.writeStream.foreachBatch(
            lambda batch, _: outcomes.update((row.check, row.outcome) for row in batch.collect())
        )
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    assert outcomes == dict.fromkeys((check.__name__ for check in CHECKS), "ok")


@pytest.mark.parametrize("seed", range(20))
def test_bytes_are_those_of_the_hash_or_none(seed: int) -> None:
    chance = Random(seed)
    cache = SegmentCache[bytes](BYTES_MAX, len)
    last: dict[int, bytes] = {}
    before: set[str] = set()
    found_count = 0
    for _ in range(400):
        place = chance.randrange(12)
        digest = _digest(last.get(place, b""))
        if chance.random() < 0.5:
            cache.drop(digest)
            before.add(digest)
            last[place] = chance.randbytes(chance.randrange(8, 300))
            cache.put(_digest(last[place]), last[place])
        elif chance.random() < 0.2:
            cache.drop(digest)
            before.add(digest)
            last.pop(place, None)
        elif place in last:
            content = cache.get(digest)
            assert content in (None, last[place])
            found_count += content is not None
        assert not any(cache.get(gone) for gone in before)
        assert cache.nbytes <= BYTES_MAX
    assert found_count, "what was put a moment ago is there"


def test_what_was_used_longest_ago_goes_first() -> None:
    cache = SegmentCache[bytes](100, len)
    for digest in "12":
        cache.put(digest, digest.encode() * 40)
    assert cache.get("1") is not None
    cache.put("3", b"3" * 40)
    assert cache.get("2") is None
    assert cache.get("1") == b"1" * 40


def test_a_page_that_is_larger_than_all_is_held_alone() -> None:
    cache = SegmentCache[bytes](10, len)
    cache.put("1", b"1")
    cache.put("2", b"x" * 11)
    assert cache.get("1") is None
    assert cache.nbytes == 11
    cache.put("3", b"3")
    assert cache.get("2") is None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


GIVEN = rules("card_testing", "small_then_large")
INITIAL = tuple(record.to_json() for record in GIVEN.values())
SEEN_MS = 1_772_323_200_000


@pytest.fixture
def job_rules(tmp_path: Path) -> JobRules:
    return JobRules(make_job(GIVEN.values()), INITIAL, RulebookStore(tmp_path))


def test_key_groups_share_one_rulebook(job_rules: JobRules) -> None:
    first = rulebook_of(job_rules, "")
    assert rulebook_of(job_rules, "") is first
    assert rulebook_of(job_rules, first.digest) is first
    assert first.forget_ms == TIME_MS_MAX


def test_another_process_reads_the_rulebook_from_the_folder(
    job_rules: JobRules, monkeypatch: pytest.MonkeyPatch
) -> None:
    retire = RetireRecord(id="card_testing", version=2).to_json()
    before = change_rules(job_rules, rulebook_of(job_rules, ""), (retire,), SEEN_MS).after
    save_rulebook(job_rules, before)
    monkeypatch.setattr(group_rules, "_RULEBOOKS", OrderedDict())
    again = rulebook_of(job_rules, before.digest)
    assert again.rulebook is not before.rulebook
    assert rulebook_bytes(again.rulebook) == rulebook_bytes(before.rulebook)


def test_rulebooks_that_match_alike_but_remember_differently_are_two(job_rules: JobRules) -> None:
    before = rulebook_of(job_rules, "")
    unknown = RetireRecord(id="never_seen", version=3).to_json()
    after = change_rules(job_rules, before, (unknown,), SEEN_MS).after
    assert after.rulebook.fingerprint == before.rulebook.fingerprint
    assert after.digest != before.digest


def test_another_job_does_not_get_the_rulebook_of_this_one(job_rules: JobRules) -> None:
    job = job_rules.job
    other = replace(job_rules, job=replace(job, domains=(*job.domains, ("account_id",))))
    assert rulebook_of(other, "") is not rulebook_of(job_rules, "")


def test_a_version_that_is_over_is_forgotten_at_its_time(job_rules: JobRules) -> None:
    before = rulebook_of(job_rules, "")
    retire = RetireRecord(id="card_testing", version=2, effective_at=utc_text(SEEN_MS + 60_000))
    after = change_rules(job_rules, before, (retire.to_json(),), SEEN_MS).after
    assert after.forget_ms == SEEN_MS + 60_000
    assert forget_rules(job_rules, after, after.forget_ms - 1).digest == after.digest
    rules_after = forget_rules(job_rules, after, after.forget_ms)
    assert [rule.rule_id for rule in rules_after.rulebook.deployed()] == ["small_then_large"]


def test_what_is_refused_is_told_and_heartbeats_are_read(job_rules: JobRules) -> None:
    beat = HeartbeatRecord(event_time=utc_text(SEEN_MS)).to_json()
    other_key = GIVEN["card_testing"].model_copy(
        update={"version": 2, "source": GIVEN["card_testing"].source.replace("by card_id", "by merchant_id")}
    )
    late = RetireRecord(id="small_then_large", version=2, effective_at=utc_text(SEEN_MS - 999))
    change = change_rules(
        job_rules, rulebook_of(job_rules, ""), (b"{", other_key.to_json(), beat, late.to_json()), SEEN_MS
    )
    assert change.heartbeat_ms == SEEN_MS
    assert change.counters == {
        "control_unreadable": 1, "control_refused": 1, "control_heartbeat": 1, "control_applied": 1,
        "rule_late_ms": 1_000,
    }  # fmt: skip
    unreadable, refused = (orjson.loads(letter) for letter in change.dead_letters)
    assert (unreadable["code"], refused["code"]) == ("control_unreadable", "control_refused")
    assert "does not route events by (merchant_id)" in refused["reason"]
    assert change_rules(job_rules, change.after, (b"{",), SEEN_MS).heartbeat_ms == TIME_MS_MIN


def test_what_the_job_cannot_go_back_to_is_removed(tmp_path: Path) -> None:
    store, book = RulebookStore(tmp_path), new_book()
    book.apply(upsert(1, "stays"), None)
    digests: dict[int, str] = {}
    removed = 0
    for version in range(1, 31):
        batch_id = 10 * version
        book.apply(upsert(version, params={"large": version}, on_update="restart"), 1_000 * version)
        book.forget(1_000 * version + 500)
        store.put_control(b"what was told in micro-batch %d" % batch_id)
        digests[batch_id] = store.put(save(book))
        for _ in range(2):  # a repeated micro-batch ends in the same place
            removed += RetainedRulebooks(tmp_path).note_end(digests[batch_id], batch_id)
        for epoch_batch, digest in digests.items():
            if epoch_batch >= batch_id - MICRO_BATCHES_RETAINED:
                assert store.get(digest, SCHEMA, None).record_of("stays", 1) is not None
    assert removed > 0
    assert 10 < len(list((tmp_path / "index").iterdir())) < 22
    assert len(list((tmp_path / "record").iterdir())) < 25
    assert len(list((tmp_path / "control").iterdir())) < 11
    with pytest.raises(StateCorruptError):
        store.get(digests[10], SCHEMA, None)


def test_what_a_job_has_begun_with_stays(tmp_path: Path) -> None:
    store, book = RulebookStore(tmp_path), new_book()
    book.apply(upsert(1), None)
    first = store.put(save(book))
    for batch_id in range(0, 3 * MICRO_BATCHES_RETAINED, 25):
        book.apply(upsert(2 + batch_id), batch_id)
        RetainedRulebooks(tmp_path, first).note_end(store.put(save(book)), batch_id)
    assert [rule.version for rule in store.get(first, SCHEMA, None).deployed()] == [1]


def test_half_a_file_of_a_killed_writer_goes_too(tmp_path: Path) -> None:
    store = RulebookStore(tmp_path)
    digest = store.put(save(new_book()))
    (tmp_path / "index" / f".{'0' * 64}.1f").write_bytes(b"half of an ind")
    assert store.prune({digest}) == 1
    assert store.get(digest, SCHEMA, None).deployed() == ()
