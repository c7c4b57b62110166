"""`cep lsp`: an editor's requests over standard input and output → answers of cep/lang about the text.

The Language Server Protocol 3.17; pygls reads and writes the messages. An open text of the editor replaces its file. A
request whose parameters do not follow the protocol is answered with an error; such a notification is only logged.
Tested by: tests/cli/test_lsp.py
"""

import argparse
import json
import logging
import os
import re
import sys
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

from lsprotocol import types
from pygls.exceptions import (
    JsonRpcException,
    JsonRpcInvalidParams,
    JsonRpcInvalidRequest,
    JsonRpcParseError,
    JsonRpcServerNotInitialized,
)
from pygls.lsp.server import LanguageServer
from pygls.protocol import LanguageServerProtocol
from pygls.uris import from_fs_path, to_fs_path
from pygls.workspace import TextDocument

from cep import __version__
from cep.base.errors import UnreadableError, UsageError
from cep.base.files import root_of
from cep.base.limits import EDITOR_MESSAGE_BYTES_MAX, FOLDER_ENTRIES_MAX, IMPORTS_MAX
from cep.lang.diagnostics import Diagnostic, Severity, Span
from cep.lang.edit.assist import keyword_meaning, meaning, words_at
from cep.lang.edit.symbols import Named, Place, place_at, places
from cep.lang.format.file import format_text
from cep.lang.lint.run import lint
from cep.lang.load import Checked, file_name, load_overlaid, read_source
from cep.lang.parse.lexer import RESERVED
from cep.lang.syntax import PatternSyntax, PatternTestSyntax
from cep.nfa.compile import compilable
from cep.testing.harness import Outcome, run_checked, verdict_lines

_LOG = logging.getLogger(__name__)
_HEADER_BYTES_MAX = 512  # a length and a type; a longer header is invalid
_BEFORE_INITIALIZE = (types.INITIALIZE, types.EXIT)


class BoundedInput:
    """Standard input of a language server, with limits. Bytes other than a JSON object become an invalid request, which
    the server answers with an error."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def readline(self) -> bytes:
        """Return a header line; b"", which ends the session, for a line longer than any editor sends."""
        line = self._stream.readline(_HEADER_BYTES_MAX)
        return line if len(line) < _HEADER_BYTES_MAX else b""

    def read(self, size: int) -> bytes:
        """Return a message's body; b"", which ends the session, if it is too large."""
        if size > EDITOR_MESSAGE_BYTES_MAX:
            _LOG.error("a message of %d bytes is over the limit of %d: goodbye", size, EDITOR_MESSAGE_BYTES_MAX)
            return b""
        body = self._stream.read(size)
        try:
            is_message = isinstance(json.loads(body), dict) if body else True  # b"" ends the session
        except (ValueError, RecursionError):
            is_message = False
        return body if is_message else b'{"jsonrpc": "2.0", "id": null, "method": ""}'

    def close(self) -> None:
        self._stream.close()


