"""Settings of a job: a TOML file, and flags that override it → one checked value; and the model → a commented file.

Every runner reads the same model. A setting is declared once, here: its name, type, default, meaning, and its flag on
the command line. Unknown names and wrong types are problems, never ignored. A path in a file is relative to the file's
folder. A value `env:NAME` of [kafka.client] is read from the environment, so that no secret needs to be in a file.

Tested by: tests/model/test_settings.py, tests/cli/test_replay.py.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo

from cep.base.errors import UnreadableError, UsageError
from cep.base.files import read_file
from cep.base.limits import (
    AHEAD_MS_DEFAULT,
    DEDUP_MS_DEFAULT,
    IDLE_MS_DEFAULT,
    KEY_GROUPS_LIVE_DEFAULT,
    KEY_GROUPS_MAX,
    PRODUCE_DEPTH_MAX,
    REJECTED_PERCENT_MAX,
    SETTINGS_FILE_BYTES_MAX,
)
from cep.base.toml import parse_toml
from cep.model.client_settings import kafka_names, registry_names, spark_names
from cep.model.setting_types import (
    Address,
    DurationMs,
    DurationMsOrOff,
    PathText,
    Place,
    Positive,
    SecretsSettings,
    Section,
    Texts,
    from_environment,
    is_loopback,
    problems_of,
    registry_client,
    secret_from_environment,
    setting,
)


class EmbeddedSettings(Section):
    """The settings that only the runner in one process reads."""

    workers: Positive = setting(2, "Threads that match, each for a share of the key groups.", "--workers N")
    groups: str | None = setting(
        None,
        "Key groups of this process, first-last; all of them if not given. Each process needs a checkpoint of its own.",
        "--groups RANGE",
        '"0-15"',
    )
    store: Literal["rocksdb", "memory"] = setting(
        "rocksdb",
        "Store of keyed state: rocksdb, safe after each commit, or memory, safe after each checkpoint.",
        "--store WHERE",
    )
    cache_mb: Positive = setting(
        256, "Memory for keyed state with rocksdb: half for pages in use, half for its blocks.", "--cache-mb N"
    )
    target: str | None = setting(
        None,
        "Where checkpoints go: a folder, or a URL of fsspec (s3://…); in the checkpoint folder if not given.",
        "--checkpoint-target URL",
        '"s3://bucket/job"',
    )
    kept: Positive = setting(3, "Checkpoints that are kept.")
    changelog: str | None = setting(
        None,
        "Compacted topic that gets the changes of each commit, with its alerts; a job without its folder reads it.",
        "--changelog TOPIC",
        '"payments-state"',
    )
    standby: bool = setting(
        False,
        "Several processes are started with the same command: one works, the others follow its changelog, and "
        "one of them takes over when it dies.",
        "--standby",
    )
    interval: DurationMs | None = setting(
        None, "Least time between two commits; 0 s, for folders and memory 1 s.", "--interval TIME", '"0 s"'
    )
    checkpoints: DurationMs = setting(
        10_000, "Time between two checkpoints: copies on another disk.", "--checkpoint-interval TIME", '"10 s"'
    )
    delivery: Literal["exactly-once", "at-least-once"] = setting(
        "exactly-once",
        "exactly-once: alerts go out with the next commit; at-least-once: at once, and again after a crash.",
        "--delivery HOW",
    )


def _pairs(value: object) -> object:
    """Write a table of the file as texts: `{ card = "cc" }` is `["card=cc"]`."""
    return tuple(f"{name}={text}" for name, text in value.items()) if isinstance(value, dict) else value


Pairs = Annotated[tuple[str, ...], BeforeValidator(_pairs)]


class MappingSettings(Section):
    """The place and the form of the fields of events in records."""

    columns: Pairs = setting(
        (),
        "Where a field is in a record, if not by its own name: another name, or a path into nested values; "
        "`event_type` is the name of the type, and `*` where all other fields are.",
        "--columns FIELD=PATH",
        '{ card_id = "payload.after.card" }',
    )
    fixed: Pairs = setting(
        (), "A field that has one value in every record.", "--fixed FIELD=VALUE", '{ channel = "web" }'
    )
    minor: tuple[str, ...] = setting(
        (),
        "Decimals that come as whole minor units, such as cents; FIELD:CURRENCY names the field with the code of the "
        "currency (ISO 4217: JPY is without cents), FIELD:base64 reads the bytes of Debezium.",
        "--minor FIELD",
        '["amount:currency"]',
    )
    values: Pairs = setting(
        (),
        "The word of a field for a value in records, such as a symbol of an enum.",
        "--values FIELD.VALUE=WORD",
        '{ "direction.credit" = "incoming" }',
    )
    time_unit: Literal["", "s", "ms", "us", "ns", "min", "h", "d"] = setting(
        "", "Unit of times that are numbers: s, ms, us, ns; default ms; after --time-base also min, h, d.",
        "--time-unit UNIT", '"s"'
    )  # fmt: skip
    time_base: str = setting(
        "", "The moment from which times count units (default seconds), if they do not count from 1970.",
        "--time-base TIME", '"2013-09-01T00:00:00Z"'
    )  # fmt: skip
    time_form: str = setting(
        "", "Form of times that are texts, as for strptime (default ISO 8601).", "--time-form FORM",
        '"%d.%m.%Y %H:%M:%S"',
    )  # fmt: skip
    time_zone: str = setting(
        "", "Zone of times without a zone, such as UTC or Europe/Berlin.", "--time-zone ZONE", '"Europe/Berlin"'
    )
    delimiter: str = setting(
        "", "The sign between the fields of CSV, such as ; or tab; detected in each file if not given.",
        "--delimiter SIGN", '";"'
    )  # fmt: skip
    quote: str = setting("", "The sign around texts of CSV; detected if not given.", "--quote SIGN", '"\'"')
    encoding: str = setting(
        "", "Encoding of CSV: utf-8, utf-16, cp1252, …; detected if not given.", "--encoding NAME",
        '"cp1252"'
    )  # fmt: skip
    decimal: str = setting(
        "", "The decimal sign of numbers that are texts: . or , ; in CSV detected if not given.",
        "--decimal SIGN", '","'
    )  # fmt: skip
    thousands: str = setting(
        "", "The sign for thousands in numbers that are texts; in CSV detected if not given.",
        "--thousands SIGN", '"."'
    )  # fmt: skip


_WIDTH = 100
_PATH_OR_NONE: Any = PathText | None
STDIN = "-"  # as the folder of events


class JobSettings(Section):
    """The job: the rules, the layout of keyed state, and the checkpoint."""

    rules: PathText | None = setting(
        None, "Folder of rule files that the job begins with.", "--rules FOLDER", '"rules"'
    )
    warm_start: str | None = setting(
        None,
        "Folder with the state of a replay to begin with (`cep replay --savepoint`), and its rules; used only "
        "at the first start.",
        "--from PLACE",
        '"/var/lib/cep/history"',
    )
    checkpoint: PathText | None = setting(
        None, "Folder of progress and keyed state; kept over restarts.", "--checkpoint FOLDER", '"/var/lib/cep/job"'
    )
    lateness: DurationMs = setting(
        0, "Disorder to expect: the time by which the watermark lags the newest event.", "--lateness TIME", '"0 s"'
    )
    order: Literal["event_time", "arrival"] = setting(
        "event_time",
        "event_time: an event waits until no earlier one is expected, so that the order of arrival does not matter; "
        "arrival: events are matched as they come.",
        "--order ORDER",
    )
    idle: DurationMs = setting(
        IDLE_MS_DEFAULT,
        "Time for which a partition without new records holds back the others.",
        "--idle TIME",
        '"10 s"',
    )
    ahead_max: DurationMsOrOff = setting(
        AHEAD_MS_DEFAULT,
        "How far ahead of the job's clock an event may be dated; later events are set aside. `off`: no limit.",
        "--ahead-max TIME",
        '"1 min"',
    )
    dedup: DurationMs = setting(
        DEDUP_MS_DEFAULT,
        "Event time for which event ids are remembered. An event that comes again, late or not, is ignored and counted "
        "as a duplicate; another event of its type and keys with its id is set aside. 0 s: never.",
        "--dedup TIME",
        '"10 min"',
    )
    trigger: DurationMs = setting(
        0, "Least time between micro-batches; 0 starts the next one at once.", "--trigger TIME", '"0 s"'
    )
    keys: Texts = setting((), "Keys that later rules may use too.", "--key FIELDS", '["card_id,merchant_id"]')
    key_groups: Annotated[int, Field(ge=1, le=KEY_GROUPS_MAX, strict=True)] = setting(
        KEY_GROUPS_LIVE_DEFAULT,
        "Bound of the parallelism, for the job's whole life; fewer cost less a micro-batch.",
        "--key-groups N",
    )
    levels: Annotated[int, Field(ge=1, le=PRODUCE_DEPTH_MAX + 1, strict=True)] = setting(
        1,
        "Levels of patterns that feed each other, for the job's whole life: as many as its first rules need, "
        "and at least this number for later rules. Each level is a stage of every micro-batch.",
        "--levels N",
    )
    pages: Positive = setting(1, "Parts of a key group's state; more if keys are sparse.", "--pages N")
    start_incomplete: bool = setting(
        False,
        "Start although a live rule is set aside or a rule file cannot be read. The other rules run without it.",
        "--start-incomplete",
    )


class _PlaceSettings(Section):
    """The place that events come from."""

    folder: PathText | None = setting(
        None, "Folder in which files appear: JSON, CSV or Parquet.", "--events FOLDER", '"events"'
    )
    topic: str | None = setting(None, "Topic of events.", "--topic NAME", '"payments"')
    format: Literal["json", "avro", "protobuf"] = setting(
        "json", "How the values of the topic are written: json, avro, protobuf.", "--format FORMAT"
    )
    schema_file: PathText | None = setting(
        None,
        "Schema of Avro values (*.avsc; without a registry: of values without a prefix), or Protobuf's "
        "descriptors (protoc --include_imports --descriptor_set_out).",
        "--schema-file FILE",
        '"payment.avsc"',
    )
    message: str | None = setting(
        None, "Name of the Protobuf message in the schema file.", "--message NAME", '"shop.Payment"'
    )
    registry: Annotated[
        dict[str, SecretStr],
        AfterValidator(registry_names),
        AfterValidator(from_environment),
        AfterValidator(registry_client),
    ] = setting(
        {},
        "Settings of the schema registry's client; `env:NAME` and `file:PATH` take a value from elsewhere. The "
        'address must not contain a user or a query: give "basic.auth.user.info", or '
        '"bearer.auth.credentials.source" with its settings.',
        example='{ "url" = "https://registry:8081", "basic.auth.user.info" = "env:REGISTRY_USER" }',
    )
    starting: Place = setting(
        "earliest",
        "Where a new job begins in the topic: earliest, latest, the first record of a time (2026-03-01T00:00:00Z), or "
        'an offset for each partition ({"payments": {"0": 17, "1": -2}}; -2 is earliest, -1 latest; others: earliest).',
        "--starting WHERE",
    )
    ending: Place | None = setting(
        None,
        "Where a start with --available-now ends in the topic, in the same forms; later records wait for the "
        "next start.",
        "--ending WHERE",
        '"2026-03-02T00:00:00Z"',
    )
    max_records: Positive | None = setting(
        None, "Records of a topic in one micro-batch at most.", "--max-records N", "200000"
    )
    max_bytes: Positive | None = setting(
        None, "Bytes of a topic in one micro-batch, by a sample of its records.", "--max-bytes N", "50000000"
    )
    max_files: Positive | None = setting(None, "Files of a folder in one micro-batch at most.", "--max-files N", "8")

    @model_validator(mode="before")
    @classmethod
    def _read_earlier(cls, values: Any) -> Any:
        """Read the settings of builds that had a choice of readers for a topic. Files of `cep settings` name it."""
        if not isinstance(values, Mapping) or "connector" not in values:
            return values
        if values["connector"] != "client":
            raise ValueError(
                f"connector = {json.dumps(values['connector'])} is gone: leave `connector` out, and the job reads the "
                "topic itself, from the same offsets. Where Spark's own connector has to read it, give its stream to "
                "`Rules.match_stream` (`cep docs guides/operate-spark`)"
            )
        return {name: value for name, value in values.items() if name != "connector"}

    def registry_settings(self) -> dict[str, str]:
        """Return the registry client's settings in plain text, for the client alone."""
        return {name: value.get_secret_value() for name, value in self.registry.items()}


