"""The texts of an editor's workspace → checked files, and places in the protocol's units.

Checking a text of hundreds of patterns takes most of a second, so it is done once for each state of the texts. A
question about one place is answered from the few declarations that matter there (cep/lang/edit/heads.py).
Tested by: tests/cli/test_lsp.py
"""

import asyncio
import os
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.uris import from_fs_path, to_fs_path

from cep.base.errors import UnreadableError
from cep.base.files import root_of
from cep.base.limits import FOLDER_ENTRIES_MAX, IMPORTS_MAX
from cep.lang.diagnostics import Diagnostic, Span
from cep.lang.edit.heads import focused
from cep.lang.edit.symbols import Named, Place, places
from cep.lang.lint.run import lint
from cep.lang.load import Checked, file_name, load_overlaid, read_source
from cep.nfa.compile import compilable

_LINE_END = re.compile(r"\r\n|\r|\n")
_UNREADABLE = "CEP110"
_CHECKS_KEPT = 32
_PATTERN_OF_RULE = re.compile(r"""^pattern[ \t]*=[ \t]*["']([A-Za-z_][A-Za-z0-9_]*)["']""", re.MULTILINE)
_Stamp = tuple[object, ...]


class Snapshot:
    """A checked state of some texts, and what follows from it; each part is computed when it is first asked for."""

    def __init__(self, load: Callable[[], Checked]) -> None:
        self._load = load
        self._findings: dict[str, list[Diagnostic]] = {}  # by file

    @cached_property
    def checked(self) -> Checked:
        """The files and their mistakes."""
        return self._load()

    @cached_property
    def compiled(self) -> Checked:
        """The same, with the mistakes that only the compiler finds."""
        return compilable(self.checked)

    @cached_property
    def _places(self) -> tuple[Mapping[str, list[Place]], Mapping[Named, list[Place]]]:
        by_file: dict[str, list[Place]] = {}
        by_name: dict[Named, list[Place]] = {}
        for place in places(self.checked.files, self.checked.resolved):
            by_file.setdefault(place.span.file, []).append(place)
            by_name.setdefault(place.named, []).append(place)
        return by_file, by_name

    def in_file(self, name: str) -> list[Place]:
        """Return each place of a name in a file, in the order of declarations."""
        return self._places[0].get(name, [])

    def places_of(self, named: Named) -> list[Place]:
        """Return all places of a name."""
        return self._places[1].get(named, [])

    def findings(self, name: str) -> list[Diagnostic]:
        """Return the mistakes and warnings in a file."""
        if name not in self._findings:
            errors = [d for d in self.compiled.diagnostics if d.is_error and (d.span is None or d.span.file == name)]
            self._findings[name] = errors + lint(self.compiled, [name])
        return self._findings[name]


@dataclass(frozen=True, slots=True)
class _Kept:
    """A snapshot and the state of the texts that it was made of."""

    stamps: Mapping[str, _Stamp]
    snapshot: Snapshot


