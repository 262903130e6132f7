"""Checks before the first step: configuration, consistency of ranks, and a shared output folder."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast

from hexloop.app.assembly.framework import Framework, uncalled
from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.storage import as_location, is_missing, storage_for
from hexloop.domain.checkpoints.manifest import checkpoint_name
from hexloop.domain.checkpoints.reading import checkpoint_steps
from hexloop.domain.errors import ConfigurationError, MissingCheckpointError, StorageError
from hexloop.domain.ranks import run_on_all_ranks, run_on_rank0
from hexloop.domain.schedules import check_schedule
from hexloop.domain.wording import Problem, enumeration, shown
from hexloop.ports.collectives import Json
from hexloop.ports.storage import Storage


class Refusals:
    """Collects the ConfigurationErrors of its `with` blocks; `settle` raises all problems together."""

    def __init__(self) -> None:
        self._problems: list[str] = []

    def __enter__(self) -> Refusals:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if isinstance(error, ConfigurationError):
            self._problems += error.problems
        return isinstance(error, ConfigurationError)

    def settle(self) -> None:
        """Raise ConfigurationError with every problem."""
        if self._problems:
            raise ConfigurationError(self._problems)


def refuse_evaluation_without_data(parts: TrainerParts) -> None:
    """Raise ConfigurationError if evaluations are due in the run and there is no data for them."""
    strategy = str(getattr(parts.args.eval_strategy, "value", parts.args.eval_strategy))
    due = strategy != "no" or parts.args.eval_on_start
    if not due or parts.hooks.provides_evaluation_data:
        return
    if parts.eval_dataset is None:
        raise ConfigurationError(
            f"eval_strategy={strategy!r} needs data to evaluate on, but the Trainer has none; pass eval_dataset, or "
            "set eval_strategy='no'."
        )
    datasets = parts.eval_dataset if isinstance(parts.eval_dataset, dict) else {"eval_dataset": parts.eval_dataset}
    empty = [name for name, dataset in datasets.items() if _length(dataset) == 0]
    if empty or not datasets:
        raise ConfigurationError(
            f"The evaluation data is empty ({', '.join(empty) or 'no data set at all'}); pass at least one sample, "
            "or set eval_strategy='no'."
        )


def refuse_missing_data(parts: TrainerParts) -> None:
    """Raise ConfigurationError if a Trainer has been given too little for the runs that its arguments describe.

    That is the case if evaluations are due and there is no data for them, or if nothing states the number of steps.
    """
    train, hooks = parts.train_dataset, parts.hooks
    with Refusals() as refusals:
        if parts.eval_dataset is None and parts.args.eval_strategy != "no":
            refuse_evaluation_without_data(parts)
    with refusals:
        is_read = train is not None and not hooks.provides_training_data
        if is_read and parts.args.max_steps <= 0 and _length(train) is None:
            raise ConfigurationError(
                f"train_dataset is a {type(train).__name__}, which has no length, so that num_train_epochs cannot "
                "determine the number of steps; set max_steps."
            )
    refusals.settle()


def refuse_optimizer(parts: TrainerParts, total_steps: int) -> None:
    """Raise ConfigurationError if the optimizer or the schedule cannot be made, or does not fit the parallelism."""
    capabilities = parts.adapters.parallelism.capabilities
    with Refusals() as refusals:
        if capabilities.sharded and not parts.own_optimizer:
            problem = (
                "The Trainer was given an optimizer (optimizers=(...), trainer.optimizer or create_optimizer()), but "
                f"the parallelism {capabilities.name} replaces the parameters that it holds; name the optimizer with "
                "optim, or pass optimizer_cls_and_kwargs."
            )
            raise ConfigurationError(Problem(problem, kind=RuntimeError))
    with refusals:
        if not parts.own_optimizer:
            refuse_replaced_parameters(parts)
    with refusals:
        if parts.makes_optimizer:
            if parts.hooks.chooses_optimizer:
                parts.hooks.get_optimizer_cls_and_kwargs(parts.args, parts.model)
            else:
                parts.adapters.framework.choose_optimizer(parts.args, parts.model)
    with refusals:
        parts.adapters.framework.refuse_groups(parts)
    with refusals:
        refuse_frozen_model(parts)
    with refusals:
        refuse_unsavable_generation(parts)
    with refusals:
        refuse_uncaptured_methods(parts)
    with refusals:
        if parts.makes_scheduler:
            check_schedule(parts.args, total_steps)
    refusals.settle()


def refuse_uncaptured_methods(parts: TrainerParts) -> None:
    """Raise ConfigurationError if `capture_step` would call methods of the user's only while a step is recorded."""
    if parts.args.capture_step and (names := parts.hooks.within_a_pass):
        raise ConfigurationError(
            f"capture_step=True cannot be used with {enumeration(names)} overridden: Python code in a step runs only "
            "while it is recorded, and not at each step; pass compute_loss_func, a function of tensors, or leave "
            "capture_step out."
        )


