"""Files or texts to checked patterns: the way into this floor.

    text ──lex──▶ tokens ──parse──▶ syntax ──resolve, check──▶ names, patterns (IR), tests
                                                              │
                 cep/nfa/compile.py: does not compile      ◀─┴─▶ cep/lang/lint/lints.py: allowed, but not meant

A mistake is never raised: each pass reports to a `Collector`, and the next pass works on the sound parts. Imports are
read relative to the file that names them, each file once. Circles are refused, and paths that lead out of the root
(base/files.py). An imported file has the root of the file that imports it.
Tested by: tests/lang/test_load.py, tests/lang/test_check.py, tests/lang/golden/
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from cep.base.errors import UnreadableError, UsageError
from cep.base.files import check_below, read_file, root_of
from cep.base.limits import IMPORTS_MAX, SOURCE_BYTES_MAX
from cep.base.process import paused
from cep.base.schema import Kind, Schema
from cep.base.secrets import SENSITIVE
from cep.lang import syntax
from cep.lang.check import clauses
from cep.lang.check.bind import bind_at
from cep.lang.check.expressions import ExpressionChecker
from cep.lang.check.resolve import ListValue, Resolved, resolve
from cep.lang.check.structure import check_structure
from cep.lang.check.tests import check_tests
from cep.lang.diagnostics import Collector, Diagnostic, Label, Span, place_of
from cep.lang.explain.render import render_text
from cep.lang.ir import PatternIR, PatternTest, RefusedTest, Variable
from cep.lang.parse.file import parse

# Each pass reads the draft, fills a part of it, and reports mistakes. The order counts: later passes read that part.
PATTERN_PASSES: tuple[Callable[[clauses.Draft], None], ...] = (
    clauses.check_variables,      # `seq`: the variables, and those bound before each           CEP406, 415
    clauses.check_event_types,    # `where`: the event type of each variable, the stream        CEP202, 204, 207, 216
    clauses.check_key,            # `by`: every event type of the stream has the key            CEP207, 417
    clauses.check_hidden_fields,  # parameters: none has the name of a field                    CEP508
    clauses.check_conditions,     # `where`: typed conditions                                   CEP201 to 319, 407, 408
    clauses.check_untils,         # `until`: typed conditions                                   the same
    check_structure,      # `seq`: nodes with counts and windows                        CEP401 to 422
    clauses.check_timeout,        # `on timeout emit`: typed values                             CEP201 to 319, 419, 423
    clauses.check_measures,       # `emit`: typed values                                        CEP201 to 319, 423
    clauses.check_produced,       # `produce`: the values make an event of that type            CEP202, 426
    clauses.check_skip,           # `skip`: the variable that it names                          CEP418
)  # fmt: skip


def _check_patterns(resolved: Resolved, collector: Collector) -> tuple[dict[str, PatternIR], dict[str, PatternIR]]:
    """Return the correct patterns, and a copy with default values of each pattern whose parameters all have one."""
    patterns: dict[str, PatternIR] = {}
    by_default: dict[str, PatternIR] = {}
    for pattern in resolved.patterns.values():
        errors = collector.error_count
        ir = _check_pattern(pattern, resolved, collector)
        if ir is None:
            continue
        has_defaults = all(p.default is not None for p in ir.params)
        spans = {p.name: p.span for p in pattern.params}
        bound = bind_at(ir, {}, spans, pattern.span, collector) if has_defaults else None
        if collector.error_count == errors:
            patterns[ir.name] = ir
            if bound is not None:
                by_default[ir.name] = bound
    return patterns, by_default


def _check_pattern(pattern: syntax.PatternSyntax, resolved: Resolved, collector: Collector) -> PatternIR | None:
    """Run the passes over one pattern. Return its IR; None if it or an event type that it reads has a mistake."""
    errors = collector.error_count
    draft = clauses.Draft(pattern, resolved, collector, ExpressionChecker(collector))
    clauses.check_params(draft)
    if pattern.structure is None:
        if not pattern.broken:
            message = f"the pattern `{pattern.name}` has no `seq`"
            collector.add("CEP112", message, pattern.span, "add `seq a -> b`")
        return None
    for check in PATTERN_PASSES:
        check(draft)
    has_faulty_events = any(e.name in resolved.faulty for e in draft.stream)
    if pattern.broken or has_faulty_events or collector.error_count > errors:
        return None
    return _ir(draft)


def _ir(draft: clauses.Draft) -> PatternIR:
    pattern = draft.pattern
    assert draft.structure is not None, "a pass has filled it"
    return PatternIR(
        name=pattern.name,
        params=draft.params,
        key=tuple(k.name for k in pattern.key),
        structure=draft.structure,
        variables=tuple(
            Variable(v.name, draft.event_types[v.name].name, draft.conditions.get(v.name)) for v in draft.variables
        ),
        measures=draft.measures,
        event_types=tuple(e.name for e in draft.stream),
        skip=draft.skip,
        within_ms=draft.within_ms,
        within_events=draft.within_events,
        timeout_measures=draft.timeout_measures,
        doc=pattern.doc,
        produces=None if pattern.produces is None else pattern.produces.name,
    )


_IMPORTS_CACHED = 16  # files of a folder share a few; one of 100 kB is some MB as syntax
BYTE_ORDER_MARK = "\ufeff"  # allowed at the beginning of a file only
TEXT = "<text>"  # the name of a text that is not a file

# From the importing file's name and the path it wrote to the imported file's name and text, or a reason why not.
Resolver = Callable[[str, str], tuple[str, str] | str]


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check of files: their declarations and diagnostics.

    `patterns` and `tests` have those without errors, `refused_tests` the other tests, `sources` every text read.
    `by_default` has the patterns with their defaults in place, where every parameter has one.
    """

    schema: Schema
    patterns: dict[str, PatternIR]
    lists: dict[str, tuple[ListValue, ...]]
    diagnostics: tuple[Diagnostic, ...]
    sources: dict[str, str] = field(default_factory=dict)
    dropped: int = 0  # diagnostics past the limit
    tests: tuple[PatternTest, ...] = ()
    refused_tests: tuple[RefusedTest, ...] = ()
    files: tuple[syntax.FileSyntax, ...] = ()
    resolved: Resolved = field(default_factory=Resolved)
    roots: Mapping[str, Path] = field(default_factory=dict)  # by file: the folder of all files that it may name
    by_default: Mapping[str, PatternIR] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True without errors; there may be warnings."""
        return self.dropped == 0 and not any(d.is_error for d in self.diagnostics)

    def without_syntax(self) -> Checked:
        """Return the same result without its large parts, which are only needed to show places."""
        return replace(self, sources={}, files=(), resolved=Resolved())


def load_text(
    text: str, name: str = TEXT, resolver: Resolver | None = None, protected: Mapping[str, str] | None = None
) -> Checked:
    """Check one text. Without a resolver it cannot import files.

    `protected` are fields that a job shows to rules only as tokens (keyed hashes), each declared `pan` or `sensitive`:
    check the text as if it declared them so, too.
    """
    with paused():  # without Python's cyclic garbage collector, which slows a check
        loader = _Loader(resolver or _no_imports)
        loader.add(name, text)
        if protected:
            loader.files = [_protected(file, protected) for file in loader.files]
        return loader.checked()


def _protected(file: syntax.FileSyntax, protected: Mapping[str, str]) -> syntax.FileSyntax:
    """Return the syntax of a file with these fields declared as `pan` or `string sensitive`."""
    declarations = [
        replace(each, fields=tuple(_protected_field(f, protected) for f in each.fields))
        if isinstance(each, syntax.EventSyntax)
        else each
        for each in file.declarations
    ]
    return replace(file, declarations=tuple(declarations))


def _protected_field(declared: syntax.FieldSyntax, protected: Mapping[str, str]) -> syntax.FieldSyntax:
    protection = protected.get(declared.name)
    if protection is None:
        return declared
    written = syntax.TypeSyntax(protection, declared.type.span, nullable=declared.type.nullable)
    if protection == SENSITIVE:
        written = replace(written, name=Kind.STRING.value, sensitive=True)
    return replace(declared, type=written)


def load_files(paths: Iterable[str | Path], root: Path | None = None) -> Checked:
    """Check files and their imports together, as if in one file. Imported files must be below the root.

    The default root is the repository of the files, or their common folder.
    """
    with paused():  # without Python's cyclic garbage collector, which slows a check
        named_paths = [Path(path) for path in paths]
        files = _Files(named_paths, root)
        loader = _Loader(files.resolve, files.roots)
        for path in named_paths:
            name = file_name(path)
            try:
                loader.add(name, files.read(path))
            except UnreadableError as error:
                loader.collector.add("CEP110", f"cannot read `{name}`: {error}")
        return loader.checked()


def load_overlaid(paths: Iterable[str | Path], overlay: Mapping[str, str], root: Path | None = None) -> Checked:
    """Check files like `load_files`. Texts in the overlay, by `file_name`, stand for files that an editor has open."""
    with paused():  # without Python's cyclic garbage collector, which slows a check
        named_paths = [Path(path) for path in paths]
        files = _Files(named_paths, root, overlay)
        loader = _Loader(files.resolve, files.roots)
        for path in named_paths:
            with suppress(UnreadableError):
                loader.add(file_name(path), files.read(path))
        return loader.checked()


@dataclass(frozen=True, slots=True)
class Bundle:
    """One text for a control record: a file with its imports inserted, each once, without tests.

    `checked` is the result of `load_text`, without its syntax; None if only the text can show the place of a mistake or
    a warning.
    """

    text: str
    checked: Checked | None


def bundle_source(path: str | Path, root: Path | None = None) -> str:
    """Return the text of a bundle. Raises: UsageError with the diagnostics of files that cannot be read or parsed."""
    name, loader = _read_bundle(Path(path), root)
    return loader.bundled(name, set())


def bundle_checked(path: str | Path, root: Path | None = None) -> Bundle:
    """Join a file and its imports to one text, and check the syntax of the files. Raises: as `bundle_source`."""
    with paused():  # without Python's cyclic garbage collector, which slows a check
        name, files = _read_bundle(Path(path), root)
        loader = _Loader(_no_imports)
        text = files.bundled(name, set())
        is_small_enough = loader.keep_source(TEXT, text)
        if not is_small_enough or files.collector.diagnostics or not files.can_be_concatenated(name):
            return Bundle(text, checked=None)  # the caller parses the text: mistakes need places in it
        loader.sources |= files.sources  # the texts to which the spans (places) of the syntax refer
        loader.files.append(syntax.FileSyntax(TEXT, tuple(files.declared(name, set()))))
        checked = loader.checked()
        return Bundle(text, None if checked.diagnostics else checked.without_syntax())


def _read_bundle(path: Path, root: Path | None) -> tuple[str, _Loader]:
    name = file_name(path)
    files = _Files([path], root)
    loader = _Loader(files.resolve, files.roots)
    try:
        loader.add(name, files.read(path))
    except UnreadableError as error:
        raise UsageError(f"cannot bundle {name}: {error}") from None
    if loader.collector.error_count:
        raise UsageError(f"cannot bundle {name}:\n{render_text(loader.collector.diagnostics, loader.sources)}")
    return name, loader


class _Files:
    """The files of one load, and for each the folder that contains all files that it may name."""

    def __init__(
        self, paths: Sequence[Path], root: Path | None = None, overlay: Mapping[str, str] | None = None
    ) -> None:
        self.overlay = overlay or {}  # by name: the texts of files that an editor has open
        self.roots: dict[str, Path] = {}
        common = root_of(paths) if root is None else root
        for path in paths:
            # If the whole file system is the only folder in common, each file may only name files of its own folder.
            apart = root is None and common == Path(common.anchor)
            self.roots[file_name(path)] = root_of([path]) if apart else common

    def read(self, path: Path) -> str:
        name = file_name(path)
        return self.overlay[name] if name in self.overlay else read_source(path, self.roots[name])

    def resolve(self, importing: str, written: str) -> tuple[str, str] | str:
        """Return the name and text of an imported file, or why it cannot be read. This is the `Resolver` for files."""
        path = Path(importing).parent / written  # a path in an import is relative to the file that has it
        root = self.roots[importing]
        try:
            check_below(path, root)
            name = file_name(path)
            source = self.overlay[name] if name in self.overlay else read_source(path, root)
        except UnreadableError as error:
            return str(error)
        self.roots.setdefault(name, root)  # an imported file may name files of the same folder
        return name, source


def read_source(path: Path, root: Path | None = None) -> str:
    """Return the text of a file. Raises: UnreadableError with the reason why not."""
    try:
        return read_file(path, SOURCE_BYTES_MAX, root).decode("utf-8")
    except UnicodeDecodeError:
        raise UnreadableError("it is not UTF-8 text") from None


def file_name(path: Path) -> str:
    """Return one name for one file, however its path was written; relative to here if it can be."""
    try:
        absolute = path.resolve()
        here = Path.cwd()
    except (OSError, ValueError, RuntimeError):
        return str(path)
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(absolute)


@lru_cache(_IMPORTS_CACHED)
def _without_problems(text: str, name: str) -> syntax.FileSyntax | None:
    """Parse a file that many may import. Return None if there is something to report."""
    collector = Collector()
    file = parse(text, name, collector)
    return None if collector.diagnostics else file


def _no_imports(_importing: str, _written: str) -> tuple[str, str] | str:
    return "a text that is not a file cannot import"


class _Loader:
    """Reads files depth first, so that the declarations of an import precede the file."""

    def __init__(self, resolver: Resolver, roots: Mapping[str, Path] | None = None) -> None:
        self.resolver = resolver
        self.roots = {} if roots is None else roots
        self.collector = Collector()
        self.sources: dict[str, str] = {}
        self.files: list[syntax.FileSyntax] = []
        self.imports: dict[str, list[tuple[syntax.ImportSyntax, str]]] = {}
        self.tests: dict[str, list[syntax.PatternTestSyntax]] = {}
        self.open_files: list[tuple[str, Span | None]] = []

    def add(self, name: str, text: str, imported: Span | None = None) -> None:
        """Parse a file and its imports, unless it was read before."""
        if name in self.sources or not self.keep_source(name, text, imported):
            return
        file = None if imported is None else _without_problems(text, name)  # cached: many files may import it
        file = file or parse(text, name, self.collector)
        self.open_files.append((name, imported))  # to find imports in a circle
        self.imports[name] = []
        self.tests[name] = [d for d in file.declarations if isinstance(d, syntax.PatternTestSyntax)]
        for declaration in file.declarations:
            if isinstance(declaration, syntax.ImportSyntax):
                self._import(name, declaration)
        self.open_files.pop()
        self.files.append(file)

    def keep_source(self, name: str, text: str, imported: Span | None = None) -> bool:
        """Keep a text as a source. Return False after a report that it is too large."""
        self.sources[name] = text
        # The length in characters is a lower bound of that in bytes: a huge text is refused before it is encoded.
        if len(text) <= SOURCE_BYTES_MAX and len(text.encode("utf-8", "replace")) <= SOURCE_BYTES_MAX:
            return True
        self.collector.add("CEP110", f"`{name}` is larger than {SOURCE_BYTES_MAX} bytes", imported)
        return False

    def _import(self, importing: str, declaration: syntax.ImportSyntax) -> None:
        """Load an imported file, or report why that is not possible: too many files, an unreadable one, or a circle."""
        resolved = self.resolver(importing, declaration.path)
        if isinstance(resolved, str):
            self.collector.add("CEP208", f"cannot import `{declaration.path}`: {resolved}", declaration.span)
            return
        name, text = resolved
        is_too_many = name not in self.sources and len(self.sources) >= IMPORTS_MAX
        if is_too_many or len(self.open_files) > IMPORTS_MAX // 2:  # a chain is recursion
            self.collector.add("CEP208", f"more than {IMPORTS_MAX} files, or too deep a chain", declaration.span)
            return
        if name in (opened for opened, _ in self.open_files):
            spans = [span for opened, span in self.open_files if span is not None and opened != name]
            labels = tuple(Label(span, "on the way round") for span in spans[:3])
            message = f"`{declaration.path}` imports itself in a circle"
            help_line = "move what both need into a third file"
            self.collector.add("CEP209", message, declaration.span, help_line, labels)
            return
        self.imports[importing].append((declaration, name))
        self.add(name, text, declaration.span)

    def checked(self) -> Checked:
        """Resolve and check all files that were read, as one set of names."""
        collector = self.collector
        resolved = resolve(self.files, collector)  # declarations → names: CEP207 to 215, 313
        patterns, by_default = _check_patterns(resolved, collector)  # each pattern → IR: PATTERN_PASSES
        clauses.check_circles(patterns, resolved, collector)  # no pattern feeds itself: CEP427
        tests, refused_tests = check_tests(resolved, patterns, collector)  # tests → events, expectations: CEP6xx
        order = list(self.sources)
        return Checked(
            schema=resolved.schema,
            patterns=patterns,
            lists=resolved.list_values(),
            diagnostics=tuple(sorted(collector.diagnostics, key=lambda d: place_of(d, order))),
            sources=self.sources,
            dropped=collector.dropped,
            tests=tests,
            refused_tests=refused_tests,
            files=tuple(self.files),
            resolved=resolved,
            roots=self.roots,
            by_default={name: ir for name, ir in by_default.items() if name in patterns},
        )

    def bundled(self, name: str, names: set[str]) -> str:
        """Return the text of a file with its imports in their place, without files in `names` and without tests.

        A rule stays the same rule when a test is added. The files are added to `names`.
        """
        names.add(name)
        text = self.sources[name]
        cuts: list[tuple[Span, str | None]] = [(test.whole, None) for test in self.tests[name]]
        cuts += [(declaration.span, imported) for declaration, imported in self.imports[name]]
        parts: list[str] = []
        position = 0
        for span, imported in sorted(cuts, key=lambda cut: cut[0].start):
            parts.append(text[position : span.start])
            if imported is not None and imported not in names:
                parts.append(self.bundled(imported, names).removeprefix(BYTE_ORDER_MARK).strip())
            position = span.end
        parts.append(text[position:])
        return "".join(parts)

    def declared(self, name: str, names: set[str]) -> Iterator[syntax.Declaration]:
        """Yield the declarations of a bundled text in its order. Adds to `names`."""
        names.add(name)
        imports = {id(declaration): imported for declaration, imported in self.imports[name]}
        (file,) = (file for file in self.files if file.name == name)
        for declaration in file.declarations:
            if isinstance(declaration, syntax.ImportSyntax):
                if imports[id(declaration)] not in names:
                    yield from self.declared(imports[id(declaration)], names)
            elif not isinstance(declaration, syntax.PatternTestSyntax):
                yield declaration

    def can_be_concatenated(self, name: str) -> bool:
        """Return True if the bundle of the file `name` has the same tokens and doc comments as the separate files.

        The bundle is one text, with imported files in place of imports and without tests. It differs if text follows an
        import or a test on its line. It also differs if a doc comment stands before one of these, or at the end of an
        imported file: the comment would move on to another declaration.
        """
        for source_name, text in self.sources.items():
            spans = [test.whole for test in self.tests[source_name]]
            spans += [declaration.span for declaration, _ in self.imports[source_name]]
            for span in spans:
                if text[span.end : span.end + 1] not in ("", "\n", "\r") or _ends_in_doc(text, span.start):
                    return False
            if source_name != name and _ends_in_doc(text, len(text)):
                return False
        return True


def _ends_in_doc(text: str, end: int) -> bool:
    """Return True if a doc comment stands before a place, with nothing but comments between."""
    while end > 0:
        start = text.rfind("\n", 0, end) + 1
        line = text[start:end].removeprefix(BYTE_ORDER_MARK).strip()
        if line.startswith("##"):
            return True
        if line and not line.startswith("#"):
            return False
        end = start - 1
    return False
