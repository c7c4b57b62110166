"""Rates of the project's English: `python -m tests.tidy.english [FOLDER …]` lists passages to rewrite, and a table.

Rates are per 10 000 words of docstrings, comments and pages; `names` is per 1 000 bindings. Good Python projects have
rates near the aims. A single use is never wrong: only the rate counts. A sentence has at most 40 words, a paragraph of
a page 80.
"""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.tidy.source import ROOT, Source, sources

WORDS_MAX = 40
PARAGRAPH_WORDS_MAX = 80
# Kind → the pattern that counts, and the aim: the rate that well-written projects stay below.
RATES = {
    "what": (r"\bwhat\b(?![^.]*\?)", 8),
    "those of": (r"\b(?:those|that) (?:of|which|who|whose)\b|\bthose that\b", 2),
    "is no": (r"\b(?:is|are|was|were|be|has|have|had) (?:no|none|nothing)\b", 10),
    "whoever": (r"\b(?:whoever|whatever|whichever|nobody|anybody|somebody|else)\b", 8),
    "beside": (r"\b(?:beside|behind|anew|meanwhile|thereof|thereby|hence|thus|nor|neither)\b", 6),
    "opens": (r"(?:^|(?<=[.!?:;] ))(?:Of|Behind|Beside|Else|Nor|Past|By|So|But|And|Also|Only|Then|There)\b", 10),
}
NAMES_AIM = 3
# Names that do not describe their values.
EMPTY_NAMES = frozenset({
    "at", "of", "given", "wanted", "asked", "left", "found", "held", "kept", "told", "taken", "made", "said", "done",
    "seen", "known", "own", "got", "due", "told_", "those", "that", "what",
})  # fmt: skip
_WORD = re.compile(r"[A-Za-z0-9_'’][\w'’./:-]*")
# A sentence ends where a stop, a colon or a semicolon is followed by a space, and at the end of a paragraph or item.
_END = re.compile(r"(?<=[.!?:;])[)\"'”`*]*\s+")
_CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_ITEM = re.compile(r"^\s*([-*+]|\d+\.)\s+")
_INDENTED = re.compile(r"^ {4,}\S")
_CODE_SPAN = re.compile(r"`[^`\n]*`")


@dataclass
class Findings:
    """Passages to rewrite, and counts over the texts that were read."""

    lines: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, place: str, text: str) -> None:
        self.counts[kind] += 1
        self.lines.append(f"{place} {kind}: {text}")

    def join(self, other: Findings) -> None:
        self.lines += other.lines
        self.counts.update(other.counts)


def sentences(text: str) -> Iterator[str]:
    """Cut prose into sentences. Code, tables, drawings and headings are left out."""
    for paragraph in paragraphs(text):
        for sentence in _END.split(paragraph):
            if len(_WORD.findall(sentence)) > 1:
                yield sentence.strip()


def paragraphs(text: str) -> Iterator[str]:
    """Cut a text into paragraphs and items of lists, without code, tables, drawings and headings."""
    lines: list[str] = []
    previous_blank, drawing = True, False
    for line in [*_CODE.sub("\n\n", text).split("\n"), ""]:
        stripped = line.strip()
        is_drawing = bool(re.search(r"[─│┌└▶▼├┬┴┐┘]|-->|──", line)) or stripped.startswith("|")
        drawing = is_drawing or (drawing and previous_blank is False and bool(_INDENTED.match(line)))
        begins = not stripped or bool(_ITEM.match(line)) or is_drawing or stripped.startswith("#")
        if begins and lines:
            yield " ".join(lines)
            lines = []
        code = previous_blank and bool(_INDENTED.match(line))
        if stripped and not (is_drawing or drawing or stripped.startswith("#") or code):
            lines.append(_ITEM.sub("", stripped))
        previous_blank = not stripped


def _check_rates(findings: Findings, place: str, text: str) -> None:
    findings.counts["prose words"] += len(text.split())
    for rate, (pattern, _) in RATES.items():
        flags = re.MULTILINE if rate == "opens" else re.IGNORECASE
        for hit in re.finditer(pattern, text, flags):
            findings.add(rate, place, " ".join(text[max(0, hit.start() - 40) : hit.end() + 60].split()))


def _check_sentences(findings: Findings, place: str, text: str, kind: str) -> None:
    for sentence in sentences(text):
        words = len(_WORD.findall(sentence))
        findings.counts[f"{kind} sentences"] += 1
        findings.counts[f"{kind} words"] += words
        if words > WORDS_MAX:
            findings.add(f"{kind} over {WORDS_MAX} words", place, f"({words}) {sentence[:110]}…")


