"""A worker that stops answering is named in a warning and ends the run after `dataloader_timeout`; all workers end."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from hexloop import ConfigurationError, RunStateError, TrainingArguments
from hexloop.adapters.batches.torch import workers
from hexloop.adapters.batches.torch.loader import ShieldedLoader
from tests.end_to_end.small.models import rows
from tests.end_to_end.small.trainers import small_trainer

stops: list[int] = []


def stop(row: int) -> dict[str, Any]:
    """Return a row; worker 1 stops itself once."""
    info: Any = get_worker_info()
    if info is not None and info.id == 1 and row >= 6 and not stops:
        stops.append(row)
        os.kill(os.getpid(), signal.SIGSTOP)
    return {"x": torch.ones(4) * row, "labels": torch.ones(1)}


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, row: int) -> Any:
        return stop(6 + row)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        info: Any = get_worker_info()
        return map(stop, range(info.id, 32, info.num_workers))


class Continues(logging.Handler):
    """Continues the stopped process that a warning names."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if "has returned no batch" in message:
            self.messages.append(message)
            os.kill(int(message.partition("(process ")[2].partition(",")[0]), signal.SIGCONT)


@pytest.fixture
def continues(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(workers, "WARN_AFTER", 0.5)
    handler = Continues()
    logging.getLogger("hexloop").addHandler(handler)
    yield handler
    logging.getLogger("hexloop").removeHandler(handler)


@pytest.mark.matrix
@pytest.mark.parametrize("data", [Rows, Stream])
def test_a_stopped_worker_ends_the_run_after_the_timeout(tmp_path: Path, data: Callable[[], Any]) -> None:
    """The error names the worker, its state and the data; no process is left."""
    trainer = small_trainer(
        tmp_path, parts={"train_dataset": data()}, dataloader_num_workers=2, dataloader_timeout=1.0, max_steps=4
    )
    expected = rf"Worker 1 of 2 \(process \d+, stopped by a signal\) has returned no batch of {data.__name__} for 1 s"
    with pytest.raises(RunStateError, match=expected) as raised:
        trainer.train()
    assert "dataloader_timeout=1" in str(raised.value)
    pid = int(str(raised.value).partition("(process ")[2].partition(",")[0])
    assert pid not in [child.pid for child in multiprocessing.active_children()]


def test_by_default_there_is_a_warning(tmp_path: Path, continues: Continues) -> None:
    """Once for a batch; the run resumes when the worker does."""
    trainer = small_trainer(tmp_path, parts={"train_dataset": Stream()}, dataloader_num_workers=2, max_steps=3)
    assert trainer.train().global_step == 3
    assert len(continues.messages) >= 1
    assert "Worker 1 of 2" in continues.messages[0]
    assert "stopped by a signal" in continues.messages[0]
    assert "Stream" in continues.messages[0]


def test_the_timeout_needs_workers(tmp_path: Path) -> None:
    """Without workers nothing is waited for."""
    with pytest.raises(ConfigurationError, match="there are no workers to wait for"):
        TrainingArguments(str(tmp_path), dataloader_timeout=3)


def read(row: int) -> Any:
    if row == 9:
        raise ValueError("damaged")
    return rows(16)[row]


class Damaged(Dataset[Any]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, row: int) -> Any:
        return read(row)


class DamagedStream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return map(read, range(16))


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("data", [Damaged, DamagedStream])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_run_that_fails_ends_its_workers(tmp_path: Path, data: Callable[[], Any], keeps: bool) -> None:
    """They do not live for as long as the traceback of the error, which a notebook keeps."""
    given: dict[str, Any] = {"dataloader_num_workers": 2, "dataloader_persistent_workers": keeps}
    trainer = small_trainer(tmp_path, parts={"train_dataset": data()}, max_steps=4, **given)
    with pytest.raises(ValueError, match="damaged") as raised:
        trainer.train()
    assert multiprocessing.active_children() == []
    assert raised.tb is not None  # it is held until here


@pytest.mark.timeout(60)
def test_an_iterator_that_is_garbage_does_not_wait_for_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a cycle its queues are finalized first, so that workers are not told to end; torch waits for each of them."""
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 600)
    data: Any = [1.0] * 8
    iterator: Any = iter(ShieldedLoader(data, num_workers=2))
    next(iterator)
    processes = list(iterator._workers)
    iterator.itself = iterator
    del iterator
    gc.collect()
    assert [process.is_alive() for process in processes] == [False, False]


LEAVING = """
import time
from torch.utils.data import Dataset
from hexloop.adapters.batches.torch.workers import ShieldedIterator
from torch.utils.data import DataLoader

class Stuck(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        time.sleep(3600)

class Interrupted(ShieldedIterator):
    def _shutdown_workers(self):
        pass  # as a second signal would leave it

iterator = Interrupted(DataLoader(Stuck(), num_workers=1))
time.sleep(1)  # the worker is shielded by now
del iterator
"""


def test_a_program_ends_although_the_end_of_its_workers_was_interrupted() -> None:
    """Workers ignore the signal that multiprocessing sends at exit, and waits for."""
    done = subprocess.run([sys.executable, "-c", LEAVING], check=False, timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


KILLED = """
import os, signal, time
from hexloop.adapters.batches.torch.workers import ShieldedIterator
from torch.utils.data import DataLoader

def kill_parent(worker):  # when hexloop has looked at it, and torch has not
    parent = os.getppid()
    print(os.getpid(), flush=True)
    os.kill(parent, signal.SIGKILL)
    while os.getppid() == parent:
        time.sleep(0.01)

iterator = ShieldedIterator(DataLoader([1, 2], num_workers=1, worker_init_fn=kill_parent))
time.sleep(3600)
"""


def test_a_worker_ends_although_the_main_process_died_before_torch_watched_it() -> None:
    """It would take the process that adopted it for the main process, and wait for as long as that lives."""
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        try:
            ended = os.pidfd_open(worker)
        except ProcessLookupError:
            return
        with selectors.DefaultSelector() as selector:
            selector.register(ended, selectors.EVENT_READ)
            is_over = bool(selector.select(60))
        os.close(ended)
        if not is_over:
            os.kill(worker, signal.SIGKILL)
    assert is_over
    assert process.returncode == -signal.SIGKILL