class EventsSettings(MappingSettings, _PlaceSettings):
    """The place that events come from: a folder, or a topic; and where their fields are in the records."""


class ControlSettings(Section):
    """Control records: rules published, changed and retired while the job goes on."""

    folder: PathText | None = setting(
        None, "Folder in which files of JSON lines appear.", "--control FOLDER", '"control"'
    )
    topic: str | None = setting(None, "Topic of control records.", "--control-topic NAME", '"rules"')
    status_topic: str | None = setting(
        None, "Topic for the status of the job's rules.", "--status-topic NAME", '"rules-status"'
    )
    signers: PathText | None = setting(
        None, "Who may sign changes; without signatures they are refused.", "--signers FILE", '"signers.toml"'
    )
    root_key: str | None = setting(
        None, "Public key that the signers file is signed with.", "--root-key KEY", '"ed25519:…"'
    )


class PublishSettings(Section):
    """The conditions of `cep rules publish` before it changes the rules of a job, and who signs changes."""

    sign_with: PathText | None = setting(
        None,
        "Private key of the person who makes the change, if changes are signed.",
        "--sign-with FILE",
        '"ada.pem"',
    )

    two_person: bool = setting(False, "Whether `author` and `approved_by` of a changed rule must name two people.")
    lead: DurationMs = setting(
        10_000,
        "Time from now until a change without `effective_at` starts, in event time.",
        "--lead TIME",
        '"10 s"',
    )


