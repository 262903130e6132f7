"""The accelerator at every moment of a run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.end_to_end.accelerators.looks import arguments, looked, numbers
from tests.end_to_end.small.models import net, rows

Run = Callable[[Any, Path], Any]

ROWS = 27
HELD_OUT = 13

NAMES = [
    "device", "process_index", "num_processes", "local_process_index", "is_main_process", "is_local_main_process",
    "is_last_process", "use_distributed", "distributed_type", "multi_device", "mixed_precision", "native_amp", "scaler",
    "sync_gradients", "gradient_accumulation_steps", "optimizer_step_was_skipped", "split_batches", "dispatch_batches",
    "even_batches", "use_seedable_sampler", "non_blocking", "use_stateful_dataloader", "step", "save_iteration",
    "project_dir", "logging_dir", "trackers", "log_with", "is_fsdp2", "parallelism_config", "should_save_model",
    "deepspeed_plugin", "fp8_enabled", "device_placement", "step_scheduler_with_optimizer", "rng_types",
    "is_composable_parallelism_enabled", "torch_device_mesh", "flag_tensor", "ddp_handler", "scaler_handler",
]  # fmt: skip
STATE = [
    "distributed_type", "num_processes", "process_index", "local_process_index", "is_main_process", "mixed_precision",
    "deepspeed_plugin", "fsdp_plugin", "initialized", "is_fsdp2", "use_distributed",
]  # fmt: skip
GRADIENTS = [
    "sync_gradients", "num_steps", "adjust_scheduler", "sync_with_dataloader", "end_of_dataloader", "remainder",
    "in_dataloader", "plugin_kwargs",
]  # fmt: skip
TRAINER = ["is_deepspeed_enabled", "is_fsdp_enabled", "deepspeed"]


def values(trainer: Any) -> dict[str, Any]:
    accelerator = trainer.accelerator
    return {
        **{name: looked(partial(getattr, accelerator, name)) for name in NAMES},
        **{f"state.{name}": looked(partial(getattr, accelerator.state, name)) for name in STATE},
        **{f"gradient_state.{name}": looked(partial(getattr, accelerator.gradient_state, name)) for name in GRADIENTS},
        **{f"trainer.{name}": looked(partial(getattr, trainer, name)) for name in TRAINER},
        "unwrapped": looked(lambda: type(accelerator.unwrap_model(trainer.model_wrapped)).__name__),
        "wrapped": type(trainer.model_wrapped).__name__,
    }


MOMENTS = [
    "train_begin", "epoch_begin", "step_begin", "pre_optimizer_step", "optimizer_step", "substep_end", "step_end",
    "epoch_end", "evaluate", "log", "save", "train_end", "prediction_step",
]  # fmt: skip


def looking_callback(library: Any, found: list[Any]) -> Any:
    if library.__name__ == "hexloop":
        from hexloop import TrainerCallback
    else:
        from transformers import TrainerCallback  # type: ignore[assignment]

    class Looking(TrainerCallback):
        trainer: Any = None

    for moment in MOMENTS:

        def look(self: Any, args: Any, state: Any, control: Any, moment: str = moment, **kwargs: Any) -> None:
            found.append([moment, state.global_step, values(self.trainer)])

        setattr(Looking, f"on_{moment}", look)
    return Looking()


def moments(library: Any, folder: Path, evaluates_first: bool = False, **given: Any) -> Any:
    """Look at all moments of a run; return their names, steps and values, and last what was trained."""
    found: list[Any] = []

    if library.__name__ == "hexloop":
        from hexloop import Trainer
    else:
        from transformers import Trainer  # type: ignore[assignment]

    class Looking(Trainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            found.append(["compute_loss", self.state.global_step, values(self)])
            return super().compute_loss(model, inputs, *args, **kwargs)

        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().training_step(*args, **kwargs)
            found.append(["training_step", self.state.global_step, values(self)])
            return loss

    usual = {"gradient_accumulation_steps": 2, "eval_strategy": "steps", "eval_steps": 3, "logging_steps": 2}
    callback = looking_callback(library, found)
    trainer = Looking(
        net(), arguments(library, folder, **{**usual, **given}), train_dataset=rows(ROWS), eval_dataset=rows(HELD_OUT),
        callbacks=[callback],
    )  # fmt: skip
    callback.trainer = trainer
    found.append(["made", 0, values(trainer)])
    if evaluates_first:
        trainer.evaluate()
        found.append(["evaluated", 0, values(trainer)])
    trainer.train()
    found.append(["trained", 0, values(trainer)])
    if given.get("reproduce", True):
        logs, weights = numbers(trainer)
        found.append(["numbers", 0, {"logs": logs, "weights": weights}])
        trainer.evaluate()
        found.append(["evaluated", 1, values(trainer)])
    return found


NOT_REPRODUCED: dict[str, Any] = {"reproduce": None}
OF_MOMENTS: dict[str, Run] = {
    "moments": partial(moments, evaluates_first=True),
    "moments bf16": partial(moments, bf16=True),
    "moments fp16": partial(moments, fp16=True),
    "moments without reproduce": partial(moments, **NOT_REPRODUCED),
}
OF_MOMENTS_DDP: dict[str, Run] = {
    "moments ddp": moments,
    "moments split": partial(
        moments, accelerator_config={"split_batches": True}, per_device_eval_batch_size=4, per_device_train_batch_size=2
    ),
    "moments without reproduce ddp": partial(moments, **NOT_REPRODUCED),
}
