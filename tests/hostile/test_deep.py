"""Lists in lists, thousands deep, in files that a job reads: an error with the next step, not a RecursionError."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cep.base.errors import CepError
from cep.rulebook.saved import Saved, list_names, record_digests
from cep.runners.live_checkpoint import QUERY_FOLDER
from cep.runners.spark.rescale import partitions_of
from cep.sources.offsets import parse_offsets
from cep.state.packed import Shape

DEEP = "[" * 100_000 + "]" * 100_000


def partitions(folder: Path) -> None:
    for name in ("offsets", "commits"):
        (folder / QUERY_FOLDER / name).mkdir(parents=True)
        (folder / QUERY_FOLDER / name / "0").write_text(f"v1\n{DEEP}\n")
    partitions_of(folder)


READERS: dict[str, Callable[[Path], object]] = {
    "tasks": partitions,
    "offsets": lambda _: parse_offsets(DEEP),
    "shape": lambda _: Shape.from_bytes(DEEP.encode()),
    "rulebook": lambda _: Saved.from_bytes(DEEP.encode()),
    "records": lambda _: record_digests(DEEP.encode()),
    "lists": lambda _: list_names(DEEP.encode()),
}


@pytest.mark.parametrize("name", READERS)
def test_a_deep_value_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(CepError):
        READERS[name](tmp_path)
