"""What is wrong with a run that has not begun: everything at once, and not one thing at a time."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import time
import uuid
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from types import TracebackType
from typing import Any, cast

from hexloop.adapters.batches.torch.batches import length_of
from hexloop.adapters.trainable.torch.layouts import shape_of
from hexloop.app.wiring.model import make_schedule
from hexloop.app.wiring.parts import TrainerParts
from hexloop.app.wiring.state import layout_of
from hexloop.domain.errors import ConfigurationError, StorageError
from hexloop.domain.ranks import run_on_all_ranks, run_on_rank0
from hexloop.ports.collectives import Json
from hexloop.ports.storage import Storage


class Refusals:
    """Collects the problems of the configuration that its `with` blocks meet; `settle` raises them together."""

    def __init__(self) -> None:
        self._problems: list[str] = []

    def __enter__(self) -> Refusals:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if not isinstance(error, ConfigurationError):
            return False
        self._problems += [problem for problem in error.problems if problem not in self._problems]
        return True

    def settle(self) -> None:
        """Raise ConfigurationError with every problem that was met."""
        if self._problems:
            raise ConfigurationError(self._problems)


def refuse_evaluation_without_data(parts: TrainerParts) -> None:
    """Raise ConfigurationError where evaluations are due in the run, and nothing is there to evaluate on."""
    args = parts.args
    due = str(getattr(args.eval_strategy, "value", args.eval_strategy)) != "no" or args.eval_on_start
    if not due or parts.hooks.evaluate.overridden or parts.hooks.get_eval_dataloader.overridden:
        return
    if parts.eval_dataset is None:
        raise ConfigurationError(
            [
                f"You chose eval_strategy={str(getattr(args.eval_strategy, 'value', args.eval_strategy))!r}, but the "
                "Trainer has no data to evaluate on; pass eval_dataset, or set eval_strategy='no'."
            ]
        )
    datasets = parts.eval_dataset if isinstance(parts.eval_dataset, dict) else {"eval_dataset": parts.eval_dataset}
    empty = [name for name, dataset in datasets.items() if length_of(dataset) == 0]
    if empty or not datasets:
        raise ConfigurationError(
            [
                f"The data to evaluate on is empty ({', '.join(empty) or 'no data set at all'}); "
                "give it at least one sample, or set eval_strategy='no'."
            ]
        )


def refuse_optimizer(parts: TrainerParts, total_steps: int) -> None:
    """Raise ConfigurationError where the optimizer or the schedule cannot be made, or is of other parameters."""
    with Refusals() as refusals:
        _refuse_optimizer_of_whole_parameters(parts)
    with refusals:
        if parts.makes_optimizer:
            parts.hooks.get_optimizer_cls_and_kwargs(parts.args, parts.model)
    with refusals:
        if parts.makes_scheduler:
            make_schedule(parts.args, total_steps)
    refusals.settle()


def _refuse_optimizer_of_whole_parameters(parts: TrainerParts) -> None:
    capabilities = parts.adapters.parallelism.capabilities
    if capabilities.sharded and not parts.own_optimizer:
        raise ConfigurationError(
            [
                f"You gave the Trainer an optimizer (optimizers=(...), trainer.optimizer or create_optimizer()) with "
                f"the parallelism {capabilities.name}, but that puts parameters of its own in the place of those that "
                "your optimizer was made of; name it with optim, or pass optimizer_cls_and_kwargs."
            ]
        )


def refuse_parts(
    model_init: object, optimizers: tuple[Any, Any], optimizer_class: object, data_collator: object
) -> None:
    """Raise ConfigurationError for every two parts of a Trainer that exclude each other."""
    problems = []
    if model_init is not None and any(each is not None for each in optimizers):
        problems.append(
            "You gave model_init and optimizers, but these hold the parameters of a model that is not the one that "
            "model_init makes; override create_optimizer_and_scheduler, or give the model."
        )
    if optimizer_class is not None and optimizers[0] is not None:
        problems.append(
            "You gave optimizers and optimizer_cls_and_kwargs, but a run has one optimizer; give one of them."
        )
    if data_collator is not None and not callable(data_collator):
        problems.append(
            f"You gave a data_collator of type {type(data_collator).__name__}, which cannot be called; give a function "
            "from a list of samples to a batch."
        )
    if problems:
        raise ConfigurationError(problems)


def refuse_untrainable_model(model: Any) -> None:
    """Raise ConfigurationError for a quantized model that cannot be trained, as transformers does.

    Its weights are not parameters that an optimizer can change, so nearly all of it would stay as it is. Trainable are
    quantized models with adapters, and those of a method that supports quantization-aware training.
    """
    if not getattr(model, "is_quantized", False) or getattr(model, "_hf_peft_config_loaded", False):
        return
    quantizer = getattr(model, "hf_quantizer", None)
    method = _quantization_method(model, quantizer)
    if hasattr(model, "_orig_mod"):
        problem = (
            f"The model is quantized ({method}) and compiled, and a compiled quantized model cannot be trained; pass "
            "the model without torch.compile."
        )
    elif not _has_peft_adapters(model) and not getattr(quantizer, "is_qat_trainable", False):
        problem = (
            f"The model is quantized ({method}) and has no trainable adapters, so its quantized weights would not be "
            "trained; add adapters, with peft.get_peft_model(model, LoraConfig(...)) or model.add_adapter(...), or "
            "load the model without quantization."
        )
    elif not getattr(quantizer, "is_trainable", False):
        problem = (
            f"The model is quantized by a method that does not support training ({method}), with adapters or without; "
            "quantize it by another, such as bitsandbytes, or load it without quantization."
        )
    else:
        return
    raise ConfigurationError([problem])


def _quantization_method(model: Any, quantizer: Any) -> str:
    configuration = getattr(quantizer, "quantization_config", None)
    method = getattr(configuration, "quant_method", None) or getattr(model, "quantization_method", None)
    return str(getattr(method, "value", method) or "by an unknown method")


def _has_peft_adapters(model: Any) -> bool:
    """Return whether the model is one of PEFT's; its package is loaded in that case."""
    peft = sys.modules.get("peft")
    return peft is not None and isinstance(model, (peft.PeftModel, peft.PeftMixedModel))


