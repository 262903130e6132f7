"""A client of pyright's language server: what an editor that uses it shows at a place in a program."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

SETTINGS = {"typeCheckingMode": "standard", "extraPaths": [str(ROOT / "src"), str(ROOT / "docs" / "examples")]}
"""What pyright is told: how strict it is, and where hexloop and the modules of the examples are."""


class LanguageServer:
    """A running language server with one program in it."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self._process, self._asked = process, 0
        self._address = (folder / "program.py").as_uri()
        folders = [{"uri": folder.as_uri(), "name": "program"}]
        self.ask("initialize", processId=None, rootUri=folder.as_uri(), workspaceFolders=folders, capabilities={
            "workspace": {"configuration": True, "workspaceFolders": True},
            "textDocument": {
                "signatureHelp": {"signatureInformation": {"documentationFormat": ["markdown"]}},
                "completion": {"completionItem": {"documentationFormat": ["markdown"]}},
                "hover": {"contentFormat": ["markdown"]},
            },
        })  # fmt: skip
        self._send(method="initialized", params={})

    def open(self, text: str) -> None:
        """Let `text` be the program."""
        document = {"uri": self._address, "languageId": "python", "version": 1, "text": text}
        self._send(method="textDocument/didOpen", params={"textDocument": document})

    def at(self, method: str, line: int, column: int) -> Any:
        """Return what the editor is told at a place of the program; lines and columns count from 0."""
        where = {"textDocument": {"uri": self._address}, "position": {"line": line, "character": column}}
        return self.ask(f"textDocument/{method}", **where)

    def ask(self, method: str, **parameters: Any) -> Any:
        """Send a request and return its result, answering the requests of the server meanwhile."""
        self._asked += 1
        self._send(id=self._asked, method=method, params=parameters)
        while True:
            message = self._receive()
            if "method" not in message and message.get("id") == self._asked:
                return message["result"]
            if "id" in message:
                wanted = message.get("params", {}).get("items", [])
                answer = [{"pythonPath": sys.executable, "analysis": SETTINGS} for _ in wanted]
                self._send(id=message["id"], result=answer if message["method"] == "workspace/configuration" else None)

    def _send(self, **message: Any) -> None:
        assert self._process.stdin is not None
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        length = 0
        while header := self._process.stdout.readline().strip():
            name, _, value = header.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        assert length, "the language server has ended"
        message: dict[str, Any] = json.loads(self._process.stdout.read(length))
        return message


@contextmanager
def language_server(folder: Path) -> Iterator[LanguageServer]:
    """Run pyright's language server for a program in `folder`."""
    command = [sys.executable, "-m", "pyright.langserver", "--stdio"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            yield LanguageServer(process, folder)
        finally:
            process.terminate()
