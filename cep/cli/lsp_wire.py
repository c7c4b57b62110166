"""An editor's bytes → messages that the language server may trust, or the protocol's answer that they are invalid.

A request whose parameters do not follow the protocol is answered with an error. Such a notification is skipped, with a
line in the log. Headers and bodies are read up to a limit.
Tested by: tests/cli/test_lsp.py
"""

from __future__ import annotations

import json
import logging
from concurrent.futures import Future
from typing import Any, BinaryIO

from lsprotocol import types
from pygls.exceptions import (
    JsonRpcException,
    JsonRpcInvalidParams,
    JsonRpcInvalidRequest,
    JsonRpcParseError,
    JsonRpcServerNotInitialized,
)
from pygls.protocol import LanguageServerProtocol
from pygls.uris import to_fs_path

from cep.base.limits import EDITOR_MESSAGE_BYTES_MAX

_LOG = logging.getLogger(__name__)
_HEADER_BYTES_MAX = 512  # a length and a type; a longer header is invalid
_BEFORE_INITIALIZE = (types.INITIALIZE, types.EXIT)


class BoundedInput:
    """Standard input for the protocol's reader, with a limit on messages.

    Invalid bytes become a message without a request.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def readline(self) -> bytes:
        """Return a header line; nothing, the end of the session, for one that no editor sends."""
        line = self._stream.readline(_HEADER_BYTES_MAX)
        return line if len(line) < _HEADER_BYTES_MAX else b""

    def read(self, size: int) -> bytes:
        """Return a body; nothing, the end of the session, if it is too large."""
        if size > EDITOR_MESSAGE_BYTES_MAX:
            _LOG.error("a message of %d bytes is over the limit of %d: goodbye", size, EDITOR_MESSAGE_BYTES_MAX)
            return b""
        body = self._stream.read(size)
        try:
            is_message = isinstance(json.loads(body), dict) if body else True
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
        if data.get("id", 0) is None or data.get("method") == "":
            return self._refuse(data, JsonRpcParseError("this is no request; send JSON-RPC 2.0"))
        try:
            return super().structure_message(data)
        except JsonRpcException:
            wrong = f"the parameters of `{data.get('method', 'an answer')}` are not as the protocol has them"
            return self._refuse(data, JsonRpcInvalidParams(wrong))

    def handle_message(self, message: Any) -> None:
        """Handle a message, if it is valid, the session has begun, and its document is open."""
        method = getattr(message, "method", None)
        if isinstance(message, dict):
            self._refuse(message, JsonRpcInvalidRequest(f"`jsonrpc` is missing; it is `{self.VERSION}`"))
            return
        if not hasattr(message, "jsonrpc"):
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
        """Answer a request. A notification has no answer and is skipped. An invalid id becomes null."""
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
