"""Cases of engines that spread the weights: what the accelerator says of them, and whole weights of the model."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.end_to_end.accelerators.looks import looked, plain
from tests.end_to_end.accelerators.more import arguments, numbers
from tests.end_to_end.parity.data import samples_for
from tests.end_to_end.parity.models import make_model
from tests.engines.several.libraries import let_accelerate_take, of_engine

STATE = [
    "distributed_type", "mixed_precision", "num_processes", "process_index", "is_fsdp2", "use_distributed",
]  # fmt: skip
OF_FSDP = [
    "fsdp_version", "sharding_strategy", "reshard_after_forward", "use_orig_params", "state_dict_type", "cpu_offload",
    "activation_checkpointing", "auto_wrap_policy", "transformer_cls_names_to_wrap", "sync_module_states",
    "cpu_ram_efficient_loading",
]  # fmt: skip
OF_DEEPSPEED = [
    "zero_stage", "gradient_accumulation_steps", "gradient_clipping", "zero3_init_flag", "is_zero3_init_enabled",
    "deepspeed_config",
]  # fmt: skip


def engine_case(library: Any, folder: Path, engine: str, stage: int = 0, **given: Any) -> Any:
    """Look before, in and after a run with an engine."""
    chosen = of_engine(engine, stage)
    if library.__name__ == "transformers":
        warnings.simplefilter("ignore")
        chosen |= let_accelerate_take(engine)
    else:
        chosen |= {"reproduce": None, "loss_weighting": "reference"}
    found: dict[str, Any] = {}

    def look(moment: str, trainer: Any, model: Any = None) -> None:
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
            "unwrapped model": lambda: accelerator.unwrap_model(trainer.model) is accelerator.unwrap_model(
                trainer.model_wrapped
            ),
            **{f"state.{name}": lambda n=name: getattr(accelerator.state, n) for name in STATE},
            **{f"fsdp.{name}": lambda n=name: str(getattr(accelerator.state.fsdp_plugin, n)) for name in OF_FSDP},
            **{f"zero.{name}": lambda n=name: getattr(accelerator.state.deepspeed_plugin, n) for name in OF_DEEPSPEED},
        }
        for name, call in calls.items():
            found[f"{moment}: {name}"] = looked(lambda t, m, call=call: call(), trainer)

    class Looking(library.Trainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if self.state.global_step == 1:
                look("compute_loss", self, model)
            return super().compute_loss(model, inputs, *args, **kwargs)

    trainer = Looking(
        make_model("plain GPT"),
        arguments(library, folder, max_steps=3, gradient_accumulation_steps=2, **{**chosen, **given}),
        train_dataset=samples_for("plain GPT", 40),
    )
    look("made", trainer)
    trainer.train()
    look("trained", trainer)
    accelerator = trainer.accelerator
    if engine == "fsdp1" and library.__name__ == "transformers":
        return found  # on a CPU, torch ends the process where accelerate gathers weights from it
    whole = looked(lambda t, m: accelerator.get_state_dict(trainer.model_wrapped), trainer)
    found["state dict"] = whole if isinstance(whole, str) or not trainer.is_world_process_zero() else {
        name: [each["dtype"], round(float(torch.tensor(each["values"]).double().sum()), 3)] for name, each in whole.items()
    }
    found["keys of model"] = looked(lambda t, m: sorted(accelerator.get_state_dict(trainer.model)), trainer)
    found["clipped"] = looked(
        lambda t, m: accelerator.clip_grad_norm_(trainer.model_wrapped.parameters(), 1.0) is not None, trainer
    )
    found["clipped values"] = looked(lambda t, m: accelerator.clip_grad_value_(trainer.model_wrapped.parameters(), 1.0), trainer)
    other = nn.Linear(4, 1)
    found["teacher"] = looked(lambda t, m: type(accelerator.prepare_model(other, evaluation_mode=True)).__name__, trainer)
    found["gathered"] = looked(lambda t, m: accelerator.gather(torch.ones(1)), trainer)
    found["losses"] = [round(log["loss"], 4) for log in trainer.state.log_history if "loss" in log]
    return found
