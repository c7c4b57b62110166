"""The table of conversions: how each kind of value is read as each declared type. conversions.txt is written by hand.

The page reference/conversions.md prints it; test_convert.py reads each value in each form and compares each cell.
"""

from pathlib import Path
from typing import NamedTuple

TYPES = ("string, id", "int", "float", "decimal(2)", "bool", "enum(a, b, 1)", "time", "duration")
NOTHING = "–"
BLANK = "␣"  # a blank at the edge of a text
# Whole numbers of the smallest unit, by kind, and the decimal(2) that `--minor` reads from each.
MINOR = (
    ("text", "1050", "10.50"), ("text", "1050.0", "10.50"), ("text", "␣1050␣", "10.50"), ("text", "1050.5", NOTHING),
    ("text", "x", NOTHING), ("whole number", "105", "1.05"), ("whole number", "-5", "-0.05"),
    ("double", "1050.0", "10.50"), ("double", "1050.5", NOTHING), ("decimal", "1050.00", "10.50"),
    ("decimal", "10.50", NOTHING), ("boolean", "true", NOTHING),
    ("bytes", "105", "1.05"),
)  # fmt: skip
_NOTES = """
# Conversions

A value is read by its kind and by the declared type of its field. JSON, CSV,
Parquet, Arrow, Avro, Protobuf, pandas and polars give the same value. A null stays null.

`null` in the table means that the value does not fit: the field is null, the event stays, and a dead letter names the
field. In the id or the time of an event such a value sets the record aside.

- Bytes are a text in UTF-8.
- A value of CSV and of the name of a folder (`part=01001`) is a text.
- A text is never changed for a `string`. An id that pandas wrote as `1001.0` stays that text; declare it as `int`.
- A double beyond 2⁵³ is no `string`, `id` or `int`: its last digits are lost.
- A float is a `decimal` if it is the nearest float to a whole number of units. A float32 is judged as a float32.
- `yes`, `y`, `t`, `no`, `n`, `f` are also a `bool`, in any case.
- The symbol of an `enum` may be in another case, unless two symbols differ by case alone.
- `1,200.50` is a number in a CSV file whose form of numbers is found or named; see [map](../guides/map.md).
- A column with a unit is read by its unit: `timestamp`, `date`, `duration` in Arrow, pandas and polars.
- `NaN` in a frame of pandas is null.
- `␣` stands for a blank. Blanks around a number or a truth value do not count.
- A column of pandas may have values of several kinds. Each is read by its own kind. Only a number that is a time needs
  nine digits, as in a text.

## Times

| form | example |
| --- | --- |
"""
_MORE_TIMES = """
A time without a zone, such as a date, needs `--time-zone` or `tz=`; files and frames without it are refused. A live
topic reads it as UTC. A number is milliseconds since 1970, or the unit of `--time-unit`. A number as text has at least
nine digits before the point, unless the unit is named. A fraction counts. Years are 1 to 9000. Times are read exactly
to the microsecond, and are cut to milliseconds towards the past.
"""


class Cells(NamedTuple):
    """One value: its kind, its text, and for each of TYPES the value that is read."""

    kind: str
    value: str
    expected: tuple[str, ...]


def rows() -> list[Cells]:
    lines = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines()
    split = [[cell.strip() for cell in line.split("|")] for line in lines]
    return [Cells(kind, value.strip("`"), tuple(expected)) for kind, value, *expected in split]


def page(forms: tuple[tuple[str, str, str], ...]) -> str:
    """Return the page of all conversions. `forms` are the forms of times."""
    lines = [_NOTES.strip(), *(f"| {name} | `{example}` |" for name, _, example in forms)]
    lines += [_MORE_TIMES.rstrip(), "", "## Values", ""]
    lines += [f"| value | {' | '.join(TYPES)} |", f"| --- |{' --- |' * len(TYPES)}"]
    for row in rows():
        cells = ("null" if cell == NOTHING else cell for cell in row.expected)
        lines.append(f"| {row.kind} `{row.value}` | {' | '.join(cells)} |")
    lines += ["", "## Minor units", "", "With `--minor FIELD` a `decimal(2)` is read so:", ""]
    lines += ["| value | decimal(2) |", "| --- | --- |"]
    lines += [f"| {kind} `{value}` | {'null' if cell == NOTHING else cell} |" for kind, value, cell in MINOR]
    return "\n".join(lines) + "\n"
