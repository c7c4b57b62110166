"""An open thing → a closed one at the end of a `with`, also after an error.

Tested by: tests/base/test_collection.py
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """A base class whose objects close themselves at the end of a `with` block."""

    @abstractmethod
    def close(self) -> None:
        """Release all open resources."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()
