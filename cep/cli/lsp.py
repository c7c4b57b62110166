"""`cep lsp`: an editor's requests over standard input and output → answers of cep/lang about the text.

The Language Server Protocol 3.17; pygls reads and writes the messages. An open text of the editor replaces its file. A
request whose parameters do not follow the protocol is answered with an error; such a notification is only logged.
Tested by: tests/cli/test_lsp.py
"""

import argparse
import asyncio
import json
import logging
import os
import re
import sys
from collections import Counter
from concurrent.futures import Future
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
from pygls.uris import to_fs_path

from cep import __version__
from cep.base.errors import UsageError
from cep.base.limits import EDITOR_MESSAGE_BYTES_MAX
from cep.cli.editor_texts import Snapshot, Texts, names_in_rule, rule_files
from cep.cli.editor_views import add_views
from cep.lang.diagnostics import Diagnostic, Severity, Span
from cep.lang.edit.assist import keyword_meaning, meaning, words_at
from cep.lang.edit.heads import focused, heads, import_at
from cep.lang.edit.symbols import Named, Place, place_at
from cep.lang.format.file import format_text
from cep.lang.load import file_name
from cep.lang.parse.lexer import RESERVED

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
definition, rename, formatting, quick fixes, outline, signatures, tests by a click. Editors start it; patterns/editor/
has the extension for VS Code.
"""
_PAUSE_S = 0.15  # without typing, before a changed text is checked as a whole
_SWITCH_S = 0.0005  # an answer waits so long at most for the thread that checks
_WORD_MAX = 64  # characters; no keyword is longer
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NEVER_RENAMED = ("function",)
_REQUEST_FAILED = -32803  # of the protocol: a valid request that cannot be done
_LOCAL = ("variable", "argument")  # each is used in its own declaration alone
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
    sys.setswitchinterval(_SWITCH_S)
    # Copies, because pygls closes the files that it gets.
    with os.fdopen(os.dup(0), "rb") as requests, os.fdopen(os.dup(1), "wb") as answers:
        server().start_io(cast("BinaryIO", BoundedInput(requests)), answers)  # it has all that pygls asks for
    return 0


def server() -> LanguageServer:
    """Return the server with all its features."""
    served = LanguageServer("cep", __version__, protocol_cls=EditorProtocol)
    texts = Texts(served)
    _add_diagnostics(served, texts)
    _add_reading(served, texts)
    _add_changing(served, texts)
    _add_testing(served, texts)
    add_views(served, texts)
    return served


# ------------------------------------------------------------------------------------------------- diagnostics


def _add_diagnostics(served: LanguageServer, texts: Texts) -> None:
    waiting: dict[str, asyncio.Task[None]] = {}  # by URI: a check that begins after a pause in typing

    def publish(uri: str, snapshot: Snapshot) -> None:
        diagnostics = [_diagnostic(d, texts, snapshot) for d in snapshot.findings(texts.name(uri))]
        served.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, diagnostics))

    async def publish_after_a_pause(uri: str) -> None:
        await asyncio.sleep(_PAUSE_S)
        snapshot = await texts.checked_apart(uri)
        if snapshot is not None:  # None: a change has come, and with it the next check
            publish(uri, snapshot)

    @served.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def opened(params: types.DidOpenTextDocumentParams) -> None:
        publish(params.text_document.uri, texts.checked(params.text_document.uri))

    @served.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def changed(params: types.DidChangeTextDocumentParams) -> None:
        uri = params.text_document.uri
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # messages are handled one by one, without a loop
            publish(uri, texts.checked(uri))
            return
        for earlier in [uri for uri, task in waiting.items() if task.done() or uri == params.text_document.uri]:
            waiting.pop(earlier).cancel()
        waiting[uri] = loop.create_task(publish_after_a_pause(uri))

    @served.feature(types.TEXT_DOCUMENT_DID_SAVE)
    def saved(_params: types.DidSaveTextDocumentParams) -> None:
        for uri in list(served.workspace.text_documents):
            publish(uri, texts.checked(uri))

    @served.feature(types.TEXT_DOCUMENT_CODE_ACTION)
    def actions(params: types.CodeActionParams) -> list[types.CodeAction]:
        uri = params.text_document.uri
        snapshot = texts.near(uri, texts.offset(texts.source(uri), params.range.start))
        actions_here: list[types.CodeAction] = []
        for diagnostic in snapshot.findings(texts.name(uri)):
            if diagnostic.fix is None or diagnostic.span is None:
                continue
            place = _range(diagnostic.span, texts, snapshot)
            if place.start.line > params.range.end.line or place.end.line < params.range.start.line:
                continue
            fix = diagnostic.fix
            edit = types.TextEdit(_range(fix.span, texts, snapshot), fix.replacement)
            actions_here.append(
                types.CodeAction(
                    title=f"Change to `{fix.replacement}`",
                    kind=types.CodeActionKind.QuickFix,
                    diagnostics=[_diagnostic(diagnostic, texts, snapshot)],
                    edit=types.WorkspaceEdit(changes={texts.uri(fix.span.file): [edit]}),
                )
            )
        return actions_here


def _diagnostic(finding: Diagnostic, texts: Texts, snapshot: Snapshot) -> types.Diagnostic:
    start = types.Position(0, 0)
    place = types.Range(start, start) if finding.span is None else _range(finding.span, texts, snapshot)
    related = [
        types.DiagnosticRelatedInformation(
            types.Location(texts.uri(label.span.file), _range(label.span, texts, snapshot)), label.text
        )
        for label in finding.labels
    ]
    message = f"{finding.message}\n{finding.help}" if finding.help else finding.message
    return types.Diagnostic(
        place, message, _SEVERITIES[finding.severity], code=finding.code, source="cep", related_information=related
    )


def _range(span: Span, texts: Texts, snapshot: Snapshot) -> types.Range:
    return texts.span_range(span, snapshot.checked.sources.get(span.file))


# ----------------------------------------------------------------------------------------------------- reading


def _add_reading(served: LanguageServer, texts: Texts) -> None:
    """Let the server answer questions about a name in a text: its meaning, completions, declaration and uses."""

    @served.feature(types.TEXT_DOCUMENT_HOVER)
    def hover(params: types.HoverParams) -> types.Hover | None:
        snapshot, target = _name_at(texts, params)
        if target is None:
            text, place = keyword_meaning(_word_at(texts, params)), None
        else:
            text, place = meaning(snapshot.checked, target.named), _range(target.span, texts, snapshot)
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, text), place) if text else None

    @served.feature(
        types.TEXT_DOCUMENT_COMPLETION, types.CompletionOptions(trigger_characters=[".", ":", "=", "[", ","])
    )
    def complete(params: types.CompletionParams) -> types.CompletionList:
        uri = params.text_document.uri
        source = texts.source(uri)
        offset = texts.offset(source, params.position)
        if import_at(source, offset) is not None:
            return types.CompletionList(is_incomplete=False, items=[])
        near = texts.near(uri, offset).checked
        words = words_at(near, texts.name(uri), focused(source, offset), offset)
        items = [
            types.CompletionItem(
                word.text,
                kind=_ITEM_KINDS.get(word.kind),
                detail=word.detail or word.kind,
                sort_text=f"{rank:04}",
                insert_text=word.snippet or None,
                insert_text_format=types.InsertTextFormat.Snippet if word.snippet else None,
            )
            for rank, word in enumerate(words)
        ]
        return types.CompletionList(is_incomplete=False, items=items)

    @served.feature(types.TEXT_DOCUMENT_DEFINITION)
    def definition(params: types.DefinitionParams) -> list[types.Location]:
        uri = params.text_document.uri
        source = texts.source(uri)
        imported = import_at(source, texts.offset(source, params.position))
        if imported is not None:
            start = types.Position(0, 0)
            return [types.Location(texts.beside(uri, imported.name), types.Range(start, start))]
        snapshot, target = _name_at(texts, params)
        places = [] if target is None else snapshot.places_of(target.named)
        return [_location(place, texts, snapshot) for place in places if place.declares]

    @served.feature(types.TEXT_DOCUMENT_REFERENCES)
    def references(params: types.ReferenceParams) -> list[types.Location]:
        snapshot, target = _name_at(texts, params, in_workspace=True)
        return [] if target is None else [_location(p, texts, snapshot) for p in snapshot.places_of(target.named)]


_At = (  # a request about a position in a document
    types.HoverParams | types.DefinitionParams | types.ReferenceParams | types.PrepareRenameParams | types.RenameParams
)


def _name_at(texts: Texts, params: _At, *, in_workspace: bool = False) -> tuple[Snapshot, Place | None]:
    """Return the name at a position, and the check that has all its places if they may be in the whole workspace."""
    uri = params.text_document.uri
    offset = texts.offset(texts.source(uri), params.position)
    name = texts.name(uri)
    near = texts.near(uri, offset)
    target = place_at(near.in_file(name), name, offset)
    if not in_workspace or (target is not None and target.named.kind in _LOCAL):
        return near, target
    snapshot = texts.all_checked(uri)
    return snapshot, place_at(snapshot.in_file(name), name, offset)


def _word_at(texts: Texts, params: types.HoverParams) -> str:
    """Return the word at a position, "" if there is none."""
    source = texts.source(params.text_document.uri)
    offset = texts.offset(source, params.position)
    around = _NAME.finditer(source, max(0, offset - _WORD_MAX), offset + _WORD_MAX)
    return next((word[0] for word in around if word.start() <= offset <= word.end()), "")


def _location(place: Place, texts: Texts, snapshot: Snapshot) -> types.Location:
    return types.Location(texts.uri(place.span.file), _range(place.span, texts, snapshot))


# ---------------------------------------------------------------------------------------------------- changing


def _add_changing(served: LanguageServer, texts: Texts) -> None:
    @served.feature(types.TEXT_DOCUMENT_PREPARE_RENAME)
    def prepare(params: types.PrepareRenameParams) -> types.Range | None:
        snapshot, target = _name_at(texts, params)
        if target is None or target.named.kind in _NEVER_RENAMED:
            return None
        return _range(target.span, texts, snapshot)

    @served.feature(types.TEXT_DOCUMENT_RENAME, types.RenameOptions(prepare_provider=True))
    def rename(params: types.RenameParams) -> types.WorkspaceEdit | None:
        """Rename a name everywhere in the pattern and rule files. A refusal gives its reason."""
        snapshot, target = _name_at(texts, params, in_workspace=True)
        if target is None:
            return None
        if reason := _refusal(snapshot, target.named, params.new_name):
            raise JsonRpcException(reason, _REQUEST_FAILED)
        changes: dict[str, list[types.TextEdit]] = {}
        for place in snapshot.places_of(target.named):
            edit = types.TextEdit(_range(place.span, texts, snapshot), params.new_name)
            changes.setdefault(texts.uri(place.span.file), []).append(edit)
        for path in rule_files(served):
            source = texts.source(texts.uri(file_name(path)))
            for start, end in names_in_rule(source, target.named):
                edit = types.TextEdit(texts.range_of(source, start, end), params.new_name)
                changes.setdefault(texts.uri(file_name(path)), []).append(edit)
        return types.WorkspaceEdit(changes=changes)

    @served.feature(types.TEXT_DOCUMENT_FORMATTING)
    def formatting(params: types.DocumentFormattingParams) -> list[types.TextEdit]:
        source = texts.source(params.text_document.uri)
        formatted, _ = format_text(source)
        if formatted is None or formatted == source:
            return []
        end = texts.position(source, len(source))
        return [types.TextEdit(types.Range(types.Position(0, 0), end), formatted)]


def _refusal(snapshot: Snapshot, named: Named, new_name: str) -> str:
    """Return why a name cannot become the new one, "" if it can."""
    if named.kind in _NEVER_RENAMED:
        return f"`{named.name}` is a {named.kind} of the language"
    if _NAME.fullmatch(new_name) is None:
        return f"`{new_name[:60]}` is not a name: letters, digits and `_`, a digit not first"
    if new_name in RESERVED:
        return f"`{new_name}` is a word of the language"
    if snapshot.places_of(Named(named.kind, new_name, named.owner)):
        return f"there is a {named.kind} `{new_name}` already"
    return ""


# ----------------------------------------------------------------------------------------------------- testing


def _add_testing(served: LanguageServer, texts: Texts) -> None:
    @served.feature(types.TEXT_DOCUMENT_CODE_LENS)
    def lenses(params: types.CodeLensParams) -> list[types.CodeLens]:
        """Return a button over each test, and one over each pattern with tests."""
        uri = params.text_document.uri
        source = texts.source(uri)
        counts = Counter(head.tested for head in heads(source) if head.word == "test")
        lenses_here: list[types.CodeLens] = []
        for head in heads(source):
            place = texts.range_of(source, head.name_start, head.name_end)
            if head.word == "test" and head.tested:
                lenses_here.append(_lens(place, "Run test", uri, f"{head.tested}: {head.name}"))
            elif head.word == "pattern" and counts[head.name]:
                title = f"Run {counts[head.name]} test{'' if counts[head.name] == 1 else 's'}"
                lenses_here.append(_lens(place, title, uri, head.name))
        return lenses_here

    @served.command(_RUN_TEST)
    def run_tests(uri: str = "", name: str = "") -> dict[str, object]:
        """Run the tests of a document in the editor that `name` selects. Show the result, and log the details."""
        from cep.testing.harness import Outcome, run_checked, verdict_lines  # noqa: PLC0415 the engine takes 50 MB

        try:
            suite = run_checked(texts.checked(uri).compiled, name)
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
