"""The roles and their rights in a job with signatures, each cell with the test that shows it (roles.txt).

The page reference/roles.md prints the table. A cell names a test as FILE::FUNCTION, below tests/.
Tested by: tests/hostile/test_campaign.py
"""

from pathlib import Path
from typing import NamedTuple

ROLES = (
    "author of one team",
    "approver",
    "publisher with access to the topic",
    "operator",
    "another local user",
    "sender of events",
    "writer of an input file",
)


class Cell(NamedTuple):
    """One role and one action: the answer, its reason, and the test."""

    answer: str
    reason: str
    test: str


def _cells() -> dict[tuple[str, str], Cell]:
    """Read roles.txt: the cell of each role and action."""
    cells: dict[tuple[str, str], Cell] = {}
    action = ""
    for line in Path(__file__).with_name("roles.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            action = line.strip("[]")
        elif line and not line.startswith("#"):
            role, *values = line.split(" | ")
            cells[role, action] = Cell(*values)
    return cells


CELLS = _cells()
ACTIONS = tuple(dict.fromkeys(action for _, action in CELLS))
_HEAD = """
# Who can do what

Generated from a table that the tests check cell by cell.

The job takes [signed changes](../guides/approve.md) and protects card numbers with [`pan`](../guides/card-data.md).
*No* means that cep refuses, ignores or reports the attempt. `SECURITY.md` lists the limits of these promises.
"""


def page() -> str:
    lines = [_HEAD.strip()]
    for action in ACTIONS:
        lines += ["", f"## To {action}", "", "| role | answer | because |", "| --- | --- | --- |"]
        lines += [f"| {role} | {CELLS[role, action].answer} | {CELLS[role, action].reason} |" for role in ROLES]
    return "\n".join(lines) + "\n"
