"""The cases: short runs that look at `trainer.accelerator` at moments of a run."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from attrs import field, frozen
from torch import nn
from torch.utils.data import DataLoader

from tests.end_to_end.accelerators.looks import looked, plain
from tests.end_to_end.accelerators import more
from tests.end_to_end.accelerators.engines import engine_case
from tests.end_to_end.small.models import net, rows

ROWS = 27
HELD_OUT = 13


@frozen
class Case:
    """A run that looks at the accelerator: returns what it saw, given the library's module and an output folder."""

    run: Callable[[Any, Path], Any]
    ranks: int = 1
    environment: Mapping[str, str] = field(factory=dict)


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
TRAINER = ["is_deepspeed_enabled", "is_fsdp_enabled", "is_fsdp_xla_enabled", "deepspeed"]


def values(trainer: Any, model: Any = None) -> dict[str, Any]:
    accelerator = trainer.accelerator
    return {
        **{name: looked(lambda t, m, n=name: getattr(accelerator, n), trainer, model) for name in NAMES},
        **{f"state.{name}": looked(lambda t, m, n=name: getattr(accelerator.state, n), trainer) for name in STATE},
        **{f"gradient_state.{name}": looked(lambda t, m, n=name: getattr(accelerator.gradient_state, n), trainer)
           for name in GRADIENTS},
        **{f"trainer.{name}": looked(lambda t, m, n=name: getattr(trainer, n), trainer) for name in TRAINER},
        "unwrapped": looked(lambda t, m: type(accelerator.unwrap_model(t.model_wrapped)), trainer),
        "wrapped": type(trainer.model_wrapped).__name__,
        "optimizer": type(trainer.optimizer).__name__,
        "_models": looked(lambda t, m: len(accelerator._models), trainer),
        "_optimizers": looked(lambda t, m: len(accelerator._optimizers), trainer),
        "_schedulers": looked(lambda t, m: len(accelerator._schedulers), trainer),
        "_dataloaders": looked(lambda t, m: len(accelerator._dataloaders), trainer),
    }


MOMENTS = [
    "train_begin", "epoch_begin", "step_begin", "pre_optimizer_step", "optimizer_step", "substep_end", "step_end",
    "epoch_end", "evaluate", "log", "save", "train_end", "prediction_step",
]  # fmt: skip


def looking_callback(library: Any, found: list[Any]) -> Any:
    class Looking(library.TrainerCallback):
        trainer: Any = None

    for moment in MOMENTS:

        def look(self: Any, args: Any, state: Any, control: Any, moment: str = moment, **kwargs: Any) -> None:
            found.append([moment, state.global_step, values(self.trainer)])

        setattr(Looking, f"on_{moment}", look)
    return Looking()


def arguments(library: Any, folder: Path, **given: Any) -> Any:
    return library.TrainingArguments(
        str(folder),
        **{
            "use_cpu": True, "report_to": "none", "disable_tqdm": True, "save_strategy": "no", "logging_steps": 2,
            "per_device_train_batch_size": 2, "per_device_eval_batch_size": 3, "learning_rate": 0.01,
            "num_train_epochs": 1, **({"reproduce": "transformers"} if given.pop("reproduces", True) and library.__name__ == "hexloop" else {}), **given,
        },
    )  # fmt: skip


