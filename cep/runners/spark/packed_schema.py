"""The columns of packed rows (packed.py), for who declares them and packs none.

Tested by: tests/runners/spark/test_packed.py
"""

from __future__ import annotations

PACKED_SCHEMA = "key_group int, kind string, domain int, order string, payload binary"
