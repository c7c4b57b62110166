"""Compile the kernels into their cache on disk, before a job has events that would wait for it.

    python -m cep.runners.warm

After an installation, that takes half a minute or more; later starts read the kernels in less than a second. A few
events go through patterns that together need every kernel, in this process or in a second one (Warming).
Tested by: tests/runners/test_compiling.py
"""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import orjson
import pyarrow as pa

from cep.base.limits import DEDUP_MS_DEFAULT
from cep.columnar.batch import EventBatch, decode_batch, encode_batch
from cep.columnar.decode import decode_json, key_slots, split_by_group
from cep.engine.advance import MATCHERS
from cep.engine.keyed_state import KeyedState, concat_states, partition_keys
from cep.engine.migrate import migrate_state
from cep.histories.values import compile_sub_key_kernels
from cep.model.rule import UpsertRecord
from cep.nfa.prefixes import SHARED_MIN
from cep.nfa.program import Program
from cep.rulebook.deploy import deploy
from cep.runners.ahead import compiled_ahead
from cep.runners.handover.group_entries import page_prefixes, page_store_keys
from cep.sinks.json_form import json_lines
from cep.state.packed import Shape, pack, unpack
from cep.state.past import decode_whole, encode_whole
from cep.step.duplicates import event_ids, first_ones, judged_by, new_secrets
from cep.step.job import Job
from cep.step.match import MatchOutput, match_events
from cep.step.rules import programs_by_level
from cep.step.validate import validate_events

_KEYS, _STEPS, _EVENTS = 3, 4, 48
_GROUPS = 2
_TIME_MS = 1_700_000_000_000
_SECONDS_SHOWN_AFTER = 3.0
_EVENT = """event e {
  id_of  id
  event_time  time
  k      string
  text   string?
  kind   enum(a, b, c)
  whole  int
  money  decimal(2)
  real   float?
  is_on  bool
}
"""
# Between them: plain sequences, repetition of every sort, groups, absence, time-outs, skipping, aggregates of bound
# events, arithmetic, lists and text; windows over the past with every aggregate there is.
_PATTERNS = (
    "seq x -> y within 1 min where x: e kind == a  y: e kind == b skip past last emit n = y.whole",
    "seq x, y where x: e kind == a  y: e whole > x.whole skip none emit n = y.money",
    """seq x{2,} any -> y within 1 min
       where x: e kind == a and money < 9.00  y: e real > avg(x.real) or count(x) > 3 or is_on
       skip to next emit n = count(x), s = sum(x.real), m = sum(x.money), d = distinct(x.text), r = stddev(x.real),
                         lo = min(x.whole), hi = max(x.money), t = first(x).text
       on timeout emit n = count(x)""",
    """seq x+ greedy until (kind == c) ->[30 s] y where x: e kind == a  y: e kind == b or text in ["u", "v"]
       skip to last x emit n = count(x)""",
    "seq (x -> y){1,3} -> z within 1 min where x: e kind == a  y: e kind == b  z: e kind == c emit n = count(x)",
    """seq (x | y) ->> (v & z) within 20 events where x: e kind == a  y: e kind == b  v: e is_on  z: e kind == c
       skip none""",
    'seq x -> !y within 30 s where x: e kind == a  y: e kind == b and upper(text) == "U" emit n = x.whole',
    "seq x -> !y -> z? -> v where x: e kind == a  y: e kind == b and is_on  z: e kind == c  v: e kind == a skip none",
    """seq x where x: e count(e over 1 h) > 2 and sum(e.whole over previous 1 h) > 0 and sum(e.real over 1 h) > 0.0
                       and avg(e.money over 1 d) > 0.0 and min(e.whole over 1 h) < 9 and max(e.real over 1 h) > 0.0
       emit n = x.whole""",
    """seq x where x: e stddev(e.real over 1 h) > 0.0 or stddev(e.whole over 1 h) > 0.0 or distinct(e.text over 1 h) > 1
                       or median(e.whole over 1 h) > 3 or percentile(e.real over 1 h, 95) > 1.0
                       or approx_distinct(e.text over 1 h) > 3 or approx_percentile(e.real over 1 h, 95) > 1.0
       emit n = x.whole""",
    """seq x where x: e count(e over day where kind == a) > 1 or sum(e.money over 1 h by text) > 1.00
                       or first(e over 1 h by whole).whole > 3
                       or last(e).text == text or exists(e over previous 1 h where is_on) or first_seen(text) < 1 d
       emit n = x.whole""",
    """seq x where x: e distinct(e.id_of over 1 min) > 9 or first(e over 1 min).whole > 3 or max(e.whole over 1 min) < 5
                       or distinct(e.id_of over 1 min where whole < 99) > 9
       emit n = x.whole""",
)  # fmt: skip
# Two conditions that come before anything can match, which several rules share.
_PREFIX = "seq x -> y -> z within 1 min where x: e kind == a  y: e kind == b  z: e kind == c"


