"""Files of a replay are whole or absent. Alerts that a job's rules hold back are recorded.

A repeated micro-batch ends in the same place. The last alerts of rules that suppress are in files: the written changes,
and their recovery after a cut-off write.
"""

from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cep.base.errors import SinkError, StateCorruptError, UsageError
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.suppression import NO_MEASURE, Fired, fired_json
from cep.runners import fired_files
from cep.runners.fired_files import FiredFiles, begin_fired
from cep.runners.output import check_writable, decode_alerts, encode_alerts, format_of, write_outputs
from cep.runners.rule_output import RuleOutput, last_alerted
from cep.step.rules import rule_status
from tests.rulebook.records import new_book, upsert
from tests.rulebook.test_suppression import alert, table
from tests.sinks.alerts import alert_table

LETTER = b'{"code":"unreadable","reason":"r","record":"x"}'


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_name_says_the_format() -> None:
    assert format_of(Path("a.b/x.JSONL")) == "jsonl"
    assert format_of(Path("x.parquet")) == "parquet"
    with pytest.raises(UsageError, match=r"cannot tell the format of x\.csv"):
        format_of(Path("x.csv"))


def test_both_formats_hold_the_same_alerts(tmp_path: Path) -> None:
    alerts = alert_table(1, 3)
    write_outputs(alerts, (), tmp_path / "a.parquet", "parquet")
    write_outputs(alerts, (), tmp_path / "a.jsonl", "jsonl")
    assert pq.read_table(tmp_path / "a.parquet").equals(alerts)
    lines = [orjson.loads(line) for line in (tmp_path / "a.jsonl").read_bytes().splitlines()]
    assert [line["alert_id"] for line in lines] == alerts["alert_id"].to_pylist()
    assert names(tmp_path) == ["a.jsonl", "a.parquet"]


def test_alerts_of_a_build_that_had_no_origins_are_read() -> None:
    alerts = alert_table(1, 2)
    assert decode_alerts(encode_alerts(alerts.drop_columns("origins"))).equals(alerts)


def test_dead_letters_are_written_beside_and_old_ones_removed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    written = write_outputs(alert_table(1, 3), [LETTER, LETTER], path, "jsonl")
    assert [p.name for p in written] == names(tmp_path) == ["a.jsonl", "a.jsonl.dead.jsonl"]
    assert written[1].read_bytes() == (LETTER + b"\n") * 2
    assert write_outputs(alert_table(1, 3), [], path, "jsonl") == [path]
    assert names(tmp_path) == ["a.jsonl"]


def test_what_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("old")
    (tmp_path / "a.jsonl.dead.jsonl").write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(SinkError, match=r"alerts cannot be written to .*a\.jsonl: .*No space left"):
        write_outputs(alert_table(1, 3), [], path, "jsonl")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.jsonl", "a.jsonl.dead.jsonl"]


def test_a_place_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    check_writable(tmp_path / "a.jsonl")
    with pytest.raises(UsageError, match="is a folder"):
        check_writable(tmp_path)
    with pytest.raises(UsageError, match="there is no folder"):
        check_writable(tmp_path / "gone" / "a.jsonl")


def status_of(**changes: Any) -> dict[str, Any]:
    book: Rulebook = new_book()
    book.apply(upsert(1, "a", **changes), None)
    return rule_status(book)


def ids(alerts: pa.Table) -> list[str]:
    alert_ids: list[str] = alerts["alert_id"].to_pylist()
    return alert_ids


def test_a_batch_again_and_a_new_process_divide_alike(tmp_path: Path) -> None:
    first = status_of(suppress="1 s")
    batches = [table(alert(1, 5_000)), table(alert(2, 5_400), alert(3, 6_100)), table(alert(4, 6_900))]
    expected = [["0001"], ["0003"], []]
    output = RuleOutput(tmp_path, first)
    for number, batch in enumerate(batches):
        for _ in range(2):
            assert ids(output.take(batch, None, number)[0]) == expected[number]
        output = RuleOutput(tmp_path, first)
        again, held_counts = output.take(batch, None, number)
        assert ids(again) == expected[number]
        assert held_counts == ({} if number == 0 else {"held[suppressed@a]": 1, "alerts[a@1]": -1})
    lines = [orjson.loads(line) for f in sorted((tmp_path / "held").iterdir()) for line in f.read_bytes().splitlines()]
    assert [(line["held"], line["alert"]["alert_id"]) for line in lines] == [
        ("suppressed", "0002"), ("suppressed", "0004"),
    ]  # fmt: skip


def test_a_new_status_holds_for_its_own_batch_and_is_published_after_it(tmp_path: Path) -> None:
    statuses: list[dict[str, Any]] = []
    output = RuleOutput(tmp_path, status_of(), lambda data: statuses.append(orjson.loads(data)))
    output.announce()
    status = orjson.dumps(status_of(suppress="1 s"))
    alerts, _ = output.take(table(alert(1, 5_000), alert(2, 5_001)), status, 7)
    assert ids(alerts) == ["0001"]
    assert [status.get("batch_id") for status in statuses] == [None, 7]
    assert RuleOutput(tmp_path, status_of()).status == statuses[1]


