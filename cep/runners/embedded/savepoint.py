"""Checkpoints of stopped processes → one savepoint, and a savepoint → a checkpoint folder for some of its key groups.

So a job moves to another machine, takes another kind of store, or is divided between processes. Each process gets a
folder of its own with a range of key groups. state/savepoints.py has the entries, handover/payload.py the rest.
Tested by: tests/runners/embedded/test_savepoint.py
"""

import shutil
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path

import orjson
import pyarrow as pa

from cep.base.errors import StateCorruptError, UsageError
from cep.base.files import read_document
from cep.columnar.batch import TEXT
from cep.columnar.decode import KeyDomain, key_groups
from cep.nfa.program import Program
from cep.rulebook.saved import rulebook_from_bytes
from cep.runners import live_checkpoint
from cep.runners.embedded.commit import DELIVERED
from cep.runners.embedded.commit_entries import Head, payload_of, read_head
from cep.runners.embedded.engine import Engine, Workers, stored_rulebook
from cep.runners.embedded.opening import STORE_PART, StoreSettings, default_target, is_embedded, target_of
from cep.runners.embedded.pages import history_pages, stored_states
from cep.runners.handover.payload import Payload, Saved, payload_in
from cep.runners.meanings import TOTALS_THAT_FALL
from cep.state.checkpoints import LISTS_FOLDER, Checkpoints, Part, Restored, restore
from cep.state.past import StoredPage, StoredPast, encode_page
from cep.state.savepoints import NAME, load_lists, load_savepoint, open_savepoint, write_savepoint
from cep.state.store import DurableStore, WriteBatch, group_range
from cep.state.target import Target
from cep.step.rules import programs_by_level


def has_savepoint(target: Target) -> bool:
    """Return True if the target has a savepoint in the portable form."""
    return NAME in target.sizes()


def save(checkpoints: Sequence[Path], target: Target, backend: str = "rocksdb") -> Saved:
    """Write the newest checkpoints of a job's stopped processes, which together hold all key groups, as one savepoint.

    Raises: UsageError for folders that do not belong together; StateError, StoreError.
    """
    with ExitStack() as opened:
        work = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="cep-savepoint-", dir=checkpoints[0])))
        parts: list[Part] = []
        payloads: list[Payload] = []
        lists: list[Path] = []
        for number, folder in enumerate(checkpoints):
            opened.enter_context(live_checkpoint.lock_checkpoint(folder))
            newest = _restore_newest(folder, work / str(number))
            delivered = folder / DELIVERED
            if not delivered.exists() or delivered.read_bytes() != str(newest.manifest.number).encode():
                raise UsageError(
                    f"the process of {folder} did not end in order, so that its last alerts may not be out; start it "
                    "once more and stop it with SIGTERM"
                )
            settings = StoreSettings(folder, _backend_of(newest, backend))
            store = opened.enter_context(settings.open(newest.path(STORE_PART)))
            # The entries of a savepoint have a form of their own. They go into a second store, `portable`.
            portable = opened.enter_context(StoreSettings(folder).open(work / f"{number}-portable"))
            payloads.append(_fill_portable(folder, store, portable))
            (part,) = newest.manifest.parts
            parts.append(Part(f"{STORE_PART}-{number}", portable, part.first, part.end))
            if number == 0:  # all processes have the same lists
                lists = sorted(newest.path(LISTS_FOLDER).glob("*")) if newest.path(LISTS_FOLDER).is_dir() else []
        _check_together(parts, payloads)
        created_ms = int(time.time() * 1_000)
        payload = _join_payloads(parts, payloads)
        manifest = write_savepoint(target, work / "entries", parts, payload.to_bytes(), created_ms, lists)
    return Saved(range(min(p.first for p in parts), max(p.end for p in parts)), len(manifest.files))


def _fill_portable(folder: Path, store: DurableStore, portable: DurableStore) -> Payload:
    """Copy the state of a process into `portable`, in a savepoint's form. Return its payload: job, rules, progress."""
    head = read_head(store)  # the record of the last commit
    assert head is not None, "a checkpoint follows a commit"
    engine = _engine(folder, store, head.groups)
    try:
        engine.restore()
        portable.ingest(chain.from_iterable(engine.entries_of(group) for group in head.groups))
        job, rules = (read_document(folder / name) for name in (live_checkpoint.JOB_FILE, live_checkpoint.RULES_FILE))
        return Payload(
            job, rules, base=head.base + head.number, engine=engine.shared_progress(), positions=head.positions,
            totals=head.totals, topic_ids=head.topic_ids,
        )  # fmt: skip
    finally:
        engine.close()


