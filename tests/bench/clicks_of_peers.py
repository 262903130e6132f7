"""The actions of `clicks.py` in trackio and TensorBoard, as far as they have them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Thread

from attrs import frozen

from tests.bench.mouse import Mouse, texted
from tests.bench.write_for_peers import TEXT

WRITER = Path(__file__).with_name("write_for_peers.py")


@frozen
class Tool:
    """A tool that shows runs. serve: yields its address. ready: an expression that is true once its first page is."""

    name: str
    serve: Callable[[], AbstractContextManager[str]]
    ready: str
    actions: Mapping[str, Callable[[Mouse], None]]


def peers(python: str, runs: Path, files: Path) -> Iterator[Tool]:
    """Yield the tools that an interpreter has, with the logs of runs written to `files`; say which it has not."""
    for name, actions, ready, command in (
        ("trackio", TRACKIO, TRACKIO_READY, ["-m", "trackio.cli", "show", "--project", "sweep"]),
        ("tensorboard", TENSORBOARD, CARDS, ["-m", "tensorboard.main", "--port", "0", "--host", "127.0.0.1"]),
    ):
        if subprocess.run([python, "-c", f"import {name}"], stderr=subprocess.DEVNULL, check=False).returncode:
            print(f"{name} is left out: {python} does not have it.", file=sys.stderr)
            continue
        folder = files / name
        written = subprocess.run([python, WRITER, name, runs, folder], capture_output=True, text=True, check=False)
        if written.returncode:
            print(f"{name} is left out: the runs cannot be written for it: {written.stderr[-500:]}", file=sys.stderr)
            continue
        options = ["--logdir", str(folder)] if name == "tensorboard" else []
        yield Tool(name, _server([python, *command, *options], folder), ready, actions)


def _server(command: list[str], folder: Path) -> Callable[[], AbstractContextManager[str]]:
    @contextmanager
    def serve() -> Iterator[str]:
        environment = {**os.environ, "TRACKIO_DIR": str(folder), "HF_HUB_OFFLINE": "1", "BROWSER": "true"}
        environment["PYTHONUNBUFFERED"] = "1"
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        ) as process:
            try:
                assert process.stdout is not None
                found = next(found[0] for line in process.stdout if (found := re.search(r"http://[!-~]+", line)))
                Thread(target=process.stdout.read, daemon=True).start()
                yield found
            finally:
                process.kill()

    return serve


def _boxes_checked(selector: str) -> str:
    return f"document.querySelectorAll('{selector}:checked').length"


# trackio. Its list of runs has neither values nor tags, so that the best run is looked for in a chart by hovering.

TRACKIO_READY = "document.querySelectorAll('.plot-container canvas').length > 2"


def trackio_compare(mouse: Mouse) -> None:
    """Compare two runs: choose none, then both."""
    boxes = ".checkbox-list .checkbox-item input"
    mouse.click("document.querySelector('.runs-header .select-all-label input')")
    for number in range(2):
        mouse.click(f"document.querySelectorAll('{boxes}')[{number}]")
    mouse.wait_for(f"{_boxes_checked(boxes)} === 2")


def trackio_zoom(mouse: Mouse) -> None:
    """Zoom into a spike: drag over it."""
    mouse.drag("[data-metric=eval_loss] canvas", 0.4, 0.6)
    mouse.wait_for("document.querySelector('[data-metric=eval_loss] .reset-zoom-btn')")


def trackio_export(mouse: Mouse) -> None:
    """Export a chart as a picture."""
    mouse.window.run("HTMLAnchorElement.prototype.click = function () { window.saved = this.download; };")
    mouse.see("document.querySelector('[data-metric=loss]')")
    mouse.click("document.querySelector('[data-metric=loss] button[title*=PNG]')")
    mouse.wait_for("window.saved?.endsWith('.png')")


def trackio_sample(mouse: Mouse) -> None:
    """Read a text that the model wrote."""
    mouse.click(texted("Media & Tables"))
    mouse.wait_for(f"document.body.textContent.includes('{TEXT}')")


def trackio_memory(mouse: Mouse) -> None:
    """See memory over time."""
    mouse.click(texted("System Metrics"))
    mouse.see("document.querySelector('[data-metric=process_memory] canvas')")


TRACKIO = {
    "compare two runs": trackio_compare,
    "zoom into a spike": trackio_zoom,
    "export a chart": trackio_export,
    "read a sample text": trackio_sample,
    "see memory over time": trackio_memory,
}


# TensorBoard, whose first page has a card for each value

CARDS = "document.querySelector('scalar-card')"


def card(name: str) -> str:
    """Return an expression for the card of a value."""
    return (
        "Array.from(document.querySelectorAll('scalar-card'))"
        f".find(each => each.querySelector('tb-truncated-path')?.title === '{name}')"
    )


def reach(mouse: Mouse, name: str) -> None:
    """Scroll to the group of a value, and expand it unless it is one of the first two, which are."""
    group = f"{GROUPS}.find(each => each.textContent.trim() === '{name}')"
    mouse.see(group)
    time.sleep(1)  # cards out of sight are not made
    if not mouse.window.run(f"return Boolean({card(name)})"):
        mouse.click(group)
    mouse.see(card(name))
    mouse.wait_for(f"{card(name)}.querySelector('canvas') && !{card(name)}.querySelector('[role=progressbar]')")


GROUPS = "Array.from(document.querySelectorAll('metrics-card-groups .group-toolbar'))"


def tensorboard_best(mouse: Mouse) -> None:
    """Find the best run by a metric: sort the table of its card, whose last row is then the best."""
    found = card("eval_accuracy")
    headers = f"Array.from({found}.querySelectorAll('tb-data-table-header-cell'))"
    header = f"{headers}.find(each => each.textContent.trim() === 'Value')"
    rows = f"Array.from({found}.querySelectorAll('tb-data-table-content-row'))"
    reach(mouse, "eval_accuracy")
    mouse.wait_for(f"{rows}.length === 50")
    mouse.click(header)
    mouse.wait_for(f"{header}.querySelector('.show')")
    read = f"const place = {headers}.indexOf({header}); return {rows}.map(row => +row.children[place].textContent)"
    values = mouse.window.run(read)
    assert values in (sorted(values), sorted(values, reverse=True)), values


def tensorboard_compare(mouse: Mouse) -> None:
    """Compare two runs: choose none, then both."""
    mouse.click("document.querySelector('runs-selector .header mat-checkbox input')")
    rows = "runs-selector tb-data-table-content-row mat-checkbox input"
    for number in range(2):
        mouse.click(f"document.querySelectorAll('{rows}')[{number}]")
    mouse.wait_for(f"{_boxes_checked(rows)} === 2")


def tensorboard_zoom(mouse: Mouse) -> None:
    """Zoom into a spike: expand its group, and drag over it."""
    reach(mouse, "eval_loss")
    mouse.window.run(f"{card('eval_loss')}.querySelector('.series-view').id = 'spiked'")
    mouse.drag("#spiked", 0.4, 0.6, rise=0.8)
    mouse.wait_for(f"{card('eval_loss')}.querySelector('button[title^=Fit]:not([disabled])')")


def tensorboard_export(mouse: Mouse) -> None:
    """Export a chart as a picture: expand its group, and open its menu."""
    mouse.window.run("HTMLAnchorElement.prototype.click = function () { window.saved = this.download; };")
    reach(mouse, "loss")
    mouse.click(f"{card('loss')}.querySelector('button[title^=More]')")
    item = "Array.from(document.querySelectorAll('[role=menuitem]')).find(each => /download/i.test(each.textContent))"
    mouse.click(item)
    mouse.wait_for("window.saved || document.querySelector('mat-dialog-container')")


def tensorboard_sample(mouse: Mouse) -> None:
    """Read a text that the model wrote: of more than 40 runs, none is chosen on the page of texts."""
    named = "each.textContent.trim().toUpperCase() === 'TEXT'"
    mouse.click(f"Array.from(document.querySelectorAll('[role=tab]')).find(each => {named})")
    mouse.click(f"{INSIDE}(document, each => each.tagName === 'TF-MULTI-CHECKBOX').shadowRoot.querySelector({BOX})")
    mouse.wait_for(f"{INSIDE}(document, each => each.childElementCount === 0 && each.textContent.includes('{TEXT}'))")


BOX = "'[role=checkbox], input[type=checkbox]'"

INSIDE = (
    "(function look(root, wanted) { for (const each of root.querySelectorAll('*')) {"
    "if (wanted(each)) return each;"
    "const found = each.shadowRoot && look(each.shadowRoot, wanted); if (found) return found; } return null; })"
)
"""Returns the first element of a page, also inside of its components, of which a function is true."""


TENSORBOARD = {
    "find the best of 50 runs by a metric": tensorboard_best,
    "compare two runs": tensorboard_compare,
    "zoom into a spike": tensorboard_zoom,
    "export a chart": tensorboard_export,
    "read a sample text": tensorboard_sample,
}
