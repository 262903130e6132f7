"""Log levels of the logger `hexloop` in each process; other loggers are not changed."""

from __future__ import annotations

import logging
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from hexloop import TrainingArguments
from hexloop.app.environment import DistributedEnvironment
from hexloop.app.notices import HEXLOOPS
from hexloop.app.run.messages import set_log_level
from tests.warm_python import warm_python

LOGGER = logging.getLogger("hexloop")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Restore the level and the handlers."""
    level, handlers, root = LOGGER.level, list(LOGGER.handlers), logging.getLogger().level
    LOGGER.setLevel(logging.NOTSET)
    yield
    assert logging.getLogger().level == root, "the application's logging is its own"
    LOGGER.setLevel(level)
    LOGGER.handlers[:] = handlers


SECOND_MACHINE = DistributedEnvironment(world_size=4, process_index=2, local_process_index=0)
REPLICA = DistributedEnvironment(world_size=4, process_index=3, local_process_index=1)


@pytest.mark.parametrize(
    ("distributed_environment", "arguments", "level"),
    [
        (DistributedEnvironment(), {}, logging.NOTSET),
        (DistributedEnvironment(), {"log_level": "debug"}, logging.DEBUG),
        (DistributedEnvironment(), {"log_level": "error"}, logging.ERROR),
        (REPLICA, {"log_level": "debug"}, logging.WARNING),
        (REPLICA, {}, logging.WARNING),
        (REPLICA, {"log_level": "debug", "log_level_replica": "critical"}, logging.CRITICAL),
        (REPLICA, {"log_level": "debug", "log_level_replica": "passive"}, logging.NOTSET),
        (SECOND_MACHINE, {"log_level": "info"}, logging.INFO),
        (SECOND_MACHINE, {"log_level": "info", "log_on_each_node": False}, logging.WARNING),
    ],
)
def test_the_level_of_a_process(
    distributed_environment: DistributedEnvironment, arguments: dict[str, object], level: int
) -> None:
    """The main process of each node, or of all, uses log_level, others log_level_replica; passive changes nothing."""
    given = TrainingArguments("out", use_cpu=True, **arguments)  # type: ignore[arg-type]
    given.distributed_environment = distributed_environment
    set_log_level(given, HEXLOOPS)
    assert LOGGER.level == level


SCRIPT = """
    import sys, torch
    from hexloop import Trainer, TrainingArguments

    model = torch.nn.Linear(1, 1)
    arguments = TrainingArguments(sys.argv[1], use_cpu=True, max_steps=1, log_level=sys.argv[2], disable_tqdm=True)
    if sys.argv[3:]:
        import logging
        logging.basicConfig(format="mine: %(message)s", level=logging.WARNING)
    Trainer(model, arguments, train_dataset=[{}]).args.get_process_log_level()
    import logging
    logging.getLogger("hexloop.part").info("of interest")
    logging.getLogger("elsewhere").info("none of hexloop's")
"""


def said(folder: Path, level: str, *more: str) -> str:
    """Return a script's standard error."""
    command = [warm_python(), "-c", textwrap.dedent(SCRIPT), str(folder), level, *more]
    return subprocess.run(command, check=True, capture_output=True, text=True).stderr


@pytest.mark.matrix
def test_messages_at_the_log_level_are_printed(tmp_path: Path) -> None:
    """On standard error if the application has no handlers; otherwise through its handlers, and once."""
    assert said(tmp_path, "info") == "[INFO] hexloop.part: of interest\n"
    assert said(tmp_path, "warning") == ""
    assert said(tmp_path, "passive") == ""
    assert said(tmp_path, "info", "handled") == "mine: of interest\n"
