"""How many clicks the commonest actions take on the board, in a headless browser.

`python -m tests.bench.clicks [FOLDER]` writes fifty runs to a folder, opens the pages, does each action with the mouse,
checks that it did what it was to do, and prints the table. A drag counts as a click; a choice in a select counts as
two, for it is opened first. An action starts where a user is when it comes to mind: at the list of the runs, or at the
page of a run.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import define

from tests.bench.board import board
from tests.bench.sweep import write_sweep
from tests.browser import Browser, browser


@define
class Mouse:
    """A user's mouse in a page. clicks: how often it was used."""

    window: Browser
    clicks: int = 0

    def click(self, element: str) -> None:
        """Click in the middle of what a JavaScript expression returns, where it must be what is under the mouse."""
        self._point(element)
        hit = self.window.run(
            f"const found = {element}; found.scrollIntoView({{ block: 'center', behavior: 'instant' }});"
            "const box = found.getBoundingClientRect();"
            "const top = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);"
            "if (!(found.contains(top) || top.contains(found))) return top.outerHTML.slice(0, 100);"
            "return [box.x + box.width / 2, box.y + box.height / 2];"
        )
        if isinstance(hit, str):
            raise AssertionError(f"{element} is covered by {hit}")
        self.window.click(*hit)
        self.clicks += 1

    def drag(self, selector: str, start: float, end: float) -> None:
        """Drag over an element from one part of its width to another."""
        self._point(f"document.querySelector('{selector}')")
        self.window.drag(selector, start, end)
        self.clicks += 1

    def write(self, text: str) -> None:
        """Type a text and the Enter key, which are not clicks."""
        self.window.press(*text, "\ue007")

    def _point(self, element: str) -> None:
        self.window.wait_for(f"(() => {{ try {{ return Boolean({element}) }} catch (error) {{ return false }} }})()")


BEST = "document.querySelector('.tabulator-row .run-name').textContent"
LISTED = "document.getElementById('run-list')?.dataset.built === 'true'"
DRAWN = "document.querySelector('.chart canvas')"


def run_row(name: str, inside: str) -> str:
    """Return an expression for something in a row of the list."""
    return f"document.querySelector('.tabulator-row:has(input[value=\"{name}\"]) {inside}')"


def texted(words: str, kind: str = "a, button, summary") -> str:
    """Return an expression for the element of this kind with these words."""
    return f"Array.from(document.querySelectorAll('{kind}')).find(each => each.textContent.trim() === '{words}')"


def best(mouse: Mouse) -> None:
    """Find the best of fifty runs by a metric: sort by it."""
    mouse.click("document.querySelector('.tabulator-col-title span[title=eval_accuracy]')")
    mouse.window.wait_for("document.querySelector('[tabulator-field=m1]').getAttribute('aria-sort') === 'descending'")
    values = mouse.window.run(
        "return Array.from(document.querySelectorAll('.tabulator-cell[tabulator-field=m1]'), each => +each.textContent)"
    )
    assert len(values) > 10
    assert values == sorted(values, reverse=True), values


def compare(mouse: Mouse) -> None:
    """Compare two runs: choose both."""
    names = mouse.window.run("return Array.from(document.querySelectorAll('.run-name'), each => each.textContent)")[:2]
    for name in names:
        mouse.click(run_row(name, "input.choose"))
    mouse.click("document.getElementById('compare')")
    mouse.window.wait_for(f"document.querySelector('h1').textContent.startsWith('2 runs') && {DRAWN}")


def tag(mouse: Mouse) -> None:
    """Tag a run: type into its cell."""
    name = mouse.window.run(f"return {BEST}")
    mouse.click(run_row(name, "[tabulator-field=tags]"))
    mouse.window.wait_for("document.activeElement.classList.contains('cell-editor')")
    mouse.write("baseline")
    mouse.window.wait_for(f"{run_row(name, '.tag')}?.textContent === 'baseline'")


def slow(mouse: Mouse) -> None:
    """See why a run is slow: what its time went into."""
    mouse.click(texted("Where the time went", "nav a"))
    assert "waiting for data" in mouse.window.run("return document.getElementById('time').textContent")
    seen(mouse, "document.getElementById('time')")


