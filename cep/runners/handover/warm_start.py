"""The keyed state at the end of a replay → a folder, and that folder → the beginning of a live job: a warm start.

    FOLDER/warm_start.json                 what it is made of (state/manifest.py), written last
    FOLDER/files/SHA256                    its files, under their checksums:
        about.json                         the replay's job, its rules, the time of the cut, who was alerted.
        NAME.keys                          the entries of a list that the rules name (lists/store.py).
        LEVEL-DOMAIN-GROUP.state           runs and kept events of one key domain and key group (state/past.py)

History and stream are cut at one event time, `until_ms`. The replay has matched exactly the events before it, and no
window has closed at or after it. The live job skips earlier events of its source, and counts them. History and stream
may therefore overlap, and replay + live give the alerts of a replay of everything.
Tested by: tests/runners/handover/test_handover.py
"""

import hashlib
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from cep.base.errors import StateCorruptError, StateFormatError, StoreError, UsageError
from cep.base.files import replace_file
from cep.base.limits import TIME_MS_MIN
from cep.base.schema import misreadings
from cep.columnar.decode import KeyDomain, key_groups
from cep.engine.keyed_state import KeyedState, concat_states, divide
from cep.engine.migrate import migrate_state
from cep.lists.members import map_set_file
from cep.lists.store import SUFFIX, ListStore
from cep.nfa.program import Program
from cep.rulebook.suppression import fired_from_json
from cep.state.manifest import FOLDER, Manifest, StoredFile, fetch
from cep.state.past import decode_whole, encode_whole
from cep.state.target import Target
from cep.step.job import Job

