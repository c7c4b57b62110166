"""A folder of a job on Spark takes the same forms of files as `cep run`, and sets aside the same records."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path

import orjson
import pytest
from pyspark.sql import SparkSession

from cep.rulebook.deploy import deploy
from cep.rulebook.files import read_rules
from cep.runners.spark.live import LiveSettings, serve, start_live
from cep.runners.spark.live_output import BatchReport, LiveOutput
from cep.runners.spark.sources import FolderSource
from cep.sinks.dead_letters import DeadLetterFiles
from cep.sources.live.base import decode_chunks
from cep.sources.live.files import FilesSource
from cep.step.job import Job
from cep.step.validate import validate_events
from tests.cli.test_rules import RULE
from tests.sources.live_forms import BROKEN_FORMS, GOOD_FORMS, rows, write

pytestmark = pytest.mark.spark
PATTERN = """event payment { tx_id id  event_time time  card_id string  amount decimal(2)  note string? }
pattern p by card_id { seq a  where a: payment amount > 0.00 }
"""


def test_spark_and_one_process_read_the_same(spark: SparkSession, tmp_path: Path) -> None:
    events, control = tmp_path / "events with a +", tmp_path / "control"
    for name, text in (("patterns/p.cep", PATTERN), ("rules/p.toml", RULE)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    events.mkdir()
    control.mkdir()
    forms = {**GOOD_FORMS, **{name: make for name, (make, _) in BROKEN_FORMS.items()}}
    for number, (name, make) in enumerate(forms.items()):
        write(events, name, make(rows(100 * number)))
    records, _ = read_rules(tmp_path / "rules")
    retire = {"kind": "retire", "id": "q", "version": 2}
    write(control, "a.json", json.dumps([retire, retire], indent=1).encode("utf-16"))
    write(control, "cut.json", json.dumps([retire], indent=1).encode()[:-9])
    deployment = deploy(records)
    job = Job(deployment.schema, deployment.key_domains, 2)
    letters, reports = tmp_path / "letters", list[BatchReport]()
    output = LiveOutput(tmp_path / "job", DeadLetterFiles(letters), [], reports.append)
    live = LiveSettings(
        job, tuple(record.to_json() for record in records), FolderSource(events), FolderSource(control),
        tmp_path / "job" / "query", available_now=True,
    )  # fmt: skip
    serve(start_live(spark, live, output), output, threading.Event())

    source, expected, reasons = FilesSource(events, follow=False), Counter[str](), list[bytes]()
    while not source.ended:
        for part in decode_chunks(job.schema, source.poll(50_000, 0.0)).parts:
            valid = validate_events(job, part)
            expected.update(valid.counters)
            reasons += valid.dead_letters
    assert {name: reports[-1].totals[name] for name in expected} == expected
    assert expected["poison[unreadable_file]"] == len(BROKEN_FORMS) - 1
    assert expected["events"] == sum(report.alerts.num_rows for report in reports)
    written = [orjson.loads(line) for path in letters.glob("*.jsonl") for line in path.read_bytes().splitlines()]
    assert sorted(letter["reason"] for letter in written if not letter["code"].startswith("control")) == sorted(
        orjson.loads(letter)["reason"] for letter in reasons
    )
    totals = reports[-1].totals
    assert totals["control_unreadable"] == 1, "the file that ends inside of a record"
    assert totals["control_refused"] + totals["control_ignored"] + totals["control_applied"] == 2
