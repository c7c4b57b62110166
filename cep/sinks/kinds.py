"""`--alerts WHERE` and the settings of a job → its sinks: the table of the kinds of sinks.

    console              kafka:TOPIC               postgresql://HOST/DATABASE
    http://…, https://…  parquet:FOLDER, FOLDER    delta:PLACE

A new kind is one row of KINDS, and a file next to this one.
Tested by: tests/sinks/test_contract.py, tests/cli/test_run.py, tests/cli/test_main.py
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cep.base.errors import UsageError
from cep.base.secrets import without_user
from cep.model.settings import Settings
from cep.sinks.base import DEAD_LETTERS, AlertSink, DeadLetterSink, RefusedAlerts
from cep.sinks.console import ConsoleSink
from cep.sinks.files import DeadLetterFiles, FileSink
from cep.sinks.kafka import KafkaDeadLetters, KafkaDeadLettersAtOnce, KafkaSink, KafkaTarget, KafkaTransactionSink
from cep.sinks.lake import LakeSink
from cep.sinks.postgres import SCHEMES, PostgresSink
from cep.sinks.webhook import WebhookSink, WebhookTarget

KAFKA = "kafka:"
_URLS = ("http://", "https://")
_PARQUET, _DELTA = "parquet:", "delta:"
_DIGEST_CHARS = 8


@dataclass(frozen=True, slots=True)
class SinkJob:
    """The job that sinks belong to.

    `refused` is called with the name of a sink, the number of refused alerts, and the reason. `transactions_name` gives
    the name of the job's transactions in a topic; None: the job sends without transactions. `client` has the settings
    of Kafka's client for alerts."""

    settings: Settings
    refused: Callable[[str, int, str], None]
    transactions_name: Callable[[str], str] | None
    client: Mapping[str, str]

    def target(self, topic: str, client: Mapping[str, str]) -> KafkaTarget | None:
        """Return the target for transactions into a topic; None without them. `client` differs for dead letters."""
        servers, name_of = self.settings.kafka.bootstrap_servers or "", self.transactions_name
        return None if name_of is None else KafkaTarget(servers, topic, name_of(topic), client)


@dataclass(frozen=True, slots=True)
class SinkKind:
    """A kind of sink: the beginnings of its addresses, and how to open one.

    `name` returns the address without a secret. `is_quick`: a commit of alerts costs no more than a write to the disk.
    """

    beginnings: tuple[str, ...]
    open: Callable[[SinkJob, str], AlertSink]
    name: Callable[[Settings, str], str] = lambda _, where: without_user(where) or where
    is_quick: bool = False


def _topic(job: SinkJob, where: str) -> AlertSink:
    topic = where.removeprefix(KAFKA)
    target = job.target(topic, job.client)
    if target is None:
        return KafkaSink(job.settings.kafka.bootstrap_servers or "", topic, job.client)
    return KafkaTransactionSink(target)


def _webhook(job: SinkJob, where: str) -> AlertSink:
    """Open a webhook. Alerts that it refuses go to the dead letters of the job. Raises: UsageError."""
    settings, target = job.settings, _webhook_target(job.settings, where)
    topic, servers = settings.output.dead_letter_topic, settings.kafka.bootstrap_servers
    folder = dead_letters_folder(settings)
    if settings.job.checkpoint is None or folder is None:
        raise UsageError(f"alerts to {target.shown} need --checkpoint, where those that are refused are kept")
    dead_letters: DeadLetterSink
    if topic is not None and servers is not None:
        dead_letters = KafkaDeadLettersAtOnce(servers, topic, settings.kafka.client_settings())
    else:
        # A name for each webhook: two of them may refuse alerts of one micro-batch.
        digest = hashlib.sha256(where.encode()).hexdigest()[:_DIGEST_CHARS]
        dead_letters = DeadLetterFiles(folder, f"refused-{digest}")
    return WebhookSink(target, RefusedAlerts(target.shown, dead_letters, job.refused))


def _lake(job: SinkJob, where: str) -> AlertSink:
    settings, checkpoint = job.settings, job.settings.job.checkpoint
    if checkpoint is None:
        raise UsageError("--alerts delta: needs --checkpoint: the table has the numbers of its micro-batches")
    name = f"{checkpoint.resolve().name}-{settings.embedded.groups or 'all'}"
    return LakeSink(where.removeprefix(_DELTA), name)


KINDS = (
    SinkKind(("console",), lambda *_: ConsoleSink(), is_quick=True),
    SinkKind((KAFKA,), _topic, is_quick=True),
    SinkKind(_URLS, _webhook, lambda settings, where: _webhook_target(settings, where).shown, is_quick=True),
    SinkKind((_DELTA,), _lake),
    SinkKind(SCHEMES, lambda _, where: PostgresSink(where)),
    SinkKind((_PARQUET,), lambda _, where: FileSink(Path(where.removeprefix(_PARQUET)), "parquet")),
)
_FOLDER = SinkKind((), lambda _, where: FileSink(Path(where)))  # any other text