class Texts:
    """The texts of the workspace: open documents before files."""

    def __init__(self, served: LanguageServer) -> None:
        self.served = served
        self._kept: dict[tuple[str, ...], _Kept] = {}  # by the files that were asked for
        self._thread = ThreadPoolExecutor(1)  # checks while nobody waits
        self._checked_text: str | None = None  # that this thread checks, or is to check next

    def name(self, uri: str) -> str:
        """Return the name under which cep/lang knows a document."""
        return _name_of(uri)

    def uri(self, name: str) -> str:
        """Return the URI of a document by its name, as the editor writes it if the document is open."""
        opened: list[str] = list(self.served.workspace.text_documents)
        return next((uri for uri in opened if self.name(uri) == name), None) or _uri_of(name)

    def source(self, uri: str) -> str:
        """Return the text as it is open in the editor, otherwise that of the file; "" if it cannot be read."""
        workspace = self.served.workspace
        document = workspace.get_text_document(uri)
        if document in workspace.text_documents.values():
            text: str = document.source  # pygls gives no type
            return text
        path = self.path(uri)
        with suppress(UnreadableError):
            return read_source(path, self.root(path) or root_of([path]))
        return ""

    def path(self, uri: str) -> Path:
        """Return the path of a document's file. A document without a file has its URI as a path, in no folder."""
        path = path_of(uri)
        return Path(uri) if path is None else path

    def beside(self, uri: str, written: str) -> str:
        """Return the URI of a file by its path in an import of this document."""
        return self.uri(file_name(self.path(uri).parent / written.replace("\0", "")))

    def root(self, path: Path) -> Path | None:
        """Return the folder that the editor has open, if the file is in it."""
        root = self.served.workspace.root_path
        if root is None or "\0" in root or not path.absolute().is_relative_to(Path(root).absolute()):
            return None
        return Path(root).resolve()

    def overlay(self) -> dict[str, str]:
        """Return the texts of open documents by name."""
        return {self.name(uri): d.source for uri, d in self.served.workspace.text_documents.items()}

    def checked(self, uri: str) -> Snapshot:
        """Check one document and its imports."""
        path = self.path(uri)
        return self._snapshot([path], self.root(path))

    def near(self, uri: str, offset: int) -> Snapshot:
        """Check what matters for one place of a document: its declaration, what that uses, and the imports."""
        path, overlay = self.path(uri), self.overlay()
        name = self.name(uri)
        check = self._kept.get((name,))
        if check is not None and self._is_current(check, overlay):
            return check.snapshot
        text = overlay.get(name) or self.source(uri)
        near = focused(text, offset)
        if near == text:
            return self._snapshot([path], self.root(path))
        return Snapshot(lambda: load_overlaid([path], {**overlay, name: near}, self.root(path)))

    def all_checked(self, uri: str) -> Snapshot:
        """Check every pattern file of the workspace: a rename must reach the files that import this one.

        For a document outside the workspace, only the files in its own folder are checked.
        """
        path = self.path(uri)
        root = self.root(path)
        others = pattern_files(path.parent, below=False) if root is None else pattern_files(root)
        return self._snapshot({file_name(p): p for p in [path, *others]}.values(), root)

    async def latest(self, uri: str) -> Snapshot:
        """Return the check of one document and its imports, which a thread may be doing."""
        while True:
            check = self._kept.get((self.name(uri),))
            if check is not None and self._is_current(check, self.overlay()):
                return check.snapshot
            snapshot = await self.checked_apart(uri)
            if snapshot is not None:  # None: the text has changed
                return snapshot

    async def checked_apart(self, uri: str) -> Snapshot | None:
        """Check one document in another thread, with its findings. Return None if a text has changed meanwhile."""
        path, overlay = self.path(uri), self.overlay()
        name, root = file_name(path), self.root(path)
        self._checked_text = overlay.get(name)

        def check() -> Snapshot | None:
            for step in (lambda: snapshot.checked, lambda: snapshot.compiled, lambda: snapshot.findings(name)):
                if self._checked_text is not overlay.get(name):  # a later check waits
                    return None
                step()
            return snapshot

        snapshot = Snapshot(lambda: load_overlaid([path], overlay, root))
        checked = await asyncio.get_running_loop().run_in_executor(self._thread, check)
        if checked is None or self.overlay() != overlay:
            return None
        self._keep((name,), checked, overlay)
        return checked

    def _snapshot(self, paths: Iterable[Path], root: Path | None) -> Snapshot:
        paths, overlay = list(paths), self.overlay()
        names = tuple(file_name(path) for path in paths)
        check = self._kept.get(names)
        if check is not None and self._is_current(check, overlay):
            return check.snapshot
        snapshot = Snapshot(lambda: load_overlaid(paths, overlay, root))
        self._keep(names, snapshot, overlay)
        return snapshot

    def _keep(self, names: tuple[str, ...], snapshot: Snapshot, overlay: Mapping[str, str]) -> None:
        """Keep the latest checks. A check with an import that cannot be read is not kept: the import may appear."""
        self._kept.pop(names, None)
        if any(d.code == _UNREADABLE for d in snapshot.checked.diagnostics):
            return
        stamps = {name: _stamp(name, overlay) for name in (*names, *snapshot.checked.sources)}
        self._kept[names] = _Kept(stamps, snapshot)  # the latest is the last
        if len(self._kept) > _CHECKS_KEPT:
            del self._kept[next(iter(self._kept))]

    @staticmethod
    def _is_current(check: _Kept, overlay: Mapping[str, str]) -> bool:
        return all(_stamp(name, overlay) == stamp for name, stamp in check.stamps.items())

    def span_range(self, span: Span, source: str | None = None) -> types.Range:
        """Convert a span to the editor's units; `source` is the text of its file, if it is known."""
        return self.range_of(self.source(self.uri(span.file)) if source is None else source, span.start, span.end)

    def range_of(self, text: str, start: int, end: int) -> types.Range:
        """Convert two offsets to a range in the editor's units."""
        return types.Range(self.position(text, start), self.position(text, end))

    def position(self, text: str, offset: int) -> types.Position:
        """Convert an offset to a line and a character in the editor's units."""
        offset = min(offset, len(text))
        starts = _line_starts(text)
        line = bisect_right(starts, offset) - 1
        before = text[starts[line] : offset]
        units = len(before) if before.isascii() else self.served.workspace.position_codec.client_num_units(before)
        return types.Position(line, units)

    def offset(self, text: str, position: types.Position) -> int:
        """Convert a position to an offset. A position past the end of a line, or of the text, is that end."""
        starts = _line_starts(text)
        if position.line >= len(starts):
            return len(text)
        start = starts[position.line]
        end = starts[position.line + 1] if position.line + 1 < len(starts) else len(text)
        line, units = text[start:end].rstrip("\r\n"), position.character
        if line.isascii():
            return start + min(units, len(line))
        codec = self.served.workspace.position_codec
        for index, character in enumerate(line):
            if units <= 0:
                return start + index
            units -= codec.client_num_units(character)
        return start + len(line)


