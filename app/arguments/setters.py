"""The `set_*` methods of `TrainingArguments`: each sets all arguments of one subject, with its own defaults."""

from __future__ import annotations

from typing import Any, Self

from hexloop.app.arguments.base import Arguments
from hexloop.app.arguments.choices import HubStrategy, IntervalStrategy, OptimizerNames, SaveStrategy, SchedulerType
from hexloop.app.arguments.legacy import LEGACY_ARGUMENTS
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import RefusalError, problem

_EVAL = {"batch_size": "per_device_eval_batch_size", "loss_only": "prediction_loss_only", "jit_mode": "jit_mode_eval"}

UNLESS_GIVEN = ("gradient_checkpointing", "jit_mode_eval")
"""Arguments that stay as they are if a parameter is None."""


class Setters(Arguments):
    """Methods that set several arguments and return `self`. If a value is refused, they raise and set none."""

    def _set(self, given: dict[str, Any], prefix: str = "", **renamed: str) -> Self:
        """Assign a method's parameters and return `self`.

        A parameter sets the argument that `renamed` names, else the one whose name has the prefix in addition, else the
        one of its own name. An alias or an argument of earlier releases that is None counts as not given.
        """
        if given.get("strategy") == "steps" and given.get("steps") == 0:
            refusal = RefusalError("steps must be greater than 0", "give steps a positive value")
            raise ConfigurationError(problem({"strategy": given["strategy"], "steps": 0}, refusal))
        values = {}
        for name, value in given.items():
            argument = f"{prefix}{name}" if f"{prefix}{name}" in self._declared else name
            argument = renamed.get(name, argument)
            if name != "self" and (value is not None or argument not in (*UNLESS_GIVEN, *LEGACY_ARGUMENTS)):
                values[argument] = value
        self.assign(**values)
        return self

    def set_training(
        self,
        learning_rate: float = 5e-5,
        batch_size: int = 8,
        weight_decay: float = 0,
        num_epochs: float = 3,
        max_steps: int = -1,
        gradient_accumulation_steps: int = 1,
        seed: int = 42,
        activation_checkpointing: bool = False,
        gradient_checkpointing: bool | None = None,
    ) -> Self:
        """Set what every training needs, and `do_train`. `gradient_checkpointing`, if given, takes precedence.

        Args:
            learning_rate: sets `learning_rate`.
            batch_size: sets `per_device_train_batch_size`.
            weight_decay: sets `weight_decay`.
            num_epochs: sets `num_train_epochs`.
            max_steps: sets `max_steps`.
            gradient_accumulation_steps: sets `gradient_accumulation_steps`.
            seed: sets `seed`.
            activation_checkpointing: sets `activation_checkpointing`.
            gradient_checkpointing: the older name of `activation_checkpointing`, which takes precedence if it is given.
        """
        return self._set(
            locals() | {"do_train": True}, batch_size="per_device_train_batch_size", num_epochs="num_train_epochs"
        )

    def set_optimizer(
        self,
        name: str | OptimizerNames = "adamw_torch",
        learning_rate: float = 5e-5,
        weight_decay: float = 0,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        args: str | None = None,
    ) -> Self:
        """Set the optimizer and its options.

        Args:
            name: sets `optim`.
            learning_rate: sets `learning_rate`.
            weight_decay: sets `weight_decay`.
            beta1: sets `adam_beta1`.
            beta2: sets `adam_beta2`.
            epsilon: sets `adam_epsilon`.
            args: sets `optim_args`.
        """
        return self._set(locals(), "adam_", name="optim", args="optim_args")

    def set_lr_scheduler(
        self,
        name: str | SchedulerType = "linear",
        num_epochs: float = 3.0,
        max_steps: int = -1,
        warmup_steps: float = 0,
        *,
        warmup_ratio: float | None = None,
    ) -> Self:
        """Set the learning-rate schedule and the length of the run. `warmup_ratio` is deprecated.

        Args:
            name: sets `lr_scheduler_type`.
            num_epochs: sets `num_train_epochs`.
            max_steps: sets `max_steps`.
            warmup_steps: sets `warmup_steps`.
            warmup_ratio: the warmup as a ratio of the run; deprecated, because `warmup_steps` below 1 is one.
        """
        return self._set(locals(), name="lr_scheduler_type", num_epochs="num_train_epochs")

    def set_dataloader(
        self,
        train_batch_size: int = 8,
        eval_batch_size: int = 8,
        drop_last: bool = False,
        num_workers: int = 0,
        pin_memory: bool = True,
        persistent_workers: bool = False,
        prefetch_factor: int | None = None,
        multiprocessing_context: str | None = None,
        in_order: bool = True,
        auto_find_batch_size: bool = False,
        ignore_data_skip: bool = False,
        sampler_seed: int | None = None,
    ) -> Self:
        """Set how batches are loaded.

        Args:
            train_batch_size: sets `per_device_train_batch_size`.
            eval_batch_size: sets `per_device_eval_batch_size`.
            drop_last: sets `dataloader_drop_last`.
            num_workers: sets `dataloader_num_workers`.
            pin_memory: sets `dataloader_pin_memory`.
            persistent_workers: sets `dataloader_persistent_workers`.
            prefetch_factor: sets `dataloader_prefetch_factor`.
            multiprocessing_context: sets `dataloader_multiprocessing_context`.
            in_order: sets `dataloader_in_order`.
            auto_find_batch_size: sets `auto_find_batch_size`.
            ignore_data_skip: sets `ignore_data_skip`.
            sampler_seed: sets `data_seed`.
        """
        return self._set(
            locals(),
            "dataloader_",
            train_batch_size="per_device_train_batch_size",
            eval_batch_size="per_device_eval_batch_size",
            sampler_seed="data_seed",
        )

    def set_evaluate(
        self,
        strategy: str | IntervalStrategy = "no",
        steps: int = 500,
        batch_size: int = 8,
        accumulation_steps: int | None = None,
        delay: float | None = None,
        loss_only: bool = False,
        *,
        jit_mode: bool | None = None,
    ) -> Self:
        """Set how to evaluate, and `do_eval` unless the strategy is `no`. `jit_mode` is deprecated.

        Args:
            strategy: sets `eval_strategy`.
            steps: sets `eval_steps`.
            batch_size: sets `per_device_eval_batch_size`.
            accumulation_steps: sets `eval_accumulation_steps`.
            delay: sets `eval_delay`.
            loss_only: sets `prediction_loss_only`.
            jit_mode: sets `jit_mode_eval`; deprecated.
        """
        delay = 0 if delay is None else delay
        return self._set(locals() | {"do_eval": strategy != IntervalStrategy.NO}, "eval_", **_EVAL)

    def set_testing(self, batch_size: int = 8, loss_only: bool = False, *, jit_mode: bool | None = None) -> Self:
        """Set how to predict on a test set, and `do_predict`. `jit_mode` is deprecated.

        Args:
            batch_size: sets `per_device_eval_batch_size`.
            loss_only: sets `prediction_loss_only`.
            jit_mode: sets `jit_mode_eval`; deprecated.
        """
        return self._set(locals() | {"do_predict": True}, **_EVAL)

    def set_save(
        self,
        strategy: str | SaveStrategy = "steps",
        steps: int = 500,
        total_limit: int | None = None,
        on_each_node: bool = False,
    ) -> Self:
        """Set when checkpoints are written and how many are kept.

        Args:
            strategy: sets `save_strategy`.
            steps: sets `save_steps`.
            total_limit: sets `save_total_limit`.
            on_each_node: sets `save_on_each_node`.
        """
        return self._set(locals(), "save_")

    def set_logging(
        self,
        strategy: str | IntervalStrategy = "steps",
        steps: int = 500,
        report_to: str | list[str] = "none",
        level: str = "passive",
        first_step: bool = False,
        nan_inf_filter: bool = False,
        on_each_node: bool = False,
        replica_level: str = "passive",
    ) -> Self:
        """Set what is logged. As in transformers, some defaults here differ from those of the arguments.

        Args:
            strategy: sets `logging_strategy`.
            steps: sets `logging_steps`.
            report_to: sets `report_to`.
            level: sets `log_level`.
            first_step: sets `logging_first_step`.
            nan_inf_filter: sets `logging_nan_inf_filter`.
            on_each_node: sets `log_on_each_node`.
            replica_level: sets `log_level_replica`.
        """
        return self._set(
            locals(), "logging_", level="log_level", on_each_node="log_on_each_node", replica_level="log_level_replica"
        )

    def set_push_to_hub(
        self,
        model_id: str,
        strategy: str | HubStrategy = "every_save",
        token: str | None = None,
        private_repo: bool | None = None,
        always_push: bool = False,
        revision: str | None = None,
    ) -> Self:
        """Set what is published on the Hub, and `push_to_hub`.

        Args:
            model_id: sets `hub_model_id`.
            strategy: sets `hub_strategy`.
            token: sets `hub_token`.
            private_repo: sets `hub_private_repo`.
            always_push: sets `hub_always_push`.
            revision: sets `hub_revision`.
        """
        return self._set(locals() | {"push_to_hub": True}, "hub_")
