"""README.md shows two pictures, and the time line is what the command makes. After a change: `python -m
tests.docs.pictures`."""

from __future__ import annotations

import re
import struct

from tests.docs.commands import ROOT
from tests.docs.pictures import ALERT, REPORT, alert_picture, small_day

_PNG = b"\x89PNG\r\n\x1a\n"


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
