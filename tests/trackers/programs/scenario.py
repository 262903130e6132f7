"""Runs a tracker's adapter as a run would: `scenario.py REQUEST.json ANSWER.json`, in the environment of the tracker.

All calls of a logger come from one thread that is not the main one. The answer has what `start` returned for each run,
the version of the package, the warnings that hexloop logged, and the error that ended the program, if any.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.metadata import version
from typing import Any

from hexloop.ports.logger import Media, Outcome, Record, RunInformation, SavedModel


class Warnings(logging.Handler):
    """Keeps the messages of hexloop's loggers."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def model() -> Any:
    """Return a model of torch with 10 numbers."""
    from torch import nn

    return nn.Linear(4, 2)


def track(logger: Any, run: dict[str, Any], calls: ThreadPoolExecutor) -> str | None:
    """Send one run to a logger, and return what `start` returned."""
    information = RunInformation(**run["information"], model=model() if run["with_model"] else None)
    identity = calls.submit(logger.start, information).result()
    if hasattr(logger, "enter_thread"):
        logger.enter_thread()
    for record in run["records"]:
        calls.submit(logger.write, Record(**record)).result()
    for media in run["media"]:
        calls.submit(logger.write_media, Media(**media)).result()
    for saved in run["models"]:
        calls.submit(logger.save, SavedModel(**saved)).result()
    if hasattr(logger, "leave_thread"):
        logger.leave_thread()
    if run["outcome"] is not None:
        calls.submit(logger.finish, Outcome(**run["outcome"])).result()
    return identity


def main(request: dict[str, Any]) -> dict[str, Any]:
    """Carry out a request, and return the answer."""
    answer: dict[str, Any] = {"identities": [], "warnings": [], "version": None, "error": None}
    warnings = Warnings()
    logging.getLogger("hexloop").addHandler(warnings)
    for hidden in request["hidden"]:
        sys.modules[hidden] = None  # type: ignore[assignment]
    module, name = request["adapter"].split(":")
    try:
        answer["version"] = version(request["package"])
        logger = None
        with ThreadPoolExecutor(max_workers=1) as calls:
            for run in request["runs"]:
                if logger is None or not request["one_logger"]:
                    logger = getattr(import_module(module), name)(**request["options"])
                answer["identities"].append(track(logger, run, calls))
    except Exception as error:
        traceback.print_exc()
        answer["error"] = {"types": [each.__name__ for each in type(error).__mro__], "text": str(error)}
    answer["warnings"] = warnings.messages
    return answer


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as source:
        content = json.load(source)
    found = main(content)
    with open(sys.argv[2], "w", encoding="utf-8") as target:
        json.dump(found, target)
    if content["dies_after"] is not None:
        time.sleep(content["dies_after"])
        os._exit(9)