def refuse_replaced_parameters(parts: TrainerParts) -> None:
    """Raise ConfigurationError if a user's optimizer holds the parameters that the model had on another device.

    Other devices than those that record operations keep the parameters of a model that is moved there.
    """
    device, groups = parts.adapters.device, getattr(parts.optimizer, "param_groups", None)
    if not device.capabilities.records or groups is None:
        return
    held = {id(each) for group in groups for each in group["params"]}
    trained = [each for _, each in parts.adapters.framework.named_parameters(parts.unwrapped_model)]
    if held and trained and not any(id(each) in held for each in trained):
        problem = (
            f"The optimizer has none of the model's parameters: those that it was made with became others when the "
            f"model was moved to {device.name}. Move the model there before you make the optimizer, or name it with "
            "optim."
        )
        raise ConfigurationError(Problem(problem, kind=ValueError))


def refuse_missing_checkpoint(parts: TrainerParts, folder: str) -> None:
    """Raise CheckpointError if a checkpoint's folder on this machine does not exist.

    The message lists the checkpoints beside it, and those of the output folder.
    """
    if not is_missing(folder):
        return
    beside = os.path.dirname(as_location(folder).rstrip(os.sep))
    storage = parts.adapters.storage
    own = storage.capabilities.local_folder or storage.capabilities.location
    found = {own: checkpoint_steps(storage)}
    if not is_missing(beside) and as_location(own) != beside:
        found[beside] = checkpoint_steps(storage_for(beside))
    listed = [
        f"{place} has {', '.join(map(checkpoint_name, steps[:MOST_REPORTED]))}"
        for place, steps in found.items()
        if steps
    ]
    advice = f"{own} has no checkpoints; train from the start."
    if listed:
        advice = f"Name one that does: {'; '.join(listed)}."
    raise MissingCheckpointError(f"The checkpoint resume_from_checkpoint={folder!r} does not exist. {advice}")


def refuse_uncalled(framework: object, is_overridden: Callable[[str], bool]) -> None:
    """Raise ConfigurationError if a method of the Trainer is overridden, and the framework would not call it."""
    if isinstance(framework, Framework) and (problems := uncalled(framework, is_overridden)):
        raise ConfigurationError(problems)


def refuse_parts(
    framework: object,
    model: object,
    model_init: object,
    optimizers: tuple[Any, Any],
    optimizer_class: object,
    data_collator: object,
) -> None:
    """Raise ConfigurationError if parameters of the Trainer's constructor exclude each other, or one is missing."""
    problems = list[Problem]()
    if (model is None) == (model_init is None):
        kind = RuntimeError if model is None else None
        problems.append(Problem("A Trainer needs either a model or a model_init; pass exactly one.", kind=kind))
    if model_init is not None and isinstance(optimizers, tuple | list) and any(each is not None for each in optimizers):
        problem = (
            "model_init and optimizers exclude each other, because the optimizer holds the parameters of another model "
            "than model_init returns; override create_optimizer_and_scheduler, or pass the model."
        )
        problems.append(Problem(problem, kind=RuntimeError))
    if (
        optimizer_class is not None
        and isinstance(optimizers, tuple | list)
        and any(each is not None for each in optimizers[:1])
    ):
        problem = (
            "optimizers and optimizer_cls_and_kwargs exclude each other, because a run has one optimizer; pass one of "
            "them."
        )
        problems.append(Problem(problem, kind=RuntimeError))
    if data_collator is not None and not callable(data_collator):
        problem = (
            f"data_collator is a {type(data_collator).__name__}, which cannot be called; pass a function from a list "
            "of samples to a batch."
        )
        problems.append(Problem(problem, kind=TypeError))
    if model is not None and isinstance(framework, Framework) and not framework.is_model(model):
        instance = f": an object of this class, {model.__name__}(...)" if isinstance(model, type) else ""
        problem = f"model is {shown(model)}, which is not a model; pass {framework.model_kind}{instance}."
        problems.append(Problem(problem, kind=TypeError))
    if not isinstance(optimizers, tuple | list) or len(optimizers) != 2:
        problem = (
            f"optimizers is {shown(optimizers)}, which is not a pair; pass (optimizer, scheduler), with None for what "
            "the arguments should choose."
        )
        problems.append(Problem(problem, kind=TypeError))
    else:
        for each, kind_of_part, argument in zip(
            optimizers, ("optimizer", "scheduler"), ("optim", "lr_scheduler_type"), strict=True
        ):
            if isinstance(each, type | str):
                problem = (
                    f"optimizers has {shown(each)} as its {kind_of_part}; pass an object that is made, or None, and "
                    f"choose by {argument} in the arguments."
                )
                problems.append(Problem(problem, kind=TypeError))
    if optimizer_class is not None and not (isinstance(optimizer_class, tuple | list) and len(optimizer_class) == 2):
        problem = (
            f"optimizer_cls_and_kwargs is {shown(optimizer_class)}, which is not a pair; pass the class and a "
            "dictionary of its arguments, as in (torch.optim.SGD, {'lr': 0.1})."
        )
        problems.append(Problem(problem, kind=TypeError))
    if problems:
        raise ConfigurationError(problems)