def test_a_status_tells_versions_hashes_and_refusals() -> None:
    book = new_book()
    book.apply(upsert(3, "a", status="shadow"), None)
    book.apply(upsert(4, "a", params={"nothing": 1}), None)
    status = orjson.loads(orjson.dumps(rule_status(book)))
    assert (status["epoch"], status["last_versions"]) == (1, {"a": 3})
    (rule,) = status["rules"]
    assert (rule["rule_id"], rule["version"], rule["status"], rule["epoch"]) == ("a", 3, "shadow", 1)
    assert len(rule["content_hash"]) == 64
    (refused,) = status["refused"]
    assert (refused["rule_id"], refused["version"]) == ("a", 4)
    assert "nothing" in refused["reason"]


FOR_MS = 1_000
FOR = (FOR_MS, 2, 4.5)
WHOLE, LINES = "held_memory.json", "held_memory.jsonl"


def take(files: FiredFiles, batch_id: int, fired: Fired, before_ms: int = 0) -> None:
    memory = files.begin(batch_id)
    memory.put(fired)
    memory.forget(before_ms)
    files.end(batch_id)


def written(folder: Path) -> int:
    return sum((folder / name).stat().st_size for name in (WHOLE, LINES) if (folder / name).exists())


def test_a_micro_batch_writes_what_it_changes(tmp_path: Path) -> None:
    """The memory has fifty thousand keys."""
    begin_fired(tmp_path, [["a", f"key {number}", number, FOR_MS] for number in range(50_000)])
    files = FiredFiles(tmp_path)
    take(files, 0, {("a", "first"): (1, *FOR)})  # starts the lines
    before = written(tmp_path)
    for number in range(1, 101):
        take(
            files, number, {("a", f"another {number}"): (60_000, *FOR)}, number + 1_000
        )  # one that is new, some that are over
    grown = written(tmp_path) - before
    assert grown < 100 * 150
    assert FiredFiles(tmp_path).memory.last == files.memory.last
    assert len(files.memory.last) == 49_999


STEPS = st.lists(
    st.tuples(
        st.dictionaries(
            st.tuples(st.just("a"), st.sampled_from("cdef")),
            st.tuples(
                st.integers(0, 3_000),
                st.sampled_from((500, FOR_MS)),
                st.integers(0, 3),
                st.sampled_from((NO_MEASURE, 4.5)),
            ),
            max_size=3,
        ),
        st.integers(0, 4_000),
        st.sampled_from(["on", "again", "new process", "torn"]),
    ),
    max_size=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS, st.sampled_from([1, 200, 1 << 20]))
def test_it_is_where_the_last_micro_batch_has_left_it(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Fired, int, str]], lines_bytes: int
) -> None:
    """A micro-batch may be started several times, and a process may be cut off anywhere in its line."""
    folder = tmp_path_factory.mktemp("job")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fired_files, "_CHANGES_BYTES_MIN", lines_bytes)
        expected = FiredFiles(folder).memory
        files = FiredFiles(folder)
        for number, (fired, before_ms, action) in enumerate(steps):
            if action == "again":
                take(files, number, {("a", "c"): (7, *FOR), ("a", "g"): (8, *FOR)}, before_ms)
                files = FiredFiles(folder)
            elif action == "torn":
                begun = (folder / LINES).read_bytes() if (folder / LINES).exists() else None
                take(files, number, {("a", "h"): (9, *FOR), ("a", "i"): (9, *FOR)})
                after = (folder / LINES).read_bytes()
                if begun is not None and after.startswith(begun):  # and did not begin a new file
                    (folder / LINES).write_bytes(after[: (len(begun) + len(after)) // 2])
                files = FiredFiles(folder)
            take(files, number, fired, before_ms)
            expected.put(fired)
            expected.forget(before_ms)
            if action == "new process":
                files = FiredFiles(folder)
            assert files.memory.last == expected.last
            assert last_alerted(folder) == fired_json(expected.last)


def test_a_process_that_is_cut_off_between_the_whole_and_the_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fired_files, "_CHANGES_BYTES_MIN", 1)
    files = FiredFiles(tmp_path)
    take(files, 0, {("a", "c"): (1, *FOR)})
    take(files, 1, {("a", "d"): (2, *FOR)})
    lines = (tmp_path / LINES).read_bytes()
    take(files, 2, {("a", "c"): (2_000, *FOR)}, 1_500)
    assert (tmp_path / LINES).read_bytes() != lines
    (tmp_path / LINES).write_bytes(lines)  # the whole is from the end of 1, the lines are from before
    files = FiredFiles(tmp_path)
    assert files.memory.last == {("a", "c"): (1, *FOR), ("a", "d"): (2, *FOR)}
    take(files, 2, {("a", "c"): (2_000, *FOR)}, 1_500)
    assert FiredFiles(tmp_path).memory.last == {("a", "c"): (2_000, *FOR)}


def test_a_layout_that_no_release_wrote_is_refused(tmp_path: Path) -> None:
    (tmp_path / WHOLE).write_bytes(orjson.dumps({"batch_id": 7, "before": [["a", "c", 1]], "after": [["a", "d", 3]]}))
    with pytest.raises(StateCorruptError, match="restore a savepoint"):
        FiredFiles(tmp_path)


def test_bytes_that_are_not_ours_are_told(tmp_path: Path) -> None:
    (tmp_path / WHOLE).write_bytes(b'{"batch_id": 1')
    with pytest.raises(StateCorruptError, match=WHOLE):
        FiredFiles(tmp_path)
