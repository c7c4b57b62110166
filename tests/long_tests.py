"""Long tests: they are `slow` and `always` without a mark, and the inner loop leaves them out.

    pytest -n 2 -m "not spark and (not slow or always)" --junitxml times.xml
    python -m tests.long_tests times.xml      writes long_tests.txt again

A function is in the list if one of its cases took a fifth of a second or more.
Tested by: tests/test_long_tests.py
"""

import sys
from pathlib import Path
from xml.etree import ElementTree as ET

LIST = Path(__file__).with_suffix(".txt")
_LONG_S = 0.2


def long_tests() -> frozenset[str]:
    """Return the listed functions, as pytest names them: `tests/cli/test_authoring.py::test_a_name`."""
    return frozenset(LIST.read_text().split())


def function_of(test: str) -> str:
    """Return the function of a test: its name without the case."""
    return test.partition("[")[0]


def _main(times: Path) -> None:
    names = set()
    for case in ET.parse(times).getroot().iter("testcase"):
        if float(case.attrib["time"]) >= _LONG_S:
            path = case.attrib["classname"].replace(".", "/") + ".py"
            names.add(f"{path}::{function_of(case.attrib['name'])}")
    LIST.write_text("".join(f"{name}\n" for name in sorted(names)))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