KIND, FORMAT = "warm-start", 3
NAME = "warm_start.json"
_ABOUT = "about.json"
_STATE_FILE = re.compile(r"(\d+)-(\d+)-(\d+)\.state")


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a replay from which a live job continues: the folder of its state, and the event time of the cut."""

    folder: Path
    until_ms: int | None = None  # None: just after the last event


@dataclass(frozen=True, slots=True)
class About:
    """The part of a warm start outside its keyed state, which has all events of since_ms <= event time < until_ms."""

    job: Job
    rules: tuple[bytes, ...]  # control records
    since_ms: int
    until_ms: int
    memory: Sequence[Sequence[Any]] = ()  # the last alert of each rule and key, for suppression


@dataclass(frozen=True, slots=True)
class WarmStart:
    """A warm start: the state at the end of a replay, with which a live job begins."""

    target: Target
    about: About
    files: Mapping[tuple[int, int, int], StoredFile]  # by level (order of rules), number of key domain, key group
    lists: Mapping[str, StoredFile]

    def copy_lists(self, store: ListStore) -> None:
        """Put the entries of lists into a store, verified. Raises: StateError."""
        with tempfile.TemporaryDirectory(prefix="cep-warm-") as scratch:
            for name, file in self.lists.items():
                path = Path(scratch) / file.name
                fetch(self.target, file, path, may_link=False)
                store.put(name, lambda path=path: map_set_file(path))  # type: ignore[misc]

    def states(self, level: int, domain_number: int, group: int | None = None) -> Iterator[KeyedState]:
        """Yield the keyed state of a level and a key domain of `about.job`, verified; of one key group, or of all."""
        with tempfile.TemporaryDirectory(prefix="cep-warm-") as scratch:
            for (of_level, of_number, of_group), file in sorted(self.files.items()):
                if (of_level, of_number) == (level, domain_number) and group in (None, of_group):
                    path = Path(scratch) / "page"
                    fetch(self.target, file, path, may_link=False)
                    yield decode_whole(path.read_bytes())


def job_until(job: Job, ending: Ending | None) -> Job:
    """Return the job of a replay that skips the events after its cut."""
    return job if ending is None or ending.until_ms is None else replace(job, ends_ms=ending.until_ms)


def cut_ms(ending: Ending, last_ms: int) -> int:
    """Return the event time of the cut. Raises: UsageError if it follows the last event and there is none."""
    if ending.until_ms is not None:
        return ending.until_ms
    if last_ms == TIME_MS_MIN:
        raise UsageError("there are no events behind which a live job could begin; say from when with --until")
    return last_ms + 1


def check_free(ending: Ending) -> None:
    """Check the folder now, not after an hour of matching. Raises: UsageError."""
    if (ending.folder / NAME).exists():
        raise UsageError(f"{ending.folder} has a warm start already; name another folder")
    if ending.folder.exists() and not ending.folder.is_dir():
        raise UsageError(f"{ending.folder} is no folder; name another for the warm start")


def by_group(keyed_state: KeyedState, program: Program, groups_count: int) -> Iterator[tuple[int, KeyedState]]:
    """Divide a state by key group; groups without keys are left out."""
    yield from divide(keyed_state, lambda keys: key_groups(keys, groups_count).astype(np.int64), program.row_registers)


def put_state(folder: Path, level: int, domain_number: int, group: int, keyed_state: KeyedState) -> StoredFile:
    """Write the state of one key group at a level, in a key domain; again replaces it. Raises: StoreError."""
    return _put(folder, f"{level}-{domain_number}-{group}.state", encode_whole(keyed_state))


def finish(folder: Path, files: Iterable[StoredFile], about: About) -> None:
    """Complete a warm start (the state at the end of a replay): write description and manifest. Raises: StoreError."""
    fields = {
        "format": FORMAT,
        "job": about.job.to_json(),
        "rules": [record.decode() for record in about.rules],
        "since_ms": about.since_ms,
        "until_ms": about.until_ms,
        "memory": about.memory,
    }
    written = [*files, _put(folder, _ABOUT, orjson.dumps(fields))]
    manifest = Manifest(KIND, 0, int(time.time() * 1_000), (), tuple(sorted(written, key=lambda file: file.name)))
    _replace(folder / NAME, manifest.to_bytes())


def put_lists(folder: Path, names: Iterable[str], store: ListStore) -> list[StoredFile]:
    """Write the entries of lists; the same again replaces itself. Raises: StoreError, StateCorruptError."""
    written: list[StoredFile] = []
    with tempfile.TemporaryDirectory(prefix="cep-warm-") as scratch:
        files = ListStore(Path(scratch))
        for name in sorted(set(names)):
            files.put(name, lambda name=name: store.get(name))  # type: ignore[misc]
            written.append(_put(folder, files.path(name).name, files.path(name).read_bytes()))
    return written


def _put(folder: Path, name: str, data: bytes) -> StoredFile:
    file = StoredFile(name, len(data), hashlib.sha256(data).hexdigest())
    _replace(folder / FOLDER / file.sha256, data)
    return file


def _replace(path: Path, data: bytes) -> None:
    try:
        replace_file(path, data, many_writers=True)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error}; make room or name another folder") from error


def open_warm_start(place: str) -> WarmStart:
    """Open a warm start (a replay's end state) in a folder or at an fsspec address. Raises: UsageError, StateError."""
    target = Target(place)
    if NAME not in target.sizes():
        raise UsageError(f"{place} has no warm start; `cep replay --savepoint {place}` makes one")
    manifest = Manifest.from_bytes(target.read(NAME), f"{place}/{NAME}")
    if manifest.kind != KIND:
        raise UsageError(f"{place} holds a {manifest.kind}, not the state of a replay; `cep job restore` takes that")
    files = {file.name: file for file in manifest.files if file.name != _ABOUT}  # lists; LEVEL-DOMAIN-GROUP: states
    with tempfile.TemporaryDirectory(prefix="cep-warm-") as scratch:
        path = Path(scratch) / _ABOUT
        fetch(target, manifest.file(_ABOUT), path, may_link=False)
        about = _about(path.read_bytes(), place)
    lists = {name.removesuffix(SUFFIX): file for name, file in files.items() if name.endswith(SUFFIX)}
    states = {_level_domain_group(name): file for name, file in files.items() if not name.endswith(SUFFIX)}
    return WarmStart(target, about, states, lists)


def _about(data: bytes, place: str) -> About:
    """Parse the description of a warm start. Raises: StateFormatError, StateCorruptError."""
    try:
        fields = orjson.loads(data)
        if fields["format"] != FORMAT:
            raise StateFormatError(
                f"the warm start in {place} has format {fields['format']}, this build reads {FORMAT}; replay again"
            )
        rules = tuple(record.encode() for record in fields["rules"])
        since_ms, until_ms = int(fields["since_ms"]), int(fields["until_ms"])
        fired_from_json(fields["memory"])  # for its errors
        return About(Job.from_json(fields["job"]), rules, since_ms, until_ms, fields["memory"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateCorruptError(f"the warm start in {place} does not say what it is of ({error!r})") from error


def _level_domain_group(name: str) -> tuple[int, int, int]:
    numbers = _STATE_FILE.fullmatch(name)
    if numbers is None:
        raise StateCorruptError(f"a warm start has no file {name}; replay again")
    return int(numbers[1]), int(numbers[2]), int(numbers[3])


def check_fits(about: About, job: Job) -> None:
    """Compare the warm start with the job. Raises: UsageError if the job would misread it, or has no place for it."""
    reasons = list(misreadings(about.job.schema, job.schema))
    reasons += [f"the key {', '.join(domain)} is missing" for domain in about.job.domains if domain not in job.domains]
    if about.job.levels_count != job.levels_count:
        reasons.append(
            f"it was made for {about.job.levels_count} level(s) of patterns that feed each other, and the job has "
            f"{job.levels_count}; replay with `--levels {job.levels_count}`"
        )
    if reasons:
        raise UsageError(f"the warm start does not fit the job: {'; '.join(reasons)}")


def states_by_domain(
    warm: WarmStart, job: Job, level: int, programs: Mapping[KeyDomain, Program], group: int | None = None
) -> Iterator[tuple[int, KeyedState]]:
    """Yield (number of a key domain of the job, its state) at a level. `group`: of the replay's key groups, or all."""
    for domain_number, domain in enumerate(warm.about.job.domains):
        program = programs.get(domain)
        if program is None:
            continue
        states = [migrate_state(stored, program)[0] for stored in warm.states(level, domain_number, group)]
        if states:
            yield job.domains.index(domain), concat_states(states, program.row_registers)