class KafkaSettings(Section):
    """The brokers, and how clients reach them."""

    bootstrap_servers: str | None = setting(
        None, "Brokers, host:port, more with commas.", "--bootstrap-servers HOST:PORT", '"kafka:9092"'
    )
    client: Annotated[dict[str, SecretStr], AfterValidator(kafka_names), AfterValidator(from_environment)] = setting(
        {},
        "Settings of librdkafka, for security above all; none that load code. Secrets are `env:NAME` or `file:PATH`.",
        example='{ "sasl.mechanism" = "PLAIN", "sasl.password" = "env:KAFKA_PASSWORD" }',
    )

    def client_settings(self) -> dict[str, str]:
        """Return the client's settings in plain text, for the client alone."""
        return {name: value.get_secret_value() for name, value in self.client.items()}


class WebhookSettings(Section):
    """The webhook that a job sends alerts to."""

    secret: Annotated[SecretStr | None, AfterValidator(secret_from_environment)] = None
    insecure: bool = False


class OutputSettings(Section):
    """The places that alerts and records that were set aside go to."""

    alerts: Texts = setting(
        (),
        "`console`, `kafka:TOPIC`, `postgresql://HOST/DATABASE` (the password in PGPASSWORD or ~/.pgpass), the URL of "
        "a webhook (https://…), a folder for JSON lines, `parquet:FOLDER`, or `delta:PLACE` for a Delta Lake table; "
        "may be several. The console if none is named.",
        "--alerts WHERE",
        '["kafka:alerts"]',
    )
    dead_letters: PathText | None = setting(
        None,
        "Folder for records set aside and the audit; in the checkpoint folder if not given.",
        "--dead-letters FOLDER",
        '"dead_letters"',
    )
    dead_letter_topic: str | None = setting(
        None,
        "Topic for records set aside and the audit, instead of the folder.",
        "--dead-letter-topic NAME",
        '"payments-dead"',
    )

    webhook: WebhookSettings | None = setting(
        None,
        "`secret`: signs alerts to a webhook; `env:NAME` takes it from the environment. A webhook on another machine "
        "needs https://, unless `insecure = true` lets alerts go there unencrypted.",
        example='{ "secret" = "env:WEBHOOK_SECRET" }',
    )

    def webhook_secret(self) -> bytes:
        """Return the secret in plain text, empty without one."""
        if self.webhook is None or self.webhook.secret is None:
            return b""
        return self.webhook.secret.get_secret_value().encode()