def zoom(mouse: Mouse) -> None:
    """Zoom into a spike: drag over it."""
    before = mouse.window.run(RANGE)
    mouse.drag(".chart", 0.4, 0.6)
    mouse.window.wait_for(f"JSON.stringify((() => {{ {RANGE} }})()) !== JSON.stringify({before})")
    after = mouse.window.run(RANGE)
    assert after[1] - after[0] < (before[1] - before[0]) / 2, (before, after)


RANGE = (
    "const plot = echarts.getInstanceByDom(document.querySelector('.chart'));"
    "const extent = plot.getModel().getComponent('xAxis', 0).axis.scale.getExtent(); return extent;"
)


def export(mouse: Mouse) -> None:
    """Export a chart as a picture."""
    mouse.window.run(
        "URL.createObjectURL = (made => blob => { window.saved = blob.type; return made(blob); })(URL.createObjectURL)"
    )
    mouse.click("document.querySelector('figure details.menu summary')")
    mouse.click("document.querySelector('figure details.menu [data-does=png]')")
    mouse.window.wait_for("window.saved === 'image/png'")


def share(mouse: Mouse) -> None:
    """Share a run: get one file with all of it."""
    mouse.click(texted("Share as one HTML file"))
    mouse.window.wait_for("true")
    address = mouse.window.run(f"return {texted('Share as one HTML file')}.href")
    size = "fetch(arguments[0]).then(answer => answer.text()).then(text => { window.size = text.length; })"
    mouse.window.run(size, address)
    mouse.window.wait_for("window.size > 1e6")


def pause(mouse: Mouse) -> None:
    """Pause a run."""
    mouse.click("document.getElementById('pause-0')")
    mouse.window.wait_for("document.getElementById('answer').textContent.includes('given as command')")


def sample(mouse: Mouse) -> None:
    """Read a text that the model wrote."""
    mouse.click(texted("Results", "nav a"))
    assert "A text that the model wrote" in mouse.window.run("return document.getElementById('results').textContent")
    seen(mouse, "document.getElementById('results')")


def memory(mouse: Mouse) -> None:
    """See memory over time: ask for charts with that word."""
    mouse.click("document.querySelector('.controls input[type=search]')")
    mouse.write("memory")
    title = "each.textContent.includes('Memory of the process')"
    chart = f"Array.from(document.querySelectorAll('figure')).find(each => {title})"
    mouse.window.wait_for(f"{chart}.querySelector('canvas')")
    seen(mouse, chart)


def seen(mouse: Mouse, element: str) -> None:
    """Check that an element is in the window."""
    mouse.window.wait_for(
        f"{element}.getBoundingClientRect().top < innerHeight && {element}.getBoundingClientRect().bottom > 0"
    )


ACTIONS: tuple[tuple[str, str, Callable[[Mouse], None]], ...] = (
    ("find the best of 50 runs by a metric", "", best),
    ("compare two runs", "", compare),
    ("see why a run is slow", "sgd-lr0.0001-seed2", slow),
    ("zoom into a spike", "sgd-lr0.0001-seed2", zoom),
    ("export a chart", "sgd-lr0.0001-seed2", export),
    ("tag a run", "", tag),
    ("share a run", "sgd-lr0.0001-seed2", share),
    ("pause a run", "adamw-lr0.0001-seed3", pause),
    ("read a sample text", "sgd-lr0.0001-seed2", sample),
    ("see memory over time", "sgd-lr0.0001-seed2", memory),
)
"""Actions, each with the run on whose page it starts; at the list of the runs without one."""


def on_the_board(window: Browser, address: str) -> Iterator[tuple[str, int | str]]:
    """Yield the clicks of each action on the board, or what went wrong."""
    for words, run, act in ACTIONS:
        window.open("about:blank")
        window.open(f"{address}runs?run={run}" if run else address)
        window.wait_for(DRAWN if run else LISTED)
        mouse = Mouse(window)
        try:
            act(mouse)
        except Exception as error:
            yield words, f"failed: {error!r:.150}"
        else:
            yield words, mouse.clicks


@contextmanager
def folder_of_runs(given: list[str]) -> Iterator[Path]:
    """Yield a folder with the runs."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(given[0]) if given else Path(made) / "runs"
        write_sweep(folder)
        yield folder


def main(given: list[str]) -> None:
    """Print the clicks of each action."""
    with folder_of_runs(given) as folder, tempfile.TemporaryDirectory() as files, browser(Path(files)) as window:
        window.resize(1400, 1000)
        with board(folder) as address:
            for words, clicks in on_the_board(window, address):
                print(f"{words:<40}{clicks}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
