"""The list of long tests names existing tests."""

from pathlib import Path

from tests.long_tests import long_tests

ROOT = Path(__file__).parents[1]


def test_each_is_there() -> None:
    missing = []
    for name in sorted(long_tests()):
        path, _, function = name.partition("::")
        file = ROOT / path
        if not file.exists() or f"def {function}(" not in file.read_text():
            missing.append(name)
    assert missing == []
    assert len(long_tests()) > 100
