"""The output of a verb in a test, with its exit code checked: the fixture `output_of` of tests/conftest.py."""

from dataclasses import dataclass
from typing import NamedTuple

import pytest


class Output(NamedTuple):
    out: str
    err: str

    @property
    def line(self) -> str:
        """Standard output as one line with single spaces, for tables."""
        return " ".join(self.out.split())


@dataclass(frozen=True)
class OutputOf:
    """Reads what this process prints."""

    capsys: pytest.CaptureFixture[str]

    def __call__(self, ended: int, code: int = 0) -> Output:
        """Check the exit code of a verb that has ended. Return its output."""
        output = self.read()
        assert ended == code, f"exit code {ended}, not {code}: {output.err}"
        return output

    def read(self) -> Output:
        return Output(*self.capsys.readouterr())
