"""The pictures of the board and of a report in the documentation, of real runs in a real browser.

`python -m tests.end_to_end.pictures` trains the runs, which takes a few minutes, and writes docs/images.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.browser import Browser, browser
from tests.end_to_end.test_board import board

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
EXAMPLES = ROOT / "docs" / "examples"

COMPARED = [(rate, batch, seed) for rate in ("0.001", "0.003") for batch in ("32", "64") for seed in ("0", "1", "2")]
"""Peak learning rates, batch sizes and seeds of runs of the digits."""


def train(recipe: str, folder: Path, *further: str) -> None:
    """Train a recipe of the documentation in a folder."""
    command = [sys.executable, "-m", "hexloop", "train", str(EXAMPLES / recipe), "--output_dir", str(folder), *further]
    subprocess.run([*command, "--disable_tqdm"], check=True, capture_output=True)


def at(chromium: Browser, address: str, width: int, height: int, ready: str) -> None:
    """Open a page in a window of that size, and wait until something is true in it."""
    chromium.resize(width, height)
    chromium.open(address)
    chromium.wait_for(ready)
    chromium.settle()


DRAWN = "document.querySelectorAll('canvas').length > 1"


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        runs = Path(temporary) / "runs"
        for rate, batch, seed in COMPARED:
            words = ("--learning_rate", rate, "--per_device_train_batch_size", batch, "--seed", seed)
            train("digits.yaml", runs / f"digits-{rate}-{batch}-{seed}", *words, "--num_train_epochs", "12")
        train("reverse_digits.yaml", runs / "reverse_digits", "--logging_steps", "5")
        with board(runs) as address, browser(Path(temporary)) as chromium:
            chromium.prefer("light")
            at(chromium, address, 1200, 800, f"document.querySelectorAll('[role=row]').length > 10 && {DRAWN}")
            chromium.screenshot(IMAGES / "board-list.png")
            at(chromium, f"{address}runs?run=reverse_digits", 1200, 1000, DRAWN)
            chromium.screenshot(IMAGES / "board-run.png")
            compared = "&".join(f"run=digits-{rate}-{batch}-{seed}" for rate, batch, seed in COMPARED)
            at(chromium, f"{address}runs?{compared}", 1200, 800, DRAWN)
            chromium.run("document.getElementById('search').scrollIntoView()")
            chromium.wait_for("document.querySelectorAll('#search canvas').length > 0")
            time.sleep(2)  # while the lines are drawn
            chromium.screenshot(IMAGES / "board-compare.png")
        report = Path(temporary) / "report.html"
        reported = [str(runs / name) for name in ("digits-0.003-32-0", "digits-0.001-64-0")]
        subprocess.run([sys.executable, "-m", "hexloop", "report", *reported, "--out", str(report)], check=True)
        with browser(Path(temporary)) as chromium:
            chromium.prefer("light")
            at(chromium, report.as_uri(), 1200, 800, DRAWN)
            chromium.screenshot(IMAGES / "report.png")


if __name__ == "__main__":
    main()
