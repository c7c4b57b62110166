"""The settings of a job → its live sources: the table of the kinds of sources.

    [events], [control]: a setting that names a place ──▶ a row of KINDS ──▶ LiveSource

A new kind is one row of KINDS and a file next to this one; cep/docs/inside/change.md lists the rest.
Tested by: tests/sources/test_live.py, tests/cli/test_run.py, tests/cli/test_main.py
"""

import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass

from cep.base.errors import UsageError
from cep.columnar.mapping import FieldMapping, mapping_of_settings
from cep.model.settings import STDIN, ControlSettings, EventsSettings, Settings
from cep.sources.kafka import KafkaSettings
from cep.sources.live.base import LiveSource
from cep.sources.live.files import FilesSource
from cep.sources.live.kafka import TopicSource
from cep.sources.live.lines import LinesSource
from cep.sources.registry.form import RecordFormat, headers_of


@dataclass(frozen=True, slots=True)
class SourceJob:
    """The job that reads a source: its settings, and where fields are in its events. `until_end`: it ends once it has
    read everything that exists. `accepts_gap`: it goes on after deleted events."""

    settings: Settings
    mapping: FieldMapping
    until_end: bool = False
    accepts_gap: bool = False


@dataclass(frozen=True, slots=True)
class SourceKind:
    """A kind of source: the setting that names its place, and how to open it for events and for control records."""

    setting: str
    open_events: Callable[[SourceJob], LiveSource]
    open_control: Callable[[Settings], LiveSource]


def kafka_client(settings: Settings) -> KafkaSettings:
    """Return the brokers of a job, and the settings of clients that read from them."""
    return KafkaSettings(settings.kafka.bootstrap_servers or "", tuple(settings.kafka.client_settings().items()))


def _topic_of_events(job: SourceJob) -> LiveSource:
    events = job.settings.events
    assert events.topic is not None, "the row of this setting was chosen"
    return TopicSource(
        kafka_client(job.settings), events.topic, events.starting, events.ending, headers_of(job.mapping),
        accepts_gap=job.accepts_gap,
    )  # fmt: skip


def _topic_of_control(settings: Settings) -> LiveSource:
    assert settings.control.topic is not None, "the row of this setting was chosen"
    return TopicSource(kafka_client(settings), settings.control.topic)


def _files_or_lines(job: SourceJob) -> LiveSource:
    folder = job.settings.events.folder
    assert folder is not None, "the row of this setting was chosen"
    if str(folder) == STDIN:
        return LinesSource(sys.stdin.fileno())
    return FilesSource(folder, follow=not job.until_end, mapping=job.mapping)


def _files_of_control(settings: Settings) -> LiveSource:
    assert settings.control.folder is not None, "the row of this setting was chosen"
    return FilesSource(settings.control.folder, follow=True, takes_events=False)


KINDS = (
    SourceKind("topic", _topic_of_events, _topic_of_control),
    SourceKind("folder", _files_or_lines, _files_of_control),
)
SETTINGS = tuple(kind.setting for kind in KINDS)


def named(section: EventsSettings | ControlSettings, settings: Collection[str] = SETTINGS) -> list[str]:
    """Return the settings of a section that name a source; `settings` are those that the runner reads."""
    return [name for name in settings if getattr(section, name, None) is not None]


def open_events(job: SourceJob) -> LiveSource:
    """Open the source of events, which `check_sources` has found. Raises: UsageError, SourceError."""
    setting = named(job.settings.events)[0]
    return next(kind for kind in KINDS if kind.setting == setting).open_events(job)


def open_control(settings: Settings) -> LiveSource | None:
    """Open the source of control records; None for a job whose rules do not change. Raises: UsageError, SourceError."""
    settings_named = named(settings.control)
    if not settings_named:
        return None
    return next(kind for kind in KINDS if kind.setting == settings_named[0]).open_control(settings)


def check_sources(
    settings: Settings, topics: Collection[str | None], flags: str, readable: Collection[str] = SETTINGS
) -> None:
    """Check that one place of events is set, and at most one of control records. `readable` are the settings of places
    that the runner reads, `flags` the flags that a message names, `topics` the topics of sinks. Raises: UsageError."""
    events, control = settings.events, settings.control
    if len(named(events, readable)) != 1:
        raise UsageError(f"give the events: {flags}")
    if len(named(control, readable)) > 1:
        raise UsageError("give --control or --control-topic, not both: control records have one order")
    has_topic = any(topic is not None for topic in (events.topic, control.topic, *topics))
    if settings.kafka.bootstrap_servers is None and has_topic:
        raise UsageError("a topic needs --bootstrap-servers HOST:PORT")


def check_ending(settings: Settings, *, until_end: bool) -> None:
    """Check the place of a topic at which the job must end. Raises: UsageError without a topic, or if the job never
    ends."""
    if settings.events.ending is not None and settings.events.topic is None:
        raise UsageError("--ending is a place in a topic; give --topic, or leave it out")
    if settings.events.ending is not None and not until_end:
        raise UsageError("--ending needs --available-now: without it a job waits for what comes next")


def record_format(events: EventsSettings) -> RecordFormat:
    """Describe how the values of the events' topic are written. Raises: UsageError."""
    file = None if events.schema_file is None else str(events.schema_file.resolve())
    registry = tuple(events.registry_settings().items())
    return RecordFormat(events.format, registry, file, events.message, mapping_of_settings(events))