def kind_of(where: str) -> SinkKind:
    """Return the kind of sink of a text of `--alerts`."""
    for kind in KINDS:
        for beginning in kind.beginnings:
            # A word without a colon is a whole address: other folders may begin with it.
            if where == beginning or (":" in beginning and where.startswith(beginning)):
                return kind
    return _FOLDER


def sink_names(settings: Settings) -> dict[str, str]:
    """Return the sinks of `--alerts` by name, in their order; the console is the default. Raises: UsageError."""
    names: dict[str, str] = {}
    for where in dict.fromkeys(settings.output.alerts or ("console",)):
        name = kind_of(where).name(settings, where)
        if name in names:
            raise UsageError(
                f"two sinks of alerts are {name}; nothing tells them apart in health and metrics, so name one"
            )
        names[name] = where
    return names


def open_sinks(job: SinkJob) -> dict[str, AlertSink]:
    """Open the sinks of the alerts, by name, in the order of `--alerts`. Raises: UsageError, SinkError."""
    return {name: kind_of(where).open(job, where) for name, where in sink_names(job.settings).items()}


def sink_addresses(settings: Settings) -> dict[str, str]:
    """Return the addresses of sinks whose names do not say them: the brokers of topics, the place of dead letters."""
    servers, output = settings.kafka.bootstrap_servers or "", settings.output
    topics = [where for where in output.alerts if where.startswith(KAFKA)]
    addresses = dict.fromkeys([*topics, *filter(None, [settings.control.status_topic])], servers)
    topic, folder = output.dead_letter_topic, dead_letters_folder(settings)
    return {**addresses, DEAD_LETTERS: str(folder) if topic is None else f"{KAFKA}{topic} at {servers}"}


def alert_topics(settings: Settings) -> list[str]:
    """Return the topics that alerts go to."""
    return [where.removeprefix(KAFKA) for where in settings.output.alerts if where.startswith(KAFKA)]


def dead_letters_folder(settings: Settings) -> Path | None:
    """Return the folder for records that are set aside; None for a job without a folder."""
    checkpoint = settings.job.checkpoint
    return settings.output.dead_letters or (None if checkpoint is None else checkpoint / "dead_letters")


def open_dead_letters(job: SinkJob) -> DeadLetterSink | None:
    """Open the sink for records that are set aside: a topic, or a folder; None without either."""
    settings, topic, folder = job.settings, job.settings.output.dead_letter_topic, dead_letters_folder(job.settings)
    if topic is None:
        return None if folder is None else DeadLetterFiles(folder)
    client = settings.kafka.client_settings()
    target = job.target(topic, client)
    if target is None:
        return KafkaDeadLettersAtOnce(settings.kafka.bootstrap_servers or "", topic, client)
    return KafkaDeadLetters(target)


def check_dead_letters(settings: Settings) -> None:
    """Check that dead letters have a topic or a folder of their own, and that no output is read again as events.

    Raises: UsageError."""
    topic, folder, events = settings.output.dead_letter_topic, dead_letters_folder(settings), settings.events
    if topic in alert_topics(settings):
        raise UsageError("--dead-letter-topic needs a topic of its own, not that of the alerts")
    folders = {Path(where).resolve() for where in settings.output.alerts if kind_of(where) is _FOLDER}
    if topic is None and folder is not None and folder.resolve() in folders:
        raise UsageError("--dead-letters needs a folder of its own, not that of the alerts: files have the same names")
    if events.topic is not None and events.topic in (topic, *alert_topics(settings)):
        raise UsageError(f"topic {events.topic} has the events: alerts and dead letters need topics of their own")
    if events.folder is not None and events.folder.resolve() in (*folders, folder and folder.resolve()):
        raise UsageError(f"{events.folder} has the events: alerts and dead letters need folders of their own")


def refusals_of(sinks: Sequence[AlertSink]) -> list[RefusedAlerts]:
    """Return the refusals of the sinks that set alerts aside."""
    return [sink.refused for sink in sinks if isinstance(sink, WebhookSink)]


def webhook_again(settings: Settings, name: str, dead_letters: DeadLetterSink) -> WebhookSink:
    """Open the webhook of this name in the settings; refused alerts go to `dead_letters`. Raises: UsageError."""
    webhooks = [where for where in settings.output.alerts if where.startswith(_URLS)]
    target = next((each for each in (_webhook_target(settings, url) for url in webhooks) if each.shown == name), None)
    if target is None:
        raise UsageError(f"[output] alerts has no webhook {name}, which has refused alerts; name the job's --conf")
    return WebhookSink(target, RefusedAlerts(name, dead_letters))


def _webhook_target(settings: Settings, url: str) -> WebhookTarget:
    is_insecure = settings.output.webhook is not None and settings.output.webhook.insecure
    return WebhookTarget(url, settings.output.webhook_secret(), is_insecure=is_insecure)