class Warming:
    """A process that compiles the kernels into the cache."""

    def __init__(self) -> None:
        words = [sys.executable, "-P", "-m", "cep.runners.warm"]
        self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL)  # noqa: S603 no shell, our arguments

    def wait_until_done(self, wait_s: float = _SECONDS_SHOWN_AFTER) -> bool:
        """Return True if it has ended. If it has failed, kernels are compiled where they are first called."""
        try:
            self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """End it, if it has not ended."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


def warm_up() -> None:
    """Call every kernel. Cost: half a minute or more if they are not compiled yet, otherwise a second."""
    job, programs = _build_job()
    states: list[KeyedState | None] = [None] * len(programs)
    for step in range(_STEPS):
        is_last = step + 1 == _STEPS
        batch = _sample_events(job, step)
        watermark_ms = int(batch.time_ms.max()) + (3_600_000 if is_last else 0)  # then all runs have timed out
        for number, program in enumerate(programs):
            output = MatchOutput()
            after = match_events(program, states[number], batch, watermark_ms, output)
            list(json_lines(output.alert_table()))
            states[number] = after if step % 2 else _store_and_read(program, after)  # with and without storing
    _compile_migration(job)
    compile_sub_key_kernels()


def _compile_migration(job: Job) -> None:
    """Match with rules whose patterns begin alike, then migrate the state to a program that has one of them."""
    records = [_rule(number, _PREFIX) for number in range(SHARED_MIN)]
    together, alone = (
        programs_by_level(deploy(rule_records).rulebook, job.schema)[0] for rule_records in (records, records[:1])
    )
    for domain, program in together.items():
        batch = _sample_events(job, 0)
        after = match_events(program, None, batch, int(batch.time_ms.max()), MatchOutput())
        migrate_state(_store_and_read(program, after), alone[domain])


def _build_job() -> tuple[Job, Sequence[Program]]:
    """Build a job of all sample rules, and programs (compiled rules) that together need every kernel. A plain program
    has only simple patterns; a program with histories reads past events, such as the sum of an hour."""
    records = [_rule(number, text) for number, text in enumerate(_PATTERNS)]
    deployment = deploy(records)
    assert not deployment.set_aside, deployment.set_aside
    job = Job(deployment.schema, deployment.key_domains, _GROUPS, dedup_ms=DEDUP_MS_DEFAULT)
    # The first program has all rules, as in a job. The others have one rule each: kernels for few rules differ.
    books = [deployment.rulebook, *(deploy([record]).rulebook for record in records)]
    programs = [
        program for book in books for level in programs_by_level(book, job.schema) for program in level.values()
    ]
    # Meanwhile a second process compiles the matcher of plain programs, and then the other one. So plain programs come
    # first. Programs with histories come next: they need other kernels, to compile until the second matcher is there.
    return job, sorted(programs, key=lambda program: (not program.is_plain, program.histories is None))


def _rule(number: int, text: str) -> UpsertRecord:
    name = f"warm_{number}"
    source = f"{_EVENT}pattern {name}() by k {{ {text} }}\n"
    return UpsertRecord(
        id=name, pattern=name, source=source, version=1, status="live", severity="low", owner="cep", message="{key}"
    )


def _sample_events(job: Job, step: int) -> EventBatch:
    """Pass a few varied events through all forms (bytes, decoded, routed, packed), so that the kernels compile."""
    values = [
        orjson.dumps(
            {
                "id_of": f"{step}-{n:03}", "event_time": _TIME_MS + 1_000 * (step * _EVENTS + n), "k": f"k{n % _KEYS}",
                "text": None if n % 7 == 6 else "uvw"[n % 3], "kind": "abc"[n * n % 3 if n % 5 else 2], "whole": n % 11,
                "money": n % 13 + 0.25, "real": None if n % 9 == 8 else _real(step, n), "is_on": n % 4 == 0,
            }
        )
        for n in range(_EVENTS)
    ]  # fmt: skip
    validated = validate_events(job, decode_json(job.schema, pa.array(values, pa.binary())))
    assert not validated.dead_letters, validated.dead_letters
    group = max((share for _, share in split_by_group(validated.batches[0], job.groups_count)), key=len)
    id_hashes = event_ids(group, new_secrets(1))  # by which repeated events are found
    judged_by(id_hashes, id_hashes[:, :0])  # compiles the search for ids among earlier ones (here none)
    share, _ = first_ones(job, 0, [group], MatchOutput())  # compiles the removal of repeated events
    # At odd steps the batch is packed and unpacked: then it is read-only, which is another type for the compiler.
    return decode_batch(encode_batch(share)) if step % 2 else share


def _real(step: int, n: int) -> float:
    """After the first steps numbers so far from each other that no few floats have their exact sum, and not plain."""
    return 10.0 ** (n * 7 % 180 - 90) if step > 1 else n * 0.375


def _store_and_read(program: Program, keyed_state: KeyedState) -> KeyedState:
    """Compile the kernels of stored state: divide a state by keys, join, store, read and return the result."""
    half_of_key = key_slots(keyed_state.keys, groups_count=1, pages_count=2, first_group=0)  # 0 or 1
    halves = partition_keys(keyed_state, half_of_key, 2, program.row_registers)
    page = concat_states(halves, program.row_registers)
    keyed_state = decode_whole(encode_whole(replace(page, histories=keyed_state.histories)))  # `page` lacks them
    if len(keyed_state.keys):  # and in the form of the pages of `cep run`
        shape, registers = Shape.of(keyed_state), program.row_registers
        slots = np.arange(len(keyed_state.keys))  # the number of each key's page: one key a page
        packed, _ = pack(keyed_state, slots, len(slots), registers, shape)
        page_store_keys(slots, len(slots), page_prefixes(range(1), b""))  # only to compile its kernel
        keyed_state = replace(unpack(packed, shape, registers), histories=keyed_state.histories)
    return keyed_state


if __name__ == "__main__":
    with compiled_ahead(MATCHERS):
        warm_up()