CALLERS = {
    "model_init": "call_model_init", "compute_loss_func": "compute_loss", "compute_metrics": "evaluation_loop",
    "preprocess_logits_for_metrics": "evaluation_loop",
    "train_dataset": "get_train_dataloader", "eval_dataset": "get_eval_dataloader",
}  # fmt: skip
"""The method that uses each function or data set of the user's. One that is overridden may take another object by that
name.
"""


def refuse_wrong_objects(
    args: object,
    callbacks: object,
    functions: Mapping[str, object],
    datasets: Mapping[str, object],
    is_overridden: Callable[[str], bool],
) -> None:
    """Raise ConfigurationError if the Trainer was given arguments, callbacks, functions or data of a wrong kind.

    functions, datasets: those of the user's by name. is_overridden: returns whether a method of the Trainer is.
    """
    problems = [
        Problem(f"{name} is {shown(value)}, which cannot be called; pass a function.", kind=TypeError)
        for name, value in functions.items()
        if not (value is None or callable(value) or is_overridden(CALLERS[name]))
    ]
    problems += [
        Problem(f"{name} is {shown(value)}, {lacks}.", kind=TypeError)
        for name, value in datasets.items()
        if (lacks := _not_data(value)) and not is_overridden(CALLERS[name])
    ]
    if args is not None and not hasattr(args, "output_dir"):
        problem = f"args is {shown(args)}; pass TrainingArguments(output_dir, ...)."
        problems.append(Problem(problem, kind=TypeError))
    if callbacks is not None and (isinstance(callbacks, str) or not isinstance(callbacks, Iterable)):
        problem = f"callbacks is {shown(callbacks)}, which is not a list; pass [{type(callbacks).__name__}(...), ...]."
        problems.append(Problem(problem, kind=TypeError))
    if problems:
        raise ConfigurationError(problems)


def _not_data(value: object) -> str:
    """Return why an object is no data set, and what to pass; "" if it may be one."""
    if isinstance(value, str):
        return "a text, and not data; load it, as by datasets.load_dataset(...)"
    if isinstance(value, type):
        return f"a class; pass an object, {value.__name__}(...)"
    if getattr(value, "batch_sampler", None) is not None and hasattr(value, "dataset"):
        return "which makes batches, as a Trainer does itself; pass its dataset"
    if value is None or hasattr(value, "__getitem__") or hasattr(value, "__iter__"):
        return ""
    return "which has neither __getitem__ nor __iter__; pass a list of samples or a data set"


def refuse_frozen_model(parts: TrainerParts) -> None:
    """Raise ConfigurationError if all parameters are frozen, and no optimizer of the user's has others."""
    if not parts.own_optimizer or not parts.makes_optimizer:
        return
    if not parts.adapters.framework.parameter_counts(parts)[1]:
        raise ConfigurationError(
            "The model has no parameter that is trained: requires_grad is False for all of them; set it to True for "
            "those to train, or add adapters."
        )


def refuse_unsavable_generation(parts: TrainerParts) -> None:
    """Raise ConfigurationError if the run saves the model and its generation_config, which is inconsistent."""
    model = parts.unwrapped_model
    config: Any = getattr(model, "generation_config", None)
    saves = str(getattr(parts.args.save_strategy, "value", parts.args.save_strategy)) != "no" or parts.args.push_to_hub
    if not saves or not hasattr(config, "validate") or not (hasattr(model, "can_generate") and model.can_generate()):
        return
    try:
        config.validate(strict=True)
    except ValueError as error:
        raise ConfigurationError(
            f"The model's generation_config is inconsistent, so no checkpoint could be saved: {error} Fix the options "
            "of model.generation_config, or set save_strategy='no'."
        ) from error


