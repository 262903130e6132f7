"""How much hexloop says in Python's logging."""

from __future__ import annotations

import logging

from hexloop.app.arguments import TrainingArguments


def set_log_level(args: TrainingArguments) -> None:
    """Set the level that the arguments have for this process on the logger `hexloop`, which all of hexloop's are below.

    `passive` leaves it as the application set it. Where nobody handles its messages, what is asked for goes to standard
    error, as the reference library's does.
    """
    chosen = args.log_level if args.should_log else args.log_level_replica
    if chosen == "passive":
        return
    logger = logging.getLogger("hexloop")
    logger.setLevel(args.get_process_log_level())
    if args.log_level != "passive" and not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("[%(levelname)s] %(name)s: %(message)s"))
        logger.addHandler(handler)