class EditorProtocol(LanguageServerProtocol):
    """The protocol. It answers messages that it cannot understand, and continues."""

    def structure_message(self, data: dict[str, Any]) -> Any:
        """Convert a JSON object to a message. Return None for an invalid object, which is already answered then."""
        if "jsonrpc" not in data:
            return data
        if data["jsonrpc"] != self.VERSION:
            return self._refuse(data, JsonRpcInvalidRequest(f"`jsonrpc` is `{self.VERSION}`"))
        if not isinstance(data.get("method", ""), str) or not isinstance(data.get("id", 0), int | str | None):
            return self._refuse(data, JsonRpcInvalidRequest("`method` is a text, `id` a number or a text"))
        if data.get("id", 0) is None or data.get("method") == "":  # `BoundedInput` sends this if it read no JSON object
            return self._refuse(data, JsonRpcParseError("this is no request; send JSON-RPC 2.0"))
        try:
            return super().structure_message(data)
        except JsonRpcException:
            wrong = f"the parameters of `{data.get('method', 'an answer')}` are not as the protocol has them"
            return self._refuse(data, JsonRpcInvalidParams(wrong))

    def handle_message(self, message: Any) -> None:
        """Handle a message, if it is valid, the session has begun, and its document is open."""
        method = getattr(message, "method", None)
        if isinstance(message, dict):  # `structure_message` makes a message of each object that has `jsonrpc`
            self._refuse(message, JsonRpcInvalidRequest(f"`jsonrpc` is missing; it is `{self.VERSION}`"))
            return
        if not hasattr(message, "jsonrpc"):  # None: an invalid object, which is answered already
            return
        if self._workspace is None and isinstance(method, str) and method not in _BEFORE_INITIALIZE:
            request = {"id": message.id} if hasattr(message, "id") else {"method": method}
            self._refuse(request, JsonRpcServerNotInitialized("send `initialize` first"))
        elif not _has_address(message):
            request = {"id": message.id, "method": method} if hasattr(message, "id") else {"method": method}
            self._refuse(request, JsonRpcInvalidParams("the document's URI is none"))
        elif method == types.TEXT_DOCUMENT_DID_CHANGE and not self._is_open(message.params.text_document.uri):
            _LOG.warning("a change of a document that is not open is left out")
        else:
            super().handle_message(message)

    def _send_handler_result(self, future: Future[Any], *, msg_id: int | str) -> None:
        """Answer a request. An error of the editor is returned to it, and does not fill a page of the log."""
        error = None if future.cancelled() else future.exception()
        if isinstance(error, JsonRpcException):
            self._request_futures.pop(msg_id, None)
            self._refuse({"id": msg_id, "method": ""}, error)
        else:
            super()._send_handler_result(future, msg_id=msg_id)

    def _is_open(self, uri: str) -> bool:
        return self.workspace.get_text_document(uri) in self.workspace.text_documents.values()

    def _refuse(self, data: dict[str, Any], error: JsonRpcException) -> None:
        """Answer a request. A notification is skipped without an answer. An invalid id becomes null."""
        raw_id = data.get("id")
        _LOG.warning("%s", error)
        if "method" not in data or "id" in data:
            request_id = raw_id if isinstance(raw_id, int | str) else None
            # A dictionary, because the library omits an `id` that is null.
            self._send_data({"jsonrpc": self.VERSION, "id": request_id, "error": error.to_response_error()})


def _has_address(message: Any) -> bool:
    """Return False for a message about a document whose URI cannot be parsed."""
    document = getattr(getattr(message, "params", None), "text_document", None)
    try:
        to_fs_path(getattr(document, "uri", ""))
    except ValueError:  # brackets that hold no address
        return False
    return True


class PlainLog(logging.Formatter):
    """Writes an error as one line with its place, in place of a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line. The library writes some tracebacks into the text itself, and they are left out."""
        return super().format(record).partition("\nTraceback ")[0]

    def formatException(self, ei: Any) -> str:  # noqa: N802 the name in the standard library
        return f"  {ei[0].__name__}: {ei[1]}"

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        return ""


HELP = """\
Speak the Language Server Protocol over standard input and output: diagnostics while typing, hover, completion, go to
definition, rename, formatting, quick fixes, tests by a click. Editors start it; patterns/editor/ has the extension for
VS Code.
"""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NEVER_RENAMED = ("function",)
_RUN_TEST = "cep.test"
_SEVERITIES = {Severity.ERROR: types.DiagnosticSeverity.Error, Severity.WARNING: types.DiagnosticSeverity.Warning}
_ITEM_KINDS = {
    "field": types.CompletionItemKind.Field,
    "symbol": types.CompletionItemKind.EnumMember,
    "function": types.CompletionItemKind.Function,
    "definition": types.CompletionItemKind.Function,
    "variable": types.CompletionItemKind.Variable,
    "parameter": types.CompletionItemKind.Variable,
    "event": types.CompletionItemKind.Class,
    "list": types.CompletionItemKind.Constant,
    "pattern": types.CompletionItemKind.Module,
    "keyword": types.CompletionItemKind.Keyword,
}


def run(_: argparse.Namespace) -> int:
    """Serve until the editor says exit."""
    # Standard output belongs to the protocol; any other text there ends the session.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PlainLog("%(levelname)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    # Copies, because pygls closes the files that it gets.
    with os.fdopen(os.dup(0), "rb") as requests, os.fdopen(os.dup(1), "wb") as answers:
        server().start_io(cast("BinaryIO", BoundedInput(requests)), answers)  # it has all that pygls asks for
    return 0