class ObserveSettings(Section):
    """The signs that the job gives of itself."""

    listen: Address = setting(
        None,
        "Port, or host and port, of /metrics, /live, /ready and /health; on this machine only unless a host is named.",
        "--listen [HOST:]PORT",
        '"9464"',
    )
    token: Annotated[SecretStr | None, AfterValidator(secret_from_environment)] = setting(
        None,
        "Bearer token for all requests except /live, /ready and /health; `env:NAME` takes it from the "
        "environment. A job that "
        "listens to other machines needs one.",
        example='"env:CEP_TOKEN"',
    )
    hosts: Texts = setting(
        (),
        "More names that the header Host of a request may have. An address, localhost, the host of `listen` "
        "and a request with the token do not need this setting.",
        example='["cep.bank.example"]',
    )
    answer_keys: bool = setting(
        False,
        "Whether `cep run` answers /key?key=…: the open runs of a key, with the events that they have bound.",
        "--answer-keys yes|no",
    )
    log: Literal["text", "json"] = setting(
        "text", "Form of the log on standard error: text or json, one object a line.", "--log FORM"
    )
    traces: bool = setting(
        False,
        "An OpenTelemetry span for each micro-batch; the environment variables OTEL_… say where to send it; needs the "
        "extra `otel`.",
        "--traces",
    )
    rejected_max: Annotated[float, Field(ge=0, le=1)] = setting(
        REJECTED_PERCENT_MAX / 100,
        "Share of the records, from 0 to 1, that may be set aside or have a value that cannot be read. Above it the "
        "job is unhealthy, and it ends with 1.",
        "--rejected-max SHARE",
    )
    ready_lag: DurationMs = setting(
        10_000,
        "A job that reads a topic is ready once no more events wait than arrive in this time.",
        "--ready-lag TIME",
        '"10 s"',
    )
    stalled: DurationMs = setting(
        300_000,
        "Time without a finished micro-batch after which /live and /health report the job as stuck, if records wait.",
        example='"5 min"',
    )

    @model_validator(mode="after")
    def _check_token(self) -> ObserveSettings:
        if self.listen is not None and not is_loopback(self.listen[0]) and self.token is None:
            raise ValueError(
                f'{self.listen[0]} listens to other machines, so requests need a token: set token = "env:CEP_TOKEN" in '
                "[observe], or listen on this machine only"
            )
        return self

    def bearer_token(self) -> str | None:
        """Return the token in plain text, None if requests need none."""
        return self.token.get_secret_value() if self.token is not None else None


