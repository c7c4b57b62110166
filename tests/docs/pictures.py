"""The simulated day → the two pictures of README.md: `python -m tests.docs.pictures`.

    small day ─┬─ match ─▶ Alerts.timeline ─▶ alert.svg
               └─ report_day ─▶ one section ──Chromium──▶ report.png

The time line has the same bytes everywhere. The page of the report is a browser's picture, with the letters of the
machine: without Chromium it stays as it is.
Tested by: tests/docs/test_reference.py
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
from rich.console import Console

import cep
from cep.cli.docs import DOCS
from cep.demo.day import PAYMENTS_FILE, SEED, SIZES
from cep.demo.labels import report_day, write_labels
from cep.demo.library import library_folder
from cep.demo.stream import Stream, build

FOLDER = DOCS / "pictures"
ALERT, REPORT = FOLDER / "alert.svg", FOLDER / "report.png"
SECTIONS = ("rules",)  # of the report, by their anchors
_RULE = "card_testing"  # the pattern that README.md begins with
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_WIDTH, _HEIGHT = 1_100, 1_200  # the size of the section: lower parts are cut off
_COLUMNS = 9  # of the table of rules: as many as fit next to each other
_SECONDS_MAX = 60
_BLOCKED = 2  # as Chromium writes it in its settings


def small_day() -> Stream:
    """Build the day of `./demo/run --size small`."""
    return build(SEED, SIZES["small"])


def alert_picture(day: Stream) -> str:
    """Draw the day's first alert of card testing, as SVG."""
    alerts = cep.load(library_folder() / "rules").match(day.payments)
    return alerts.timeline(alerts.table["rule_id"].to_pylist().index(_RULE)).svg


def report_page(day: Stream, folder: Path) -> str:
    """Return the report of the day with SECTIONS alone, as HTML. The folder gets the payments and their labels."""
    payments = folder / PAYMENTS_FILE
    pq.write_table(day.payments, payments)
    whole = report_day(payments, write_labels(day, folder), 2, Console(quiet=True)).html
    others = "section" + "".join(f":not(#{anchor})" for anchor in SECTIONS)
    right = f"#{SECTIONS[0]} table:first-of-type tr > :nth-child(n + {_COLUMNS + 1})"
    return whole.replace("</head>", f"<style>nav, {others}, {right} {{ display: none }}</style></head>", 1)


def photograph(page: Path, picture: Path, width: int = _WIDTH, height: int = _HEIGHT) -> None:
    """Let Chromium draw a page without running its scripts; width and height in pixels.

    Raises: FileNotFoundError if Chromium is missing, CalledProcessError.
    """
    browser = next((path for path in map(shutil.which, _BROWSERS) if path), None)
    if browser is None:
        raise FileNotFoundError(f"none of {', '.join(_BROWSERS)} is on the path")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={width},{height}"]
    with tempfile.TemporaryDirectory() as profile:
        preferences = Path(profile) / "Default" / "Preferences"
        preferences.parent.mkdir()
        preferences.write_text(json.dumps({"profile": {"managed_default_content_settings": {"javascript": _BLOCKED}}}))
        command = [browser, *flags, f"--user-data-dir={profile}", f"--screenshot={picture}", page.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS_MAX)


def main() -> int:
    """Make both pictures. Return 1 if a browser for the second one is missing."""
    FOLDER.mkdir(exist_ok=True)
    day = small_day()
    ALERT.write_text(alert_picture(day), encoding="utf-8")
    print(f"wrote {ALERT}")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(report_page(day, Path(folder)), encoding="utf-8")
        try:
            photograph(page, REPORT)
        except FileNotFoundError as error:
            print(f"{REPORT} stays as it is: {error}", file=sys.stderr)
            return 1
    print(f"wrote {REPORT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