class _Texts:
    """The texts of the workspace: open documents before files."""

    def __init__(self, served: LanguageServer) -> None:
        self.served = served

    def name(self, uri: str) -> str:
        """Return the name under which cep/lang knows a document."""
        path = _path_of(uri)
        return uri if path is None else file_name(path)

    def uri(self, name: str) -> str:
        open_ones = {self.name(uri): uri for uri in self.served.workspace.text_documents}
        return open_ones.get(name) or from_fs_path(str(Path(name).absolute())) or name

    def document(self, name: str) -> TextDocument:
        return self.opened(self.uri(name))

    def opened(self, uri: str) -> TextDocument:
        """Return the document as it is open in the editor, otherwise its file; empty if the file cannot be read."""
        workspace = self.served.workspace
        document = workspace.get_text_document(uri)
        if document in workspace.text_documents.values():
            return document
        source = ""
        path = self.path(uri)
        with suppress(UnreadableError):
            source = read_source(path, self.root(path) or root_of([path]))
        return TextDocument(uri, source, position_codec=workspace.position_codec)

    def path(self, uri: str) -> Path:
        """Return the path of a document's file. A document without a file has its URI as a path, in no folder."""
        path = _path_of(uri)
        return Path(uri) if path is None else path

    def root(self, path: Path) -> Path | None:
        """Return the folder that the editor has open, if the file is in it."""
        root = self.served.workspace.root_path
        if root is None or "\0" in root or not path.absolute().is_relative_to(Path(root).absolute()):
            return None
        return Path(root).resolve()

    def overlay(self) -> dict[str, str]:
        return {self.name(uri): d.source for uri, d in self.served.workspace.text_documents.items()}

    def checked(self, uri: str) -> Checked:
        """Check one document and its imports."""
        path = self.path(uri)
        return compilable(load_overlaid([path], self.overlay(), self.root(path)))

    def all_checked(self, uri: str) -> Checked:
        """Check every pattern file of the workspace: a rename must reach the files that import this one.

        For a document outside the workspace, only the files in its own folder are checked.
        """
        path = self.path(uri)
        root = self.root(path)
        others = pattern_files(path.parent, below=False) if root is None else pattern_files(root)
        paths = {file_name(p): p for p in [path, *others]}
        return load_overlaid(paths.values(), self.overlay(), root)

    def span_range(self, span: Span) -> types.Range:
        document = self.document(span.file)
        if not document.source:  # the file was removed in the meantime
            return types.Range(types.Position(0, 0), types.Position(0, 0))
        start, end = document.client_position_at_offset(span.start), document.client_position_at_offset(span.end)
        return types.Range(start, end)


def _path_of(uri: str) -> Path | None:
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


def server() -> LanguageServer:
    """Return the server with all its features."""
    served = LanguageServer("cep", __version__, protocol_cls=EditorProtocol)
    texts = _Texts(served)
    _add_diagnostics(served, texts)
    _add_reading(served, texts)
    _add_changing(served, texts)
    _add_testing(served, texts)
    return served


# ------------------------------------------------------------------------------------------------- diagnostics


def _add_diagnostics(served: LanguageServer, texts: _Texts) -> None:
    def publish(uri: str) -> None:
        diagnostics = [_diagnostic(d, texts) for d in _findings(texts, uri)]
        served.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, diagnostics))

    @served.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def opened(params: types.DidOpenTextDocumentParams) -> None:
        publish(params.text_document.uri)

    @served.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def changed(params: types.DidChangeTextDocumentParams) -> None:
        publish(params.text_document.uri)

    @served.feature(types.TEXT_DOCUMENT_DID_SAVE)
    def saved(_params: types.DidSaveTextDocumentParams) -> None:
        for uri in list(served.workspace.text_documents):
            publish(uri)

    @served.feature(types.TEXT_DOCUMENT_CODE_ACTION)
    def actions(params: types.CodeActionParams) -> list[types.CodeAction]:
        uri = params.text_document.uri
        actions_here: list[types.CodeAction] = []
        for diagnostic in _findings(texts, uri):
            if diagnostic.fix is None or diagnostic.span is None:
                continue
            place = texts.span_range(diagnostic.span)
            if place.start.line > params.range.end.line or place.end.line < params.range.start.line:
                continue
            fix = diagnostic.fix
            edit = types.TextEdit(texts.span_range(fix.span), fix.replacement)
            actions_here.append(
                types.CodeAction(
                    title=f"Change to `{fix.replacement}`",
                    kind=types.CodeActionKind.QuickFix,
                    diagnostics=[_diagnostic(diagnostic, texts)],
                    edit=types.WorkspaceEdit(changes={texts.uri(fix.span.file): [edit]}),
                )
            )
        return actions_here


