"""The files of a live job in its folder, next to the checkpoint itself: the job, and its first rules.

    CHECKPOINT/job.json            the job's id, and what keyed state depends on: event types, keys, pages, lateness.
    CHECKPOINT/initial_rules.json  control records; a key group that appears later must begin with the same rules.
    CHECKPOINT/rulebooks/          the rulebooks that key groups refer to by their digest (rulebook/saved.py).
    CHECKPOINT/progress.json       the last micro-batch that has ended, the totals up to its end, and `undelivered`, the
                                   number of alerts that waited for sinks then: a job that is stopped before it has
                                   opened its state reports them.
    CHECKPOINT/begins/             keyed state made elsewhere that the job began with (beginning.py), if any.
    CHECKPOINT/paused_partitions.json  what the next micro-batch leaves alone (spark/paused_partitions.py).
    CHECKPOINT/waiting/            the alerts that sinks of a job on Spark do not have yet (spark/sink_queue.py).
    CHECKPOINT/place               a token of the driver, which every task must see (spark/place.py).
    CHECKPOINT/query/              Spark's offsets, commits and keyed state.
    CHECKPOINT/lock                held by the process that works on the folder.

Tested by: tests/runners/test_live_checkpoint.py, tests/runners/spark/test_driver.py, tests/runners/spark/test_live.py,
tests/runners/embedded/test_run.py
"""

import fcntl
import json
import os
import shutil
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import orjson

from cep.base.errors import CepError, StateCorruptError, StoreError, UsageError
from cep.base.files import read_document, replace_file
from cep.base.schema import Schema, misreadings
from cep.sinks.durable import write_durably
from cep.step.job import Job

FORMAT = 2  # 1 had Spark's watermark
QUERY_FOLDER = "query"
BEGINS_FOLDER = "begins"
RULEBOOKS_FOLDER = "rulebooks"
LOCK_FILE = "lock"
JOB_FILE = "job.json"
RULES_FILE = "initial_rules.json"
PROGRESS_FILE = "progress.json"
_FIELD_TEXTS = {  # field of a job's description → its name in messages
    "event_types": "event types",
    "key_domains": "keys",
    "groups_count": "key groups",
    "pages_count": "pages",
    "lateness_ms": "lateness",
    "order": "order",
    "idle_ms": "idle time",
    "dedup_ms": "window of duplicates",
    "levels_count": "levels of patterns that feed each other",
}
# Between two starts: event types if no event is misread, and a window of duplicates if the job had none.
_CHANGEABLE = ("event_types", "trust", "is_audited", "dedup_ms")


def open_checkpoint(directory: Path, job: Job, initial: tuple[bytes, ...]) -> tuple[tuple[bytes, ...], bool]:
    """Create a checkpoint folder, or open the folder of the same job. Return its first rules, and True if it continues.

    Event types may change as long as stored events keep their meaning (schema.misreadings). Raises: UsageError if the
    folder belongs to a job that reads, routes or keeps its events differently.
    """
    description = {"format": FORMAT, **job.to_json()}
    if (directory / JOB_FILE).exists():
        stored_job = read_document(directory / JOB_FILE)
        if stored_job.get("format") != FORMAT:
            raise UsageError(
                f"{directory} was made in format {stored_job.get('format')}, this build reads {FORMAT}; give a new one"
            )
        different = [text for name, text in _FIELD_TEXTS.items() if stored_job.get(name) != description[name]]
        if stored_job.get("dedup_ms") == 0:  # no event ids are stored yet: it may begin to
            different = [text for text in different if text != _FIELD_TEXTS["dedup_ms"]]
        if different == [_FIELD_TEXTS["event_types"]]:
            _check_event_types(directory, stored_job, job)
            different = []
        _check_trust(directory, stored_job, job)
        if different:
            raise UsageError(
                f"{directory} belongs to a job with other {', '.join(different)}: its keyed state would be misread; "
                "start it as it was, or give a new checkpoint directory"
            )
        _write_changes(directory, stored_job, description)
        return first_rules(directory), True
    if (directory / QUERY_FOLDER).exists():
        raise UsageError(
            f"{directory} has keyed state but no {JOB_FILE} that says whose; give a new checkpoint directory"
        )
    # The job's file comes last: a folder without it is no checkpoint yet.
    _write(directory / RULES_FILE, {"records": [record.decode() for record in initial]})
    _write(directory / JOB_FILE, {**description, "id": uuid.uuid4().hex})
    return initial, False