def moments(library: Any, folder: Path, evaluates_first: bool = True, **given: Any) -> Any:
    found: list[Any] = []

    class Looking(library.Trainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            found.append(["compute_loss", self.state.global_step, values(self, model)])
            return super().compute_loss(model, inputs, *args, **kwargs)

        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().training_step(*args, **kwargs)
            found.append(["training_step", self.state.global_step, values(self)])
            return loss

    arguments_ = arguments(library, folder, **{"gradient_accumulation_steps": 2, "eval_strategy": "steps", "eval_steps": 3, **given})
    callback = looking_callback(library, found)
    trainer = Looking(net(), arguments_, train_dataset=rows(ROWS), eval_dataset=rows(HELD_OUT), callbacks=[callback])
    callback.trainer = trainer
    found.append(["made", 0, values(trainer)])
    if evaluates_first:
        trainer.evaluate()
        found.append(["evaluated", 0, values(trainer)])
    trainer.train()
    found.append(["trained", 0, values(trainer)])
    trainer.evaluate()
    found.append(["evaluated", 1, values(trainer)])
    return found



class Pair(NamedTuple):
    """A pair that nested values may contain."""

    first: Any
    second: Any


def tensors(library: Any, folder: Path) -> dict[str, Any]:
    """Look at what the accelerator does with tensors and objects of all processes, outside of a run."""
    trainer = library.Trainer(net(), arguments(library, folder), train_dataset=rows(ROWS))
    accelerator, rank = trainer.accelerator, trainer.args.process_index
    own = torch.arange(3, dtype=torch.float32) + 10 * rank
    ragged = torch.arange(2.0 + rank)
    nested = {"a": own, "b": [own, (own + 1, own + 2)], "c": Pair(own, own)}
    calls: dict[str, Callable[[], Any]] = {
        "gather": lambda: accelerator.gather(own),
        "gather scalar": lambda: accelerator.gather(torch.tensor(rank)),
        "gather nested": lambda: accelerator.gather(nested),
        "gather bool": lambda: accelerator.gather(own > 1),
        "gather bf16": lambda: accelerator.gather(own.bfloat16()),
        "gather other": lambda: accelerator.gather({"a": own, "b": "text"}),
        "metrics": lambda: accelerator.gather_for_metrics(own),
        "metrics nested": lambda: accelerator.gather_for_metrics(nested),
        "metrics tuple": lambda: accelerator.gather_for_metrics((own, own)),
        "metrics objects": lambda: accelerator.gather_for_metrics([f"text of {rank}", rank]),
        "metrics by objects": lambda: accelerator.gather_for_metrics([own], use_gather_object=True),
        "metrics number": lambda: accelerator.gather_for_metrics(3.0),
        "sum": lambda: accelerator.reduce(own),
        "mean": lambda: accelerator.reduce(own, reduction="mean"),
        "max": lambda: accelerator.reduce(own, reduction="max"),
        "sum of integers": lambda: accelerator.reduce(torch.tensor([rank + 1])),
        "mean nested": lambda: accelerator.reduce(nested, "mean"),
        "scaled": lambda: accelerator.reduce(own, scale=3.0),
        "sum is new": lambda: accelerator.reduce(own) is own,
        "sum of text": lambda: accelerator.reduce({"a": "text"}),
        "pad": lambda: accelerator.pad_across_processes(ragged, pad_index=-100),
        "pad first": lambda: accelerator.pad_across_processes(ragged, pad_first=True),
        "pad second": lambda: accelerator.pad_across_processes(torch.ones(2, 1 + rank), dim=1, pad_index=7),
        "pad last": lambda: accelerator.pad_across_processes(torch.ones(2, 1 + rank, dtype=torch.int64), dim=-1),
        "pad nested": lambda: accelerator.pad_across_processes(Pair(ragged, [ragged])),
        "pad without dimension": lambda: accelerator.pad_across_processes(torch.tensor(1.0), dim=2),
        "pad text": lambda: accelerator.pad_across_processes("text"),
        "gather_object": lambda: importlib.import_module("accelerate.utils").gather_object([rank]),
        "broadcast_object_list": lambda: importlib.import_module("accelerate.utils").broadcast_object_list([rank]),
        "broadcast": lambda: importlib.import_module("accelerate.utils").broadcast(own.clone()),
        "state": lambda: str(importlib.import_module("accelerate").PartialState()),
        "wait": lambda: accelerator.wait_for_everyone(),
        "split": lambda: in_context(accelerator.split_between_processes(list(range(5))), lambda part: part),
        "split padded": lambda: in_context(accelerator.split_between_processes([1, 2, 3], True), lambda part: part),
        "first": lambda: in_context(accelerator.main_process_first(), lambda _: rank),
        "local first": lambda: in_context(accelerator.local_main_process_first(), lambda _: rank),
        "on main": lambda: accelerator.on_main_process(lambda: rank)(),
        "on last": lambda: accelerator.on_last_process(lambda: rank)(),
        "on process": lambda: accelerator.on_process(lambda: rank, process_index=1)(),
        "trigger": lambda: (rank == 1 and accelerator.set_trigger(), accelerator.check_trigger(), accelerator.check_trigger()),
        "autocast": lambda: in_context(accelerator.autocast(), lambda _: torch.is_autocast_enabled("cpu")),
        "profile": lambda: in_context(accelerator.profile(), lambda found: type(found)),
        "deepcopy": lambda: copy.deepcopy(accelerator) is accelerator,
        "number of own": lambda: accelerator.unwrap_model(trainer.model) is trainer.model,
        "save": lambda: accelerator.save({"a": own}, folder.parent / f"saved-{rank}"),
    }
    return {name: looked(lambda t, m, call=call: call(), trainer) for name, call in calls.items()}


def in_context(context: Any, call: Callable[[Any], Any]) -> Any:
    with context as entered:
        return call(entered)


def prepared(library: Any, folder: Path) -> dict[str, Any]:
    """Look at loaders and models that user code prepares."""
    trainer = library.Trainer(net(), arguments(library, folder), train_dataset=rows(ROWS))
    accelerator = trainer.accelerator
    found: dict[str, Any] = {}
    for length, size in ((13, 3), (12, 3), (5, 4), (1, 2)):
        loader = accelerator.prepare(DataLoader(list(range(length)), batch_size=size))
        seen = []
        for batch in loader:
            gathered = accelerator.gather_for_metrics(batch)
            state = accelerator.gradient_state
            objects = accelerator.gather_for_metrics([int(each) for each in batch], use_gather_object=True)
            seen.append([gathered, state.end_of_dataloader, state.remainder, accelerator.gather(batch), objects])
            seen.append(accelerator.gather_for_metrics(batch.sum()))
        found[f"loader {length} {size}"] = plain([len(loader), loader.total_batch_size, type(loader).__name__, seen])
    loader = accelerator.prepare(DataLoader(list(range(13)), batch_size=3))
    skipping = accelerator.skip_first_batches(loader, 1)
    found["skipped"] = plain(list(skipping))
    shuffling = accelerator.prepare(DataLoader(list(range(13)), batch_size=3, shuffle=True))
    torch.manual_seed(3)
    found["shuffled"] = plain([list(shuffling), list(shuffling)])
    teacher = accelerator.prepare_model(nn.Linear(4, 1), evaluation_mode=True)
    found["teacher"] = [type(teacher).__name__, plain(teacher(torch.ones(1, 4)).dtype is torch.float32)]
    student = accelerator.prepare(nn.Linear(4, 1))
    found["student"] = [type(student).__name__, type(accelerator.unwrap_model(student)).__name__]
    second, optimizer = accelerator.prepare(nn.Linear(4, 1), torch.optim.SGD(student.parameters(), lr=0.1))
    found["second"] = [type(second).__name__, type(optimizer).__name__]
    schedule = accelerator.prepare(torch.optim.lr_scheduler.LambdaLR(optimizer.optimizer, lambda _: 1.0))
    found["schedule"] = type(schedule).__name__
    found["state dict"] = sorted(accelerator.get_state_dict(student))
    with accelerator.no_sync(student):
        found["no_sync"] = plain(getattr(student, "require_backward_grad_sync", None))
    with accelerator.accumulate(student):
        found["accumulate"] = plain([accelerator.sync_gradients, getattr(student, "require_backward_grad_sync", None)])
    accelerator.gradient_accumulation_steps = 2
    steps = []
    for _ in range(4):
        with accelerator.accumulate(student):
            loss = student(torch.ones(1, 4)).sum()
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            steps.append([accelerator.sync_gradients, accelerator.gradient_accumulation_steps, accelerator.step])
    found["accumulated"] = plain([steps, optimizer.optimizer.state_dict()["state"]])
    accelerator.gradient_accumulation_steps = 1
    found["join"] = looked(lambda t, m: in_context(accelerator.join_uneven_inputs([student]), lambda _: 1), trainer)
    found["verify"] = accelerator.verify_device_map(student)
    found["freed"] = plain(accelerator.free_memory(student, optimizer))
    return found


ENGINES = {"DS_ACCELERATOR": "cpu", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

CASES: dict[str, Case] = {
    "moments": Case(moments),
    "moments ddp": Case(lambda library, folder: moments(library, folder, evaluates_first=False), ranks=2),
    "moments bf16": Case(lambda library, folder: moments(library, folder, bf16=True)),
    "moments fp16": Case(lambda library, folder: moments(library, folder, fp16=True)),
    "moments plain": Case(lambda library, folder: moments(library, folder, reproduces=False)),
    "moments plain ddp": Case(lambda library, folder: moments(library, folder, evaluates_first=False, reproduces=False), ranks=2),
    "moments split": Case(lambda library, folder: moments(library, folder, evaluates_first=False, accelerator_config={"split_batches": True}, per_device_eval_batch_size=4), ranks=2),
    "tensors": Case(tensors),
    "tensors ddp": Case(tensors, ranks=2),
    "prepared": Case(prepared),
    "prepared ddp": Case(prepared, ranks=2),
    "distillation": Case(more.distillation),
    "distillation ddp": Case(more.distillation, ranks=2),
    "distillation bf16": Case(lambda library, folder: more.distillation(library, folder, bf16=True)),
    "own step": Case(more.own_step),
    "own step ddp": Case(more.own_step, ranks=2),
    "own step bf16": Case(lambda library, folder: more.own_step(library, folder, bf16=True)),
    "own loader": Case(more.own_loader),
    "own loader ddp": Case(more.own_loader, ranks=2),
    "saved state": Case(more.saved_state),
    "own accelerators": Case(more.own_accelerators),
    "configured": Case(more.configured),
    "tools": Case(more.tools),
    **{
        name: Case(partial(engine_case, engine=engine, stage=stage, **more_), ranks=2, environment=ENGINES)
        for name, engine, stage, more_ in (
            ("zero 1", "zero", 1, {}), ("zero 2", "zero", 2, {}), ("zero 3", "zero", 3, {}),
            ("fsdp 1", "fsdp1", 0, {}), ("fsdp 2", "fsdp2", 0, {}),
        )
    },
}
