"""Golden files: `diagnostics/*.cep` give exactly the report beside them, `ir/*.cep` the dump.

`pytest tests/lang/test_golden.py` with the environment variable UPDATE_GOLDEN=1 writes them anew: read the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cep.lang.catalogue import CATALOGUE
from cep.lang.dump import dump_pattern
from cep.lang.load import Checked, load_text, resolve_path
from cep.lang.render import render_text

GOLDEN = Path(__file__).parent / "golden"
DIAGNOSTICS = sorted((GOLDEN / "diagnostics").glob("CEP*.cep"))
LINTS = sorted((GOLDEN / "lints").glob("CEP*.cep"))  # test_lint.py compares them
IR = sorted((GOLDEN / "ir").glob("*.cep"))
# Given for a file as a whole or for the arguments of a rule; test_load.py, test_bind.py and test_plan.py show them.
WITHOUT_FILE = {"CEP110", "CEP502", "CEP503", "CEP504", "CEP706"}


def load(path: Path) -> Checked:
    """Check a golden file under its bare name, so that the report is the same in every folder."""

    def resolver(importing: str, written: str) -> tuple[str, str] | str:
        found = resolve_path(str(path.parent / importing), written)
        if isinstance(found, str):
            return found
        return str(Path(found[0]).resolve().relative_to(path.parent.resolve())), found[1]

    return load_text(path.read_text(encoding="utf-8"), path.name, resolver)


def compare(path: Path, text: str) -> None:
    expected = path.with_suffix(".out")
    if os.environ.get("UPDATE_GOLDEN"):
        expected.write_text(text, encoding="utf-8")
    assert text == expected.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", DIAGNOSTICS, ids=lambda p: p.stem)
def test_diagnostics(path: Path) -> None:
    checked = load(path)
    code = path.name.partition("_")[0]
    assert {d.code for d in checked.diagnostics} == {code}
    compare(path, render_text(checked.diagnostics, checked.sources))


@pytest.mark.parametrize("path", IR, ids=lambda p: p.stem)
def test_ir(path: Path) -> None:
    checked = load(path)
    assert checked.ok, render_text(checked.diagnostics, checked.sources)
    compare(path, "\n".join(dump_pattern(p) for p in checked.patterns.values()))


def test_every_code_has_a_file() -> None:
    shown = {path.name.partition("_")[0] for path in (*DIAGNOSTICS, *LINTS)}
    assert set(CATALOGUE) - shown == WITHOUT_FILE
    assert shown <= set(CATALOGUE)
