"""HTTP requests, an editor's messages and a registry's answers."""

import io
import json
import logging
import socket
import sys
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch
from wsgiref.simple_server import ServerHandler

import pyarrow as pa

from cep.base.errors import CepError
from cep.base.limits import HTTP_REQUEST_S_MAX
from cep.cli.lsp import BoundedInput, server
from cep.runners import http
from cep.runners.observe import Observed
from cep.sources.registry import kafka
from cep.sources.registry.form import RecordFormat
from tests.columnar import common
from tests.hostile.events import rows_of
from tests.hostile.kinds import ACCEPTED, REFUSED, DiffersError, Feed, HangsError, Kind
from tests.hostile.mutate import broken_bytes, broken_text, broken_value, deep
from tests.lang.generate import random_file
from tests.sources.registry.registry_server import serve_registry
from tests.sources.registry.test_registry import EVENTS, avro

_WAIT_S = 2 * HTTP_REQUEST_S_MAX  # the server gives up at half of it
_TOKEN = "a-token"
_FORGET_AFTER = 500  # messages of one editor's session


class _Bugs(logging.Handler):
    """Exceptions that a library logs with a traceback: errors that our code did not foresee."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.raised: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self.raised.append(record.exc_info[1])


def requests(folder: Path) -> Feed:
    """Requests to a job's port, over a socket."""
    raised: list[BaseException] = []

    def note(*_: Any) -> None:
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, OSError):
            raised.append(error)

    doors: tuple[tuple[Any, str], ...] = ((http._Server, "handle_error"), (ServerHandler, "log_exception"))
    for owner, name in doors:
        setattr(owner, name, note)  # otherwise they keep silent, or print
    observed = Observed(1_000)
    served = http.served(("127.0.0.1", 0), observed, {"/key": lambda query: {"asked": sorted(query)}}, _TOKEN)
    address = served.__enter__()
    assert address is not None
    _OPEN.append(served)
    head = f"Host: x\r\nAuthorization: Bearer {_TOKEN}\r\nConnection: close\r\n\r\n"
    texts = [
        f"GET {path} HTTP/1.1\r\n{head}".encode() for path in ("/metrics", "/health", "/key?key=C-1&key=%00", "/none")
    ]
    texts += [
        b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
        b"GET /metrics?name[]=cep_runs HTTP/1.0\r\n\r\n",
    ]

    def feed(random: Random) -> str:
        data = broken_bytes(random.choice(texts), random)
        answer = b""
        try:
            with socket.create_connection(address, _WAIT_S) as connection:
                connection.sendall(data[:60_000])
                connection.shutdown(socket.SHUT_WR)
                while part := connection.recv(65_536):
                    answer += part
        except TimeoutError:
            raise HangsError(f"no answer within {_WAIT_S} seconds") from None
        except OSError:
            pass  # the server has hung up
        if raised:
            raise raised.pop()
        if (b"# HELP cep_" in answer or b'"asked"' in answer) and _TOKEN.encode() not in data:
            raise DiffersError("metrics or a key are given away without the token")
        return ACCEPTED if b" 200 " in answer[:20] else REFUSED

    return feed


_OPEN: list[Any] = []  # servers that end with the process


class _Editor:
    """A session of the language server in this process."""

    def __init__(self, root: Path) -> None:
        self.served = server()
        self.count = 0
        self.answers: list[dict[str, Any]] = []
        self.served.protocol.set_writer(self, include_headers=False)
        self.send(
            json.dumps(
                _message(1, "initialize", {"processId": None, "rootUri": root.as_uri(), "capabilities": {}})
            ).encode()
        )

    def write(self, data: bytes) -> None:
        self.answers.append(json.loads(data))

    def close(self) -> None:
        """Do nothing."""

    def send(self, data: bytes) -> list[dict[str, Any]]:
        self.answers.clear()
        self.count += 1
        protocol = self.served.protocol
        body = BoundedInput(io.BytesIO(data)).read(len(data) or 1)
        if body:
            protocol.handle_message(json.loads(body, object_hook=protocol.structure_message))
        return list(self.answers)