MAY_DIFFER = frozenset({"local_rank", "log_level", "log_level_replica", "logging_dir", "run_name"})
"""Arguments that a process may have for itself."""

LIBRARIES = ("hexloop", "torch", "numpy", "safetensors", "transformers", "accelerate", "deepspeed", "peft")
"""What computes, shares and saves: other versions of it may do so otherwise."""

MOST_TOLD = 8


def refuse_unlike(parts: TrainerParts) -> None:
    """Raise ConfigurationError, on every process, where arguments, versions, model or data are not everywhere the same.

    One small message a process; what differs is told by key and rank, only where anything does.
    """
    collectives = parts.adapters.collectives
    if collectives.world_size == 1:
        return
    own = _described(parts)
    digest = hashlib.blake2b(json.dumps(own, sort_keys=True).encode(), digest_size=16).hexdigest()
    if len(set(cast("list[str]", collectives.gather(digest)))) == 1:
        return
    everybody = cast("list[dict[str, Any]]", collectives.gather(cast(Json, own)))
    problems = []
    for rank, theirs in enumerate(everybody):
        for key in sorted(theirs.keys() | everybody[0].keys()):
            first, other = everybody[0].get(key), theirs.get(key)
            if first != other:
                problems.append(
                    f"Rank {rank} has {key}={other}, but rank 0 has {first}; start all processes with the same."
                )
    raise ConfigurationError(problems[:MOST_TOLD])


def _described(parts: TrainerParts) -> dict[str, Any]:
    """What has to be the same, as plain values."""
    arguments = {name: value for name, value in parts.args.to_dict().items() if name not in MAY_DIFFER}
    model, layout = parts.adapters.parallelism.unwrap(parts.model), layout_of(parts)
    shapes = [
        [name, *shape_of(tensor, tensor, layout), str(tensor.dtype)]
        for name, tensor in layout.parameters(model).items()
    ]
    described = {
        **{
            name: value if isinstance(value, bool | int | float | str) else str(value)
            for name, value in arguments.items()
        },
        "the version of Python": ".".join(platform.python_version_tuple()[:2]),
        **{f"the version of {library}": _version(library) for library in LIBRARIES},
        "the model": type(model).__qualname__,
        "the model's parameters": hashlib.blake2b(json.dumps(shapes).encode(), digest_size=8).hexdigest(),
    }
    length = _length(parts.train_dataset)
    return described if length is None else {**described, "the number of training samples": length}


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "none installed"


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except TypeError:
        return None


PATIENCE = 5.0
"""Seconds in which what one process has written is seen by another, also where machines share a folder by network."""


def refuse_separate_folders(parts: TrainerParts) -> None:
    """Raise ConfigurationError, on every process, where any does not see what the first one writes.

    A checkpoint is the work of all processes: in folders of their own, as on disks of several machines, none of them
    would be whole. To be called on all processes at once.
    """
    collectives, storage = parts.adapters.collectives, parts.adapters.storage
    if collectives.world_size == 1 or str(parts.args.save_strategy) == "no":
        return
    name = run_on_rank0(collectives, lambda: _written(storage))
    seen = run_on_all_ranks(collectives, lambda: _is_seen(storage, name))
    if collectives.rank == 0:
        with suppress(StorageError):
            storage.remove(name)
    blind = [rank for rank, sees in enumerate(seen) if not sees]
    if blind:
        raise ConfigurationError(
            [
                f"You chose output_dir={parts.args.output_dir!r}, but what rank 0 writes there is not there for "
                f"{_ranks(blind)}: they have a folder of the same name on another disk, and no checkpoint would be "
                "whole; choose a folder that all machines share, the URL of an object store, or save_strategy='no'."
            ]
        )


def _written(storage: Storage) -> str:
    name = f".hexloop-{uuid.uuid4().hex}"
    storage.write(name, [b"can everybody read this?"])
    return name


def _is_seen(storage: Storage, name: str) -> bool:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            b"".join(storage.read(name))
        except StorageError:
            if time.monotonic() > until:
                return False
            time.sleep(0.1)
        else:
            return True


def _ranks(ranks: list[int]) -> str:
    told = ", ".join(map(str, ranks[:8]))
    return f"rank {told}" if len(ranks) == 1 else f"ranks {told}{' and others' if len(ranks) > 8 else ''}"