def _engine(folder: Path, store: DurableStore, groups: range) -> Engine:
    job = live_checkpoint.read_job(folder)
    assert job is not None, "_restore_newest has refused one without"
    if groups.stop > job.groups_count:
        raise StateCorruptError(
            f"{folder / live_checkpoint.JOB_FILE} has {job.groups_count} key groups, and the state beside it is of the "
            f"groups {groups.start}-{groups.stop - 1}; restore it"
        )
    return Engine(job, live_checkpoint.first_rules(folder), store, Workers(1, groups.start, groups.stop))


def load(
    target: Target, checkpoint: Path, groups: range | None = None, backend: str = "rocksdb",
    change: Callable[[Payload], Payload] = lambda payload: payload,
) -> Saved:  # fmt: skip
    """Create a job's checkpoint folder from some key groups of a savepoint, from all if `groups` is None.

    `change` changes the payload. Raises: UsageError for a full folder or missing key groups; StateError, StoreError.
    """
    live_checkpoint.check_empty(checkpoint)
    checkpoint.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix="restore-", dir=checkpoint) as scratch:
            return _load(target, checkpoint, groups, StoreSettings(checkpoint, backend), change, Path(scratch))
    except BaseException:
        shutil.rmtree(checkpoint, ignore_errors=True)  # half a folder would be taken for a job's
        raise


def _load(
    target: Target, checkpoint: Path, groups: range | None, settings: StoreSettings,
    change: Callable[[Payload], Payload], scratch: Path,
) -> Saved:  # fmt: skip
    """Copy the state of some key groups from a savepoint into a new store, and take the first checkpoint of it."""
    savepoint = open_savepoint(target, scratch / "payload")
    chosen = savepoint.groups if groups is None else groups
    if chosen.start < savepoint.groups.start or chosen.stop > savepoint.groups.stop:
        raise UsageError(f"the savepoint has the key groups {savepoint.groups.start}-{savepoint.groups.stop - 1} only")
    payload = change(payload_in(savepoint))
    # The totals are of the whole job. Only the process with the first key groups continues them.
    totals = payload.totals if chosen.start == savepoint.groups.start else {}
    (checkpoint / live_checkpoint.RULES_FILE).write_bytes(orjson.dumps(payload.rules))
    (checkpoint / live_checkpoint.JOB_FILE).write_bytes(orjson.dumps(payload.job))
    with ExitStack() as opened:
        # `portable`: the savepoint's entries in a temporary store. The engine turns them into the form of this build.
        portable = opened.enter_context(StoreSettings(checkpoint).open(scratch / "portable"))
        load_savepoint(savepoint, portable, chosen, scratch / "entries")
        store = opened.enter_context(settings.open(scratch / "store"))
        engine = _engine(checkpoint, store, chosen)
        opened.callback(engine.close)
        entries, runs = engine.begin_from_savepoint(payload.engine, lambda group: portable.scan(group_range(group)))
        lineage, batch = uuid.uuid4().hex, WriteBatch()  # a random name of the store
        engine.save_whole(batch)
        totals = {name: n for name, n in totals.items() if not _falls(name)} | runs  # each process has its own runs
        head = Head(0, payload.base, lineage, chosen, totals, payload.positions, topic_ids=payload.topic_ids)
        head.save(batch)
        store.write(batch)
        writer = opened.enter_context(Checkpoints(default_target(checkpoint), scratch / "links"))
        part = Part(STORE_PART, store, chosen.start, chosen.stop)
        lists = load_lists(savepoint, scratch / "lists")  # files next to the store in a checkpoint
        payload_bytes = payload_of(lineage, engine.audit_head())
        copying = writer.begin((part,), payload_bytes, int(time.time() * 1_000), beside=lambda: lists)
        assert copying is not None, "there is no other checkpoint"
        published = copying.result()
    (checkpoint / DELIVERED).write_text(str(published.number))  # this checkpoint has no undelivered alerts
    return Saved(chosen, published.files_count, entries)


def _backend_of(restored: Restored, backend: str) -> str:
    return "memory" if (restored.path(STORE_PART) / "entries.cep").exists() else backend


