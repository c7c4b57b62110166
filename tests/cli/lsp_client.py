"""A client for tests: starts `cep lsp` as a process and speaks the protocol to it over its pipes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_WAIT_SECONDS = 30


class Client:
    """One session. It stores notifications of the server by method."""

    def __init__(self, root: Path) -> None:
        code = "import sys; from cep.cli.main import main; sys.exit(main(['lsp']))"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        self.notes: list[tuple[str, Any]] = []
        self.last_id = 0
        self.root = root
        self.capabilities = self.ask(
            "initialize", {"processId": None, "rootUri": root.as_uri(), "capabilities": {}}
        )["capabilities"]  # fmt: skip
        self.tell("initialized", {})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ask("shutdown", None)
        self.tell("exit", None)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        code = self.process.wait(_WAIT_SECONDS)
        assert code == 0, code
        self.process.stdout.close()

    def tell(self, method: str, params: Any) -> None:
        """Send a notification."""
        self._send({"jsonrpc": "2.0", "method": method, "params": params})

    def ask(self, method: str, params: Any) -> Any:
        """Send a request and wait for its answer."""
        self.last_id += 1
        self._send({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params})
        while True:
            message = self._receive()
            if message.get("id") == self.last_id and "method" not in message:
                assert "error" not in message, message
                return message["result"]
            self.notes.append((message["method"], message["params"]))

    def diagnostics(self) -> list[dict[str, Any]]:
        """Return the next diagnostics that the server publishes."""
        while True:
            for index, (method, params) in enumerate(self.notes):
                if method == "textDocument/publishDiagnostics":
                    del self.notes[index]
                    return list(params["diagnostics"])
            message = self._receive()
            self.notes.append((message["method"], message["params"]))

    def _send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        body = json.dumps(message).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        size = 0
        while line := self.process.stdout.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                size = int(value)
        assert size, "the server is gone"
        message: dict[str, Any] = json.loads(self.process.stdout.read(size))
        return message
