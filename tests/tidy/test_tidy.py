"""Sizes, docstrings, leftovers, and arguments of kernels: rules that the linter does not check."""

import ast
import re
import tomllib
from collections.abc import Iterator
from inspect import getdoc, getmembers, isclass

import pytest

from cep.kernels import records
from tests.tidy.source import ROOT, Source, module_docstring, sources, statements

# Sizes, docstrings, leftovers: rules that the linter does not check.

FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 70
# Function → the reason for its length.
LONG_FUNCTIONS: dict[str, str] = {}

FOLDERS = ("cep", "demo", "tests")
# Split, so that this file does not match itself.
LEFTOVERS = re.compile(
    r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|NotImplemented" + r"Error)\b|pytest" + r"\.skip\(|mark\.(skip|xfail)\b"
)
BARE_STATE = "say which: nfa_state, keyed_state …"

ALL = [source for folder in FOLDERS if (ROOT / folder).exists() for source in sources(folder)]


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def lines_without_docstring(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert function.end_lineno is not None
    lines_count = function.end_lineno - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is not None:
        assert first.end_lineno is not None
        lines_count -= first.end_lineno - first.lineno + 1
    return lines_count


def state_names(tree: ast.Module) -> Iterator[int]:
    """Yield lines that bind the bare name: `state` can mean keyed state, NFA state and more."""
    for node in ast.walk(tree):
        is_variable = isinstance(node, ast.Name) and node.id == "state" and isinstance(node.ctx, ast.Store)
        is_parameter = isinstance(node, ast.arg) and node.arg == "state"
        if isinstance(node, ast.Name | ast.arg) and (is_variable or is_parameter):
            yield node.lineno


@pytest.mark.parametrize("source", ALL, ids=lambda source: source.name)
def test_a_file_is_tidy(source: Source) -> None:
    faults, tree = [], source.parse()
    lines_count = len(source.text.splitlines())
    if lines_count > FILE_LINES_MAX:
        faults.append(f"{lines_count} lines, the cap is {FILE_LINES_MAX}: cut it where the representation changes")
    for function in functions(tree):
        name = f"{source.name}:{function.name}"
        size = lines_without_docstring(function)
        if size > FUNCTION_LINES_MAX and name not in LONG_FUNCTIONS:
            faults.append(f"{name} has {size} lines, the cap is {FUNCTION_LINES_MAX}")
    if source.name != "tests/tidy/test_tidy.py":
        for number, line in enumerate(source.text.splitlines(), start=1):
            if LEFTOVERS.search(line):
                faults.append(f"{source.name}:{number} unfinished: {line.strip()}")
    if source.name.startswith("cep/"):
        faults.extend(f"{source.name}:{line} bare `state`: {BARE_STATE}" for line in state_names(tree))
    assert faults == []


def test_exceptions_are_still_needed() -> None:
    named = {name.split(":")[0] for name in LONG_FUNCTIONS}
    long = [source for source in ALL if source.name in named]
    sizes = {f"{s.name}:{f.name}": lines_without_docstring(f) for s in long for f in functions(s.parse())}
    for name, reason in LONG_FUNCTIONS.items():
        assert reason
        assert sizes.get(name, 0) > FUNCTION_LINES_MAX, f"{name} is short enough now, or gone"


def test_a_module_says_who_tests_it_and_that_exists() -> None:
    faults = []
    for source in sources("cep"):
        if source.name.endswith("__init__.py"):
            continue
        docstring = module_docstring(source)
        if "Tested by:" not in docstring:
            faults.append(f"{source.name} does not say `Tested by:`")
            continue
        paths = re.findall(r"tests/[\w/.]+\w", docstring.split("Tested by:")[1])
        faults.extend(f"{source.name} names {path}, which is not there" for path in paths if not (ROOT / path).exists())
    assert faults == []


def test_the_files_that_a_module_names_are_there() -> None:
    """A docstring names the files to read next, as comments of the package do. They may leave out folders in front."""
    there = {f"/{name}" for name in (*[source.name for source in ALL], *[path.name for path in ROOT.glob("*.py")])}
    lost = [
        f"{source.name}: {named}"
        for source in ALL
        for named in re.findall(
            r"[\w/]*\w\.py\b", source.text if source.name.startswith("cep/") else module_docstring(source)
        )
        if not any(path.endswith(f"/{named}") for path in there)
    ]
    assert lost == []


# A module that opens files for writing itself → the reason for not using `replace_file`.
WRITERS = {
    "cep/base/files.py": "it is the one writer",
    "cep/base/signing.py": "a private key goes into a new file only, which its owner alone can read",
    "cep/cli/erase.py": "it copies into a scratch folder, and appends lines to the audit of a stopped job",
    "cep/cli/fmt.py": "a new pattern file must not exist yet",
    "cep/kernels/compiler.py": "the file is a lock",
    "cep/runners/embedded/opening.py": "it fills a folder that is renamed as a whole",
    "cep/runners/embedded/savepoint.py": "it fills a folder that is renamed as a whole",
    "cep/runners/live_checkpoint.py": "it opens a file of a lock",
    "cep/runners/spark/session.py": "it opens a pipe",
    "cep/state/checkpoints.py": "it fills a folder that is renamed as a whole",
    "cep/state/savepoints.py": "it fills a folder that is renamed as a whole",
    "cep/state/rocks.py": "it keeps a log open",
    "cep/state/target.py": "it links the new name, so that a name that is taken is refused",
}
_WRITING = re.compile(r"\.write_(?:text|bytes)\(|open\([^()]*\"[wxa]b?\+?\"|O_CREAT\b")


def test_files_are_written_in_one_place() -> None:
    """Another way to write could follow a link that an attacker has put into a repository of rules."""
    writers = {source.name for source in sources("cep") if _WRITING.search(source.text)}
    assert sorted(writers) == sorted(WRITERS)


def test_texts_are_printed_in_one_way() -> None:
    """A console of rich, unlike ours, would let escape sequences of values through."""
    makers = {source.name for source in sources("cep") if re.search(r"\bConsole\(", source.text)}
    assert makers == set()


def test_no_path_of_a_developers_machine() -> None:
    # Tests and tools find files from the root of the repository; an absolute path works on one machine only.
    pattern = re.compile(r"/(home|Users|work|root)/\w+")
    assert [source.name for source in ALL if pattern.search(source.text)] == []


# Kernels take few arguments, all typed: values that belong together are a record (cep/kernels/records.py).

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