def _findings(texts: _Texts, uri: str) -> list[Diagnostic]:
    checked = texts.checked(uri)
    name = texts.name(uri)
    errors = [d for d in checked.diagnostics if d.is_error and (d.span is None or d.span.file == name)]
    return errors + lint(checked, [name])


def _diagnostic(finding: Diagnostic, texts: _Texts) -> types.Diagnostic:
    start = types.Position(0, 0)
    place = types.Range(start, start) if finding.span is None else texts.span_range(finding.span)
    related = [
        types.DiagnosticRelatedInformation(
            types.Location(texts.uri(label.span.file), texts.span_range(label.span)), label.text
        )
        for label in finding.labels
    ]
    message = f"{finding.message}\n{finding.help}" if finding.help else finding.message
    return types.Diagnostic(
        place, message, _SEVERITIES[finding.severity], code=finding.code, source="cep", related_information=related
    )


# ----------------------------------------------------------------------------------------------------- reading


def _add_reading(served: LanguageServer, texts: _Texts) -> None:
    """Let the server answer questions about a name in a text: its meaning, completions, declaration and uses."""

    @served.feature(types.TEXT_DOCUMENT_HOVER)
    def hover(params: types.HoverParams) -> types.Hover | None:
        checked, target = _name_at(texts, params, in_workspace=False)
        if target is None:
            document = texts.opened(params.text_document.uri)
            text, place = keyword_meaning(document.word_at_position(params.position)), None
        else:
            text, place = meaning(checked, target.named), texts.span_range(target.span)
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, text), place) if text else None

    @served.feature(
        types.TEXT_DOCUMENT_COMPLETION, types.CompletionOptions(trigger_characters=[".", ":", "=", "[", ","])
    )
    def complete(params: types.CompletionParams) -> types.CompletionList:
        uri = params.text_document.uri
        document = texts.opened(uri)
        offset = document.offset_at_position(params.position)
        words = words_at(texts.checked(uri), texts.name(uri), document.source, offset)
        items = [
            types.CompletionItem(
                word.text, kind=_ITEM_KINDS.get(word.kind), detail=word.detail or word.kind, sort_text=f"{rank:04}"
            )
            for rank, word in enumerate(words)
        ]
        return types.CompletionList(is_incomplete=False, items=items)

    @served.feature(types.TEXT_DOCUMENT_DEFINITION)
    def definition(params: types.DefinitionParams) -> list[types.Location]:
        checked, target = _name_at(texts, params, in_workspace=False)
        if target is None:
            return []
        return [_location(p, texts) for p in _places_of(checked, target.named) if p.declares]

    @served.feature(types.TEXT_DOCUMENT_REFERENCES)
    def references(params: types.ReferenceParams) -> list[types.Location]:
        checked, target = _name_at(texts, params, in_workspace=True)
        return [] if target is None else [_location(p, texts) for p in _places_of(checked, target.named)]


_At = (  # a request about a position in a document
    types.HoverParams | types.DefinitionParams | types.ReferenceParams | types.PrepareRenameParams | types.RenameParams
)


def _name_at(texts: _Texts, params: _At, *, in_workspace: bool) -> tuple[Checked, Place | None]:
    uri = params.text_document.uri
    checked = texts.all_checked(uri) if in_workspace else texts.checked(uri)
    offset = texts.opened(uri).offset_at_position(params.position)
    return checked, place_at(places(checked.files, checked.resolved), texts.name(uri), offset)


def _places_of(checked: Checked, named: Named) -> list[Place]:
    return [p for p in places(checked.files, checked.resolved) if p.named == named]


def _location(place: Place, texts: _Texts) -> types.Location:
    return types.Location(texts.uri(place.span.file), texts.span_range(place.span))


# ---------------------------------------------------------------------------------------------------- changing