def _message(number: int, method: str, params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def editors(folder: Path) -> Feed:
    """Messages of an editor, in one long session."""
    bugs = _Bugs()
    logging.getLogger("pygls").addHandler(bugs)
    logging.getLogger("pygls").propagate = False
    logging.getLogger("cep").addHandler(logging.NullHandler())
    logging.getLogger("cep").propagate = False
    (folder / "other.cep").write_text(random_file(2))
    uri = (folder / "x.cep").as_uri()
    text = random_file(1)
    lines = text.count("\n")
    document = {"uri": uri, "languageId": "cep", "version": 1, "text": text}
    opened = {"jsonrpc": "2.0", "method": "textDocument/didOpen", "params": {"textDocument": document}}
    place = {"textDocument": {"uri": uri}, "position": {"line": lines // 2, "character": 3}}
    whole = {"start": {"line": 0, "character": 0}, "end": {"line": lines, "character": 0}}
    change = {"range": {"start": {"line": 1, "character": 0}, "end": {"line": 1, "character": 2}}, "text": "x"}
    trees = [
        opened,
        {"jsonrpc": "2.0", "method": "textDocument/didChange",
         "params": {"textDocument": {"uri": uri, "version": 2}, "contentChanges": [change]}},
        _message(3, "textDocument/hover", place), _message(4, "textDocument/completion", place),
        _message(5, "textDocument/definition", place), _message(6, "textDocument/prepareRename", place),
        _message(7, "textDocument/rename", {**place, "newName": "other"}),
        _message(8, "textDocument/references", {**place, "context": {"includeDeclaration": True}}),
        _message(9, "textDocument/formatting",
                 {"textDocument": {"uri": uri}, "options": {"tabSize": 2, "insertSpaces": True}}),
        _message(10, "textDocument/codeLens", {"textDocument": {"uri": uri}}),
        _message(11, "textDocument/codeAction",
                 {"textDocument": {"uri": uri}, "range": whole, "context": {"diagnostics": []}}),
        _message(12, "workspace/executeCommand", {"command": "cep.test", "arguments": [uri, "p"]}),
    ]  # fmt: skip
    editor = _Editor(folder)
    editor.send(json.dumps(opened).encode())

    def feed(random: Random) -> str:
        nonlocal editor
        if editor.count > _FORGET_AFTER:
            editor = _Editor(folder)
            editor.send(json.dumps(opened).encode())
        message = random.choice(trees)
        if random.random() < 0.02:
            data = deep(random).encode()
        elif random.random() < 0.7:
            data = json.dumps(broken_value(message, random, ["shutdown", "file:///dev/zero", "file:///a%00"])).encode()
        else:
            data = broken_bytes(json.dumps(message).encode(), random)
        bugs.raised.clear()
        is_over = False
        try:
            answers = editor.send(data)
        except SystemExit:
            answers = []
            is_over = True
        if bugs.raised:
            raise bugs.raised[0]
        if not is_over:
            _one_answer(data, answers)
        if getattr(editor.served.protocol, "_shutdown", False):
            editor = _Editor(folder)
            editor.send(json.dumps(opened).encode())
        return REFUSED if any("error" in answer for answer in answers) else ACCEPTED

    return feed


def _one_answer(data: bytes, sent: list[dict[str, Any]]) -> None:
    """Raise DiffersError unless a request got exactly one answer, by its id, and a notification none."""
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(message, dict) or "jsonrpc" not in message or not isinstance(message.get("method"), str):
        return
    number = message.get("id")
    answered = [answer["id"] for answer in sent if "id" in answer and "method" not in answer]
    expected = [] if "id" not in message else [number if isinstance(number, int | str) else None]
    if answered != expected:
        raise DiffersError(f"the answers {answered} to the ids {expected} of {data[:200]!r}")


def answers(folder: Path) -> Feed:
    """Answers of a schema registry, at each of its paths, to readers of records that name a schema."""
    served = serve_registry()
    registry, settings = served.__enter__()
    _OPEN.append(served)
    settings = (*settings, ("max.retries", "0"), ("timeout", "2"))
    values = avro(kafka.client_of(settings), EVENTS[:2])
    good = dict(registry.schemas[0])
    schema = json.loads(good["schema"])
    # A second schema that refers to the first one, which the client asks for at another path.
    referring = {**good, "references": [{"name": "shop.Payment", "subject": "payment", "version": 1}]}
    version = {**good, "subject": "payment", "version": 1, "id": 1}
    trees: dict[str, Any] = {"/schemas/ids": good, "/schemas/types": ["AVRO", "JSON"], "/subjects": version}
    real = registry.RequestHandlerClass._answer  # type: ignore[attr-defined]
    answers_by_path: dict[str, tuple[int, bytes]] = {}  # by the beginning of a path

    def answer(handler: Any, status: int, value: dict[str, Any]) -> None:
        for path, (status_given, body) in answers_by_path.items():
            if handler.path.startswith(path):
                handler.send_response(status_given)
                handler.send_header("Content-Length", str(len(body)))
                handler.end_headers()
                handler.wfile.write(body)
                return
        real(handler, status, value)

    registry.RequestHandlerClass._answer = answer  # type: ignore[attr-defined]
    form = RecordFormat("avro", settings)

    def decoded() -> Any:
        fresh = kafka.client_of.__wrapped__(settings)  # a client that remembers no schema
        with (
            patch.object(kafka, "client_of", lambda _: fresh),
            patch.object(kafka, "_shapes_of", kafka._shapes_of.__wrapped__),
            patch.object(kafka, "_reader", kafka._reader.__wrapped__),
        ):
            return kafka.decode(form, common.ONE, pa.array(values, pa.binary()), "payments")

    def answer_well() -> None:
        answers_by_path.clear()
        answers_by_path.update({path: (200, json.dumps(tree).encode()) for path, tree in trees.items()})

    answer_well()
    before = rows_of(decoded())
    assert len(before) == len(values)

    def feed(random: Random) -> str:
        answer_well()
        is_referring = random.random() < 0.3
        if is_referring:
            answers_by_path["/schemas/ids"] = (200, json.dumps(referring).encode())
        path = random.choice(
            ("/subjects", "/schemas/ids") if is_referring else ("/schemas/ids",) * 9 + ("/schemas/types",)
        )
        tree = referring if is_referring and path == "/schemas/ids" else trees[path]
        changed = _changed(tree, schema, random)
        answers_by_path[path] = (random.choice((200,) * 9 + (204, 301, 401, 404, 422, 429, 500, 503)), changed)
        try:
            after = decoded()
        except CepError:
            return REFUSED
        if after.records_count != len(values):
            raise DiffersError("a record is neither decoded nor set aside")
        if path == "/schemas/ids" and _schema_of(changed) == schema and not after.poison and rows_of(after) != before:
            raise DiffersError("the same schema gives other records")
        return REFUSED if after.poison else ACCEPTED

    return feed


def _changed(tree: Any, schema: Any, random: Random) -> bytes:
    """Return a hostile answer: the tree, or the schema in it, or their bytes."""
    match random.randrange(4):
        case 0:
            return json.dumps(broken_value(tree, random)).encode()
        case 1 if "schema" in tree:
            return json.dumps({**tree, "schema": json.dumps(broken_value(schema, random))}).encode()
        case 2 if "schema" in tree:
            text = broken_text(tree["schema"], random)
            return json.dumps({**tree, "schema": text}).encode()
        case _:
            return broken_bytes(json.dumps(tree).encode(), random)


def _schema_of(answer: bytes) -> object:
    """Return the schema in a registry's answer, None if it is missing."""
    try:
        return json.loads(json.loads(answer)["schema"])
    except (ValueError, TypeError, LookupError, RecursionError):
        return None


KINDS = (
    Kind("HTTP requests", 35, requests), Kind("editor messages", 30, editors), Kind("registry answers", 12, answers),
)  # fmt: skip
