"""A real browser for tests of pages: Chromium and its driver, as Debian packages them, over the WebDriver protocol."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
INSTALL = "needs Chromium and its driver: apt-get install chromium chromium-driver"
WAIT = 120

REQUIRED = "HEXLOOP_BROWSER"
"""The environment variable with which `make test-all` requires a browser; without it, tests are skipped."""

needs_browser = pytest.mark.skipif(
    (CHROMIUM is None or DRIVER is None) and os.environ.get(REQUIRED) != "required", reason=INSTALL
)

_direct = build_opener(ProxyHandler({}))


class Browser:
    """A session of a headless browser. `url` is that of the session at the driver."""

    def __init__(self, url: str) -> None:
        self._url = url

    def open(self, path: Path | str) -> None:
        """Open a file or an address."""
        self._send("POST", "/url", {"url": path.resolve().as_uri() if isinstance(path, Path) else path})

    def run(self, script: str, *arguments: object) -> Any:
        """Run a function body in the page and return its result."""
        return self._send("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def run_asynchronously(self, script: str) -> Any:
        """Run a function body whose last argument is called with the result, and return that."""
        return self._send("POST", "/execute/async", {"script": script, "args": []})

    def wait_for(self, condition: str) -> None:
        """Wait until an expression is true in the page."""
        script = (
            "const done = arguments[arguments.length - 1];"
            f"(function look() {{ if ({condition}) done(true); else setTimeout(look, 50); }})();"
        )
        assert self._send("POST", "/execute/async", {"script": script, "args": []})

    def settle(self) -> None:
        """Wait until what was changed in the page is drawn."""
        script = "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done(true)));"
        self._send("POST", "/execute/async", {"script": script, "args": []})

    def press(self, *keys: str) -> None:
        """Press keys, one after another; those without a letter by their code in the WebDriver protocol."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._send("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def drag(self, selector: str, start: float, end: float, rise: float = 0.0) -> None:
        """Drag with the mouse over an element, from one part of its width to another, each between 0 and 1.

        rise: how far the mouse goes up meanwhile, as a part of the height; half of it above the middle.
        """
        place = (
            "const element = document.querySelector(arguments[0]);"
            "element.scrollIntoView({block: 'center', behavior: 'instant'});"
            "const box = element.getBoundingClientRect();"
            "return [box.left, box.top + box.height / 2, box.width, box.height];"
        )
        self.run(place, selector)
        self.settle()
        left, middle, width, height = self.run(place, selector)
        moves = [
            {
                "type": "pointerMove",
                "x": round(left + (start + part * (end - start)) * width),
                "y": round(middle + (0.5 - part) * rise * height),
                "duration": 50,
            }
            for part in (0.0, 0.5, 1.0)
        ]
        actions = [moves[0], {"type": "pointerDown", "button": 0}, *moves[1:], {"type": "pointerUp", "button": 0}]
        mouse = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": actions}
        self._send("POST", "/actions", {"actions": [mouse]})
        self.settle()

    def click(self, x: float, y: float) -> None:
        """Click at a place of the window, in CSS pixels."""
        actions = [{"type": "pointerMove", "x": round(x), "y": round(y)}]
        actions += [{"type": kind, "button": 0} for kind in ("pointerDown", "pointerUp")]
        pointer = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": actions}
        self._send("POST", "/actions", {"actions": [pointer]})

    def save_downloads_in(self, folder: Path) -> None:
        """Save what pages offer to download in a folder."""
        self._devtools("Page.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})

    def resize(self, width: int, height: int) -> None:
        """Give the page this size in CSS pixels, as a phone has it."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._devtools("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        """Prefer the "dark" or the "light" theme."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._devtools("Emulation.setEmulatedMedia", {"features": features})

    def screenshot(self, path: Path) -> None:
        """Write what is seen of the page as a PNG."""
        path.write_bytes(base64.b64decode(self._send("GET", "/screenshot")))

    def console(self) -> list[str]:
        """Return the messages of the console since the last call: errors, warnings, and refused requests."""
        return [entry["message"] for entry in self._send("POST", "/se/log", {"type": "browser"})]

    def requests(self) -> list[str]:
        """Return the addresses that pages have requested since the last call."""
        found = []
        for entry in self._send("POST", "/se/log", {"type": "performance"}):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.append(message["params"]["request"]["url"])
        return found

    def _devtools(self, command: str, parameters: dict[str, Any]) -> None:
        self._send("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def _send(self, method: str, path: str, body: object = None) -> Any:
        return send(method, f"{self._url}{path}", body)


def send(method: str, url: str, body: object = None) -> Any:
    """Send a command to the driver and return its value."""
    data = None if body is None else json.dumps(body).encode()
    request = Request(url, data, {"Content-Type": "application/json"}, method=method)
    with _direct.open(request, timeout=WAIT) as answer:
        return json.loads(answer.read())["value"]


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Start a browser with its files in `folder`; end it and its driver with the block."""
    assert CHROMIUM is not None, INSTALL
    assert DRIVER is not None, INSTALL
    environment = {**os.environ, "HOME": str(folder), "TMPDIR": str(folder)}
    driver = subprocess.Popen(
        [DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    try:
        assert driver.stdout is not None
        port = next(found[1] for line in driver.stdout if (found := re.search(r"successfully on port (\d+)", line)))
        options = {
            "binary": CHROMIUM,
            "args": [
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--window-size=1280,900",
            ],
        }
        capabilities = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            "timeouts": {"script": WAIT * 1000, "pageLoad": WAIT * 1000},
        }
        root = f"http://127.0.0.1:{port}/session"
        session = send("POST", root, {"capabilities": {"alwaysMatch": capabilities}})["sessionId"]
        try:
            yield Browser(f"{root}/{session}")
        finally:
            send("DELETE", f"{root}/{session}")
    finally:
        driver.terminate()
        driver.wait(WAIT)
        assert driver.stdout is not None
        driver.stdout.close()
