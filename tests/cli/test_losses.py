"""Each counter of refused, rejected or lost records is shown with the losses, unless it is called ordinary."""

from __future__ import annotations

import io
import json
from collections import Counter

import pyarrow as pa
import pytest

from cep.cli.replay import _figures
from cep.runners.embedded.reports import ProgressLines
from cep.runners.meanings import COUNTERS, FROM_ZERO, LABELS, LOSSES, is_loss
from cep.runners.observe import Log, Observed
from cep.runners.output import Replayed
from cep.runners.spark.match_stream import OBSERVED

# Each counts the normal work of a job.
ORDINARY = {
    "records", "events", "alerts", "alerts_delivered", "matches", "runs_started", "runs_expired", "timeouts",
    "run_steps", "rule_events", "rule_steps", "rule_late_ms", "histories_folded", "events_produced", "control_applied",
    "control_heartbeat", "control_ignored", "control_waiting",
}  # fmt: skip


def labelled(name: str) -> str:
    """Return the counter's name with the labels that a job counts."""
    return f"{name}[{'@'.join('x' for _ in LABELS[name])}]" if name in LABELS else name


def test_every_other_counter_is_a_loss() -> None:
    assert {*FROM_ZERO, *COUNTERS} - set(LOSSES) == ORDINARY


@pytest.mark.parametrize("name", LOSSES)
def test_a_replay_shows_it(name: str) -> None:
    replayed = Replayed(pa.table({"alert_id": []}), (), Counter({"events": 2, labelled(name): 3}), 1.0)
    shown = dict(_figures(replayed))
    assert shown[labelled(name).replace("_", " ")] == "3"


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "held" and not name.startswith("rule_")])
def test_the_lines_of_a_live_job_name_it(name: str) -> None:
    written = io.StringIO()
    totals = Counter({"records": 5, "events": 5, labelled(name): 3})
    ProgressLines(Log("json", written)).tell(Observed(60_000), totals, 1.0)
    assert json.loads(written.getvalue())[labelled(name)] == 3


@pytest.mark.parametrize("name", [name for name in LOSSES if not name.startswith("rule_")])
def test_a_query_of_spark_observes_it(name: str) -> None:
    of_jobs = {"events_before_start", "events_after_end", "deliveries_retried", "checkpoints_failed", "alerts_refused"}
    assert (name in OBSERVED) == (name not in of_jobs)
    assert len(OBSERVED) == len(set(OBSERVED))


def test_labels_do_not_hide_it() -> None:
    assert is_loss("poison[too_long]")
    assert not is_loss("alerts[card_testing@3]")
