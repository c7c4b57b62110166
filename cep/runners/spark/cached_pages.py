"""The pages of runs that a worker process wrote last, so that it need not read them from Spark's state store.

Reading a megabyte from Spark's state store into Python costs some twenty milliseconds of Java, more than matching;
writing costs a tenth of that. Each page is therefore written in every micro-batch that changes it, and read only if its
last bytes are not in memory: after a start, in another worker, above a number of bytes. A key group stores the hash of
the bytes that it wrote, and only bytes of this hash are used. It does not matter which worker, query or attempt of a
micro-batch wrote them.
Tested by: tests/runners/spark/test_cached_pages.py
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

_DIGEST_BYTES = 16

Place = tuple[int, int, int]  # level, key group, page id


class CachedPages:
    """The last bytes of pages by their place, up to a number of bytes in all."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._pages: OrderedDict[Place, tuple[str, bytes]] = OrderedDict()
        self._bytes = 0

    @property
    def nbytes(self) -> int:
        """The bytes of all pages that are held."""
        return self._bytes

    def get(self, place: Place, digest: str | None) -> bytes | None:
        """Return the bytes of a place if they have this hash."""
        cached = self._pages.get(place)
        if cached is None or cached[0] != digest:
            return None
        self._pages.move_to_end(place)
        return cached[1]

    def put(self, place: Place, data: bytes) -> str:
        """Hold a page in the place of the one before; others may have to go. Returns: its hash."""
        digest = hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()
        self.drop(place)
        self._pages[place] = digest, data
        self._bytes += len(data)
        while self._bytes > self._bytes_max:
            _, (_, oldest) = self._pages.popitem(last=False)
            self._bytes -= len(oldest)
        return digest

    def drop(self, place: Place) -> None:
        """Let go of a page."""
        removed = self._pages.pop(place, None)
        self._bytes -= 0 if removed is None else len(removed[1])
