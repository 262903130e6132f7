"""Cases of engines that spread the weights: what the accelerator says of them, and whole weights of the model."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.end_to_end.accelerators.looks import arguments, looked
from tests.end_to_end.parity.data import samples_for
from tests.end_to_end.parity.models import make_model
from tests.engines.several.libraries import let_accelerate_take, of_engine

STATE = [
    "distributed_type", "mixed_precision", "num_processes", "process_index", "is_fsdp2", "use_distributed",
]  # fmt: skip
OF_FSDP = [
    "fsdp_version", "sharding_strategy", "reshard_after_forward", "use_orig_params", "state_dict_type", "cpu_offload",
    "activation_checkpointing", "transformer_cls_names_to_wrap", "sync_module_states",
    "cpu_ram_efficient_loading",
]  # fmt: skip
OF_DEEPSPEED = [
    "zero_stage", "gradient_accumulation_steps", "gradient_clipping", "zero3_init_flag",
]  # fmt: skip
FURTHER_KEYS = ("train_batch_size", "timers", "zero_force_ds_cpu_optimizer")
"""What hexloop writes into DeepSpeed's configuration, and accelerate leaves to DeepSpeed."""


def text_of(state: Any, plugin: str, name: str) -> str:
    """Return an attribute of a plugin as text."""
    return str(getattr(getattr(state, plugin), name))


def engine_case(library: Any, folder: Path, engine: str, stage: int = 0) -> Any:
    """Look before, in and after a run with an engine."""
    chosen = of_engine(engine, stage)
    if library.__name__ == "transformers":
        warnings.simplefilter("ignore")
        chosen |= let_accelerate_take(engine)
    else:
        chosen |= {"reproduce": None, "loss_weighting": "reference"}
    found: dict[str, Any] = {}

    def look(moment: str, trainer: Any) -> None:
        accelerator, args = trainer.accelerator, trainer.args
        calls: dict[str, Any] = {
            "distributed_type": lambda: accelerator.distributed_type,
            "is_fsdp2": lambda: accelerator.is_fsdp2,
            "multi_device": lambda: accelerator.multi_device,
            "use_distributed": lambda: accelerator.use_distributed,
            "mixed_precision": lambda: accelerator.mixed_precision,
            "scaler": lambda: accelerator.scaler,
            "skipped": lambda: accelerator.optimizer_step_was_skipped,
            "sync": lambda: accelerator.sync_gradients,
            "parallelism": lambda: accelerator.parallelism_config,
            "deepspeed_plugin": lambda: accelerator.deepspeed_plugin,
            "fsdp_plugin": lambda: getattr(accelerator.state, "fsdp_plugin", None),
            "plugin of args": lambda: args.deepspeed_plugin,
            "plugin args": lambda: args.fsdp_plugin_args,
            "distributed_state": lambda: args.distributed_state.num_processes,
            "enabled": lambda: [trainer.is_deepspeed_enabled, trainer.is_fsdp_enabled],
            "deepspeed": lambda: trainer.deepspeed,
            "model": lambda: type(trainer.model).__name__.replace("FSDP", "") if engine != "fsdp1" else None,
            "wrapped": lambda: type(trainer.model_wrapped).__name__,
            "unwrapped": lambda: type(accelerator.unwrap_model(trainer.model_wrapped)).__name__,
            "unwrapped model": lambda: (
                accelerator.unwrap_model(trainer.model) is accelerator.unwrap_model(trainer.model_wrapped)
            ),
            **{f"state.{name}": partial(getattr, accelerator.state, name) for name in STATE},
            **{f"fsdp.{name}": partial(text_of, accelerator.state, "fsdp_plugin", name) for name in OF_FSDP},
            **{f"zero.{name}": partial(text_of, accelerator.state, "deepspeed_plugin", name) for name in OF_DEEPSPEED},
            "zero.config": lambda: {
                name: value
                for name, value in accelerator.state.deepspeed_plugin.deepspeed_config.items()
                if name not in FURTHER_KEYS
            },
        }
        for name, call in calls.items():
            found[f"{moment}: {name}"] = looked(call)

    if library.__name__ == "hexloop":
        from hexloop import Trainer
    else:
        from transformers import Trainer  # type: ignore[assignment]

    class Looking(Trainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if self.state.global_step == 1:
                look("compute_loss", self)
            return super().compute_loss(model, inputs, *args, **kwargs)

    trainer = Looking(
        make_model("plain GPT"),
        arguments(
            library, folder, max_steps=3, gradient_accumulation_steps=2, train_sampling_strategy="sequential", **chosen
        ),
        train_dataset=samples_for("plain GPT", 40),
    )  # fmt: skip
    look("made", trainer)
    trainer.train()
    look("trained", trainer)
    accelerator = trainer.accelerator
    if engine == "fsdp1" and library.__name__ == "transformers":
        return found  # on a CPU, torch ends the process where accelerate gathers weights from it
    whole = looked(lambda: accelerator.get_state_dict(trainer.model_wrapped))
    found["state dict"] = whole if trainer.is_world_process_zero() else None
    found["keys of model"] = looked(lambda: sorted(accelerator.get_state_dict(trainer.model)))
    found["clipped"] = looked(lambda: accelerator.clip_grad_norm_(trainer.model_wrapped.parameters(), 1.0) is not None)
    parameters = list(trainer.model_wrapped.parameters())
    found["clipped values"] = looked(lambda: accelerator.clip_grad_value_(parameters, 1.0))
    teacher = nn.Linear(4, 1)
    found["teacher"] = looked(lambda: accelerator.prepare_model(teacher, evaluation_mode=True) is teacher)
    found["gathered"] = looked(lambda: accelerator.gather(torch.ones(1)))
    found["losses"] = [round(log["loss"], 4) for log in trainer.state.log_history if "loss" in log]
    return found
