"""Kernels take few arguments, all typed: values that belong together are a record (cep/kernels/records.py)."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from inspect import getdoc, getmembers, isclass

import pytest

from cep.kernels import records
from tests.tidy.source import ROOT, Source, sources
from tests.tidy.test_tidy import functions

PARAMETERS_MAX = 8
DECORATORS = ("kernel", "bare", "inlined")
# Folders that ruff allows more: `"cep/kernels/…/**" = ["PLR0913", …]` in pyproject.toml. The list should be empty.
LINT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]["lint"]
PENDING = tuple(path.removesuffix("**") for path, rules in LINT["per-file-ignores"].items() if "PLR0913" in rules)
RECORDS = [value for _, value in getmembers(records, isclass) if value.__module__ == records.__name__]


def kernels(source: Source) -> Iterator[ast.FunctionDef]:
    for function in functions(source.parse()):
        named = {decorator.id for decorator in function.decorator_list if isinstance(decorator, ast.Name)}
        if named & set(DECORATORS):
            assert isinstance(function, ast.FunctionDef)
            yield function


def faults(function: ast.FunctionDef) -> Iterator[str]:
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    if len(arguments) > PARAMETERS_MAX:
        yield f"{function.name} takes {len(arguments)} arguments, the cap is {PARAMETERS_MAX}: make a record"
    hints = {argument.arg: argument.annotation for argument in arguments} | {"return": function.returns}
    for name, hint in hints.items():
        if hint is None or "Any" in {node.id for node in ast.walk(hint) if isinstance(node, ast.Name)}:
            yield f"{function.name} does not say what `{name}` is"


FILES = [source for source in sources("cep/kernels") if not source.name.startswith(PENDING or ("-",))]


@pytest.mark.parametrize("source", FILES, ids=lambda source: source.name)
def test_a_kernel_takes_few_arguments_and_says_what_they_are(source: Source) -> None:
    assert [fault for function in kernels(source) for fault in faults(function)] == []


def test_kernels_are_recognised() -> None:
    assert sum(len(list(kernels(source))) for source in FILES) > 100
    text = "@bare\ndef f(a: int, b: Any, c, d: int, e: int, f: int, g: int, h: int, i: int): ..."
    (many,) = kernels(Source("x.py", text))
    assert len(list(faults(many))) == 4


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_a_record_describes_each_of_its_arrays(record: type) -> None:
    text = getdoc(record)
    assert text is not None
    assert [name for name in record._fields if name not in text] == []  # type: ignore[attr-defined]
