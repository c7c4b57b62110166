"""The project's English, measured: `python -m tests.tidy.english [FOLDER …]` lists what to mend and prints a table.

A docstring begins with a verb or a noun phrase, never with a word of `BAD_STARTS`. A sentence of a docstring, a comment
or a page has at most 40 words, a paragraph of a page 80. Names say what a value is: `found` and `kept_rows` do not.
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
BAD_STARTS = ("What", "Whether", "Of", "Which", "How", "As", "For", "All", "Where", "Why")
BAD_NAMES = frozenset({
    "found", "kept", "held", "own", "told", "known", "letters", "fit", "take_in", "on_time", "keep",
    "Held", "Kept", "Asked", "Known", "Told", "Found",
})  # fmt: skip
# Nor does a name with one of these words in it; `dead_letters` does.
BAD_PARTS = frozenset({"found", "kept", "held", "own", "told", "known", "letters", "fit"})
# Name with such a word → why it stays.
TERMS = {
    "KnownSubKeys": "a term of the glossary",
    "by_known_sub_keys": "a term of the glossary",
    "known_sub_keys": "a term of the glossary",
    "known_values": "known sub-keys of any type",
    "held_out_days": "statistics says held-out data",
    "held_out_frauds": "statistics says held-out data",
    "kept_count": "the setting `kept` of `cep run`; `Difference.kept_count` in Python",
    "money_found": "a figure's name in Python and in JSON",
    "OWN": "arguments of the function itself, beside those that it passes on",
}
_WORD = re.compile(r"[A-Za-z0-9_'’][\w'’./:-]*")
# A sentence ends where a stop, a colon or a semicolon is followed by a space, and at the end of a paragraph or item.
_END = re.compile(r"(?<=[.!?:;])[)\"'”`*]*\s+")
_CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_ITEM = re.compile(r"^\s*([-*+]|\d+\.)\s+")
_INDENTED = re.compile(r"^ {4,}\S")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


@dataclass
class Findings:
    """Lines to mend, and counts over the texts that were read."""

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


def _check_sentences(findings: Findings, place: str, text: str, kind: str) -> None:
    for sentence in sentences(text):
        words = len(_WORD.findall(sentence))
        findings.counts[f"{kind} sentences"] += 1
        findings.counts[f"{kind} words"] += words
        if words > WORDS_MAX:
            findings.add(f"{kind} over {WORDS_MAX} words", place, f"({words}) {sentence[:110]}…")


def parts_of(name: str) -> list[str]:
    """Return the words of a name in lower case. Single letters are left out."""
    return [part.lower() for part in _PART.findall(name) if len(part) > 1]


def is_plain_name(name: str) -> bool:
    """Return True if the name, or a word in it, is none of those that say nothing of the value."""
    bare = name.lstrip("_")
    words = set(parts_of(re.sub("dead_?letters", "", name, flags=re.IGNORECASE)))
    return bare not in BAD_NAMES and (bare in TERMS or not words & BAD_PARTS)


@cache
def bound_names(source: Source) -> tuple[tuple[int, str], ...]:
    """Every name that the file binds, with its line."""
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
    """Blocks of comment lines that follow each other, as one text each."""
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
    """Docstrings, comments and names of one Python file."""
    findings, tree = Findings(), source.parse()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring is None:
                continue
            place = f"{source.name}:{getattr(node, 'lineno', 1)}"
            findings.counts["docstrings"] += 1
            if docstring.split()[0].rstrip(":,") in BAD_STARTS:
                findings.add("docstring start", place, docstring.split("\n")[0])
            _check_sentences(findings, place, docstring.split("Tested by:")[0], "code")
    for line, comment in _comments(source.text):
        _check_sentences(findings, f"{source.name}:{line}", comment, "code")
    for line, name in bound_names(source):
        if not is_plain_name(name):
            findings.add("name", f"{source.name}:{line}", name)
    return findings


def check_page(path: Path, root: Path = ROOT) -> Findings:
    """The sentences and paragraphs of one page."""
    findings, place, text = Findings(), str(path.relative_to(root)), path.read_text(encoding="utf-8")
    _check_sentences(findings, place, text, "page")
    for paragraph in paragraphs(text):
        if (words := len(paragraph.split())) > PARAGRAPH_WORDS_MAX:
            findings.add(f"paragraph over {PARAGRAPH_WORDS_MAX} words", place, f"({words}) {paragraph[:80]}…")
    return findings


def check_folder(folder: str) -> Findings:
    """All Python files and pages below a folder of the project."""
    findings = Findings()
    for source in sources(folder) if any((ROOT / folder).rglob("*.py")) else ():
        findings.join(check_source(source))
    for path in sorted((ROOT / folder).rglob("*.md")):
        findings.join(check_page(path))
    return findings


def not_imperative(folder: str) -> list[str]:
    """Functions below the folder whose docstring does not begin with a verb, by the linter's rule D401."""
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


COLUMNS = ("docstrings", "docstring start", "name", "code sentences", f"code over {WORDS_MAX} words", "page sentences",
           f"page over {WORDS_MAX} words", f"paragraph over {PARAGRAPH_WORDS_MAX} words")  # fmt: skip


def main(folders: list[str]) -> int:
    """List what to mend below the folders, or print the table of all rooms."""
    for folder in folders:
        for line in [*check_folder(folder.rstrip("/")).lines, *not_imperative(folder)]:
            print(line)
    rooms = folders or sorted(f"cep/{path.name}" for path in (ROOT / "cep").iterdir() if path.is_dir())
    print("\n" + " | ".join(["room", *COLUMNS, "no imperative", "words a sentence (code, page)"]))
    for room in (room for room in rooms if "__pycache__" not in room):
        counts = check_folder(room.rstrip("/")).counts
        means = [counts[f"{kind} words"] / max(1, counts[f"{kind} sentences"]) for kind in ("code", "page")]
        print(
            " | ".join(
                [
                    room,
                    *(str(counts[name]) for name in COLUMNS),
                    str(len(not_imperative(room))),
                    f"{means[0]:.1f}, {means[1]:.1f}",
                ]
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
