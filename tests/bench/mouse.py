"""A user's mouse in a page, which counts its clicks."""

from __future__ import annotations

import time
from contextlib import suppress
from urllib.error import HTTPError

from attrs import define

from tests.browser import WAIT, Browser

ENTER = "\ue007"


@define
class Mouse:
    """A user's mouse and keyboard. clicks: how often the mouse was used, drags included. typed: how many characters.

    To scroll is not a click.
    """

    window: Browser
    clicks: int = 0
    typed: int = 0

    def click(self, element: str) -> None:
        """Click in the middle of what a JavaScript expression returns, where it must be what is under the mouse."""
        self.wait_for(element)
        hit = self.window.run(
            f"const found = {element}; found.scrollIntoView({{ block: 'center', behavior: 'instant' }});"
            "const box = found.getBoundingClientRect();"
            "const place = [box.x + box.width / 2, box.y + box.height / 2];"
            "let top = document.elementFromPoint(...place);"
            "for (let inner; (inner = top?.shadowRoot?.elementFromPoint(...place)) && inner !== top; top = inner);"
            "if (!top || !(found.contains(top) || top.contains(found))) return top ? top.outerHTML.slice(0, 100) : '';"
            "return place;"
        )
        if isinstance(hit, str):
            raise AssertionError(f"{element} is covered by {hit}")
        self.window.click(*hit)
        self.clicks += 1

    def drag(self, selector: str, start: float, end: float, rise: float = 0.0) -> None:
        """Drag over an element from one part of its width to another; see `Browser.drag`."""
        self.wait_for(f"document.querySelector('{selector}')")
        self.window.drag(selector, start, end, rise)
        self.clicks += 1

    def write(self, text: str) -> None:
        """Type a text and the Enter key, which are not clicks."""
        self.window.press(*text, ENTER)
        self.typed += len(text)

    def wait_for(self, element: str) -> None:
        """Wait until what an expression returns is in the page."""
        until = time.monotonic() + WAIT
        while time.monotonic() < until:
            with suppress(HTTPError):  # the page may be about to be another one
                if self.window.run(f"try {{ return Boolean({element}) }} catch (error) {{ return false }}"):
                    return
            time.sleep(0.1)
        raise AssertionError(f"{element} is not in the page")

    def see(self, element: str) -> None:
        """Scroll to what an expression returns, and check that it is in the window."""
        self.wait_for(element)
        self.window.run(f"({element}).scrollIntoView({{ block: 'center', behavior: 'instant' }})")
        box = f"{element}.getBoundingClientRect()"
        self.wait_for(f"{box}.height > 0 && {box}.top < innerHeight && {box}.bottom > 0")

    def __str__(self) -> str:
        return f"{self.clicks}{f' + {self.typed} typed' if self.typed else ''}"


def texted(words: str, kind: str = "a, button, summary") -> str:
    """Return an expression for the element of this kind with these words."""
    return f"Array.from(document.querySelectorAll('{kind}')).find(each => each.textContent.trim() === '{words}')"
