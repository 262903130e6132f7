"""How many clicks the commonest actions take on the board, and in trackio and TensorBoard, in a headless browser.

`python -m tests.bench.clicks [FOLDER]` writes fifty runs to a folder, and the same logs to each tool that the
interpreter given with `--python` has. It opens the first page of each, which is the list of the runs on the board, does
each action with the mouse, checks that it did what it was to do, and prints the table. A drag counts as a click,
scrolling does not, and characters that are typed are counted apart. "no" stands where a tool does not have the action.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.board import board
from tests.bench.clicks_of_peers import Tool, peers
from tests.bench.mouse import Mouse, texted
from tests.bench.sweep import write_sweep
from tests.bench.write_for_peers import TEXT
from tests.browser import Browser, browser

BEST = "document.querySelector('.tabulator-row .run-name').textContent"
LISTED = "document.getElementById('run-list')?.dataset.built === 'true'"
DRAWN = "document.querySelector('.chart canvas')"


def run_row(name: str, inside: str) -> str:
    """Return an expression for something in a row of the list."""
    return f"document.querySelector('.tabulator-row:has(input[value=\"{name}\"]) {inside}')"


def best(mouse: Mouse) -> None:
    """Find the best of fifty runs by a metric: sort by it."""
    mouse.click("document.querySelector('.tabulator-col-title span[title=eval_accuracy]')")
    mouse.wait_for("document.querySelector('[tabulator-field=m1]').getAttribute('aria-sort') === 'descending'")
    values = mouse.window.run(
        "return Array.from(document.querySelectorAll('.tabulator-cell[tabulator-field=m1]'), each => +each.textContent)"
    )
    assert len(values) > 10
    assert values == sorted(values, reverse=True), values


def compare(mouse: Mouse) -> None:
    """Compare two runs: choose both, so that the curves below the list are theirs."""
    names = mouse.window.run("return Array.from(document.querySelectorAll('.run-name'), each => each.textContent)")[:2]
    for name in names:
        mouse.click(run_row(name, "input.choose"))
    mouse.see("document.getElementById('curves')")
    mouse.wait_for("document.getElementById('curves').dataset.runs === '2'")
    mouse.wait_for(DRAWN)


def slow(mouse: Mouse) -> None:
    """See why a run is slow: open its page, which says what its time went into."""
    mouse.click(run_row(SLOW, ".run-name"))
    mouse.see("document.getElementById('time')")
    assert "waiting for data" in mouse.window.run("return document.getElementById('time').textContent")


def zoom(mouse: Mouse) -> None:
    """Zoom into the spike of a run: drag over it in the curves below the list."""
    mouse.see("document.getElementById('run-curves')")
    mouse.wait_for(DRAWN)
    before = mouse.window.run(RANGE)
    mouse.drag(".chart", 0.4, 0.6)
    mouse.wait_for(f"JSON.stringify((() => {{ {RANGE} }})()) !== JSON.stringify({before})")
    after = mouse.window.run(RANGE)
    assert after[1] - after[0] < (before[1] - before[0]) / 2, (before, after)


RANGE = (
    "const plot = echarts.getInstanceByDom(document.querySelector('.chart'));"
    "const extent = plot.getModel().getComponent('xAxis', 0).axis.scale.getExtent(); return extent;"
)


def export(mouse: Mouse) -> None:
    """Export a chart as a picture."""
    mouse.see("document.getElementById('run-curves')")
    mouse.window.run(SAVED)
    mouse.click("document.querySelector('figure .tools [data-does=png]')")
    mouse.wait_for("window.saved === 'image/png'")


SAVED = "URL.createObjectURL = (made => blob => { window.saved = blob.type; return made(blob); })(URL.createObjectURL)"


def tag(mouse: Mouse) -> None:
    """Tag a run: type into its cell."""
    name = mouse.window.run(f"return {BEST}")
    mouse.click(run_row(name, "[tabulator-field=tags]"))
    mouse.wait_for("document.activeElement.classList.contains('cell-editor')")
    mouse.write("baseline")
    mouse.wait_for(f"{run_row(name, '.tag')}?.textContent === 'baseline'")


def share(mouse: Mouse) -> None:
    """Share a run: open its page, and get one file with all of it."""
    mouse.click(run_row(SLOW, ".run-name"))
    link = texted("Share as one HTML file")
    mouse.wait_for(f"document.querySelector('h1').textContent.startsWith('Run ') && {link}")
    mouse.click(link)
    size = "fetch(arguments[0]).then(answer => answer.text()).then(text => { window.size = text.length; })"
    mouse.window.run(size, mouse.window.run(f"return {link}.href"))
    mouse.wait_for("window.size > 1e6")


def pause(mouse: Mouse) -> None:
    """Pause a run: open its page."""
    mouse.click(run_row(RUNNING, ".run-name"))
    mouse.click("document.getElementById('pause-0')")
    mouse.wait_for("document.getElementById('answer').textContent.includes('given as command')")


def sample(mouse: Mouse) -> None:
    """Read a text that the model wrote: open the page of the run."""
    mouse.click(run_row(SLOW, ".run-name"))
    mouse.see("document.getElementById('results')")
    assert TEXT in mouse.window.run("return document.getElementById('results').textContent")


def memory(mouse: Mouse) -> None:
    """See memory over time: it is among the curves below the list."""
    mouse.see("document.getElementById('run-curves')")
    named = "each.textContent.includes('Memory of the process')"
    chart = f"Array.from(document.querySelectorAll('figure')).find(each => {named})"
    mouse.see(chart)
    mouse.wait_for(f"{chart}.querySelector('canvas')")


SLOW, RUNNING = "sgd-lr0.0001-seed2", "adamw-lr0.0001-seed3"
"""The run that waits for data, and one that is running; both reported lately."""

Act = Callable[[Mouse], None]

ACTIONS: dict[str, Act] = {
    "find the best of 50 runs by a metric": best,
    "compare two runs": compare,
    "see why a run is slow": slow,
    "zoom into a spike": zoom,
    "export a chart": export,
    "tag a run": tag,
    "share a run": share,
    "pause a run": pause,
    "read a sample text": sample,
    "see memory over time": memory,
}
"""What is done, each from the list of the runs."""


def counted(window: Browser, address: str, ready: str, act: Act) -> str:
    """Return what an action takes that starts on a page, or what went wrong."""
    window.open(address)
    window.run("localStorage.clear(); sessionStorage.clear();")  # as a new user has it
    window.open("about:blank")
    window.open(address)
    mouse = Mouse(window)
    try:
        mouse.wait_for(ready)
        act(mouse)
    except Exception as error:
        return f"failed: {error!r:.150}"
    return str(mouse)


@contextmanager
def folder_of_runs(given: list[str]) -> Iterator[Path]:
    """Yield a folder with the runs."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(given[0]) if given else Path(made) / "runs"
        write_sweep(folder)
        yield folder


