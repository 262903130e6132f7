"""The `set_*` methods of `TrainingArguments`: each sets all arguments of one subject, with its own defaults."""

from __future__ import annotations

from typing import Any, Self

from hexloop.app.arguments.base import Arguments
from hexloop.app.arguments.choices import HubStrategy, IntervalStrategy, OptimizerNames, SaveStrategy, SchedulerType
from hexloop.app.arguments.legacy import LEGACY_ARGUMENTS
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import RefusalError, problem


class Setters(Arguments):
    """Methods that set several arguments and return `self`. If a value is refused, they raise and set none."""

    def _with(self, **values: Any) -> Self:
        """Call `assign` and return `self`. A legacy argument that is None counts as not given."""
        self.assign(
            **{name: value for name, value in values.items() if value is not None or name not in LEGACY_ARGUMENTS}
        )
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
        """Set what every training needs, and `do_train`. `gradient_checkpointing`, if given, takes precedence."""
        return self._with(
            do_train=True,
            learning_rate=learning_rate,
            per_device_train_batch_size=batch_size,
            weight_decay=weight_decay,
            num_train_epochs=num_epochs,
            max_steps=max_steps,
            gradient_accumulation_steps=gradient_accumulation_steps,
            seed=seed,
            activation_checkpointing=(
                activation_checkpointing if gradient_checkpointing is None else gradient_checkpointing
            ),
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
        """Set the optimizer and its options."""
        return self._with(
            optim=name,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            adam_beta1=beta1,
            adam_beta2=beta2,
            adam_epsilon=epsilon,
            optim_args=args,
        )

    def set_lr_scheduler(
        self,
        name: str | SchedulerType = "linear",
        num_epochs: float = 3.0,
        max_steps: int = -1,
        warmup_steps: float = 0,
        *,
        warmup_ratio: float | None = None,
    ) -> Self:
        """Set the learning-rate schedule and the length of the run. `warmup_ratio` is deprecated."""
        return self._with(
            lr_scheduler_type=name,
            num_train_epochs=num_epochs,
            max_steps=max_steps,
            warmup_steps=warmup_steps,
            warmup_ratio=warmup_ratio,
        )

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
        """Set how batches are loaded."""
        return self._with(
            per_device_train_batch_size=train_batch_size,
            per_device_eval_batch_size=eval_batch_size,
            dataloader_drop_last=drop_last,
            dataloader_num_workers=num_workers,
            dataloader_pin_memory=pin_memory,
            dataloader_persistent_workers=persistent_workers,
            dataloader_prefetch_factor=prefetch_factor,
            dataloader_multiprocessing_context=multiprocessing_context,
            dataloader_in_order=in_order,
            auto_find_batch_size=auto_find_batch_size,
            ignore_data_skip=ignore_data_skip,
            data_seed=sampler_seed,
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
        """Set how to evaluate, and `do_eval` unless the strategy is `no`. `jit_mode` is deprecated."""
        _refuse_no_steps(strategy, steps)
        return self._with(
            do_eval=strategy != IntervalStrategy.NO,
            eval_strategy=strategy,
            eval_steps=steps,
            per_device_eval_batch_size=batch_size,
            eval_accumulation_steps=accumulation_steps,
            eval_delay=0 if delay is None else delay,
            prediction_loss_only=loss_only,
            jit_mode_eval=jit_mode,
        )

    def set_testing(self, batch_size: int = 8, loss_only: bool = False, *, jit_mode: bool | None = None) -> Self:
        """Set how to predict on a test set, and `do_predict`. `jit_mode` is deprecated."""
        return self._with(
            do_predict=True,
            per_device_eval_batch_size=batch_size,
            prediction_loss_only=loss_only,
            jit_mode_eval=jit_mode,
        )

    def set_save(
        self,
        strategy: str | SaveStrategy = "steps",
        steps: int = 500,
        total_limit: int | None = None,
        on_each_node: bool = False,
    ) -> Self:
        """Set when checkpoints are written and how many are kept."""
        _refuse_no_steps(strategy, steps)
        return self._with(
            save_strategy=strategy, save_steps=steps, save_total_limit=total_limit, save_on_each_node=on_each_node
        )

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
        """Set what is logged. As in transformers, some defaults here differ from those of the arguments."""
        _refuse_no_steps(strategy, steps)
        return self._with(
            logging_strategy=strategy,
            logging_steps=steps,
            report_to=report_to,
            log_level=level,
            logging_first_step=first_step,
            logging_nan_inf_filter=nan_inf_filter,
            log_on_each_node=on_each_node,
            log_level_replica=replica_level,
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
        """Set what is published on the Hub, and `push_to_hub`."""
        return self._with(
            push_to_hub=True,
            hub_model_id=model_id,
            hub_strategy=strategy,
            hub_token=token,
            hub_private_repo=private_repo,
            hub_always_push=always_push,
            hub_revision=revision,
        )


def _refuse_no_steps(strategy: str, steps: float) -> None:
    if strategy == "steps" and steps == 0:
        refusal = RefusalError("steps must be greater than 0", "give steps a positive value")
        raise ConfigurationError(problem({"strategy": strategy, "steps": steps}, refusal))
