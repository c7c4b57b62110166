"""One warm process → many runs of `cep`, each forked from it: a page's commands take tenths of a second, not seconds.

    bash ──▶ shim `cep` ──(arguments, folder, environment, three files)──▶ server ──fork──▶ cep.cli.main.main
                 ◀───────────────────────── exit code ──────────────────────────────────────────┘

A command prints to the shim's own files. The fork saves only the interpreter's start, the imports and the reading of
compiled kernels. As a process, `python -m tests.docs.commands SOCKET` serves until its input ends.
Tested by: tests/docs/test_examples.py
"""

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from cep.cli.main import main
from cep.runners.warm import warm_up

ROOT = Path(__file__).parents[2]
_REQUEST_BYTES_MAX = 1 << 20
_SHIM = """#!{python} -SE
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    request = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [len(request).to_bytes(4)], [0, 1, 2])
    server.sendall(request)
    code = server.recv(1)
sys.exit(code[0] if code else "cep: the command ended without an exit code")
"""


@contextmanager
def commands(folder: Path) -> Iterator[Path]:
    """Serve `cep` as long as the block runs. Yields a folder for the PATH in which `cep` is the shim."""
    address, tools = str(folder / "socket"), folder / "tools"
    tools.mkdir()
    shim = tools / "cep"
    shim.write_text(_SHIM.format(python=sys.executable, address=address))
    shim.chmod(0o755)
    command = [sys.executable, "-m", "tests.docs.commands", address]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield tools
        server.communicate()


def _serve(address: str) -> None:
    """Answer requests, each in its own process, until standard input ends."""
    for path in sorted((ROOT / "cep" / "cli").glob("*.py")):
        import_module(f"cep.cli.{path.stem}")
    warm_up()
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the processes are not waited for
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    listener.close()
                    _answer(connection)


def _answer(connection: socket.socket) -> None:
    """Run one command in this process and end it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, files, _, _ = socket.recv_fds(connection, 4, 3)
    request = b""
    while len(request) < int.from_bytes(size):
        request += connection.recv(_REQUEST_BYTES_MAX)
    arguments, folder, environment = json.loads(request)
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    code = 3
    try:
        code = main(arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        connection.sendall(bytes([code]))
        os._exit(code)


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=_end_with_input, daemon=True).start()
    _serve(sys.argv[1])
