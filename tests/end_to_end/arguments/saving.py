"""Checkpoints, and what a resumed run reads from them."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from hexloop import ExportableState, TrainerCallback
from hexloop.app.environment import DistributedEnvironment
from tests.end_to_end.arguments.bench import Bench, Recording, shows


def checkpoints(made: Any) -> list[int]:
    """Return the steps of the checkpoints in a run's folder."""
    return sorted(int(folder.name.rpartition("-")[2]) for folder in Path(made.args.output_dir).glob("checkpoint-*"))


@shows("output_dir")
def _(bench: Bench) -> None:
    folder = bench.folder / "here"
    bench.trained(output_dir=str(folder), save_strategy="epoch")
    assert (folder / "checkpoint-4").is_dir()


@shows("save_strategy")
def _(bench: Bench) -> None:
    assert checkpoints(bench.trained(save_strategy="epoch", num_train_epochs=2)) == [4, 8]
    assert checkpoints(bench.trained(save_strategy="no")) == []


@shows("save_steps")
def _(bench: Bench) -> None:
    assert checkpoints(bench.trained(save_strategy="steps", save_steps=2)) == [2, 4]
    assert checkpoints(bench.trained(save_strategy="steps", save_steps=0.5)) == [2, 4]


@shows("save_total_limit")
def _(bench: Bench) -> None:
    assert checkpoints(bench.trained(save_strategy="steps", save_steps=1, save_total_limit=2)) == [3, 4]


@shows("save_only_model")
def _(bench: Bench) -> None:
    def files(**given: Any) -> set[str]:
        made = bench.trained(save_strategy="epoch", **given)
        return {path.name for path in (Path(made.args.output_dir) / "checkpoint-4").rglob("*") if path.is_file()}

    whole, alone = files(), files(save_only_model=True)
    assert "model.safetensors" in alone
    assert {name for name in whole if "optimizer" in name}
    assert not {name for name in alone if "optimizer" in name}


@shows("save_on_each_node")
def _(bench: Bench) -> None:
    """The first process of the second node."""
    for each in (True, False):
        arguments = bench.arguments(save_on_each_node=each)
        arguments.distributed_environment = DistributedEnvironment(world_size=2, process_index=1, local_process_index=0)
        assert arguments.should_save is each


@shows("resume_from_checkpoint")
def _(bench: Bench) -> None:
    """A script passes it to `train`, as transformers' scripts do."""
    folder = str(bench.new_folder())
    bench.trained(output_dir=folder, save_strategy="steps", save_steps=2, max_steps=2)
    made = bench.trainer(output_dir=folder, resume_from_checkpoint=f"{folder}/checkpoint-2", max_steps=4)
    steps: list[int] = []

    class Noting(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            steps.append(state.global_step)

    made.add_callback(Noting())
    made.train(resume_from_checkpoint=made.args.resume_from_checkpoint)
    assert steps == [2, 3]


@shows("ignore_data_skip")
def _(bench: Bench) -> None:
    """Resumed at step 2 of 4, it starts with the epoch's first batch again."""

    def first_batch(**given: Any) -> Any:
        seen: list[Any] = []

        class Seeing(Recording):
            def forward(self, x: Any, labels: Any = None) -> Any:
                seen.append(x.clone())
                return super().forward(x, labels)

        made = bench.trained({"model": Seeing()}, save_strategy="steps", save_steps=2)
        whole, folder = list(seen), made.args.output_dir
        seen.clear()
        again = bench.trainer({"model": Seeing()}, output_dir=folder, max_steps=4, **given)
        again.train(resume_from_checkpoint=f"{folder}/checkpoint-2")
        return next(index for index, batch in enumerate(whole) if bool((batch == seen[0]).all()))

    assert first_batch() == 2
    assert first_batch(ignore_data_skip=True) == 0


class Patient(TrainerCallback, ExportableState):
    """Stores its constructor arguments in checkpoints."""

    def __init__(self, patience: int) -> None:
        self.patience = patience

    def state(self) -> dict[str, Any]:
        return {"args": {"patience": self.patience}, "attributes": {}}


@shows("restore_callback_states_from_checkpoint")
def _(bench: Bench) -> None:
    """A callback is rebuilt from its state in the checkpoint."""
    folder = str(bench.new_folder())
    bench.trained({"callbacks": [Patient(3)]}, output_dir=folder, save_strategy="steps", save_steps=2, max_steps=2)
    for restored, patience in ((True, 3), (False, 5)):
        given = {"restore_callback_states_from_checkpoint": restored, "max_steps": 4, "output_dir": folder}
        made = bench.trainer({"callbacks": [Patient(5)]}, **given)
        made.train(resume_from_checkpoint=f"{folder}/checkpoint-2")
        (callback,) = [each for each in made.callback_handler.callbacks if isinstance(each, Patient)]
        assert callback.patience == patience


@shows("enable_jit_checkpoint")
def _(bench: Bench) -> None:
    class Killing(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 1:
                os.kill(os.getpid(), signal.SIGTERM)

    made = bench.trainer({"callbacks": [Killing()]}, enable_jit_checkpoint=True, save_strategy="epoch")
    made.train()
    assert made.state.global_step == 2
    assert checkpoints(made) == [2]
