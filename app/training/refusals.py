"""What is wrong with a run that has not begun: everything at once, and not one thing at a time."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import TracebackType
from typing import Any

from hexloop.adapters.batches.torch.batches import length_of
from hexloop.app.arguments import TrainingArguments
from hexloop.app.training.learning_rates import make_schedule
from hexloop.app.wiring.parts import TrainerParts
from hexloop.domain.errors import ConfigurationError


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


def refuse_metrics(args: TrainingArguments, compute: Callable[..., Any] | None) -> None:
    """Raise ConfigurationError where a function is to compute metrics batch by batch that is not made for it."""
    if not args.batch_eval_metrics or compute is None:
        return
    parameters = inspect.signature(compute).parameters.values()
    if not any(each.name == "compute_result" or each.kind is each.VAR_KEYWORD for each in parameters):
        raise ConfigurationError(
            [
                "You chose batch_eval_metrics=True, but compute_metrics has no parameter compute_result, which is True "
                "for the last batch; add it, gather what the metrics need at each call, and return them at that one."
            ]
        )