def _add_changing(served: LanguageServer, texts: _Texts) -> None:
    @served.feature(types.TEXT_DOCUMENT_PREPARE_RENAME)
    def prepare(params: types.PrepareRenameParams) -> types.Range | None:
        _, target = _name_at(texts, params, in_workspace=False)
        return None if target is None or target.named.kind in _NEVER_RENAMED else texts.span_range(target.span)

    @served.feature(types.TEXT_DOCUMENT_RENAME, types.RenameOptions(prepare_provider=True))
    def rename(params: types.RenameParams) -> types.WorkspaceEdit | None:
        """Rename a name everywhere in the documents, if the new name is free."""
        checked, target = _name_at(texts, params, in_workspace=True)
        if (
            target is None
            or target.named.kind in _NEVER_RENAMED
            or not _is_free(checked, target.named, params.new_name)
        ):
            return None
        changes: dict[str, list[types.TextEdit]] = {}
        for place in _places_of(checked, target.named):
            edit = types.TextEdit(texts.span_range(place.span), params.new_name)
            changes.setdefault(texts.uri(place.span.file), []).append(edit)
        return types.WorkspaceEdit(changes=changes)

    @served.feature(types.TEXT_DOCUMENT_FORMATTING)
    def formatting(params: types.DocumentFormattingParams) -> list[types.TextEdit]:
        document = texts.opened(params.text_document.uri)
        formatted, _ = format_text(document.source)
        if formatted is None or formatted == document.source:
            return []
        end = document.client_position_at_offset(len(document.source))
        return [types.TextEdit(types.Range(types.Position(0, 0), end), formatted)]


# ----------------------------------------------------------------------------------------------------- testing


def _add_testing(served: LanguageServer, texts: _Texts) -> None:
    @served.feature(types.TEXT_DOCUMENT_CODE_LENS)
    def lenses(params: types.CodeLensParams) -> list[types.CodeLens]:
        """Return a button over each test, and one over each pattern with tests."""
        uri = params.text_document.uri
        files = [f for f in texts.checked(uri).files if f.name == texts.name(uri)]
        declared = [d for file in files for d in file.declarations]
        lenses_here: list[types.CodeLens] = []
        for declaration in declared:
            if isinstance(declaration, PatternTestSyntax):
                name = f"{declaration.pattern.name}: {declaration.name}"
                lenses_here.append(_lens(texts.span_range(declaration.span), "Run test", uri, name))
            elif isinstance(declaration, PatternSyntax):
                count = sum(isinstance(d, PatternTestSyntax) and d.pattern.name == declaration.name for d in declared)
                if count:
                    title = f"Run {count} test{'' if count == 1 else 's'}"
                    lenses_here.append(_lens(texts.span_range(declaration.span), title, uri, declaration.name))
        return lenses_here

    @served.command(_RUN_TEST)
    def run_tests(uri: str = "", name: str = "") -> dict[str, object]:
        """Run the tests of a document in the editor that `name` selects. Show the result, and log the details."""
        try:
            suite = run_checked(texts.checked(uri), name)
        except UsageError as error:
            served.window_show_message(types.ShowMessageParams(types.MessageType.Error, str(error)))
            return {"ok": False, "text": str(error)}
        lines = [line for tested in suite.tested for line in verdict_lines(tested)]
        lines += [f"ERROR {refused.name}: it or its pattern has mistakes" for refused in suite.refused]
        text = "\n".join(lines)
        bad = [t.test.name for t in suite.tested if t.outcome in (Outcome.FAILED, Outcome.BROKEN)]
        bad += [refused.name for refused in suite.refused]
        head = f"{suite.total - len(bad)} of {suite.total} passed" + (f", not: {', '.join(bad)}" if bad else "")
        kind = types.MessageType.Error if bad else types.MessageType.Info
        served.window_log_message(types.LogMessageParams(kind, text))
        served.window_show_message(types.ShowMessageParams(kind, f"{name}: {head}"))
        return {"ok": not bad, "text": text}


def _lens(place: types.Range, title: str, uri: str, name: str) -> types.CodeLens:
    return types.CodeLens(place, types.Command(title, _RUN_TEST, arguments=[uri, name]))


def _is_free(checked: Checked, named: Named, new_name: str) -> bool:
    """Return whether the new name is allowed: not a word of the language, and not used for the same kind of thing."""
    if _NAME.fullmatch(new_name) is None or new_name in RESERVED:
        return False
    named_places: Iterable[Place] = places(checked.files, checked.resolved)
    return not any(p.named == Named(named.kind, new_name, named.owner) for p in named_places)
