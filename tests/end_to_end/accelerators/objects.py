"""Tensors of all processes, and objects that user code prepares, outside of a run."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import PartialState
from accelerate.utils import operations
from torch import nn
from torch.utils.data import DataLoader

from tests.end_to_end.accelerators.looks import arguments, looked, plain
from tests.end_to_end.small.models import net, rows

ROWS = 27


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
        "gather_object": lambda: operations.gather_object([rank]),
        "broadcast_object_list": lambda: operations.broadcast_object_list([rank]),
        "broadcast": lambda: operations.broadcast(own.clone()),
        "state": lambda: str(PartialState()).replace("cpu:0", "cpu"),
        "wait": accelerator.wait_for_everyone,
        "split": lambda: in_context(accelerator.split_between_processes(list(range(5))), lambda part: part),
        "split padded": lambda: in_context(accelerator.split_between_processes([1, 2, 3], True), lambda part: part),
        "first": lambda: in_context(accelerator.main_process_first(), lambda _: rank),
        "local first": lambda: in_context(accelerator.local_main_process_first(), lambda _: rank),
        "on main": accelerator.on_main_process(lambda: rank),
        "on last": accelerator.on_last_process(lambda: rank),
        "on process": accelerator.on_process(lambda: rank, process_index=1),
        "trigger": lambda: [
            accelerator.set_trigger() if rank == 1 else None,
            *map(checked, (accelerator, accelerator)),
        ],
        "autocast": lambda: in_context(accelerator.autocast(), lambda _: torch.is_autocast_enabled("cpu")),
        "profile": lambda: in_context(accelerator.profile(), type),
        "deepcopy": lambda: copy.deepcopy(accelerator) is accelerator,
        "number of own": lambda: accelerator.unwrap_model(trainer.model) is trainer.model,
        "save": lambda: accelerator.save({"a": own}, folder.parent / f"saved-{rank}"),
    }
    return {name: looked(call) for name, call in calls.items()}


def checked(accelerator: Any) -> bool:
    """Return whether a process has set the trigger."""
    found: bool = accelerator.check_trigger()
    return found


def in_context(context: Any, call: Callable[[Any], Any]) -> Any:
    """Return what a function returns in a context, given what that yields."""
    with context as entered:
        return call(entered)


def numbers_up_to(count: int) -> Any:
    """Return a dataset of the first numbers."""
    return list(range(count))


def prepared(library: Any, folder: Path) -> dict[str, Any]:
    """Look at loaders and models that user code prepares."""
    trainer = library.Trainer(net(), arguments(library, folder), train_dataset=rows(ROWS))
    accelerator = trainer.accelerator
    found: dict[str, Any] = {}
    for length, size in ((13, 3), (12, 3), (5, 4), (1, 2)):
        loader = accelerator.prepare(DataLoader(numbers_up_to(length), batch_size=size))
        seen = []
        for batch in loader:
            gathered = accelerator.gather_for_metrics(batch)
            state = accelerator.gradient_state
            objects = accelerator.gather_for_metrics([int(each) for each in batch], use_gather_object=True)
            seen.append([gathered, state.end_of_dataloader, state.remainder, accelerator.gather(batch), objects])
            seen.append(accelerator.gather_for_metrics(batch.sum()))
        found[f"loader {length} {size}"] = plain([len(loader), loader.total_batch_size, type(loader).__name__, seen])
    loader = accelerator.prepare(DataLoader(numbers_up_to(13), batch_size=3))
    skipping = accelerator.skip_first_batches(loader, 1)
    found["skipped"] = plain(list(skipping))
    shuffling = accelerator.prepare(DataLoader(numbers_up_to(13), batch_size=3, shuffle=True))
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
    found["join"] = looked(lambda: in_context(accelerator.join_uneven_inputs([student]), lambda _: 1))
    found["verify"] = accelerator.verify_device_map(student)
    found["freed"] = plain(accelerator.free_memory(student, optimizer))
    return found
