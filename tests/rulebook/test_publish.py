"""Publishing: the records to send, compare-and-set, the topic on a broker, and the differences to show."""

import json
import secrets
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from hypothesis import given
from hypothesis import strategies as st

from cep.base.errors import SinkError
from cep.base.limits import CHAIN_VERSIONS_MAX, CONTROL_RECORD_BYTES_MAX, VERSION_FREE_MAX
from cep.base.text import utc_text
from cep.lists.entries import TEXT, keys_of
from cep.lists.store import Content, ListStore
from cep.model.rule import (
    Changes,
    ControlRecord,
    ListRecord,
    PauseRecord,
    ResumeRecord,
    RetireRecord,
    RollbackRecord,
    SnoozeRecord,
    UpsertRecord,
    parse_control,
    topic_key,
)
from cep.nfa.lists import GivenList
from cep.rulebook import publish
from cep.rulebook.difference import compare, difference
from cep.rulebook.kafka import STATUS_KEY, StatusTopic, Topic
from cep.rulebook.ledger import Ledger, chain_of, hash_of
from cep.rulebook.lists import RuleLists
from cep.rulebook.meaning import content_hash
from cep.rulebook.outcome import ListReport
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.saved import restore, save
from cep.rulebook.trust import Signable
from cep.step.rules import apply_records, rule_status
from tests.real_kafka import KafkaCluster
from tests.rulebook.people import by_two
from tests.rulebook.records import SCHEMA, SOURCE, new_book, restarted, retire, upsert
from tests.rulebook.test_suppression import alert, table

# The records to publish: rule files against the running rules.

SOON = "2026-06-01T00:00:00.000Z"


def running_version(version: int, **changes: Any) -> dict[str, publish.Running]:
    record = upsert(version, "a", **changes)
    return {"a": publish.Running(version, record.status, content_hash(record))}


def kinds(
    records: list[UpsertRecord], running: dict[str, publish.Running], *, retire_missing: bool = False
) -> dict[str, str]:
    return {step.rule_id: step.kind for step in publish.plan(records, running, SOON, retire_missing=retire_missing)}


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        (upsert(3, "a"), "unchanged"),
        (upsert(4, "a", severity="high"), "changed"),
        (upsert(3, "a", severity="high"), "refused"),
        (upsert(2, "a"), "refused"),
        (upsert(3, "a", owner="else"), "unchanged"),
    ],
)
def test_a_file_against_version_three(record: UpsertRecord, kind: str) -> None:
    assert kinds([record], running_version(3)) == {"a": kind}


def test_what_has_no_file_goes_on_unless_it_is_asked_for() -> None:
    assert kinds([upsert(1, "b")], running_version(3)) == {"b": "new", "a": "missing"}
    (_, step) = publish.plan([upsert(1, "b")], running_version(3), SOON, retire_missing=True)
    assert step.record == RetireRecord(id="a", version=4, effective_at=SOON)
    assert kinds([], {"a": publish.Running(3, "retired", None)}, retire_missing=True) == {}


def test_a_start_of_its_own_is_kept() -> None:
    (stamped, timed) = publish.plan([upsert(1, "a"), upsert(1, "b", 5_000)], {}, SOON, retire_missing=False)
    assert stamped.record is not None
    assert timed.record is not None
    assert (stamped.record.effective_at, timed.record.effective_at) == (SOON, "1970-01-01T00:00:05.000Z")


def test_what_runs_is_read_from_a_status_or_from_the_records() -> None:
    book = new_book()
    first, second = upsert(1, "a"), upsert(1, "b")
    back = RollbackRecord(id="a", version=3, to_version=1, rule=first)
    records: list[ControlRecord] = [first, upsert(2, "a", severity="high"), second, back, retire(2, "b"), first]
    for record in records:
        book.apply(record, None)
    running = publish.running_of_status(rule_status(book))
    assert running["a"] == publish.running_of_records(records)["a"] == publish.Running(3, "live", content_hash(first))
    assert (running["b"].status, publish.running_of_records(records)["b"].status) == ("not matched", "retired")


def test_the_answer_of_the_job() -> None:
    book = new_book()
    good, bad, late = upsert(1, "a"), upsert(1, "b", params={"nothing": 1}), upsert(2, "a")
    for record in (good, bad):
        book.apply(record, None)
    open_, reasons = publish.acknowledged(rule_status(book), [good, bad, late])
    assert open_ == ["a version 2"]
    assert list(reasons) == ["b version 1"]
    assert "nothing" in reasons["b version 1"]


