"""The contract of the ports (contract.py), over memory, RocksDB and the form of Spark's state."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from cep.runners.spark.group_parts import GroupParts
from cep.state.memory import MemoryStore
from cep.state.rocks import RocksStore
from tests.step.cases import PlainMap, SparkCase, StoredCase
from tests.step.contract import CHECKS, Check


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", ["memory", "rocks", "spark"])
def test_contract(kind: str, check: Check, tmp_path: Path) -> None:
    if kind == "memory":
        check(StoredCase(MemoryStore()))
    elif kind == "rocks":
        with RocksStore(tmp_path / "store") as store:
            check(StoredCase(store))
    else:
        check(SparkCase(GroupParts(cast("Any", PlainMap()))))
