"""A list of millions of entries against one of a hundred: cost of a change, memory, and cost of a look-up.

`python -m tests.bench.lists [--entries 5000000]`; about a minute.

    build      entries as texts → a set in a file, as a `replace` makes it
    apply      the list records of a replacement, in parts, and of one more entry → the rulebook
    map        another process: open the file, first look-ups
    look up    a million different texts, half of them in the list; the ratio is to the list of a hundred
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cep.lists.content import Content
from cep.lists.entries import TEXT, keys_of
from cep.lists.members import build, mapped, write
from cep.lists.store import ListStore
from cep.model.rule import ListRecord
from cep.rulebook.publish import replacing
from cep.rulebook.rulebook import Rulebook
from tests.engine.rules import SCHEMA

SMALL = 100
ASKED = 1_000_000
ROUNDS = 5


def texts(numbers: np.ndarray, kind: str) -> pa.Array:
    """Return numbers as entries of a kind, spread out like real ones."""
    mixed = (numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20)
    entries = pc.cast(pa.array(mixed), TEXT)
    if kind == "prefix":
        return pc.utf8_slice_codeunits(entries, 0, 9)
    if kind == "cidr":
        octets = [(mixed >> np.uint64(shift)) & np.uint64(255) for shift in (24, 16, 8)]
        parts = [pc.cast(pa.array(octet), TEXT) for octet in octets]
        return pc.binary_join_element_wise(*parts, pa.scalar("0/24", TEXT), pa.scalar(".", TEXT))
    return entries


def asked_texts(kind: str) -> pa.Array:
    values = texts(np.arange(ASKED) * 2, kind)
    if kind == "prefix":
        return pc.binary_join_element_wise(values, pa.scalar("0042", TEXT), pa.scalar("", TEXT))
    return pc.replace_substring(values, "0/24", "77") if kind == "cidr" else values


def seconds(work: Callable[[], object], rounds: int = 1) -> float:
    """Return the seconds of the best of some rounds."""
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best


def apply(kind: str, entries: pa.Array, folder: Path) -> tuple[float, float, int]:
    """Return the seconds to apply the records of a replacement, and of one more entry; and the number of records."""
    book = Rulebook(SCHEMA, None, ListStore(folder))
    records = replacing("big", kind, 1, entries, None)
    one = ListRecord(id="big", of=kind, version=2, change="add", entries=["10.9.8.0/24" if kind == "cidr" else "42"])
    whole = seconds(lambda: [book.apply(record, None) for record in records])
    more = seconds(lambda: book.apply(one, None))
    assert book.report().lists[0].version == 2
    return whole, more, len(records)


def measure(kind: str, size: int, queries: pa.Array, base: float | None) -> float:
    """Print one line; return the seconds of the look-ups. `base` are the seconds to compare with."""
    entries = texts(np.arange(size) * 2 + 1 - np.arange(size) % 2, kind)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "set.keys"
        built = seconds(lambda: write(path, build(keys_of(entries, kind)[0], kind)))
        whole, more, parts = apply(kind, entries, Path(scratch) / "lists")
        opened = seconds(lambda: Content(kind, mapped(path)).texts_within(queries.slice(0, 100)))
        content = Content(kind, mapped(path))
        looked = seconds(lambda: content.texts_within(queries), ROUNDS)
        file_mb = path.stat().st_size / 1e6
    print(
        f"{kind:8}{len(content):>10,}{built:>9.2f}{file_mb:>9.1f}{parts:>7}{whole:>9.2f}{more * 1e3:>8.1f}"
        f"{opened * 1e3:>8.1f}{ASKED / looked:>13,.0f}{looked / (base or looked):>7.2f}"
    )
    return looked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=5_000_000)
    count = parser.parse_args().entries
    print(f"{'':8}{'entries':>10}{'build s':>9}{'file MB':>9}{'parts':>7}{'apply s':>9}{'add ms':>8}{'map ms':>8}"
          f"{'look-ups/s':>13}{'ratio':>7}")  # fmt: skip
    for kind in ("string", "prefix", "cidr"):
        queries = asked_texts(kind)
        with tempfile.TemporaryDirectory() as scratch:  # compiles the kernels before the first figure
            apply(kind, texts(np.arange(10), kind), Path(scratch))
            Content(kind, build(keys_of(queries.slice(0, 10), kind)[0], kind)).texts_within(queries.slice(0, 10))
        base = measure(kind, SMALL, queries, None)
        measure(kind, count, queries, base)
    print(f"largest memory of the process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:,.0f} MB")


if __name__ == "__main__":
    main()