@pytest.mark.parametrize(
    ("author", "approved_by", "fragment"),
    [("ann", "bob", None), ("ann", "Ann ", "another person"), ("ann", None, "two people"), (None, "bob", "two people")],
)
def test_two_people(author: str | None, approved_by: str | None, fragment: str | None) -> None:
    problem = publish.approval_problem(upsert(1, author=author, approved_by=approved_by))
    assert (problem is None) if fragment is None else fragment in (problem or "")


# Declared lists against the job's lists: the records to send, and the records that the topic can drop.


def declared(*entries: str) -> GivenList:
    texts = pa.array(entries, TEXT)
    content = Content("string").changed("replace", keys_of(texts, "string")[0])
    return GivenList("a", "string", texts, content, 0)


def record(version: int, change: str, *entries: str, **more: object) -> ListRecord:
    fields = {"id": "a", "of": "string", "version": version, "change": change, "entries": list(entries)}
    return ListRecord.model_validate({**fields, **more})


def test_what_has_not_changed_is_not_sent() -> None:
    there = [record(1, "replace", "x"), record(2, "add", "y")]
    running = publish.running_lists(None, there)
    assert [step.kind for step in publish.plan_lists([declared("y", "x")], running, None)] == ["unchanged"]
    (step,) = publish.plan_lists([declared("y")], running, utc_text(5_000))
    assert (step.kind, [r.version for r in step.records]) == ("changed", [3])
    assert step.records[0].effective_ms == 5_000
    (step,) = publish.plan_lists([declared("y")], {}, None)
    assert (step.kind, step.records[0].version) == ("new", 1)


def test_the_job_or_the_topic_whichever_is_ahead() -> None:
    status = {"name": "a", "of": "string", "version": 4, "from_ms": 0, "entries": 9, "digest": "d", "waiting": []}
    there = [record(1, "replace", "x")]
    assert publish.running_lists({"lists": [status]}, there)["a", "string"].version == 4
    assert publish.running_lists({"lists": [{**status, "version": 0}]}, there)["a", "string"].version == 1
    assert publish.next_version(ListReport("a", "string", 2, 0, 0, "", (3, 7))) == 8
    assert publish.next_version(None) == 1


@given(st.lists(st.text(min_size=1, max_size=30), max_size=60), st.integers(20, 400))
def test_a_list_in_many_records_is_the_list(entries: list[str], size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publish, "_RECORD_BYTES", size)
        records = publish.replacing("a", "string", 3, pa.array(entries, TEXT), None)
    lists = RuleLists(ListStore())
    kinds = [lists.apply(one, None).kind for one in reversed(records)]
    assert kinds == ["waiting"] * (len(records) - 1) + ["applied"]
    assert lists.report()[0].digest == declared(*entries).content.digest


def test_five_million_entries_fit_into_records() -> None:
    """The test checks the sizes: a record of the longest entries is below the limit, even if all of it is escaped."""
    entries = pa.array(['"' * 250, "\n" * 250, "é" * 125] * 5_000, TEXT)
    records = publish.replacing("a", "string", 1, entries, utc_text(1))
    assert all(len(one.to_json()) <= CONTROL_RECORD_BYTES_MAX for one in records)
    assert all(parse_control(one.to_json())[0] == one for one in records)
    assert sum(len(one.entries) for one in records) == len(entries)


def test_records_that_a_replacement_has_made_pointless() -> None:
    first, later = utc_text(1_000), utc_text(9_000)
    there = [
        record(1, "replace", "x"), record(2, "add", "y"),
        record(3, "replace", "z", part=1, parts=2, effective_at=first),
        record(3, "replace", "w", part=2, parts=2, effective_at=first),
        record(4, "add", "v"), record(5, "replace", "u", effective_at=later),
        record(6, "replace", "t", part=1, parts=2),
    ]  # fmt: skip
    places = [(b"key %d" % number, one) for number, one in enumerate(there)]
    assert publish.superseded_keys(places, 5_000) == [b"key 0", b"key 1"]
    assert publish.superseded_keys(places[:3], 5_000) == [], "half a replacement"
    assert len(publish.superseded_keys(places, 9_000)) == 5
    assert publish.superseded_keys([], 0) == []
    others = [(b"first", record(3, "replace", "z", part=1, parts=2, whole="1" * 64))]
    others.append((b"other", record(3, "replace", "w", part=2, parts=2, whole="2" * 64)))
    assert publish.superseded_keys([(b"old", record(1, "replace", "x")), *others], 5_000) == [], (
        "halves of two replacements"
    )