def _restore_newest(folder: Path, into: Path) -> Restored:
    """Restore the newest checkpoint of a process into a folder. Raises: UsageError, StateError."""
    if live_checkpoint.read_job(folder) is None or not is_embedded(folder):
        raise UsageError(f"{folder} is no checkpoint folder of `cep run`; name the one given with --checkpoint")
    newest = restore(target_of(folder), into) or restore(default_target(folder), into)  # second: a restored savepoint
    if newest is None:
        raise UsageError(f"{folder} has no checkpoint yet; let the job run until its first commit")
    if len(newest.manifest.parts) != 1:
        raise StateCorruptError(
            f"the checkpoint of {folder} has {len(newest.manifest.parts)} stores, a process has one"
        )
    return newest


def _check_together(parts: Sequence[Part], payloads: Sequence[Payload]) -> None:
    """Check that key groups follow each other and positions are equal. Raises: UsageError."""
    ranges = sorted((part.first, part.end) for part in parts)
    for (_, end), (first, _) in pairwise(ranges):
        if end != first:
            raise UsageError(f"behind key group {end - 1} comes {first}; name the folder of every process, once")
    for payload in payloads[1:]:
        if payload.positions != payloads[0].positions:
            raise UsageError(
                "the processes have read up to different positions, and a savepoint has one; let each come to the "
                "end with --available-now, then try again"
            )


def _join_payloads(parts: Sequence[Part], payloads: Sequence[Payload]) -> Payload:
    """Return the joined payload of all processes. Each has its own clock, and none may go back to matched events. Each
    remembers the last alerts of its keys; the one with the first key groups has the totals, except for open runs."""
    furthest = max(payloads, key=lambda payload: int(payload.engine["watermark_ms"]))
    first = min(zip(parts, payloads, strict=True), key=lambda each: each[0].first)[1]
    groups_count, memory = first.job["groups_count"], []
    for part, payload in zip(parts, payloads, strict=True):
        entries = payload.engine["held_memory"]
        groups = key_groups(pa.array([entry[1] for entry in entries], TEXT), groups_count).tolist()
        memory += [entry for entry, group in zip(entries, groups, strict=True) if part.first <= group < part.end]
    shared = {name: furthest.engine[name] for name in ("watermark_ms", "times")}
    shared |= {"held_memory": memory, "gap_ms": max(payload.engine["gap_ms"] for payload in payloads)}
    highest = max(payload.base for payload in payloads)  # of the numbers that sinks have
    runs = Counter[str]()
    for payload in payloads:
        runs.update({name: n for name, n in payload.totals.items() if _falls(name)})
    return replace(first, base=highest, engine={**first.engine, **shared}, totals={**first.totals, **runs})


def _falls(name: str) -> bool:
    return name.partition("[")[0] in TOTALS_THAT_FALL


@dataclass(frozen=True, slots=True)
class Newest:
    """The content of a process's newest checkpoint: pages of runs and histories, and the programs in force by level."""

    pages: list[StoredPage]
    pasts: list[StoredPast]
    programs: Sequence[Mapping[KeyDomain, Program]]


def newest_pages(checkpoint: Path, key: str | None = None) -> Newest:
    """Read the pages (stored state of some keys) of a process's newest checkpoint, to be shown.

    With a `key`: the pages of its key group alone, and past events, too. Raises: UsageError if the folder does not
    belong to `cep run`, StateError.
    """
    with tempfile.TemporaryDirectory(prefix="cep-state-") as scratch:
        newest = _restore_newest(checkpoint, Path(scratch) / "checkpoint")
        job = live_checkpoint.read_job(checkpoint)
        assert job is not None, "_restore_newest has refused a folder without a job"
        (part,) = newest.manifest.parts
        groups = range(part.first, part.end)
        if key is not None:
            key_group = int(key_groups(pa.array([key], TEXT), job.groups_count)[0])
            groups = range(key_group, key_group + 1) if key_group in groups else range(0)
        with StoreSettings(checkpoint, _backend_of(newest, "rocksdb")).open(newest.path(STORE_PART)) as store:
            rulebook = rulebook_from_bytes(stored_rulebook(store), job.schema, job.domains)
            rulebook.keep_levels(job.levels_count)  # rules that read the alerts of others run later
            programs = programs_by_level(rulebook, job.schema, job.levels_count)
            pages = [
                StoredPage(group, domain, encode_page(whole))
                for group in groups
                for level, by_domain in enumerate(programs)
                for domain, whole in stored_states(store, group, job.domains, by_domain, level)
            ]
            pasts = [
                past
                for group in groups
                for past in history_pages(store, group, job.domains, job.levels_count, with_segments=key is not None)
            ]
    return Newest(pages, pasts, programs)
