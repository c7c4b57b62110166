"""`python -m tests.bench.new_keys [--minutes 45]`: memory of `cep run` by part, while new cards come all the time.

    --minutes N    of event time, at --rate payments a second, of which --new are of cards that were never seen

The rules of this repository, RocksDB and commits run in this process, as fast as they can, with the settings of
`cep run`. A row every five minutes of event time: resident memory, bytes by part (`cep_memory_bytes`), evicted runs.
The last lines are the bytes for each new card of the last half: in memory, by part, and on disk.
"""

from __future__ import annotations

import argparse
import gc
import resource
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa

from cep.base.text import utc_ms, utc_text
from cep.model.settings import JobSettings
from cep.rulebook.deploy import deploy
from cep.rulebook.files import read_rules
from cep.runners.embedded.commit import Commits, Sources
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.embedded.opening import StoreSettings
from cep.runners.embedded.outlets import Outlets
from cep.sources.live.base import Chunk, decode_chunks
from cep.step.job import Job
from tests.bench.peer_data import show
from tests.runners.embedded.outside import Lines
from tests.runners.spark.live_cases import ROOT

BEGIN_MS = utc_ms("2026-03-01T12:00:00Z")
CACHE_BYTES = 128 << 20  # half of the default of --cache-mb
KNOWN_CARDS, BATCH_S, ROW_S = 50_000, 5, 300
PAGE_BYTES = resource.getpagesize()


def payments(second: int, rate: int, new: int, template: bytes) -> list[bytes]:
    """The payments of a second; the first `new` are of new cards."""
    event = orjson.loads(template)
    lines = []
    for place in range(rate):
        number = second * rate + place
        card = f"new{second * new + place}" if place < new else f"c{number * 7919 % KNOWN_CARDS}"
        event |= {
            "tx_id": f"t{number}", "card_id": card, "amount": f"{number * 31 % 700}.{number % 100:02d}",
            "event_time": utc_text(BEGIN_MS + second * 1_000 + place * 1_000 // rate),
        }  # fmt: skip
        lines.append(orjson.dumps(event))
    return lines


def measure(folder: Path, minutes: int, rate: int, new: int) -> None:
    """Run and print."""
    from tests.runners.embedded.cases import day  # noqa: PLC0415 it makes a day of payments

    records, _ = read_rules(ROOT / "rules")
    deployment, settings = deploy(records), JobSettings()
    job = Job(
        deployment.schema,
        deployment.key_domains,
        settings.key_groups,
        settings.pages,
        settings.lateness,
        dedup_ms=settings.dedup,
    )
    commits = Commits(StoreSettings(folder, cache_bytes=CACHE_BYTES, checkpoint_ms=60_000))
    initial = tuple(record.to_json() for record in records)
    engine = Engine(job, initial, commits.store, Workers(2, page_bytes_max=CACHE_BYTES))
    sources, outlets = Sources(Lines([], np.random.default_rng(0)), None), Outlets((), None)
    counters, rows, figures = Counter[str](), list[tuple[str, ...]](), list[Counter[str]]()
    for second in range(0, minutes * 60, BATCH_S):
        lines = [line for clock_s in range(second, second + BATCH_S) for line in payments(clock_s, rate, new, day()[0])]
        decoded = decode_chunks(job.schema, [Chunk("p", pa.array(lines, pa.large_binary()))])
        counters.update(engine.step(decoded.parts, (), {"p": (decoded.latest_ms["p"], False)}).counters)
        commits.begin(engine, sources, outlets)
        commits.finish(wait=True)
        if (second + BATCH_S) % ROW_S == 0:
            gc.collect()
            sizes = commits.store.sizes()
            parts = Counter(engine.memory_bytes)
            parts |= Counter(store=sizes.memory_bytes + sizes.cache_bytes, disk=sizes.disk_bytes)
            parts["resident"] = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES
            figures.append(parts)
            shown = (f"{parts[name] >> 20:,}" for name in ("resident", "pages", "page_index", "past", "event_ids"))
            more = (f"{parts[name] >> 20:,}" for name in ("store", "disk"))
            rows.append((f"{(second + BATCH_S) // 60}", *shown, *more, f"{counters['runs_evicted']:,}"))
    head = ("minute", "resident MB", "pages", "page index", "past", "event ids", "store", "disk", "evicted runs")
    show(f"{rate:,} payments a second, {new} new cards a second", head, rows)
    half = len(figures) // 2
    cards = (len(figures) - half - 1) * ROW_S * new or 1
    print("bytes for each new card of the last half: ", end="")
    print(", ".join(f"{name} {(figures[-1][name] - figures[half][name]) / cards:,.0f}" for name in figures[-1]))
    engine.close()
    commits.close()


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=int, default=45)
    parser.add_argument("--rate", type=int, default=2_000)
    parser.add_argument("--new", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        measure(Path(name) / "job", options.minutes, options.rate, options.new)


if __name__ == "__main__":
    main()
