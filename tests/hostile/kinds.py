"""The kinds of input of the campaign: each makes a hostile input of a real one, and feeds it to the project's own door.

A kind returns ACCEPTED or REFUSED. An input is refused if our code answers with an error of cep/base/errors.py, a
diagnostic, a problem, a dead letter or an answer of the protocol. Any other exception is a traceback, which the
campaign counts. `DiffersError` is raised where an accepted input does not behave as its unmutated twin. Bytes without a
checksum or a signature, such as a Parquet file, may change their meaning; then all unrelated results are equal.

The weights of the kinds, in about a hundred and ten inputs:

    35   texts    control records 15, rules 6, lists 7, settings 4, patterns 2, files that name others 1
    30   events   JSON 16, CSV, Avro and Protobuf 10, Parquet 2, packed files 1, replays of a history 1
    19   state    manifests 7, entries 5, payloads 4, checkpoints 2, savepoints 2
     7   wire     HTTP requests 3, an editor's messages 3, a registry's answers 1
     7   trust    signed changes 3, signers files 2, files of keys 2
     3   folders  of RocksDB 1, of a job of `cep run` 1, of Spark 1
    10   doors    whole jobs: files 3, records 3, packed files 1, savepoints with links 2, changelogs 1, repositories 1

Every kind has at least one of a hundred, so a million inputs have ten thousand of the dearest. One takes 1.6 ms of the
processor, a registry's answer 60, a replay 18, patterns and RocksDB 5.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

ACCEPTED, REFUSED = "accepted", "refused"
Feed = Callable[[Random], str]


class DiffersError(Exception):
    """An accepted input does not behave as its unmutated twin."""


class HangsError(Exception):
    """A server of ours has not answered in time. It counts like an input that an alarm has stopped."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind: its weight in the draw, and `open`, which returns a feed of inputs with a folder of its own."""

    name: str
    weight: int
    open: Callable[[Path], Feed]


def all_kinds() -> tuple[Kind, ...]:
    """Return every kind. Imported here, so that a worker and not its parent loads the modules."""
    from tests.hostile import doors, events, folders, state, texts, trust, wire  # noqa: PLC0415

    return (*texts.KINDS, *events.KINDS, *state.KINDS, *wire.KINDS, *trust.KINDS, *folders.KINDS, *doors.KINDS)
