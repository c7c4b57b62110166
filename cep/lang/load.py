"""Files or texts to checked patterns: the way into this floor.

Imports are read relative to the file that names them, each file once; a cycle is refused.
Tested by: tests/lang/test_load.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cep.base.collection import paused
from cep.base.errors import UsageError
from cep.base.limits import IMPORTS_MAX, SOURCE_BYTES_MAX
from cep.base.schema import Schema
from cep.lang.check.resolve import ListValue, Resolved
from cep.lang.diagnostics import Collector, Diagnostic, Label, Span
from cep.lang.explain.render import render_text
from cep.lang.ir import PatternIR
from cep.lang.ir_tests import PatternTest, RefusedTest
from cep.lang.parse.file import parse
from cep.lang.passes import check_files
from cep.lang.syntax import FileSyntax, ImportSyntax, PatternTestSyntax

# From the importing file's name and the path it wrote to the imported file's name and text, or a reason why not.
Resolver = Callable[[str, str], tuple[str, str] | str]


@dataclass(frozen=True, slots=True)
class Checked:
    """The meaning of a set of files.

    `patterns` and `tests` have those without errors, `refused_tests` the other tests, `sources` every text read.
    """

    schema: Schema
    patterns: dict[str, PatternIR]
    lists: dict[str, tuple[ListValue, ...]]
    diagnostics: tuple[Diagnostic, ...]
    sources: dict[str, str] = field(default_factory=dict)
    dropped: int = 0  # diagnostics past the limit
    tests: tuple[PatternTest, ...] = ()
    refused_tests: tuple[RefusedTest, ...] = ()
    files: tuple[FileSyntax, ...] = ()
    resolved: Resolved = field(default_factory=Resolved)

    @property
    def ok(self) -> bool:
        """True without errors; there may be warnings."""
        return self.dropped == 0 and not any(d.is_error for d in self.diagnostics)


def load_text(text: str, name: str = "<text>", resolver: Resolver | None = None) -> Checked:
    """Check one text. Without a resolver it may not import anything."""
    with paused():
        loader = _Loader(resolver or _no_imports)
        loader.add(name, text)
        return loader.checked()


def load_files(paths: Iterable[str | Path]) -> Checked:
    """Check files together, as one set of names, with what they import."""
    with paused():
        loader = _Loader(resolve_path)
        for path in paths:
            name = file_name(Path(path))
            source = read_source(Path(path))
            if source is None or isinstance(source, _Unreadable):
                reason = source.reason if source is not None else "there is no such file"
                loader.collector.add("CEP110", f"cannot read `{name}`: {reason}")
            else:
                loader.add(name, source)
        return loader.checked()


def load_overlaid(paths: Iterable[str | Path], overlay: Mapping[str, str]) -> Checked:
    """Check files like `load_files`. Texts in the overlay, by `file_name`, stand for files that an editor has open."""

    def resolver(importing: str, written: str) -> tuple[str, str] | str:
        name = file_name(Path(importing).parent / written)
        return (name, overlay[name]) if name in overlay else resolve_path(importing, written)

    loader = _Loader(resolver)
    for path in paths:
        name = file_name(Path(path))
        text = overlay[name] if name in overlay else read_source(Path(path))
        if isinstance(text, str):
            loader.add(name, text)
    return loader.checked()


def bundle_source(path: str | Path) -> str:
    """Return one text for a control record: a file with its imports in their place, each once, without tests.

    Raises: UsageError with the diagnostics if a file cannot be read or parsed, or imports form a cycle.
    """
    loader = _Loader(resolve_path)
    name = file_name(Path(path))
    source = read_source(Path(path))
    if source is None or isinstance(source, _Unreadable):
        reason = "there is no such file" if source is None else source.reason
        raise UsageError(f"cannot bundle {name}: {reason}")
    loader.add(name, source)
    if loader.collector.error_count:
        raise UsageError(f"cannot bundle {name}:\n{render_text(loader.collector.diagnostics, loader.sources)}")
    return loader.bundled(name, set())


# ----------------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True, slots=True)
class _Unreadable:
    reason: str


def read_source(path: Path) -> str | _Unreadable | None:
    """Return the text of a file, a reason why not, or None if there is no such file."""
    try:
        if not path.is_file():
            return None
        if path.stat().st_size > SOURCE_BYTES_MAX:
            return _Unreadable(f"it is larger than {SOURCE_BYTES_MAX} bytes")
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return _Unreadable("it is not UTF-8 text")
    except (OSError, ValueError) as error:
        return _Unreadable(str(error))


def file_name(path: Path) -> str:
    """Return one name for one file, however its path was written; relative to here if it can be."""
    try:
        absolute = path.resolve()
        here = Path.cwd()
    except (OSError, ValueError, RuntimeError):
        return str(path)
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(absolute)


def resolve_path(importing: str, written: str) -> tuple[str, str] | str:
    """Resolve a path relative to the file that imports it. This is the `Resolver` for files."""
    try:
        path = Path(importing).parent / written
        source = read_source(path)
    except (OSError, ValueError) as error:
        return str(error)
    if source is None:
        return "there is no such file"
    return source.reason if isinstance(source, _Unreadable) else (file_name(path), source)


def _no_imports(_importing: str, _written: str) -> tuple[str, str] | str:
    return "a text that is not a file cannot import"


# ------------------------------------------------------------------------------------------------------ loading


class _Loader:
    """Reads files depth first, so that what a file imports is declared before it."""

    def __init__(self, resolver: Resolver) -> None:
        self.resolver = resolver
        self.collector = Collector()
        self.sources: dict[str, str] = {}
        self.files: list[FileSyntax] = []
        self.imports: dict[str, list[tuple[ImportSyntax, str]]] = {}
        self.tests: dict[str, list[PatternTestSyntax]] = {}
        self.open: list[tuple[str, Span | None]] = []

    def add(self, name: str, text: str, imported: Span | None = None) -> None:
        """Parse a file and what it imports, unless it was read before."""
        if name in self.sources:
            return
        self.sources[name] = text
        # The length in characters is a lower bound of that in bytes: a huge text is refused before it is encoded.
        if len(text) > SOURCE_BYTES_MAX or len(text.encode("utf-8", "replace")) > SOURCE_BYTES_MAX:
            self.collector.add("CEP110", f"`{name}` is larger than {SOURCE_BYTES_MAX} bytes", imported)
            return
        file = parse(text, name, self.collector)
        self.open.append((name, imported))
        self.imports[name] = []
        self.tests[name] = [d for d in file.declarations if isinstance(d, PatternTestSyntax)]
        for declaration in file.declarations:
            if isinstance(declaration, ImportSyntax):
                self._import(name, declaration)
        self.open.pop()
        self.files.append(file)

    def _import(self, importing: str, declaration: ImportSyntax) -> None:
        if len(self.sources) >= IMPORTS_MAX or len(self.open) > IMPORTS_MAX // 2:
            self.collector.add("CEP208", f"more than {IMPORTS_MAX} files, or too deep a chain", declaration.span)
            return
        resolved = self.resolver(importing, declaration.path)
        if isinstance(resolved, str):
            self.collector.add("CEP208", f"cannot import `{declaration.path}`: {resolved}", declaration.span)
            return
        name, text = resolved
        if name in (opened for opened, _ in self.open):
            spans = [span for opened, span in self.open if span is not None and opened != name]
            labels = tuple(Label(span, "on the way round") for span in spans[:3])
            message = f"`{declaration.path}` imports itself in a circle"
            help_line = "move what both need into a third file"
            self.collector.add("CEP209", message, declaration.span, help_line, labels)
            return
        self.imports[importing].append((declaration, name))
        self.add(name, text, declaration.span)

    def checked(self) -> Checked:
        """Resolve and check all that was read."""
        passed = check_files(self.files, self.collector)
        return Checked(
            schema=passed.resolved.schema,
            patterns=passed.patterns,
            lists=passed.resolved.list_values(),
            diagnostics=tuple(sorted(self.collector.diagnostics, key=self._place)),
            sources=self.sources,
            dropped=self.collector.dropped,
            tests=passed.tests,
            refused_tests=passed.refused_tests,
            files=tuple(self.files),
            resolved=passed.resolved,
        )

    def _place(self, diagnostic: Diagnostic) -> tuple[int, int]:
        if diagnostic.span is None:
            return (-1, 0)
        return (list(self.sources).index(diagnostic.span.file), diagnostic.span.start)

    def bundled(self, name: str, done: set[str]) -> str:
        """Return the text of a file with its imports in their place, without those in `done` and without tests: a rule
        stays the same rule when a test is added. Adds to `done`."""
        done.add(name)
        text = self.sources[name]
        cuts: list[tuple[Span, str | None]] = [(test.whole, None) for test in self.tests[name]]
        cuts += [(declaration.span, imported) for declaration, imported in self.imports[name]]
        parts: list[str] = []
        at = 0
        for span, imported in sorted(cuts, key=lambda cut: cut[0].start):
            parts.append(text[at : span.start])
            if imported is not None and imported not in done:
                parts.append(self.bundled(imported, done).strip())
            at = span.end
        parts.append(text[at:])
        return "".join(parts)
