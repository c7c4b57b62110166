"""Print one line per situation: ok or RED, section, name, expected and actual answer. Exit with 1 if any is red.

`python -m tests.answers times` prints only the rows of the module `times`.
Tested by: tests/answers/test_answers.py
"""

import sys
from collections.abc import Collection
from importlib import import_module
from pathlib import Path

from tests.answers import Row

_NOT_SECTIONS = ("__init__", "__main__", "test_answers")


def all_rows(sections: Collection[str] = ()) -> list[Row]:
    """Return the rows of these modules, or of all modules of this folder."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in _NOT_SECTIONS)
    chosen = [name for name in names if not sections or name in sections]
    return [row for name in chosen for row in import_module(f"tests.answers.{name}").ROWS]


def answer(row: Row) -> object:
    """Compute the answer of a row. An exception is an answer too."""
    try:
        return row.actual()
    except Exception as error:  # noqa: BLE001 a command prints each answer
        return error


def main(sections: Collection[str]) -> int:
    """Print the rows. Return 1 if any is red."""
    red_count = 0
    for row in all_rows(sections):
        actual = answer(row)
        is_right = actual == row.expected
        red_count += not is_right
        verdict = "ok " if is_right else "RED"
        print(f"{verdict}  {row.section}  {row.name}  expected {row.expected!r}  actual {actual!r}")
    print(f"{red_count} red")
    return 1 if red_count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
