"""Which versions may take over the runs of another."""

from __future__ import annotations

from pathlib import Path
from random import Random

import orjson
import pytest

from cep.base.utc import utc_ms, utc_text
from cep.model.rule import UpsertRecord
from cep.rulebook.compatible import compile_rule, same_automaton
from cep.rulebook.deploy import deploy
from cep.runners.embedded.replay import replay
from cep.sinks.json_form import json_lines
from cep.sources.pieces import read_pieces
from cep.step.job import Job
from tests.rulebook.records import SCHEMA, SOURCE, new_book, upsert

MIDDLE_MS = utc_ms("2026-03-01T12:00:00Z")


def bound(old: str = "", new: str = "", **params: object) -> object:
    compiled = compile_rule(upsert(1, source=SOURCE.replace(old, new) if old else SOURCE, params=params), SCHEMA, None)
    assert hasattr(compiled, "structure"), compiled
    return compiled


@pytest.mark.parametrize("params", [{}, {"large": 9}])
def test_numbers_may_differ(params: dict[str, object]) -> None:
    assert same_automaton(bound(), bound(**params), SCHEMA)  # type: ignore[arg-type]


def test_a_comment_may_differ() -> None:
    assert same_automaton(bound(), bound("pattern large", "## Says more.\npattern large"), SCHEMA)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("amount < 1.00", "amount <= 1.00"),
        ("small -> large_one", "small, large_one"),
        ("small -> large_one", "small{2,} -> large_one"),
        ("emit   amount = large_one.amount", "emit   amount = small.amount"),
        ("within window", "within 11 min"),
    ],
)
def test_all_else_may_not(old: str, new: str) -> None:
    assert not same_automaton(bound(), bound(old, new), SCHEMA)  # type: ignore[arg-type]


def test_a_version_that_may_not_carry_drains_and_says_so() -> None:
    book = new_book()
    book.apply(upsert(1), None)
    carrying = book.apply(upsert(2, effective_ms=1_000, on_update="carry", params={"large": 7}), None)
    draining = book.apply(upsert(3, effective_ms=2_000, on_update="carry", params={"window": "1 min"}), None)
    assert (carrying.kind, carrying.reason) == ("applied", "")
    assert draining.kind == "applied"
    assert "version 2 has another automaton, other windows, counts" in draining.reason
    assert [rule.carries for rule in book.deployed()] == [0, 1, 0]
    runs = [rule.runs for rule in book.report().rules]
    assert [None if report is None else (report.version, report.outcome) for report in runs] == [
        None,
        (1, "carried"),
        (2, "drained"),
    ]
    assert runs[2] is not None
    assert "version 2 has another automaton" in runs[2].why
    book.apply(upsert(4, effective_ms=3_000, on_update="restart"), None)
    runs = [rule.runs for rule in book.report().rules]
    assert [report.outcome for report in runs if report is not None] == ["carried", "drained", "restarted"]


COUNTED = """
event payment {
  tx_id       id
  event_time  time
  card_id     string
  amount      decimal(2)
}
pattern probes(tries: int = 3, tiny: decimal = 2.00, stop: decimal = 40.00, veto: decimal = 60.00, hit: decimal = 50.00)
    by card_id {
  seq    probe{tries,} until (amount == stop) -> !refund -> big  within 60 min
  where  probe:  payment  amount < tiny
         refund: payment  amount == veto
         big:    payment  amount > hit and amount != veto
  emit   probes = count(probe)
}
"""
CHANGES: list[dict[str, object]] = [{"tries": 5}, {"tries": 1}, {"stop": 41}, {"veto": 61}, {"tiny": 3}, {"hit": 45}]


def version(number: int, params: dict[str, object], on_update: str) -> UpsertRecord:
    effective_ms = None if number == 1 else MIDDLE_MS
    return upsert(
        number, "probes", effective_ms, pattern="probes", source=COUNTED, params=params, on_update=on_update,
        message="{probes} on {key}",
    )  # fmt: skip


@pytest.mark.parametrize("params", CHANGES, ids=str)
def test_runs_are_handed_over_where_their_past_means_the_same(params: dict[str, object], tmp_path: Path) -> None:
    """Otherwise `carry` gives the alerts of `drain`, for random payments around the change."""
    is_carried = params.keys() <= {"tiny", "hit"}
    amounts, chance = ("1.00", "2.50", "40.00", "41.00", "47.00", "55.00", "60.00", "61.00"), Random(str(params))
    lines = [
        orjson.dumps({
            "event_type": "payment", "tx_id": f"t{number}", "card_id": f"c{chance.randrange(30)}",
            "event_time": utc_text(MIDDLE_MS + (number - 600) * 1_000),
            "amount": chance.choices(amounts, (8, 2, 1, 1, 1, 1, 1, 1))[0],
        })
        for number in range(1_200)
    ]  # fmt: skip
    path = tmp_path / "history.jsonl"
    path.write_bytes(b"\n".join(lines))
    alerts: dict[str, list[bytes]] = {}
    for on_update in ("carry", "drain"):
        deployment = deploy([version(1, {}, "drain"), version(2, params, on_update)])
        job = Job(deployment.schema, deployment.key_domains, to_the_end=True)
        alerts[on_update] = list(json_lines(replay(job, deployment.rulebook, read_pieces(path, job.schema), 1).alerts))
        probes = {(one["version"], int(one["measures"]["probes"])) for one in map(orjson.loads, alerts[on_update])}
        assert {number for number, _ in probes} == {1, 2}
        least = {1: 3, 2: int(str(params.get("tries", 3)))}
        assert all(count >= least[number] for number, count in probes), "an alert has the probes of its version"
    assert (alerts["carry"] == alerts["drain"]) != is_carried
