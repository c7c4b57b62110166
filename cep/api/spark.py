"""A user's Spark DataFrame, finite or a stream, and rules → a DataFrame of alerts. Spark is loaded on demand.

Faults that the frame's types show are refused at once, as for any frame; no row is read.
Tested by: tests/runners/spark/test_match.py
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cep.api.frames import Forms, Naming, check_columns, no_zone, path_of, present_types, sources_of
from cep.api.replay import GivenRules, Terms, job_of
from cep.base.errors import UsageError
from cep.base.schema import Schema
from cep.base.secrets import secret_keys
from cep.columnar.mapping import TYPE_FIELD, view_of
from cep.lang.diagnostics import did_you_mean
from cep.model.settings import read_settings
from cep.rulebook.saved import RulebookStore
from cep.runners.job import live_job
from cep.runners.live_checkpoint import RULEBOOKS_FOLDER, open_checkpoint, read_job
from cep.step.job import Job

_LOCAL_TYPES = ("timestamp_ntz", "date")


def is_spark(events: object) -> bool:
    """Return True for a DataFrame of Spark or Spark Connect."""
    return any(
        kind.__module__.startswith("pyspark.sql") and kind.__name__ == "DataFrame" for kind in type(events).__mro__
    )


def match_spark(rules: GivenRules, events: Any, naming: Naming, terms: Terms, partitions: int | None) -> Any:
    """Return the DataFrame of alerts. Nothing runs. Raises: UsageError."""
    from cep.runners.spark.match import match  # noqa: PLC0415 Spark takes a second to import

    if events.isStreaming:
        raise UsageError("the events are a stream; `match` takes a finite history, `match_stream` takes streams")
    job = _job(rules, terms)
    fields = _fields(events, job.schema, naming)
    return match(job, rules.deployment.rulebook, fields, partitions, naming.values(job.schema))


class StreamTerms(Forms, total=False):
    """Settings of a live job, with the names and values of `[job]` in a settings file, and the forms of values."""

    lateness: str  # how late an event may come
    order: str  # "event_time": sorted before matching; "arrival"
    dedup: str  # how long event ids are remembered
    ahead_max: str  # how far ahead of the clock an event may be dated.
    keys: Sequence[str]  # fields to route by, in addition to the rules' keys
    key_groups: int  # parts of the state, by hash of the key.
    levels: int  # stages, one after the other: a rule can read the events that rules of an earlier stage produce
    pages: int  # parts of a key group that are stored separately


def forms_of(terms: StreamTerms) -> tuple[Forms, dict[str, Any]]:
    """Part how values are written from the settings of the job."""
    forms = {name: value for name, value in terms.items() if name in Forms.__annotations__}
    return cast("Forms", forms), {name: value for name, value in terms.items() if name not in forms}


def match_stream_spark(
    loaded: GivenRules, events: Any, control: Any, folder: str | Path | None, naming: Naming, terms: Mapping[str, Any],
    metrics: str,
) -> Any:  # fmt: skip
    """Return the streaming DataFrame of alerts. No query is started. Raises: UsageError."""
    from cep.runners.spark.match_stream import StreamRules, check_session, match_stream  # noqa: PLC0415 slow

    if not events.isStreaming:
        raise UsageError("the events are a finite history; `match_stream` takes streams, `match` takes this")
    if control is not None and folder is None:
        raise UsageError(
            "with control= rules change while the query runs: give folder=, where the query keeps them, on a file "
            "system that all machines see"
        )
    for name in terms:
        if name not in StreamTerms.__annotations__:
            near = did_you_mean(name, list(StreamTerms.__annotations__), "settings")
            raise UsageError(f"match_stream has no setting {name}; {near}")
    check_session(events.sparkSession)
    deployment = loaded.deployment
    job = live_job(read_settings(None, {"job": dict(terms)}).job, deployment)
    initial = tuple(record.to_json() for record in loaded.records)
    directory = None if folder is None else Path(folder)
    if directory is not None:
        first, _ = open_checkpoint(directory, job, initial)  # the rules with which the folder's job began
        stored = read_job(directory)
        assert stored is not None, "open_checkpoint has written it"
        job = replace(job, digest_key=stored.digest_key)  # for the hashes of remembered event ids
        if first != initial:
            warnings.warn(
                f"{directory} goes on with the rules it began with; send what has changed as control records",
                UserWarning, stacklevel=4,
            )  # fmt: skip
        initial = first
        deployment.rulebook.lists.store.copy_into(RulebookStore((directory / RULEBOOKS_FOLDER).resolve()).lists)
    elif job.dedup_ms:
        job = replace(job, digest_key="")  # without a folder, no start after this one would know the key
    rules = StreamRules(job, deployment.rulebook, initial, directory)
    return match_stream(rules, _fields(events, job.schema, naming), control, metrics, naming.values(job.schema))


def aside_spark(rules: GivenRules, events: Any, naming: Naming, terms: Terms) -> Any:
    """Return the DataFrame of records that cannot be read. Nothing runs. Raises: UsageError."""
    from cep.runners.spark.match import set_aside  # noqa: PLC0415 Spark takes a second to import

    job = _job(rules, terms)
    fields = _fields(events, job.schema, naming)
    return set_aside(job, rules.deployment.rulebook, fields, naming.values(job.schema))


def _job(rules: GivenRules, terms: Terms) -> Job:
    if rules.deployment.schema.protected:
        secret_keys()
    return job_of(rules.deployment, terms)


def _fields(events: Any, schema: Schema, naming: Naming) -> Any:
    """Select the columns that the rules read, and give them the names of the fields. With views a row becomes several
    events, and the names are VIEW/FIELD. Times without a zone get the zone of `naming`. Raises: UsageError."""
    from cep.runners.spark.match import fields_of  # noqa: PLC0415 Spark takes a second to import

    names = tuple(events.columns)
    field_names = [name for name in (TYPE_FIELD, *schema.columns()) if name not in naming.fixed]
    sources = sources_of(names, field_names, naming.columns or {})
    time_fields = set()
    for fields_given, fixed in naming.fields_of(sources):  # for each view; `fixed`: one value in all rows
        from_source = present_types(schema, None, fixed)  # event types that the rows may have
        if TYPE_FIELD not in fields_given or len(from_source) == 1:  # or each row says its type
            check_columns(from_source, fields_given, names)
        time_fields |= {name for event_type in from_source for name in event_type.times}
    times = [name for name in sources if view_of(name)[1] in time_fields]
    paths = {field: path_of(column, names) for field, column in sources.items()}
    fields = fields_of(events, paths)
    local_times = [field for field in times if fields.schema[field].dataType.typeName() in _LOCAL_TYPES]
    if not local_times or naming.has_time_form:  # decoding reads times in the caller's form, with the zone
        return fields
    if naming.tz is None:
        raise UsageError(no_zone(sources[local_times[0]]))
    try:
        ZoneInfo(naming.tz)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise UsageError(f'tz="{naming.tz}" is not a time zone; write one like "Europe/Paris"') from error
    return fields_of(events, paths, local_times, naming.tz)