def check_empty(directory: Path) -> None:
    """Refuse a directory that has content, into which no savepoint is restored. Raises: UsageError."""
    if directory.exists() and any(directory.iterdir()):
        raise UsageError(f"{directory} is not empty; restore into a new folder and start the job with that")


@contextmanager
def new_checkpoint(directory: Path) -> Iterator[Path]:
    """Yield a folder that becomes this directory at the end of the block, which is then there whole or not at all."""
    check_empty(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        yield fresh
        fresh.replace(directory)  # an empty folder or nothing
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def first_rules(directory: Path) -> tuple[bytes, ...]:
    """Read the records of the rules that a job began with. Raises: StateCorruptError."""
    records = read_document(directory / RULES_FILE).get("records")
    if not isinstance(records, list) or not all(isinstance(record, str) for record in records):
        raise StateCorruptError(f"{directory / RULES_FILE} has no rules; restore it, or give a new folder")
    return tuple(record.encode("utf-8", "backslashreplace") for record in records)


def _check_event_types(directory: Path, stored_job: dict[str, Any], job: Job) -> None:
    try:
        reasons = misreadings(Schema.from_json(stored_job["event_types"]), job.schema)
    except (KeyError, TypeError, ValueError) as error:
        raise StateCorruptError(f"{directory} does not say what its events were ({error!r}); restore it") from error
    if reasons:
        raise UsageError(
            f"{directory} belongs to a job with other event types: {'; '.join(reasons)}: its keyed state would be "
            "misread; start it as it was, or give a new checkpoint directory"
        )


def _check_trust(directory: Path, stored_job: dict[str, Any], job: Job) -> None:
    """Refuse to start with fewer signatures, older signers or another root key than before. Raises: UsageError."""
    before, now = stored_job.get("trust"), None if job.trust is None else job.trust.to_json()
    if before is None and now is None:
        return
    if now is None:
        raise UsageError(
            f"the job of {directory} takes signed changes only; start it with --signers and --root-key as before, or "
            "give a new checkpoint directory"
        )
    try:
        if before is not None and before["version"] > now["version"]:
            raise UsageError(
                f"the job of {directory} has gone by version {before['version']} of the signers file, and this one is "
                f"version {now['version']}; restore the newer file from version control"
            )
        if before is not None and before["root_key"] not in (now["root_key"], *now["earlier_roots"]):
            raise UsageError(
                f"the job of {directory} goes by the root key {before['root_key']}, and this one is {now['root_key']}: "
                "the old root key must sign the change, with `cep keys rotate`"
            )
        is_other = before is not None and before.get("file_digest") not in (None, "", now["file_digest"])
        if is_other and before is not None and before["version"] == now["version"]:
            raise UsageError(
                f"the job of {directory} has gone by another signers file of version {now['version']}; raise `version` "
                "in the new file and sign it with `cep keys trust`"
            )
    except (KeyError, TypeError) as error:
        raise StateCorruptError(f"{directory} does not say who may sign ({error!r}); restore it") from error


def _write_changes(directory: Path, stored_job: dict[str, Any], description: dict[str, Any]) -> None:
    # Digests with another key would not recognise the stored ones.
    names = _CHANGEABLE if stored_job.get("dedup_ms") else (*_CHANGEABLE, "digest_key")
    others = {name: value for name, value in stored_job.items() if name not in names}
    now = {**others, **{name: description[name] for name in names if name in description}}
    if now != stored_job:
        _write(directory / JOB_FILE, now)


@contextmanager
def lock_checkpoint(directory: Path) -> Iterator[None]:
    """Lock a checkpoint directory until the block or the process ends.

    Raises: UsageError if another process has it, or nothing can be written there; StoreError."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / LOCK_FILE).open("a+")
    except OSError as error:
        raise _unwritable(error) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            raise UsageError(
                f"{directory} is in use by process {file.read().strip() or 'unknown'}; stop that job first"
            ) from error
        # A lock is as good without the number in it, which a full disk may refuse.
        with suppress(OSError):
            file.truncate(0)
            os.write(file.fileno(), str(os.getpid()).encode())
        yield


def forget_planned(query: Path, batch_id: int) -> None:
    """Remove a micro-batch that Spark has planned and not begun. The next start plans it again."""
    for name in (str(batch_id), f".{batch_id}.crc"):
        (query / "offsets" / name).unlink(missing_ok=True)


def is_live_folder(directory: Path) -> bool:
    """Return True if the folder is of a job of `cep live`, which has begun or was made for it by a restore."""
    return (directory / QUERY_FOLDER).is_dir() or (directory / BEGINS_FOLDER).is_dir()


def job_id(directory: Path) -> str:
    """Return the name of the job for sinks, which remember whose micro-batches they have. Raises: StateCorruptError."""
    path = directory / JOB_FILE
    stored_id = read_document(path).get("id")
    if not isinstance(stored_id, str):
        raise StateCorruptError(f"{path} has no id of the job; restore it, or give a new checkpoint directory")
    return stored_id


def read_job(directory: Path) -> Job | None:
    """Read the job whose checkpoint this is; None for a folder without one. Raises: StateCorruptError."""
    path = directory / JOB_FILE
    if not path.exists():
        return None
    description = read_document(path)
    try:
        return Job.from_json(description)
    except (KeyError, TypeError, ValueError) as error:
        raise StateCorruptError(f"{path} does not describe a job ({error!r}); restore it") from error


def _write(path: Path, value: dict[str, Any]) -> None:
    try:
        replace_file(path, json.dumps(value, indent=1).encode())
    except OSError as error:
        raise _unwritable(error) from error


def _unwritable(error: OSError) -> CepError:
    text = f"the checkpoint directory cannot be written: {error}"
    if isinstance(error, (FileExistsError, FileNotFoundError, NotADirectoryError, PermissionError)):
        return UsageError(f"{text}; give another")
    return StoreError(f"{text}; make room there")  # such as a full disk: the same start may succeed later


def read_progress(directory: Path) -> tuple[int, Counter[str]]:
    """Return (last micro-batch, totals up to its end) of a job; first (-1, {}). Raises: StateCorruptError."""
    path = directory / PROGRESS_FILE
    if not path.exists():
        return -1, Counter()
    record = read_document(path)
    batch_id, totals = record.get("batch_id"), record.get("totals")
    if type(batch_id) is not int or not isinstance(totals, dict) or any(type(n) is not int for n in totals.values()):
        raise StateCorruptError(f"{path} does not say how far the job is; restore it, or give a new folder")
    return batch_id, Counter(totals)


def read_undelivered(directory: Path | None) -> int:
    """Return how many alerts waited for sinks when the job wrote its progress; 0 if that is not known."""
    path = None if directory is None else directory / PROGRESS_FILE
    try:
        count = 0 if path is None or not path.exists() else read_document(path).get("undelivered", 0)
    except StateCorruptError:  # the start reports it
        return 0
    return count if type(count) is int else 0


def write_progress(directory: Path, batch_id: int, totals: Mapping[str, int], undelivered: int = 0) -> None:
    """Write the last micro-batch, the totals and the count of waiting alerts. Raises: SinkError."""
    record = {"batch_id": batch_id, "totals": dict(sorted(totals.items())), "undelivered": undelivered}
    write_durably(directory / PROGRESS_FILE, orjson.dumps(record, option=orjson.OPT_INDENT_2))
