"""A small campaign is clean, one with bad inputs reports them, and an interrupted one continues."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from tests.hostile import campaign
from tests.hostile.campaign import run
from tests.hostile.mutate import broken_bytes, broken_value
from tests.hostile.record import Part, Tally, divided, left_to_do, read_record


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
    clock = campaign._Clock()
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


@pytest.mark.slow
@pytest.mark.always
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


@pytest.mark.slow
@pytest.mark.always
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
