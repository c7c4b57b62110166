"""The last alerts of rules that suppress, in files: the written changes, and their recovery after a cut-off write."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cep.base.errors import StateCorruptError
from cep.rulebook.suppression import NO_MEASURE, Fired, fired_json
from cep.runners import fired_files
from cep.runners.fired_files import FiredFiles, begin_fired
from cep.runners.rule_output import last_alerted

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
        patched.setattr(fired_files, "_LINES_BYTES_MIN", lines_bytes)
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
    monkeypatch.setattr(fired_files, "_LINES_BYTES_MIN", 1)
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
