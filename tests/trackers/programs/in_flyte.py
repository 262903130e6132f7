"""Runs Flyte's adapter in a local task: `in_flyte.py MODE`, and prints what the task's checkpoint and decks have.

MODE: the kind of outcome; or "quiet", which asks for nothing; or "outside" of a task.
"""

from __future__ import annotations

import json
import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from flytekit import current_context, task

from hexloop.adapters.logger.flyte import Flyte
from hexloop.ports.logger import Outcome, Record, RunInformation, SavedModel


@task(enable_deck=True)
def train(mode: str) -> str:
    """Send a run from another thread, as hexloop does, and return what is stored, as JSON."""
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("hexloop").addHandler(handler)
    quiet = mode == "quiet"
    logger = Flyte(save_log_history=False, sync_checkpoints=False) if quiet else Flyte()
    with ThreadPoolExecutor(max_workers=1) as calls:
        identity = calls.submit(logger.start, RunInformation("digits", {"seed": 7})).result()
        for step in (10, 20):
            values = {"loss": 1 / step, "note": "<script>"}
            calls.submit(logger.write, Record(step, step / 20, values)).result()
            folder = Path(f"checkpoint-{step}")
            folder.mkdir()
            (folder / "weights").write_text(folder.name)
            if logger.models == "checkpoints":
                calls.submit(logger.save, SavedModel(str(folder), folder.name, step, step / 20)).result()
                calls.submit(logger.save, SavedModel(str(folder), "model", step, step / 20, final=True)).result()
        kind = "finished" if quiet else mode
        calls.submit(logger.finish, Outcome(kind, "ValueError: <b>" if kind == "failed" else "")).result()  # type: ignore[arg-type]
    stored = Path(current_context().checkpoint._checkpoint_dest)
    found = {
        "identity": identity,
        "version": version("flytekit"),
        "checkpoint": {path.name: path.read_text() for path in stored.rglob("*") if path.is_file()},
        "decks": {deck.name: deck.html for deck in current_context().decks},
        "messages": messages,
    }
    return json.dumps(found)


if __name__ == "__main__":
    if sys.argv[2:]:
        sys.modules[sys.argv[2]] = None  # type: ignore[assignment]
    if sys.argv[1] == "outside":
        Flyte()
    print(train(mode=sys.argv[1]))
