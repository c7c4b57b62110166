"""The settings of `cep run` alone: threads, stores, checkpoints, changelog and standby.

Tested by: tests/model/test_settings.py
"""

from __future__ import annotations

from typing import Literal

from cep.model.section import Section
from cep.model.section import setting as _setting
from cep.model.setting_types import DurationMs, Positive


class EmbeddedSettings(Section):
    """The settings that only the runner in one process reads."""

    workers: Positive = _setting(2, "Threads that match, each for a share of the key groups.", "--workers", "N")
    groups: str | None = _setting(
        None,
        "Key groups of this process, first-last; all of them if not given. Each process needs a checkpoint of its own.",
        "--groups",
        "RANGE",
        '"0-15"',
    )
    store: Literal["rocksdb", "memory"] = _setting(
        "rocksdb",
        "Store of keyed state: rocksdb, safe after each commit, or memory, safe after each checkpoint.",
        "--store",
        "WHERE",
    )
    cache_mb: Positive = _setting(
        256, "Memory for keyed state with rocksdb: half for pages in use, half for its blocks.", "--cache-mb", "N"
    )
    target: str | None = _setting(
        None,
        "Where checkpoints go: a folder, or a URL of fsspec (s3://…); in the checkpoint folder if not given.",
        "--checkpoint-target",
        "URL",
        '"s3://bucket/job"',
    )
    kept: Positive = _setting(3, "Checkpoints that are kept.")
    changelog: str | None = _setting(
        None,
        "Compacted topic that gets the changes of each commit, with its alerts; a job without its folder reads it.",
        "--changelog",
        "TOPIC",
        '"payments-state"',
    )
    standby: bool = _setting(
        False,
        "Several processes are started with the same command: one works, the others follow its changelog, and "
        "one of them takes over when it dies.",
        "--standby",
    )
    interval: DurationMs | None = _setting(
        None, "Least time between two commits; 0 s, for folders and memory 1 s.", "--interval", "TIME", '"0 s"'
    )
    checkpoints: DurationMs = _setting(
        10_000, "Time between two checkpoints: copies on another disk.", "--checkpoint-interval", "TIME", '"10 s"'
    )
    delivery: Literal["exactly-once", "at-least-once"] = _setting(
        "exactly-once",
        "exactly-once: alerts go out with the next commit; at-least-once: at once, and again after a crash.",
        "--delivery",
        "HOW",
    )
