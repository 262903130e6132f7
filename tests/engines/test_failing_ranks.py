"""A failure, signal or request on one of several real processes reaches all ranks."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

from hexloop import Trainer, TrainerCallback
from hexloop.adapters.storage.faults import Effect, Fault
from hexloop.adapters.storage.local import LocalStorage
from hexloop.domain.checkpoints.reading import checkpoint_steps, verify
from hexloop.domain.run_folder import OWN
from tests.engines.processes import PATIENCE, QUIET, free_port
from tests.engines.several.training import Training, ended, fresh, run
from tests.warm_python import warm_python

SAVES = {"save_strategy": "steps", "save_steps": 4}
AT_ONCE = {**SAVES, "save_async": False}
"""Makes what is saved at the time of the event independent of the speed of the disk."""


class OnRank1(TrainerCallback):
    """An event on rank 1 alone, in its sixth step."""

    trainer: Any = None
    rank = 1

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if args.process_index == self.rank and state.global_step == 6:
            self.happen()

    def happen(self) -> None:
        """Override to define the event."""
        raise NotImplementedError


class Fails(OnRank1):
    """Raises an error."""

    def happen(self) -> None:
        raise ValueError("a bug of its own")


class FirstFails(Fails):
    """Raises an error with a cause on rank 0, which hosts the store of the rendezvous."""

    rank = 0


class BrokenUpdate(torch.optim.SGD):
    """Fails in its first step."""

    def step(self, *_: Any, **__: Any) -> Any:
        raise IndexError("a bug of its own")


class SaysItsNote(Trainer[Any]):
    """Raises the note that an error in a step has received."""

    def create_optimizer(self, *_: Any) -> Any:
        self.optimizer = BrokenUpdate(self.model.parameters(), 0.1)
        return self.optimizer

    def train(self, *given: Any, **named: Any) -> Any:
        try:
            return super().train(*given, **named)
        except IndexError as error:
            raise RuntimeError(error.__notes__[0]) from error


def test_an_error_in_the_update_names_the_rows_of_each_rank(tmp_path: Path) -> None:
    """Of each micro-batch its part."""
    training = Training(2, kind=SaysItsNote, arguments={"train_sampling_strategy": "sequential"})
    first, second = ended(training, tmp_path)
    assert "in the update of the weights of rank 0: rows 0, 1, 4 and 5 of train_dataset, positions 0 to 7" in first
    assert "in the update of the weights of rank 1: rows 2, 3, 6 and 7 of train_dataset, positions 0 to 7" in second


class RunsOutOfMemory(OnRank1):
    """Raises torch's error of a GPU out of memory."""

    def happen(self) -> None:
        raise torch.OutOfMemoryError("Tried to allocate 20.00 GiB")


class MayHaveNoMoreMemory(OnRank1):
    """Allocates more memory than its limit allows."""

    def happen(self) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        room = pages * resource.getpagesize() + 2**28
        resource.setrlimit(resource.RLIMIT_AS, (room, room))
        torch.empty(2**32, dtype=torch.uint8)


