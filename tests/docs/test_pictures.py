"""README.md shows two pictures, and the command makes the same time line.

After a change: `python -m tests.docs.pictures`.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator

from tests.docs.commands import ROOT
from tests.docs.pictures import ALERT, REPORT, alert_picture, small_day

_PNG = b"\x89PNG\r\n\x1a\n"
_CHANNELS = 3
_MARGIN = 8  # pixels


def test_the_time_line_is_that_of_the_day() -> None:
    assert ALERT.read_text(encoding="utf-8") == alert_picture(small_day()), "run `python -m tests.docs.pictures`"


def test_the_first_page_shows_both_in_words_too() -> None:
    shown = re.findall(r"!\[([^\]]*)\]\(([^)]*)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert [ROOT / path for _, path in shown] == [ALERT, REPORT]
    assert all(len(text.split()) > 10 for text, _ in shown)


def test_the_page_of_the_report_is_a_small_picture() -> None:
    data = REPORT.read_bytes()
    assert data.startswith(_PNG)
    width, height = struct.unpack(">II", data[16:24])
    assert 800 <= width <= 1_400
    assert height <= 1_400
    assert len(data) < 200_000


def test_the_page_of_the_report_ends_between_rows() -> None:
    """No line of a table, and no letter, reaches the lower or the right edge."""
    lines = list(pixels(REPORT.read_bytes()))
    white = bytes([255]) * len(lines[0])
    assert lines[-_MARGIN:] == [white] * _MARGIN
    assert {line[-_MARGIN * _CHANNELS :] for line in lines} == {white[: _MARGIN * _CHANNELS]}


def pixels(png: bytes) -> Iterator[bytes]:
    """Yield the lines of a picture with eight bits for each of red, green and blue, from the top (PNG, section 9)."""
    width, depth, color = struct.unpack(">I4xBB", png[16:26])
    assert (depth, color) == (8, 2), "a picture of the browser has three channels"
    packed, position = b"", 8
    while position < len(png):
        size = int.from_bytes(png[position : position + 4], "big")
        packed += png[position + 8 : position + 8 + size] if png[position + 4 : position + 8] == b"IDAT" else b""
        position += size + 12
    raw, size = zlib.decompress(packed), width * _CHANNELS
    above = bytes(size)
    for begin in range(0, len(raw), size + 1):
        above = bytes(_restored(raw[begin], raw[begin + 1 : begin + 1 + size], above))
        yield above


def _restored(kind: int, line: bytes, above: bytes) -> bytearray:
    """Undo the filter of one line."""
    if kind == 0:
        return bytearray(line)
    restored = bytearray(line)
    for index, value in enumerate(line):
        before, corner = (row[index - _CHANNELS] if index >= _CHANNELS else 0 for row in (restored, above))
        guess = before + above[index] - corner
        nearest = min((before, above[index], corner), key=lambda each: abs(guess - each))
        restored[index] = (value + (0, before, above[index], (before + above[index]) // 2, nearest)[kind]) % 256
    return restored
