"""The cases of the contract (contract.py): a key group in a store, and one in Spark's state."""

from __future__ import annotations

from typing import Any

from cep.runners.embedded.pages import Shapes
from cep.runners.embedded.shares import PageSettings, Shares
from cep.runners.spark.group_parts import GroupParts
from cep.runners.spark.group_ports import GroupPorts, GroupProgress
from cep.state.store import DurableStore, WriteBatch
from cep.step.rules import JobRules


class StoredCase:
    """A key group of the embedded runner, opened from its store for each micro-batch."""

    def __init__(self, store: DurableStore) -> None:
        self._store = store
        self._commit = 0

    def open(self, rules: JobRules) -> Shares:
        self._shapes = Shapes(self._store)
        self._shares = Shares(rules, range(1), self._store, self._shapes, PageSettings(4, None), 1)
        for share in self._shares.all:
            share.restore(self._store)
        return self._shares

    def close(self) -> None:
        batch = WriteBatch()
        self._commit += 1
        for number, share in enumerate(self._shares.all):
            share.save_changes(batch, self._commit.to_bytes(8, "big") + number.to_bytes(2, "big"))
        self._shapes.save(batch)
        self._store.write(batch)


class SparkCase:
    """A key group of the Spark runner, whose progress is decoded again for each micro-batch."""

    def __init__(self, parts: GroupParts) -> None:
        self._parts = parts

    def open(self, rules: JobRules) -> GroupPorts:
        data = self._parts.progress.get(0)
        self._progress = GroupProgress() if data is None else GroupProgress.from_bytes(data)
        return GroupPorts(rules, 0, self._progress, self._parts)

    def close(self) -> None:
        self._parts.progress.put(0, self._progress.to_bytes())


class PlainMap:
    """A variable of Spark's state in a dictionary."""

    def __init__(self) -> None:
        self._entries: dict[Any, Any] = {}

    def getMapState(self, *_: object) -> PlainMap:  # noqa: N802 as Spark's handle
        return self

    def getValue(self, key: Any) -> Any:  # noqa: N802
        return self._entries.get(key)

    def updateValue(self, key: Any, value: Any) -> None:  # noqa: N802
        self._entries[key] = value

    def removeKey(self, key: Any) -> None:  # noqa: N802
        self._entries.pop(key, None)
