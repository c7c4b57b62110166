"""Imports go downwards only, and each outside package has its place."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import pytest

from tests.tidy.source import Source, sources, statements

# Packages of one floor may not import each other.
FLOORS = {
    "cli": 12,
    "api": 11,
    "demo": 11,
    "analysis": 10,
    "runners": 9,
    "testing": 9,
    "report": 9,
    "step": 8,
    "rulebook": 7,
    "state": 7,
    "sources": 7,
    "sinks": 7,
    "engine": 6,
    "histories": 5,
    "functions": 4,
    "nfa": 3,
    "lang": 2,
    "columnar": 2,
    "lists": 2,
    "model": 1,
    "kernels": 1,
    "base": 0,
}
# Rooms of runners without a chain of imports between them: shared values go through the handover.
APART = {("cep.runners.spark", "cep.runners.embedded"), ("cep.runners.embedded", "cep.runners.spark")}
# Rooms with a door: from outside, only these modules of theirs may be imported.
DOORS = {"histories": frozenset({"values", "store", "pages"})}
# The only function-local imports of our own package. The CLI and the library start without Spark. The planner of a read
# of topics starts without the decoder of events: Spark asks it in its own processes, one after the other.
LOCAL_IMPORTS = (
    (("cep.cli", "cep.api"), "cep.runners.spark"),
    (("cep.runners.spark.kafka",), "cep.runners.spark.kafka_events"),
    (("cep.cli.lsp",), "cep.testing.harness"),  # an editor loads the engine with its first test run
)


@dataclass(frozen=True)
class Import:
    module: str
    line: int
    is_local: bool


@cache
def imports(source: Source) -> tuple[Import, ...]:
    """Return every module that the file names in an import, `from a import b` as `a.b` (b may be a module)."""
    return tuple(_imports_of(source))


def _imports_of(source: Source) -> Iterator[Import]:
    tree = source.parse()
    local = {
        inner
        for node in statements(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in statements(node)
    }
    for node in statements(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, node in local)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source.name}:{node.lineno} write the whole name of the module"
            for alias in node.names:
                yield Import(f"{node.module}.{alias.name}", node.lineno, node in local)


def package(module: str) -> str:
    """Return `nfa` for cep.nfa.program, and an empty text for cep itself and its __version__."""
    return module.split(".")[1].removeprefix("__version__") if "." in module else ""


def violations(source: Source) -> Iterator[str]:
    own_package = package(source.module)
    for imported in imports(source):
        place = f"{source.name}:{imported.line}"
        if imported.module.startswith("cep."):
            other = package(imported.module)
            if own_package and other and other != own_package and FLOORS[other] >= FLOORS[own_package]:
                yield f"{place} {own_package} (floor {FLOORS[own_package]}) imports {other} (floor {FLOORS[other]})"
            if other != own_package and not is_at_door(imported.module, other):
                yield f"{place} {other} is entered by {', '.join(sorted(DOORS[other]))} only"
            allowed = any(
                source.module.startswith(here) and imported.module.startswith(target) for here, target in LOCAL_IMPORTS
            )
            if imported.is_local and not allowed:
                yield f"{place} imports {imported.module} inside a function"
        yield from (f"{place} {reason}" for reason in misplaced(source, own_package, imported.module.split(".")[0]))


def imported_modules(files: Iterable[Source]) -> dict[str, set[str]]:
    """Return the modules among these files that each of them imports, without itself."""
    files = list(files)
    modules = {source.module for source in files}
    return {
        source.module: {
            module for imported in imports(source) for module in packages_of(imported.module) if module in modules
        }
        - {source.module}
        for source in files
    }


def packages_of(module: str) -> Iterator[str]:
    """Yield the module and the packages around it, which Python imports too: `a.b.c`, `a.b`.

    `cep` itself is left out, because it gives the whole library and contains every module.
    """
    while "." in module:
        yield module
        module = module.rpartition(".")[0]


def strays(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """Return for each two rooms of APART a shortest chain of imports between them, if one exists."""
    chains = [shortest_chain(graph, here, there) for here, there in sorted(APART)]
    return [" imports ".join(chain) for chain in chains if chain]


def shortest_chain(graph: Mapping[str, Iterable[str]], here: str, there: str) -> tuple[str, ...]:
    """Return the modules of a shortest chain of imports from one room into the other, or an empty tuple."""
    chains: list[tuple[str, ...]] = [(module,) for module in sorted(graph) if is_in(module, here)]
    reached = {chain[0] for chain in chains}
    for chain in chains:  # the list grows during the loop: breadth first
        if is_in(chain[-1], there):
            return chain
        nearer = sorted({*graph.get(chain[-1], ())} - reached)
        reached.update(nearer)
        chains += [(*chain, module) for module in nearer]
    return ()


def is_in(module: str, room: str) -> bool:
    """Return True if the module is the package `room` or in it."""
    return f"{module}.".startswith(f"{room}.")


def is_at_door(module: str, room: str) -> bool:
    """Return True if the room is open, or the module is one of its doors."""
    return room not in DOORS or [*module.split("."), ""][2] in DOORS[room]


def misplaced(source: Source, own_folder: str, outside: str) -> Iterator[str]:
    """Yield the reasons why the outside package may not be imported here."""
    if outside in ("pyspark", "py4j") and not source.name.startswith("cep/runners/spark/"):
        yield "pyspark belongs to cep/runners/spark/"
    if outside == "rocksdict" and source.name != "cep/state/rocks.py":
        yield "rocksdict belongs to cep/state/rocks.py"
    if outside == "psycopg" and source.name != "cep/sinks/postgres.py":
        yield "psycopg belongs to cep/sinks/postgres.py"
    if outside == "deltalake" and source.name != "cep/sinks/lake.py":
        yield "deltalake belongs to cep/sinks/lake.py"
    if outside == "opentelemetry" and source.name != "cep/runners/traces.py":
        yield "opentelemetry belongs to cep/runners/traces.py"
    if outside == "confluent_kafka" and not source.name.endswith("/kafka.py"):
        yield "confluent_kafka belongs to files named kafka.py"
    if outside.startswith("pydantic") and (
        not own_folder or FLOORS[own_folder] < FLOORS["model"] or own_folder == "kernels"
    ):
        yield "pydantic may not be imported below model"
    if outside in ("tests", "demo"):
        yield f"the package may not import {outside}"


def test_imports_go_downwards() -> None:
    assert [line for source in sources("cep") for line in violations(source)] == []


def test_no_runner_reaches_the_other() -> None:
    assert strays(imported_modules(sources("cep"))) == []


@pytest.mark.parametrize("between", [(), ("cep.runners.warm",), ("cep.runners.warm", "cep.runners.ahead")])
@pytest.mark.parametrize(("here", "there"), sorted(APART))
def test_a_chain_from_one_runner_to_the_other_is_seen(here: str, there: str, between: tuple[str, ...]) -> None:
    chain = (f"{here}.x", *between, f"{there}.y")
    texts = [*(f"import {module}\n" for module in chain[1:]), "import cep.base.times\n"]
    files = [Source(f"{name.replace('.', '/')}.py", text) for name, text in zip(chain, texts, strict=True)]
    assert strays(imported_modules(files)) == [" imports ".join(chain)]
    assert strays(imported_modules(files[1:])) == []


def test_every_package_has_a_floor() -> None:
    packages = {package(source.module) for source in sources("cep")} - {""}
    assert packages <= FLOORS.keys()


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("cep/base/x.py", "import cep.lang.ir", "base (floor 0) imports lang (floor 2)"),
        ("cep/sinks/x.py", "from cep.sources import files", "sinks (floor 7) imports sources (floor 7)"),
        ("cep/lang/x.py", "from cep import columnar", "lang (floor 2) imports columnar (floor 2)"),
        (
            "cep/engine/x.py",
            "from cep.histories.table import HistoryTable",
            "entered by pages, store, values only",
        ),
        ("cep/state/x.py", "from cep import histories", "entered by pages"),
        ("cep/engine/x.py", "import pyspark.sql", "pyspark belongs"),
        ("cep/cli/x.py", "def f():\n    import cep.lang.ir", "inside a function"),
        ("cep/runners/spark/x.py", "def f():\n    from cep.runners.spark import y", "inside a function"),
        ("cep/state/memory.py", "import rocksdict", "rocksdict belongs"),
        ("cep/sinks/files.py", "import psycopg", "psycopg belongs"),
        ("cep/sinks/files.py", "import deltalake", "deltalake belongs"),
        ("cep/runners/http.py", "import opentelemetry", "opentelemetry belongs"),
        ("cep/sinks/x.py", "from confluent_kafka import Producer", "confluent_kafka belongs"),
        ("cep/base/x.py", "import pydantic", "pydantic may not"),
        ("cep/kernels/x.py", "from pydantic_core import x", "pydantic may not"),
        ("cep/lang/x.py", "import tests.mock_kafka", "may not import tests"),
    ],
)
def test_a_violation_is_seen(name: str, text: str, reason: str) -> None:
    (violation,) = violations(Source(name, text))
    assert reason in violation


def test_the_cli_may_load_the_spark_runner_when_asked() -> None:
    text = "def f():\n    from cep.runners.spark import replay"
    assert list(violations(Source("cep/cli/x.py", text))) == []
