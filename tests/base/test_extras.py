"""The features of a bare installation, and its messages about the others."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from cep.base.extras import EXTRAS, missing_extra

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Hides every package of an extra, as if cep had been installed without any.
_BARE = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {hidden}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
sys.meta_path.insert(0, Hidden())
from cep.cli.main import main
"""


def run_bare(code: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a program in which no extra is installed."""
    script = _BARE.replace("{hidden}", repr(set(EXTRAS))) + code
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)


def test_a_bare_installation_matches_and_says_what_it_lacks() -> None:
    process = run_bare(
        "import importlib\n"
        "for verb in ('check', 'test', 'lint', 'fmt', 'plan', 'new', 'explain', 'docs', 'rules', 'replay', 'diff',\n"
        "             'backtest', 'report', 'tune', 'prune', 'features', 'why'):\n"
        "    importlib.import_module('cep.cli.' + verb)\n"
        "import cep, pyarrow as pa\n"
        "rules = cep.parse('event e { i id  event_time time  k string  n int }  '\n"
        "                  'pattern p by k { seq a  where a: e n > 0 }')\n"
        "table = pa.table({'i': ['1'], 'event_time': pa.array([0], pa.timestamp('ms', 'UTC')), 'k': ['a'], 'n': [1]})\n"
        "print(len(rules.match(table, cores=1)))\n"
        "print(main(['run', '--help']), main(['live', '--help']), main(['lsp']))\n"
    )
    assert process.stdout.splitlines() == ["1", "2 2 2"], process.stderr
    assert "pip install 'cep[kafka]'" in process.stderr
    assert "pip install 'cep[editor]'" in process.stderr


@pytest.mark.parametrize("extra", sorted(set(EXTRAS.values())))
def test_each_extra_is_one_of_the_project_and_of_all(extra: str) -> None:
    assert extra in PROJECT["optional-dependencies"]
    (everything,) = PROJECT["optional-dependencies"]["all"]
    assert extra in everything.removeprefix("cep[").removesuffix("]").split(",")


def test_a_package_of_no_extra_is_a_bug() -> None:
    assert missing_extra(ModuleNotFoundError("No module named 'nonsense'", name="nonsense")) is None
    assert missing_extra(ModuleNotFoundError("nothing")) is None
    error = missing_extra(ModuleNotFoundError("No module named 'pyspark.sql'", name="pyspark.sql"))
    assert error is not None
    assert "cep[spark]" in str(error)


def test_the_project_has_ranges_and_the_lock_has_versions() -> None:
    """A user's other packages decide within a range; the tests run with the pinned versions."""
    extras = PROJECT["optional-dependencies"]
    of_users = [*PROJECT["dependencies"], *(line for name in set(EXTRAS.values()) for line in extras[name])]
    assert [line for line in of_users if "==" in line or ">=" not in line] == []
    pins = dict(re.findall(r"^([\w.-]+)(?:\[.*\])?==([\w.+-]+)", (ROOT / "lock.txt").read_text(), re.MULTILINE))
    pinned = {name.lower().replace("_", "-"): version for name, version in pins.items()}
    for line in of_users:
        name, lowest = re.findall(r"^([\w.-]+)(?:\[.*\])?>=([\w.]+)", line)[0]
        assert _order(lowest) <= _order(pinned[name.lower().replace("_", "-")]), line


def _order(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]