def _stamp(name: str, overlay: Mapping[str, str]) -> _Stamp:
    """Return what changes with the text of a file: the text in the editor, or the time and size of the file."""
    if name in overlay:
        return (overlay[name],)
    try:
        status = Path(name).stat()
    except (OSError, ValueError):
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino


@lru_cache(16)
def _line_starts(text: str) -> list[int]:
    return [0, *(match.end() for match in _LINE_END.finditer(text))]


@lru_cache(IMPORTS_MAX)
def _name_of(uri: str) -> str:
    path = path_of(uri)
    return uri if path is None else file_name(path)


@lru_cache(IMPORTS_MAX)
def _uri_of(name: str) -> str:
    return from_fs_path(str(Path(name).absolute())) or name


def path_of(uri: str) -> Path | None:
    """Return the file of a document; None without a file, or if its text cannot be a path."""
    path = to_fs_path(uri)
    return None if path is None or "\0" in path else Path(path)


def pattern_files(folder: Path, *, below: bool = True) -> list[Path]:
    """List the pattern files in a folder and its subfolders, as many as may be read together, those near the top first.

    A document may lie in `/`, so the number of entries is limited.
    """
    paths: list[Path] = []
    folders = deque([folder])
    seen_count = 0
    while folders and seen_count < FOLDER_ENTRIES_MAX and len(paths) < IMPORTS_MAX:
        try:
            with os.scandir(folders.popleft()) as entries:
                seen_count += _look(islice(entries, FOLDER_ENTRIES_MAX - seen_count), paths, folders if below else None)
        except (OSError, ValueError):  # a folder that is gone or closed to us
            continue
    return sorted(paths)[:IMPORTS_MAX]


def _look(entries: Iterable[os.DirEntry[str]], paths: list[Path], folders: deque[Path] | None) -> int:
    """Add pattern files to `paths` and folders to `folders`. Return how many entries there were."""
    count = 0
    for entry in entries:
        count += 1
        if entry.name.endswith(".cep"):
            paths.append(Path(entry.path))
        elif folders is not None and not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
            folders.append(Path(entry.path))
    return count


def rule_files(served: LanguageServer) -> list[Path]:
    """List the TOML files in the folders `rules` of the workspace and next to its pattern files, which may be rules."""
    root = served.workspace.root_path
    if root is None or "\0" in root:
        return []
    folders = dict.fromkeys([Path(root), Path(root) / "rules", *(path.parent for path in pattern_files(Path(root)))])
    files = [path for folder in folders if folder.is_dir() for path in sorted(folder.glob("*.toml"))]
    return files[:IMPORTS_MAX]


def names_in_rule(text: str, named: Named) -> list[tuple[int, int]]:
    """Return the places of a pattern's name, or of its parameter's, in the text of a rule file."""
    pattern = _PATTERN_OF_RULE.search(text)
    if pattern is None:
        return []
    if named.kind == "pattern" and pattern[1] == named.name:
        return [pattern.span(1)]
    parameters = text.find("[params]")
    if named.kind == "parameter" and pattern[1] == named.owner and parameters >= 0:
        name = re.compile(rf"^[ \t]*({re.escape(named.name)})[ \t]*=", re.MULTILINE)
        end = text.find("\n[", parameters)
        return [match.span(1) for match in name.finditer(text, parameters, len(text) if end < 0 else end)]
    return []
