"""Keyed stores: cost of a call, checkpoints against the share that changed, restore, more keys than memory holds.

python -m tests.bench.store [KEYS] [--folder DIR]
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median, quantiles

from cep.state.checkpoints import Checkpoints, Part, restore
from cep.state.keys import store_key
from cep.state.memory import MemoryStore
from cep.state.rocks import RocksMemory, RocksSettings, RocksStore
from cep.state.store import DurableStore
from cep.state.target import Target
from tests.bench.peer_data import show

PAGE_BYTES = (100, 1_000, 10_000, 100_000, 1_000_000)
CALLS = 2_000
CHANGED = (0.0, 0.01, 0.1, 0.5, 1.0)
VALUE_BYTES = 100
CACHE_BYTES = 64 << 20


def key(number: int) -> bytes:
    return store_key(number % 128, number.to_bytes(8), b"", b"b")


def micros(call: Callable[[int], object], numbers: list[int]) -> list[float]:
    """Return the µs of each call."""
    times_us = []
    for number in numbers:
        begun = time.perf_counter_ns()
        call(number)
        times_us.append((time.perf_counter_ns() - begun) / 1_000)
    return times_us


def seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def calls(folder: Path) -> None:
    """Measure get and put by the size of the value, in memory and on disk."""
    rows = []
    for size in PAGE_BYTES:
        count = max(50, min(CALLS, 200_000_000 // size // 4))
        values = [Random(n).randbytes(size) for n in range(8)]
        stores: dict[str, DurableStore] = {
            "memory": MemoryStore(),
            "rocks": RocksStore(folder / f"log{size}"),
            "rocks, no log": RocksStore(folder / f"nolog{size}", RocksSettings(wal=False)),
        }
        for name, store in stores.items():
            numbers = list(range(count))
            put = micros(lambda n, s=store, v=values: s.put(key(n), v[n % 8]), numbers)  # type: ignore[misc]
            Random(1).shuffle(numbers)
            get = micros(lambda n, s=store: s.get(key(n)), numbers)  # type: ignore[misc]
            batch = [key(n) for n in numbers[:100]]
            many = seconds(lambda s=store, b=batch: s.multi_get(b)) / len(batch) * 1e6  # type: ignore[misc]
            figures = (median(put), quantiles(put, n=100)[98], median(get), quantiles(get, n=100)[98], many)
            rows.append((f"{size:,}", name, *(f"{figure:,.1f}" for figure in figures)))
            store.close()
    show(
        "µs a call",
        ("bytes", "store", "put p50", "put p99", "get p50", "get p99", "get, of 100 at once"),
        rows,
    )


def checkpoints(folder: Path, keys_count: int) -> None:
    """Measure a checkpoint after a share of the keys has changed, and the restore of the last one."""
    chance = Random(2)
    target = Target(str(folder / "target"))
    rows: list[tuple[str, ...]] = []
    with (
        RocksStore(folder / "checkpointed", RocksSettings(wal=False)) as store,
        Checkpoints(target, folder / "work") as second,
    ):
        for number in range(keys_count):
            store.put(key(number), chance.randbytes(VALUE_BYTES))
        for share in (1.0, *CHANGED):
            first = not rows
            for number in chance.sample(range(keys_count), 0 if first else int(share * keys_count)):
                store.put(key(number), chance.randbytes(VALUE_BYTES))
            begun = time.perf_counter()
            copying = second.begin([Part("store", store, 0, 128)], b"{}", 0)
            linked = time.perf_counter() - begun
            assert copying is not None
            published = copying.result()
            rows.append(
                (
                    "first" if first else f"{share:.0%}",
                    f"{linked * 1e3:,.1f}",
                    f"{(time.perf_counter() - begun) * 1e3:,.1f}",
                    f"{published.bytes_count / 1e6:,.1f}",
                    f"{published.copied_bytes_count / 1e6:,.1f}",
                )
            )
    show(
        f"checkpoints of {keys_count:,} keys",
        ("changed", "job stands still, ms", "published, ms", "MB", "MB copied"),
        rows,
    )
    restored = seconds(lambda: restore(target, folder / "back"))
    opened = seconds(lambda: RocksStore(folder / "back" / "store", RocksSettings(wal=False)).close())
    print(f"restore, every file verified: {restored * 1e3:,.1f} ms; open: {opened * 1e3:,.1f} ms\n")


def larger_than_memory(folder: Path, keys_count: int) -> None:
    """Measure random reads and writes of more than the cache holds."""
    chance = Random(3)
    settings = RocksSettings(RocksMemory(CACHE_BYTES, CACHE_BYTES // 4), wal=False)
    with RocksStore(folder / "large", settings) as store:
        value = Random(4).randbytes
        filled = seconds(lambda: store.ingest((k, value(VALUE_BYTES)) for k in sorted(map(key, range(keys_count)))))
        numbers = [chance.randrange(keys_count) for _ in range(20_000)]
        get = micros(lambda n: store.get(key(n)), numbers)
        put = micros(lambda n: store.put(key(n), value(VALUE_BYTES)), numbers)
        store.sync()
        sizes = store.sizes()
    rows = []
    for name, times in (("get", get), ("put", put)):
        cuts = quantiles(times, n=1000)
        rows.append((name, *(f"{cuts[rank]:,.1f}" for rank in (499, 989, 998))))
    show(f"{keys_count:,} keys, cache of {CACHE_BYTES >> 20} MB, µs", ("call", "p50", "p99", "p99.9"), rows)
    per_key = sizes.disk_bytes / keys_count
    print(
        f"filled in {filled:,.1f} s; {sizes.disk_bytes / 1e6:,.0f} MB on disk, {per_key:,.0f} bytes a key and its value"
    )
    print(f"of {VALUE_BYTES}; cached {sizes.cache_bytes / 1e6:,.0f} MB\n")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("keys", nargs="?", type=int, default=5_000_000, help="keys of the store larger than its cache")
    parser.add_argument("--folder", type=Path, help="on the disk to be measured; the system's temporary folder without")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="cep-bench-", dir=options.folder))
    try:
        calls(folder)
        checkpoints(folder, max(1_000, options.keys // 10))
        larger_than_memory(folder, options.keys)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
