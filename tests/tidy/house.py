"""The house in figures: `python -m tests.tidy.house [FOLDER OF ANOTHER BUILD …]` prints one table, a column a build.

Lines and files by room, parameters of kernels, pairs of files that repeat code, words a sentence, sentences over 30
words. It also counts hops: how many of our modules an event passes on its way from a file to the files of alerts, and a
pattern from its text to the matcher; how many of our functions lie on the stack at the deepest place. Both are measured
by `cep replay` and `cep check` in their own process, with the kernels uncompiled.
"""

import ast
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from statistics import median

from tests.rule_files import rule_text
from tests.tidy import english
from tests.tidy.source import ROOT, Source

REPEATED_LINES = 6
PLACES_MAX = 8  # a line in more places than these is a phrase of the language
_THIN = re.compile(r"[\W_]*|(from|import) .*|#.*")
_PATTERN = """event e { id_of id  event_time time  k string  n int }
pattern p by k { seq a -> b within 1 h where a: e n == 1  b: e n == 2 }
"""
_EVENTS = "".join(f'{{"id_of": "{n}", "event_time": "2026-03-01T10:0{n}:00Z", "k": "c", "n": {n}}}\n' for n in (1, 2))
# Lists calls of functions in our modules, without imports.
_TRACED = """
import json, os, sys, threading
ours, modules, deepest = os.path.join(sys.argv[1], "cep") + os.sep, set(), 0
def look(frame, event, argument):
    global deepest
    code = frame.f_code
    if event != "call" or not code.co_filename.startswith(ours) or code.co_name == "<module>":
        return
    modules.add(code.co_filename[len(ours):])
    depth, above = 1, frame.f_back
    while above is not None:
        depth += above.f_code.co_filename.startswith(ours) and above.f_code.co_name != "<module>"
        above = above.f_back
    deepest = max(deepest, depth)
from cep.cli.main import main
threading.setprofile(look)
sys.setprofile(look)
try:
    code = main(sys.argv[3:])
except SystemExit as end:
    code = end.code
sys.setprofile(None)
with open(sys.argv[2], "w") as file:
    json.dump([code, len(modules), deepest], file)
"""


def rooms(build: Path) -> dict[str, tuple[int, int]]:
    """Return the files and lines of each room, and of all together."""
    counted: dict[str, tuple[int, int]] = {}
    for source in python_files(build):
        room = source.name.split("/")[1] if source.name.count("/") > 1 else "(top)"
        for name in (f"lines (files) of {room}", "lines (files)"):
            files, lines = counted.get(name, (0, 0))
            counted[name] = files + 1, lines + len(source.text.splitlines())
    return counted


def python_files(build: Path) -> list[Source]:
    return [
        Source(str(path.relative_to(build)), path.read_text(encoding="utf-8"))
        for path in sorted((build / "cep").rglob("*.py"))
    ]


def kernel_parameters(build: Path) -> list[int]:
    """Return how many parameters each kernel takes: each function that a decorator of `kernels/jit.py` compiles."""
    return [
        len(node.args.args)
        for source in python_files(build)
        if source.name.startswith("cep/kernels/")
        for node in ast.walk(source.parse())
        if isinstance(node, ast.FunctionDef)
        and {d.id for d in node.decorator_list if isinstance(d, ast.Name)} & {"kernel", "bare", "inlined", "copied"}
    ]


def repeated_pairs(build: Path) -> int:
    """Return how many pairs of files share six lines; blank lines, comments, imports and punctuation do not count."""
    places: dict[bytes, set[str]] = defaultdict(set)
    for source in python_files(build):
        lines = [line.strip() for line in source.text.splitlines() if not _THIN.fullmatch(line.strip())]
        for start in range(len(lines) - REPEATED_LINES + 1):
            run = "\n".join(lines[start : start + REPEATED_LINES])
            places[hashlib.sha256(run.encode()).digest()].add(source.name)
    pairs = (combinations(sorted(names), 2) for names in places.values() if 1 < len(names) <= PLACES_MAX)
    return len({pair for some in pairs for pair in some})


def sentences(build: Path) -> Iterator[tuple[str, str]]:
    """Yield measures of the English of code and pages."""
    findings = english.Findings()
    for source in python_files(build):
        findings.join(english.check_source(source))
    for path in sorted([*(build / "cep").rglob("*.md"), build / "README.md"]):
        findings.join(english.check_page(path, build))
    for kind in ("code", "page"):
        count = findings.counts[f"{kind} sentences"]
        yield f"words a sentence, {kind}", f"{findings.counts[f'{kind} words'] / max(1, count):.1f} ({count} sentences)"
        yield (
            f"sentences over {english.WORDS_MAX} words, {kind}",
            str(findings.counts[f"{kind} over {english.WORDS_MAX} words"]),
        )


def hops(build: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the modules and the depth of the stack of an event and of a pattern."""
    (folder / "rules").mkdir()
    (folder / "p.cep").write_text(_PATTERN)
    (folder / "rules" / "p.toml").write_text(rule_text(file="../p.cep"))
    (folder / "events.jsonl").write_text(_EVENTS)
    replay = ("replay", "--engine", "embedded", "--rules", "rules", "--events", "events.jsonl", "--out", "alerts.jsonl")
    for name, words in (("an event", replay), ("a pattern", ("check", "p.cep"))):
        code, modules, deepest = _traced(build, folder, words)
        yield f"hops of {name}", f"{modules} modules, {deepest} functions deep" if code in (0, None) else f"exit {code}"


def _traced(build: Path, folder: Path, words: tuple[str, ...]) -> tuple[int, int, int]:
    answer = folder / "answer.json"
    environment = {**os.environ, "PYTHONPATH": str(build), "NUMBA_DISABLE_JIT": "1"}
    command = [sys.executable, "-c", _TRACED, str(build), str(answer), *words]
    process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if not answer.exists():
        sys.exit(process.stderr)
    code, modules, deepest = json.loads(answer.read_text())
    return code, modules, deepest


def figures(build: Path) -> dict[str, str]:
    values = {name: f"{lines} ({files})" for name, (files, lines) in rooms(build).items()}
    parameters = kernel_parameters(build)
    values["parameters of a kernel, most"] = (
        f"{max(parameters)} of {len(parameters)} kernels, median {median(parameters):.0f}"
    )
    values["pairs of files that repeat six lines"] = str(repeated_pairs(build))
    values |= dict(sentences(build))
    with tempfile.TemporaryDirectory() as folder:
        values |= dict(hops(build, Path(folder)))
    return values


def main(others: list[str]) -> int:
    """Print the table, this build in the last column."""
    columns = [figures(Path(build).resolve()) for build in (*others, str(ROOT))]
    print(" | ".join(["figure", *others, "this build"]))
    for name in sorted(dict.fromkeys(name for column in columns for name in column)):
        print(" | ".join([name, *(column.get(name, "–") for column in columns)]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
