"""The flags that `cep run` and `cep live` share → checked settings, and the values that both derive from them.

Each setting's flag and help come from the model (model/settings.py) through configured.py, so each text exists once.
Tested by: tests/cli/test_live.py, tests/cli/test_run.py
"""

from __future__ import annotations

import argparse

from cep.base.errors import UsageError
from cep.cli.configured import add_setting_arguments
from cep.cli.given_events import mapping_of_settings
from cep.model.settings import Settings
from cep.sources.registry.form import RecordFormat

URLS = ("http://", "https://")
KAFKA = "kafka:"
_SHARED = ("job", "events", "control", "kafka", "output", "observe", "secrets")


def add_job_arguments(parser: argparse.ArgumentParser, section: str) -> None:
    """Declare the flags of a live job; `section` has the flags of the verb's own runner."""
    add_setting_arguments(parser, *_SHARED, section)
    parser.add_argument("--connector", dest="events.connector", help=argparse.SUPPRESS)  # refused with the way forward
    parser.add_argument("--available-now", action="store_true", help="stop when everything that is there is processed")


def check_sources(settings: Settings, events_flags: str, *more_topics: str | None) -> None:
    """Check that the events and the control records come from one place each. `events_flags` says how to name one.

    Any topic, and `more_topics` are some, needs a broker. Raises: UsageError.
    """
    events, control = settings.events, settings.control
    if (events.folder is None) == (events.topic is None):
        raise UsageError(f"give the events: {events_flags}")
    if control.folder is not None and control.topic is not None:
        raise UsageError("give --control or --control-topic, not both: control records have one order")
    topics = (events.topic, control.topic, *more_topics, *kafka_topics(settings))
    if settings.kafka.bootstrap_servers is None and any(topic is not None for topic in topics):
        raise UsageError("a topic needs --bootstrap-servers HOST:PORT")


def check_ending(settings: Settings, *, available_now: bool) -> None:
    """Check the place of a topic at which the job must end.

    Raises: UsageError if there is no topic, or if the job would wait for that place for ever.
    """
    if settings.events.ending is not None and settings.events.topic is None:
        raise UsageError("--ending is a place in a topic; give --topic, or leave it out")
    if settings.events.ending is not None and not available_now:
        raise UsageError("--ending needs --available-now: without it a job waits for what comes next")


def check_dead_letters(settings: Settings) -> None:
    """Check that dead letters have a topic of their own. Raises: UsageError."""
    if settings.output.dead_letter_topic in kafka_topics(settings):
        raise UsageError("--dead-letter-topic needs a topic of its own, not that of the alerts")


def kafka_topics(settings: Settings) -> list[str]:
    """Return the topics that alerts go to."""
    return [where.removeprefix(KAFKA) for where in settings.output.alerts if where.startswith(KAFKA)]


def record_format(settings: Settings) -> RecordFormat:
    """Describe how the values of the events' topic are written."""
    events = settings.events
    file = None if events.schema_file is None else str(events.schema_file.resolve())
    registry = tuple(events.registry_settings().items())
    return RecordFormat(events.format, registry, file, events.message, mapping_of_settings(events))