# Consistency of ranks

MAY_DIFFER = frozenset({"local_rank", "log_level", "log_level_replica", "logging_dir", "run_name"})
"""Arguments that may differ between processes."""

LIBRARIES = ("hexloop", "torch", "numpy", "safetensors", "transformers", "accelerate", "deepspeed", "peft")
"""Packages whose version may change results, communication or files."""

MOST_REPORTED = 8


def refuse_inconsistent_ranks(parts: TrainerParts) -> None:
    """Raise ConfigurationError, on every rank, if arguments, versions, model or data are not the same on all of them.

    Collective. Ranks exchange one digest each, and only if these differ, what they are made from.
    """
    collectives = parts.adapters.collectives
    if collectives.world_size == 1:
        return
    own = _description(parts)
    digest = hashlib.blake2b(json.dumps(own, sort_keys=True).encode(), digest_size=16).hexdigest()
    if len(set(cast("list[str]", collectives.gather(digest)))) == 1:
        return
    every = cast("list[dict[str, Any]]", collectives.gather(cast(Json, own)))
    first = every[0]
    problems = [
        f"Rank {rank} has {key}={own.get(key)}, but rank 0 has {first.get(key)}; start all processes with the same "
        "value."
        for rank, own in enumerate(every)
        for key in sorted(own.keys() | first.keys())
        if own.get(key) != first.get(key)
    ]
    raise ConfigurationError(problems[:MOST_REPORTED])


def _description(parts: TrainerParts) -> dict[str, Any]:
    """Return what must be the same on all ranks, as plain values."""
    shapes = json.dumps(parts.adapters.framework.parameter_shapes(parts)).encode()
    described = {
        **{
            name: value if isinstance(value, bool | int | float | str) else str(value)
            for name, value in parts.args.to_dict().items()
            if name not in MAY_DIFFER
        },
        "the version of Python": ".".join(platform.python_version_tuple()[:2]),
        **{f"the version of {library}": _version(library) for library in LIBRARIES},
        "the model": type(parts.unwrapped_model).__qualname__,
        "the model's parameters": hashlib.blake2b(shapes, digest_size=8).hexdigest(),
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
    except (TypeError, NotImplementedError):
        return None


# A shared output folder

VISIBLE_WITHIN = 5.0
"""Seconds after which a written file is visible to all processes, also on a network file system."""


def refuse_separate_folders(parts: TrainerParts) -> None:
    """Raise ConfigurationError, on every rank, if a rank does not see what rank 0 writes to the output folder.

    All ranks write a checkpoint together: in separate folders, as on the disks of several machines, no checkpoint would
    be complete. Collective.
    """
    collectives, storage = parts.adapters.collectives, parts.adapters.storage
    if collectives.world_size == 1 or str(parts.args.save_strategy) == "no":
        return
    name = run_on_rank0(collectives, lambda: _write_test_file(storage))
    seen = run_on_all_ranks(collectives, lambda: _is_visible(storage, name))
    if parts.adapters.mesh.writes:
        with suppress(StorageError):
            storage.remove(name)
    blind = [rank for rank, sees in enumerate(seen) if not sees]
    if blind:
        raise ConfigurationError(
            f"output_dir={parts.args.output_dir!r} is not shared: {_ranks(blind)} cannot see what rank 0 writes "
            "there, so that no checkpoint would be complete; choose a folder that all machines share, the URL of "
            "an object store, or save_strategy='no'."
        )


def _write_test_file(storage: Storage) -> str:
    name = f".hexloop-{uuid.uuid4().hex}"
    storage.write(name, [b"read test"])
    return name


def _is_visible(storage: Storage, name: str) -> bool:
    until = time.monotonic() + VISIBLE_WITHIN
    while True:
        try:
            b"".join(storage.read(name))
            return True
        except StorageError:
            if time.monotonic() > until:
                return False
            time.sleep(0.1)


def _ranks(ranks: list[int]) -> str:
    listed = ", ".join(map(str, ranks[:8]))
    return f"rank {listed}" if len(ranks) == 1 else f"ranks {listed}{' and others' if len(ranks) > 8 else ''}"