class SparkSettings(Section):
    """The settings that only the runners on Spark read."""

    cores: Positive = setting(2, "Cores of this machine to use.", "--cores N")
    partitions: Positive | None = setting(
        None, "Matching tasks, fixed at the job's first start; as many as cores if not given.", "--partitions N", "2"
    )
    conf: Annotated[dict[str, str], AfterValidator(spark_names)] = setting(
        {},
        "Settings of Spark, which override the job's own; none that load code or carry a secret.",
        example='{ "spark.driver.memory" = "4g" }',
    )


class Settings(Section):
    """The settings of a job."""

    job: JobSettings = JobSettings()
    events: EventsSettings = EventsSettings()
    control: ControlSettings = ControlSettings()
    publish: PublishSettings = PublishSettings()
    kafka: KafkaSettings = KafkaSettings()
    output: OutputSettings = OutputSettings()
    observe: ObserveSettings = ObserveSettings()
    secrets: SecretsSettings = SecretsSettings()
    spark: SparkSettings = SparkSettings()
    embedded: EmbeddedSettings = EmbeddedSettings()


SECTIONS: Mapping[str, type[BaseModel]] = {
    name: info.annotation for name, info in Settings.model_fields.items() if isinstance(info.annotation, type)
}
_NAMES = tuple(sorted({*SECTIONS, *(name for section in SECTIONS.values() for name in section.model_fields)}))


