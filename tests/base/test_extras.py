"""The features of a bare installation, its messages about the others, and the lowest versions of packages."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from cep.base.process import EXTRAS, missing_extra

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
        "from cep.cli.verbs import TOP\n"
        "verbs = {**TOP.entries()['rules'].entries(), **TOP.entries()}\n"
        "for name in ('check', 'test', 'lint', 'fmt', 'plan', 'new', 'explain', 'docs', 'list', 'replay', 'diff',\n"
        "             'backtest', 'report', 'tune', 'prune', 'features', 'why'):\n"
        "    assert verbs[name].part('run')\n"
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


ALSO = ("vl-convert-python", "pandas", "pyspark", "confluent-kafka", "psycopg")  # of extras, needed by tests of frames
TOOLS = ("pytest", "pytest-xdist", "hypothesis", "polars", "duckdb")
TESTED = ("tests/api", "tests/corpus")
WAIT_S = 1_800.0


def lowest() -> list[str]:
    """Return each package at the lowest version of its range, or at the last version that corrects it.

    The tools of the tests keep their pinned versions.
    """
    extras = PROJECT["optional-dependencies"]
    ranges = [*PROJECT["dependencies"], *(line for lines in extras.values() for line in lines if _name(line) in ALSO)]
    packages = [re.sub(r">=([\d.]+)(?=,|$).*", r"==\1.*", line) for line in ranges]
    packages = [re.sub(r">=(.*)", r"==\1", line) for line in packages]  # a version that is not a series
    return packages + [line for line in extras["dev"] if _name(line) in TOOLS]


def _name(line: str) -> str:
    return re.split(r"[=>\[]", line)[0]


def test_the_lowest_versions_are_read() -> None:
    assert "numpy==2.0.*" in lowest()
    assert {*TOOLS, *ALSO} <= {_name(line) for line in lowest()}
    assert [line for line in lowest() if not re.fullmatch(r"[\w.\[\]-]+==[\w.]+(\.\*)?", line)] == []


@pytest.mark.slow
def test_frames_are_matched_with_the_lowest_versions(tmp_path: Path) -> None:
    """Frames whose texts are of type `string_view` are left out: with that pyarrow, polars and DuckDB crash on them."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True, timeout=WAIT_S)
    python = str(tmp_path / "venv" / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *lowest()]
    subprocess.run(pip, check=True, timeout=WAIT_S)
    words = [python, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "-m", "not spark and not slow", *TESTED]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    process = subprocess.run(
        [*words, "-k", "not string_view"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
        timeout=WAIT_S,
    )  # fmt: skip
    assert process.returncode == 0, process.stdout[-5000:] + process.stderr[-2000:]