def main(given: list[str]) -> None:
    """Print what each action takes on the board, and beside it in the other tools that are installed."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder", nargs="?", help="where the runs are to be written")
    arguments.add_argument("--python", default=sys.executable, help="the interpreter of the other tools")
    arguments.add_argument("--only", help="the name of one tool")
    options = arguments.parse_args(given)
    with folder_of_runs([options.folder] if options.folder else []) as folder, tempfile.TemporaryDirectory() as files:
        tools = [Tool("hexloop", lambda: board(folder), LISTED, ACTIONS), *peers(options.python, folder, Path(files))]
        tools = [each for each in tools if options.only in (None, each.name)]
        table = {}
        with browser(Path(files)) as window:
            window.resize(1400, 1000)
            for tool in tools:
                with tool.serve() as address:
                    for words in ACTIONS:
                        act = tool.actions.get(words)
                        table[words, tool.name] = counted(window, address, tool.ready, act) if act else "no"
                        print(f"{tool.name}: {words}: {table[words, tool.name]}", file=sys.stderr, flush=True)
    print(f"{'':<40}{''.join(f'{tool.name:<16}' for tool in tools)}")
    for words in ACTIONS:
        print(f"{words:<40}{''.join(f'{table[words, tool.name]:<16}' for tool in tools)}")


if __name__ == "__main__":
    main(sys.argv[1:])