def fields() -> Iterator[tuple[str, str, FieldInfo]]:
    """(section, name, field) of every setting, in the order of the file."""
    for section, model in SECTIONS.items():
        for name, info in model.model_fields.items():
            yield section, name, info


def extra_of(info: FieldInfo) -> dict[str, Any]:
    """`flag`, `metavar` and `example` of a setting."""
    assert isinstance(info.json_schema_extra, dict), "every setting is made by _setting"
    return dict(info.json_schema_extra)


def read_settings(path: Path | None, flags: Mapping[str, Mapping[str, Any]]) -> Settings:
    """Read the settings of a file, or the defaults; the command line wins.

    `flags`: section → name → value, only of flags that were given.
    Raises: UsageError with every problem and its place.
    """
    tables = {} if path is None else _read_toml(path)
    for section, values in flags.items():
        table = tables.setdefault(section, {})
        if isinstance(table, dict):
            table.update(values)
    try:
        return Settings.model_validate(tables)
    except ValidationError as error:
        where = "the settings" if path is None else str(path)
        flags_of = {f"$.{section}.{name}": extra_of(info)["flag"] for section, name, info in fields()}
        lines = "\n".join(
            f"  {p}{f' ({flags_of[p.path]})' if flags_of.get(p.path) else ''}" for p in problems_of(error, _NAMES)
        )
        raise UsageError(
            f"{where} cannot be used; `cep settings` prints every setting with what it means\n{lines}"
        ) from None


def default_file() -> str:
    """Write a settings file with every default and the meaning of each setting. The file is valid."""
    lines = ["# Settings of a cep job. A flag of the command line overrides the file."]
    lines.append("# A setting in a comment has no default; the value is an example.")
    for section, model in SECTIONS.items():
        lines += ["", f"# {(model.__doc__ or '').strip()}", f"[{section}]"]
        for name, info in model.model_fields.items():
            extra = extra_of(info)
            flag = f" ({extra['flag']})" if extra["flag"] else ""
            lines += [f"# {line}" for line in textwrap.wrap(f"{info.description}{flag}", _WIDTH - 2)]
            default = info.get_default()
            if default is None or default in ((), {}, ""):
                lines.append(f"# {name} = {extra['example']}")
            else:
                lines.append(f"{name} = {extra['example'] or json.dumps(default)}")
    return "\n".join(lines) + "\n"


def _read_toml(path: Path) -> dict[str, Any]:
    """Read the file's tables, with paths relative to its folder. Raises: UsageError."""
    try:
        data = read_file(path, SETTINGS_FILE_BYTES_MAX)
    except UnreadableError as error:
        raise UsageError(f"{path} cannot be read: {error}; `cep settings` prints a file to begin with") from error
    try:
        tables = parse_toml(data, SETTINGS_FILE_BYTES_MAX)
    except ValueError as error:
        raise UsageError(f"{path} is not TOML: {error}") from error
    for section, name, info in fields():
        table = tables.get(section, {})
        text = table.get(name) if isinstance(table, dict) else None
        if isinstance(text, str) and text not in ("", STDIN) and info.annotation == _PATH_OR_NONE:
            table[name] = str(path.parent / text)
    return tables