@cache
def bound_names(source: Source) -> tuple[tuple[int, str], ...]:
    """Return every name that the file binds, with its line."""
    return tuple(_names_bound_in(source.parse()))


def _names_bound_in(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name


def _comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield blocks of consecutive comment lines, each as one text."""
    block: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT or re.match(r"#\s*(fmt|type|noqa|-)", token.string):
            continue
        line = token.start[0]
        if block and line != last + 1:
            yield first, "\n".join(block)
            block = []
        if not block:
            first = line
        block.append(token.string.lstrip("# "))
        last = line
    if block:
        yield first, "\n".join(block)


def check_source(source: Source) -> Findings:
    """Check docstrings, comments and names of one Python file."""
    findings, tree = Findings(), source.parse()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring is None:
                continue
            place = f"{source.name}:{getattr(node, 'lineno', 1)}"
            findings.counts["docstrings"] += 1
            _check_rates(findings, place, docstring)
            _check_sentences(findings, place, docstring.split("Tested by:")[0], "code")
    for line, comment in _comments(source.text):
        _check_rates(findings, f"{source.name}:{line}", comment)
        _check_sentences(findings, f"{source.name}:{line}", comment, "code")
    for line, name in bound_names(source):
        findings.counts["bindings"] += 1
        if name in EMPTY_NAMES:
            findings.add("names", f"{source.name}:{line}", name)
    return findings


def check_page(path: Path, root: Path = ROOT) -> Findings:
    findings, place, text = Findings(), str(path.relative_to(root)), path.read_text(encoding="utf-8")
    _check_rates(findings, place, _CODE_SPAN.sub("code", _CODE.sub("", text)))
    _check_sentences(findings, place, text, "page")
    for paragraph in paragraphs(text):
        if (words := len(paragraph.split())) > PARAGRAPH_WORDS_MAX:
            findings.add(f"paragraph over {PARAGRAPH_WORDS_MAX} words", place, f"({words}) {paragraph[:80]}…")
    return findings


def check_folder(folder: str) -> Findings:
    """Check all Python files and pages below a folder of the project."""
    findings = Findings()
    for source in sources(folder) if any((ROOT / folder).rglob("*.py")) else ():
        findings.join(check_source(source))
    for path in sorted((ROOT / folder).rglob("*.md")):
        findings.join(check_page(path))
    return findings


def not_imperative(folder: str) -> list[str]:
    """Return the functions below the folder whose docstring does not begin with a verb, by the linter's rule D401."""
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--select",
        "D401",
        "--output-format",
        "json",
        folder,
    ]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return [
        f"{Path(finding['filename']).relative_to(ROOT)}:{finding['location']['row']} no imperative: "
        + finding["message"].split(": ", 1)[-1]
        for finding in json.loads(printed)
    ]


def rates(counts: Counter[str]) -> dict[str, float]:
    """Return the rate of each kind: per 10 000 words, and of empty names per 1 000 bindings."""
    words, bindings = max(1, counts["prose words"]), max(1, counts["bindings"])
    return {**{kind: 10_000 * counts[kind] / words for kind in RATES}, "names": 1_000 * counts["names"] / bindings}


def excess(counts: Counter[str], times: float, times_names: float) -> dict[str, float]:
    """Return the rates above a multiple of the aims. A folder of few words may have two of each kind."""
    limits = {**{kind: times * aim for kind, (_, aim) in RATES.items()}, "names": times_names * NAMES_AIM}
    return {kind: rate for kind, rate in rates(counts).items() if rate > limits[kind] and counts[kind] > 2}


COLUMNS = (
    f"code over {WORDS_MAX} words",
    f"page over {WORDS_MAX} words",
    f"paragraph over {PARAGRAPH_WORDS_MAX} words",
)


def main(folders: list[str]) -> int:
    """List the passages of the folders, or print the table of all packages."""
    for folder in folders:
        for line in [*check_folder(folder.rstrip("/")).lines, *not_imperative(folder)]:
            print(line)
    rooms = folders or sorted(f"cep/{path.name}" for path in (ROOT / "cep").iterdir() if path.is_dir())
    print("\n" + " | ".join(["folder", "words", *RATES, "names", *COLUMNS, "words a sentence (code, page)"]))
    for room in (room for room in rooms if "__pycache__" not in room):
        counts = check_folder(room.rstrip("/")).counts
        means = [counts[f"{kind} words"] / max(1, counts[f"{kind} sentences"]) for kind in ("code", "page")]
        cells = [
            room, str(counts["prose words"]), *(f"{rate:.1f}" for rate in rates(counts).values()),
            *(str(counts[name]) for name in COLUMNS), f"{means[0]:.1f}, {means[1]:.1f}",
        ]  # fmt: skip
        print(" | ".join(cells))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
