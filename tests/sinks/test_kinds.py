"""The table of the kinds of sinks: which text of `--alerts` opens which sink, and under which name."""

from __future__ import annotations

from pathlib import Path

import pytest

from cep.base.errors import UsageError
from cep.model.settings import Settings, read_settings
from cep.sinks.base import AlertSink
from cep.sinks.console import ConsoleSink
from cep.sinks.files import FileSink
from cep.sinks.kafka import KafkaSink, KafkaTransactionSink
from cep.sinks.kinds import KINDS, SinkJob, kind_of, open_sinks, sink_addresses, sink_names
from cep.sinks.postgres import PostgresSink
from cep.sinks.webhook import WebhookSink

# A text → the class of its sink, and its name if that is another one.
TEXTS: dict[str, tuple[type[AlertSink], str]] = {
    "console": (ConsoleSink, ""),
    "kafka:alerts": (KafkaTransactionSink, ""),
    "https://there/alerts?token=secret": (WebhookSink, "https://there/alerts?…"),
    "postgresql://me@there/db": (PostgresSink, "postgresql://…@there/db"),
    "parquet:{folder}/p": (FileSink, ""),
    "{folder}/jsonl": (FileSink, ""),
}


def settings_with(folder: Path, *alerts: str) -> Settings:
    output = {"alerts": alerts, "webhook": {"secret": "known"}}
    return read_settings(
        None,
        {"job": {"checkpoint": str(folder / "job")}, "output": output, "kafka": {"bootstrap_servers": "127.0.0.1:1"}},
    )


def job_of(settings: Settings, *, at_once: bool = False) -> SinkJob:
    return SinkJob(settings, lambda *_: None, None if at_once else lambda topic: f"job-{topic}", {})


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_opens_its_kind_under_a_name_without_secrets(text: str, tmp_path: Path) -> None:
    where, (kind, name) = text.format(folder=tmp_path), TEXTS[text]
    settings = settings_with(tmp_path, where)
    assert sink_names(settings) == {name or where: where}
    sinks = open_sinks(job_of(settings))
    assert {each: type(sink) for each, sink in sinks.items()} == {name or where: kind}
    assert "dead letters" in sink_addresses(settings)
    for sink in sinks.values():
        sink.close()


def test_a_topic_at_once_needs_no_name_of_the_job(tmp_path: Path) -> None:
    (sink,) = open_sinks(job_of(settings_with(tmp_path, "kafka:alerts"), at_once=True)).values()
    assert isinstance(sink, KafkaSink)
    sink.close()


def test_each_beginning_has_one_kind_and_other_texts_are_folders() -> None:
    beginnings = [beginning for kind in KINDS for beginning in kind.beginnings]
    assert len(set(beginnings)) == len(beginnings)
    for kind in KINDS:
        assert all(kind_of(beginning) is kind for beginning in kind.beginnings)
    assert not {kind_of(text) for text in ("consoles", "kafka", "alerts", "./console", "https")} & set(KINDS)


def test_two_sinks_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="two sinks of alerts are"):
        sink_names(settings_with(tmp_path, "https://there/a?x=1", "https://there/a?x=2"))