def test_what_the_job_says_of_what_was_sent() -> None:
    sent = [record(2, "add", "x"), record(3, "add", "y")]
    status = {"refused": [], "lists": [{"name": "a", "of": "string", "version": 2}]}
    assert publish.acknowledged(status, sent) == (["list a version 3"], {})
    refused = {**status, "refused": [{"rule_id": "list a", "version": 3, "reason": "no"}]}
    assert publish.acknowledged(refused, sent) == ([], {"list a version 3": "no"})


# Publishing is compare-and-set: a publisher that reads success has changed the job, and jobs of one topic agree.

LATER = "2030-01-01T00:00:00.000Z"


def against(record: Any, before: Signable | None, **update: Any) -> Any:
    """Return the record as a person writes it who has read `before` as the last of its chain."""
    changes = Changes() if before is None else Changes(version=before.version, hash=hash_of(before))
    return record.model_copy(update={"changes": changes, **update})


def status_of(book: Rulebook) -> dict[str, Any]:
    """Return the status as it arrives through the status topic."""
    status: dict[str, Any] = json.loads(json.dumps(rule_status(book)))
    return status


# ---------------------------------------------------------------------------------------------------- two at once

FIRST, LAST = upsert(1), PauseRecord(id="r", version=1)
PAIRS: dict[str, tuple[Any, Any, Any]] = {
    "a rule": (FIRST, upsert(2, severity="high"), upsert(2, severity="low", params={"large": 7})),
    "a rule and its retirement": (FIRST, upsert(2, severity="high"), retire(2)),
    "live and shadow": (FIRST, upsert(2), upsert(2, status="shadow")),
    "a higher version": (FIRST, upsert(5), upsert(3, severity="high")),
    "a higher version, shadow": (FIRST, upsert(5, status="shadow"), upsert(3)),
    "a new rule": (None, upsert(1, "n"), upsert(1, "n", severity="high")),
    "a pause and a resumption": (LAST, PauseRecord(id="r", version=2), ResumeRecord(id="r", version=2)),
    "snoozes": (
        None, SnoozeRecord(id="r", version=1, key="k", until=LATER, by="a"),
        SnoozeRecord(id="r", version=1, key="k", until="2031-01-01T00:00:00Z", by="b"),
    ),
    "lists": (
        None, ListRecord(id="l", version=1, of="string", change="replace", entries=["a"]),
        ListRecord(id="l", version=1, of="string", change="replace", entries=["b"]),
    ),
    "parts of lists": (
        None, ListRecord(id="l", version=1, of="string", change="replace", entries=["a"], parts=2, whole="1" * 64),
        ListRecord(id="l", version=1, of="string", change="replace", entries=["b"], part=2, parts=2, whole="2" * 64),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_of_two_at_once_one_is_refused_and_both_sides_are_told(name: str) -> None:
    before, first, second = PAIRS[name]
    for one, other in ((first, second), (second, first)):
        book = new_book(FIRST)
        if before is not None:
            book.apply(before, None)
        ours = against(one, before, by="ann", reason="tuned")
        theirs = against(other, before, by="bob")
        counters = apply_records(book, (ours.to_json(), theirs.to_json()), None)[1]
        assert (counters["control_refused"], counters["control_conflict"]) == (1, 1)
        status = status_of(book)
        reasons = publish.acknowledged(status, [theirs])[1]
        assert len(reasons) == 1
        assert not publish.acknowledged(status, [ours])[1]
        assert publish.lost_to(status, ours) is None
        assert "by ann: tuned" in "".join(reasons.values())
        if one.version <= other.version:
            assert any("by ann: tuned" in refused["reason"] for refused in status["refused"])
        # The loser reads the chain again, and succeeds.
        later = against(other.model_copy(update={"version": one.version + 1, "parts": 1, "part": 1}), one)
        assert book.apply(later, None).kind == "applied"


def test_the_same_change_twice_is_one_change() -> None:
    """Two runs of one pipeline publish it: another start, another sender, the same meaning."""
    book = new_book(FIRST)
    pairs: list[tuple[Any, Any]] = [
        (upsert(2, params={"large": 7}), FIRST), (PauseRecord(id="r", version=1), None),
        (SnoozeRecord(id="r", version=1, until=LATER, by="a"), None),
        (ListRecord(id="l", version=1, of="int", change="replace", entries=[1], whole="1" * 64), None),
        (retire(3), upsert(2, params={"large": 7})),
    ]  # fmt: skip
    for record, before in pairs:
        one = against(record, before, by="one")
        again = against(record, before, by="two", effective_at=LATER)
        assert book.apply(one, None).kind == "applied"
        assert book.apply(again, None).kind == "ignored"
        status = status_of(book)
        both = [one, again]
        assert publish.acknowledged(status, both) == ([], {})


def test_who_and_why_stand_in_the_status() -> None:
    book = new_book(upsert(1, by="ann", reason="first"), PauseRecord(id="r", version=1, by="bob", reason="floods"))
    applied = status_of(book)["taken"]
    assert [(name, one["by"], one["reason"]) for name, (one,) in applied.items()] == [
        ("r", "ann", "first"), ("r/pause", "bob", "floods"),
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------------- by chance

CHANGES = st.sampled_from(["upsert", "shadow", "retire", "pause", "resume", "list"])


def written(kind: str, by: str, chains: Ledger) -> Any:
    """Return a change as `cep rules publish`, `cep rules pause` and `cep lists` write it."""
    number = int(by.removeprefix("p"))
    record: Any
    if kind in ("pause", "resume"):
        record = (PauseRecord if kind == "pause" else ResumeRecord)(id="r", version=1)
    elif kind == "list":
        record = ListRecord(id="l", version=1, of="int", change="replace", entries=[number])
    elif kind == "retire":
        record = RetireRecord(id="r", version=1)
    else:
        record = upsert(1, params={"large": number}, status="shadow" if kind == "shadow" else "live")
    head = chains.head(record)
    return record.model_copy(update={"changes": head, "version": head.version + 1, "by": by})


@given(st.data())
def test_publishers_with_old_views_and_a_topic_that_is_compacted(data: st.DataObject) -> None:
    """Each publisher has an old view of topic and status. The job may restart from its bytes at any time."""
    topic: list[tuple[str, bytes, Any]] = []
    book, now_ms = new_book(), 0
    statuses: list[dict[str, Any] | None] = [None]
    for number in range(data.draw(st.integers(1, 12))):
        view = topic[: data.draw(st.integers(max(0, len(topic) - 3), len(topic)))]
        status = statuses[data.draw(st.integers(max(0, len(statuses) - 3), len(statuses) - 1))]
        _, chains = publish.accepted_records(status, [record for _, _, record in view])
        record = written(data.draw(CHANGES), f"p{number}", chains)
        sent = (f"{topic_key(record)}#{secrets.token_hex(6)}", record.to_json(), record)
        topic += [sent] * data.draw(st.integers(1, 2))  # a producer that tries again uses the same key
        for _ in range(data.draw(st.integers(0, len(topic) - now_ms))):
            apply_records(book, (topic[now_ms][1],), number or None)
            now_ms += 1
            statuses.append(status_of(book))
            if data.draw(st.booleans()):
                book = restarted(book)
    for _, value, _ in topic[now_ms:]:
        apply_records(book, (value,), 100)
    status = status_of(book)
    wins: dict[tuple[str, int], str] = {}
    for _, _, record in topic:
        open_, reasons = publish.acknowledged(status, [record])
        is_waiting = record.kind in ("pause", "resume") and "r" not in status["last_versions"]
        assert not open_
        if reasons or is_waiting:
            continue
        won = wins.setdefault((chain_of(record), record.version), hash_of(record))
        assert won == hash_of(record), "two that differ are told success for one version"
    assert all(any(one["hash"] == won for one in status["taken"][chain]) for (chain, _), won in wins.items())

    compacted = {key: value for key, value, _ in reversed(topic)}  # the last record of each key keeps its place
    rebuilt = new_book()
    for value in reversed(list(compacted.values())):
        apply_records(rebuilt, (value,), None)
    again = status_of(rebuilt)
    assert {name: again[name] for name in ("taken", "content_hash", "paused", "last_versions")} == {
        name: status[name] for name in ("taken", "content_hash", "paused", "last_versions")
    }


# ----------------------------------------------------------------------------------------------------------- edges


def test_a_record_of_another_program_counts_by_its_version() -> None:
    book = new_book()
    for version in (1, 4, 9):
        assert book.apply(upsert(version, params={"large": version}), None).kind == "applied"
    assert book.apply(upsert(4, params={"large": 4}), None).kind == "ignored"
    assert book.apply(upsert(3), None).kind == "ignored"
    assert book.apply(upsert(4, params={"large": 5}), None).is_conflict


def test_no_record_ends_an_id_for_good() -> None:
    top = 2**31 - 1
    book = new_book(FIRST)
    for record in (retire(top), retire(VERSION_FREE_MAX + 1), PauseRecord(id="r", version=top), upsert(top)):
        outcome = book.apply(record, None)
        assert outcome.kind == "refused"
        assert "one by one" in outcome.reason
    assert book.apply(retire(VERSION_FREE_MAX), None).kind == "applied"
    assert book.apply(upsert(VERSION_FREE_MAX + 1), None).kind == "applied"
    assert book.apply(upsert(VERSION_FREE_MAX + 3), None).kind == "refused"
    rebuilt = new_book()
    before = Changes(version=VERSION_FREE_MAX, hash="")
    late = upsert(VERSION_FREE_MAX + 1, changes=before)
    assert rebuilt.apply(late, None).kind == "applied", "its forerunners may be compacted away"


def test_a_pause_without_its_rule_is_told_and_waits() -> None:
    book = new_book()
    outcome = book.apply(PauseRecord(id="ghost", version=1), None)
    assert (outcome.kind, book.epoch) == ("waiting", 0)
    status = status_of(book)
    assert [(one["rule_id"], one["version"]) for one in status["refused"]] == [("ghost", 1)]
    assert "no rule ghost is there" in status["refused"][0]["reason"]
    assert (status["paused"], status["last_versions"]) == ([], {})
    assert publish.acknowledged(status, [PauseRecord(id="ghost", version=1)])[1]
    # Compaction may have put it before its rule.
    book.apply(upsert(1, "ghost"), None)
    status = status_of(book)
    assert (status["paused"], status["refused"]) == (["ghost"], [])


def test_a_book_of_an_earlier_build_has_no_chains() -> None:
    book = new_book(upsert(3), PauseRecord(id="r", version=2))
    saved = save(book)
    index = {**json.loads(saved.index), "format": 2}
    del index["ledger"]
    index["rules"]["r"]["versions"] = [3, 0, 2]
    old = restore(json.dumps(index).encode(), saved.records.__getitem__, SCHEMA, None)
    assert old.apply(against(upsert(4), upsert(3, severity="high")), None).is_conflict
    assert old.apply(against(PauseRecord(id="r", version=3), PauseRecord(id="r", version=2)), None).kind == "applied"
    assert old.apply(against(upsert(4), upsert(3)), None).kind == "applied"


def test_what_a_publisher_reads_in_the_status_of_an_earlier_build() -> None:
    _, chains = publish.accepted_records({"last_versions": {"r": 3}, "refused": []}, [])
    assert chains.head(upsert(4)) == Changes(version=3, hash="")


def test_so_many_versions_are_remembered() -> None:
    book = new_book()
    records = [upsert(1)]
    for version in range(2, CHAIN_VERSIONS_MAX + 3):
        records.append(against(upsert(version, params={"large": version}), records[-1]))
    for record in records:
        book.apply(record, None)
    status = status_of(book)
    assert len(status["taken"]["r"]) == CHAIN_VERSIONS_MAX
    assert publish.acknowledged(status, records[-CHAIN_VERSIONS_MAX:]) == ([], {})
    assert len(publish.acknowledged(status, records[:1])[1]) == 1, "nobody can say what became of it"


def test_a_signed_change_and_an_unsigned_one_have_one_chain() -> None:
    signed = by_two(upsert(1))
    book = new_book()
    assert book.apply(signed, None).kind == "applied"
    assert book.apply(against(upsert(2), upsert(1, severity="high")), None).is_conflict
    assert book.apply(against(upsert(2), upsert(1)), None).kind == "applied"
    assert isinstance(signed, UpsertRecord)


# Records of the control topic on a broker.


def records_in(kafka: KafkaCluster, topic: str, count: int) -> list[tuple[bytes | None, bytes | None]]:
    consumer = Consumer({"bootstrap.servers": kafka.address, "group.id": "t", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [(message.key(), message.value()) for message in consumer.consume(count, 30.0)]
    finally:
        consumer.close()


def test_records_keep_their_order_in_one_partition(kafka_broker: KafkaCluster) -> None:
    topic = Topic(kafka_broker.address, "control-order")
    if kafka_broker.is_real:
        assert topic.create()
        assert not topic.create()
    else:
        kafka_broker.create(topic.name)
    records: list[tuple[bytes, bytes | None]] = [(f"{n % 7}".encode(), f"{n}".encode()) for n in range(500)]
    assert topic.send([*records, (b"gone", None)]) == 501
    assert records_in(kafka_broker, topic.name, 501) == [*records, (b"gone", None)]


def test_a_topic_that_another_process_makes_meanwhile_is_there(
    kafka_broker: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kafka_broker.is_real:
        topic = Topic(kafka_broker.address, "control-at-once")
        assert topic.create()
        looks, look = [], AdminClient.list_topics

        def see_it_later(admin: AdminClient, *arguments: Any, **more: Any) -> Any:
            looks.append(arguments)
            return SimpleNamespace(topics={}) if len(looks) < 3 else look(admin, *arguments, **more)

        monkeypatch.setattr(AdminClient, "list_topics", see_it_later)
        assert not topic.create()
        assert looks == [(), ("control-at-once",), ("control-at-once",)]


def test_a_status_replaces_the_one_before(kafka_broker: KafkaCluster) -> None:
    kafka_broker.create("status-key", 1)
    StatusTopic(kafka_broker.address, "status-key").publish(b"{}")
    assert records_in(kafka_broker, "status-key", 1) == [(STATUS_KEY, b"{}")]


def test_brokers_that_do_not_answer_are_told(unused_port: int) -> None:
    topic = Topic(f"127.0.0.1:{unused_port}", "control")
    with pytest.raises(SinkError, match=r"1 records for topic control .* some did not arrive"):
        topic.send([(b"k", b"v")], wait_ms_max=500)


@pytest.fixture
def unused_port() -> int:
    import socket  # noqa: PLC0415 only here

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


# Alerts gained and lost.


def test_versions_do_not_make_a_difference_and_events_do() -> None:
    before = table(alert(1, 1_000), alert(2, 2_000), alert(3, 3_000, key="d"))
    after = table(alert(7, 1_000, version=2), alert(8, 2_000, version=2, last="another"))
    result = compare(before, after)
    assert result.kept_count == 1
    assert [a["alert_id"] for a in result.gained] == ["0008"]
    assert [a["alert_id"] for a in result.lost] == ["0002", "0003"]


# The differences between two records, in lines for a person.


def test_parameters_are_named_with_both_values() -> None:
    before = upsert(1, params={"large": 5, "window": "10 min"})
    after = upsert(2, params={"large": 7, "extra": True}, severity="high", by="ann", changes=Changes(version=1))
    assert difference(before, after) == [
        "severity low → high",
        "params.large 5 → 7",
        "params.window 10 min → none",
        "params.extra none → True",
    ]
    assert difference(before, upsert(9, params={"large": 5, "window": "10 min"})) == []


def test_the_text_of_the_pattern_counts_if_its_meaning_does() -> None:
    tabs, other = SOURCE.replace("  ", "\t"), SOURCE.replace("1.00", "2.00")
    assert difference(upsert(1), upsert(2, source=tabs)) == []
    assert difference(upsert(1), upsert(2, source=other)) == ["text of the pattern: 1 line(s) new, 1 gone"]


def test_a_rollback_is_the_version_that_it_brings_back() -> None:
    back = RollbackRecord(id="r", version=3, to_version=1, rule=upsert(1))
    assert difference(upsert(2, score=9), back) == ["score 9 → 0"]


def test_other_changes() -> None:
    one = SnoozeRecord(id="r", version=1, until="2030-01-01T00:00:00Z", by="a")
    two = SnoozeRecord(id="r", version=1, until="2031-01-01T00:00:00Z", by="b")
    assert difference(one, two) == ["until 2030-01-01T00:00:00.000Z → 2031-01-01T00:00:00.000Z"]
    more = ListRecord(id="l", of="int", version=1, change="add", entries=[1])
    less = ListRecord(id="l", of="int", version=1, change="remove", entries=[])
    assert difference(more, less) == ["change add → remove", "entries 1 → 0"]