class Dies(OnRank1):
    """Is killed, as by the kernel's out-of-memory killer."""

    def happen(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Hangs(OnRank1):
    """Blocks for a little longer than the timeout of the other ranks."""

    def happen(self) -> None:
        time.sleep(15)


class AsksToStop(OnRank1):
    """Receives a request to stop."""

    def happen(self) -> None:
        self.trainer.request_stop("the machine is wanted", save=True)


class Pauses(OnRank1):
    """Receives a request to pause for longer than the timeout of the other ranks."""

    def happen(self) -> None:
        self.trainer.pause()
        threading.Timer(10, self.trainer.resume).start()


class DecidesAlone(TrainerCallback):
    """Rank 1 alone requests a log, an evaluation, a save, and finally the end of training."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if args.process_index == 1:
            control.should_log = state.global_step == 2
            control.should_evaluate = state.global_step == 4
            control.should_save = state.global_step == 7
            control.should_training_stop = state.global_step == 9


class HasOnSave(TrainerCallback):
    """Rank 0 alone has a callback with on_save."""

    def __new__(cls) -> Any:
        return super().__new__(cls if os.environ["RANK"] == "0" else TrainerCallback)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        Path(args.output_dir, f"heard-of-{state.global_step}").touch()


class SmallFiles(TrainerCallback):
    """From its fifth step, rank 1 may not write files of more than 100 bytes."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if args.process_index == 1 and state.global_step == 5:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))


SECOND_SAVE = 2
"""The write on rank 1 of its second save; it writes one file per save."""


class Impatient(TrainerCallback):
    """Waits for space on a full disk for less than a second."""

    trainer: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.trainer._session.checkpoints.pauses = (0.2, 0.2)


def saved_steps(folder: Path) -> list[int]:
    """Return the steps of the checkpoints, after checking that all are complete."""
    storage = LocalStorage(folder)
    return sorted(verify(storage, f"checkpoint-{step}").manifest.step for step in checkpoint_steps(storage))


CATCHING = """
import sys
from hexloop import Trainer, TrainerCallback, TrainingArguments
from tests.end_to_end.small.models import net, rows


class Fails(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if state.global_step == 3 and sys.argv[2] in (str(args.process_index), "both"):
            raise ValueError("a bug of its own")


arguments = TrainingArguments(
    output_dir=sys.argv[1], max_steps=20, save_steps=2, per_device_train_batch_size=1, use_cpu=True, disable_tqdm=True,
    report_to=[], ddp_timeout=30,
)
trainer = Trainer(model=net(), args=arguments, train_dataset=rows(40), callbacks=[Fails()])
try:
    trainer.train()
except Exception as error:
    print(type(error).__name__, flush=True)
"""


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.matrix)])
@pytest.mark.parametrize("failing", ["both", pytest.param("1", marks=pytest.mark.matrix)])
def test_a_script_that_catches_the_error_exits_normally(tmp_path: Path, failing: str, times: int) -> None:
    """The interpreter ends by itself on every rank, with code 0: no thread is left inside of a collective."""
    script = tmp_path / "script.py"
    script.write_text(CATCHING)
    for number in range(times):
        environment = {**os.environ, **QUIET, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        processes = [
            subprocess.Popen(
                [warm_python(), script, tmp_path / f"run-{number}", failing],
                env={**environment, "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "WARM_END": "interpreter"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in "01"
        ]
        ends = [(*process.communicate(timeout=PATIENCE), process.returncode) for process in processes]
        assert [code for _, _, code in ends] == [0, 0], ends
        caught = {out.strip() for out, _, _ in ends}
        assert caught == ({"ValueError"} if failing == "both" else {"ValueError", "CollectiveError"})


def test_a_failure_on_one_rank_is_reported_by_all(tmp_path: Path) -> None:
    """All ranks report at once which rank failed and why; saved checkpoints are complete."""
    training = Training(processes=2, callbacks=(Fails,), arguments=AT_ONCE)
    first, second = ended(training, fresh(tmp_path / "run"))
    assert second == "ValueError: a bug of its own"
    assert first.startswith("CollectiveError: Rank 0 waited for")
    assert "rank 1 failed: ValueError: a bug of its own" in first
    assert saved_steps(tmp_path / "run") == [4]


@pytest.mark.matrix
def test_a_failure_on_rank_0_is_reported_by_the_other_ranks(tmp_path: Path) -> None:
    """Rank 0 stays alive until the other ranks have received its error."""
    first, second = ended(Training(processes=2, callbacks=(FirstFails,)), fresh(tmp_path / "run"))
    assert first == "ValueError: a bug of its own"
    assert "rank 0 failed: ValueError: a bug of its own" in second


WAYS: dict[type[OnRank1], tuple[str, str]] = {
    RunsOutOfMemory: ("rank 1 failed: OutOfMemoryError: Tried to allocate", "OutOfMemoryError: Tried to allocate"),
    MayHaveNoMoreMemory: ("rank 1 failed: RuntimeError: ", "DefaultCPUAllocator: can't allocate memory"),
    Dies: ("but rank 1 never arrived: dead, stuck, or disconnected", "died"),
    Hangs: ("but rank 1 never arrived: dead, stuck, or disconnected", "CollectiveError: Rank 1 waited for"),
}


@pytest.mark.matrix
@pytest.mark.parametrize("way", WAYS)
def test_a_lost_rank_is_named(tmp_path: Path, way: type[OnRank1]) -> None:
    """Rank 0 reports which rank failed and why, and the run resumes from the last checkpoint."""
    reported, own = WAYS[way]
    training = Training(processes=2, callbacks=(way,), arguments={**AT_ONCE, "ddp_timeout": 6})
    first, second = ended(training, fresh(tmp_path / "run"))
    assert first.startswith("CollectiveError: Rank 0 waited for"), (first, second)
    assert reported in first
    assert own in second
    (step,) = saved_steps(tmp_path / "run")
    assert step == 4
    run(Training(processes=2, resume=str(tmp_path / "run" / "checkpoint-4")), fresh(tmp_path / "resumed"))


@pytest.mark.matrix
def test_a_disk_that_stays_full_on_one_rank_ends_all_ranks(tmp_path: Path) -> None:
    """All ranks report on which rank the disk is full; saved checkpoints are complete, and nothing partial remains."""
    full = Fault(SECOND_SAVE, Effect.FULL, "write", times=100)
    training = Training(processes=2, callbacks=(Impatient,), faults=(full,), arguments=SAVES)
    first, second = ended(training, fresh(tmp_path / "run"))
    assert first.startswith(
        "StorageFullError: The storage stayed full: On rank 1: Planned fault: no space left for this write of"
    )
    assert "Everything up to checkpoint-4 is saved. Free space" in first
    assert second.startswith(
        "StorageFullError: The storage stayed full: Planned fault: no space left for this write of"
    )
    assert saved_steps(tmp_path / "run") == [4]
    assert not [path.name for path in (tmp_path / "run" / OWN).iterdir() if path.name.startswith(".")]
    run(Training(processes=2, resume=str(tmp_path / "run" / "checkpoint-4")), fresh(tmp_path / "resumed"))


@pytest.mark.matrix
def test_all_ranks_wait_while_the_disk_of_one_is_full(tmp_path: Path) -> None:
    """Every save succeeds, and the result equals that of an undisturbed run."""
    full = Fault(SECOND_SAVE, Effect.FULL, "write", times=2)
    troubled = Training(processes=2, callbacks=(Impatient,), faults=(full,), arguments=SAVES)
    assert run(troubled, fresh(tmp_path / "run")).logged == run(Training(2), fresh(tmp_path / "whole")).logged
    assert saved_steps(tmp_path / "run") == [4, 8, 12, 16, 18]


@pytest.mark.matrix
def test_the_third_failed_save_on_one_rank_ends_all_ranks(tmp_path: Path) -> None:
    """The writes of rank 1 fail; all ranks continue twice, then report the failing path and the last checkpoint."""
    training = Training(processes=2, callbacks=(SmallFiles,), arguments=AT_ONCE)
    first, second = ended(training, fresh(tmp_path / "run"))
    assert first.startswith("StorageError: 3 saves in a row failed, the last with: On rank 1: Cannot write")
    assert "File too large" in first
    assert second.startswith("StorageError: 3 saves in a row failed, the last with: Cannot write")
    assert "Everything up to checkpoint-4 is saved" in second
    assert saved_steps(tmp_path / "run") == [4]


@pytest.mark.matrix
def test_mismatched_processes_are_refused(tmp_path: Path) -> None:
    """Every rank reports which arguments differ on which rank, before the first step."""
    training = Training(processes=2, of_rank_1={"learning_rate": 0.5, "seed": 7})
    for said in ended(training, fresh(tmp_path / "run")):
        assert said.startswith("ConfigurationError: 2 problems")
        assert "Rank 1 has learning_rate=0.5, but rank 0 has 0.01" in said
        assert "Rank 1 has seed=7, but rank 0 has 42" in said


@pytest.mark.matrix
def test_processes_that_save_to_separate_folders_are_refused(tmp_path: Path) -> None:
    """Every rank refuses before the first step, as no checkpoint would be complete. Without saves they may train."""
    training = Training(processes=2, folder_of_rank_1=str(tmp_path / "another disk"), arguments=SAVES)
    for said in ended(training, fresh(tmp_path / "run")):
        assert said.startswith("ConfigurationError: output_dir=")
        assert "is not shared: rank 1 cannot see what rank 0 writes there" in said
    assert list((tmp_path / "run").iterdir()) == []
    without_saves = Training(processes=2, folder_of_rank_1=str(tmp_path / "another disk"))
    assert ended(without_saves, fresh(tmp_path / "run")) == ["", ""]


@pytest.mark.matrix
def test_on_save_may_be_defined_on_one_rank_only(tmp_path: Path) -> None:
    """No rank saves in the background then, and each checkpoint is complete before that callback is called."""
    training = Training(processes=2, callbacks=(HasOnSave,), arguments={**SAVES, "ddp_timeout": 20})
    run(training, fresh(tmp_path / "run"))
    assert saved_steps(tmp_path / "run") == [4, 8, 12, 16, 18]
    assert sorted(path.name for path in (tmp_path / "run").glob("heard-of-*")) == sorted(
        f"heard-of-{step}" for step in (4, 8, 12, 16, 18)
    )


@pytest.mark.matrix
def test_processes_with_different_library_versions_are_refused(tmp_path: Path) -> None:
    """Every rank reports which version of which library differs on which rank."""
    older = tmp_path / "older" / "numpy-1.0.dist-info"
    older.mkdir(parents=True)
    (older / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 1.0\n")
    training = Training(processes=2, path_of_rank_1=str(older.parent))
    for said in ended(training, fresh(tmp_path / "run")):
        assert said == (
            f"ConfigurationError: Rank 1 has the version of numpy=1.0, but rank 0 has {version('numpy')}; "
            "start all processes with the same value."
        )


@pytest.mark.matrix
def test_a_stop_request_on_one_rank_stops_all_ranks(tmp_path: Path) -> None:
    """All ranks stop and save at the same step, at most two boundaries later, and the run resumes from it."""
    whole = run(Training(processes=2), fresh(tmp_path / "whole"))
    training = Training(processes=2, callbacks=(AsksToStop,), arguments={**SAVES, "save_steps": 100})
    run(training, fresh(tmp_path / "run"))
    (step,) = saved_steps(tmp_path / "run")
    assert step in (6, 7, 8)
    resumed = run(
        Training(processes=2, resume=str(tmp_path / "run" / f"checkpoint-{step}")), fresh(tmp_path / "resumed")
    )
    assert resumed.logged == whole.logged


@pytest.mark.matrix
def test_a_pause_may_exceed_the_timeout_of_other_ranks(tmp_path: Path) -> None:
    """The paused rank keeps notifying the others, and the run equals one without a pause."""
    whole = run(Training(processes=2), fresh(tmp_path / "whole"))
    paused = run(Training(processes=2, callbacks=(Pauses,), arguments={"ddp_timeout": 6}), fresh(tmp_path / "run"))
    assert paused.logged == whole.logged


@pytest.mark.matrix
def test_requests_of_callbacks_on_one_rank_apply_to_all_ranks(tmp_path: Path) -> None:
    """All ranks act on it one step later, and no rank hangs."""
    arguments = {"logging_strategy": "no", "save_strategy": "steps", "save_steps": 100, "ddp_timeout": 20}
    trained = run(Training(processes=2, callbacks=(DecidesAlone,), arguments=arguments), fresh(tmp_path / "run"))
    reported = [(entry["step"], "loss" in entry, "eval_loss" in entry) for entry in trained.history]
    assert reported[:2] == [(3, True, False), (5, False, True)]
    assert reported[-1][0] == 10
    assert saved_steps(tmp_path / "run") == [8]
