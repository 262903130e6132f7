"""Setters for a whole subject at once. Each sets all of its subject, with the defaults of its signature."""

from __future__ import annotations

from typing import Any, Self

from hexloop.app.arguments.choices import HubStrategy, IntervalStrategy, OptimizerNames, SaveStrategy, SchedulerType
from hexloop.app.arguments.every import EveryArgument
from hexloop.app.arguments.problems import RefusalError, problem
from hexloop.domain.errors import ConfigurationError


class GroupedSetters(EveryArgument):
    """Methods that set several arguments and return `self`. If one is refused, they raise and set none."""

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
        """What every training needs. Sets `do_train`; `gradient_checkpointing`, if given, is the one that counts."""
        self.assign(
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
        return self

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
        """Evaluation. Sets `do_eval` where the strategy is not `no`; `delay` None is no delay; `jit_mode` is old."""
        _some_steps(strategy, steps)
        self.assign(
            do_eval=strategy != IntervalStrategy.NO,
            eval_strategy=strategy,
            eval_steps=steps,
            per_device_eval_batch_size=batch_size,
            eval_accumulation_steps=accumulation_steps,
            eval_delay=0 if delay is None else delay,
            prediction_loss_only=loss_only,
            **_old(jit_mode_eval=jit_mode),
        )
        return self

    def set_testing(self, batch_size: int = 8, loss_only: bool = False, *, jit_mode: bool | None = None) -> Self:
        """Prediction on a held-out dataset. Sets `do_predict`; `jit_mode` is old."""
        self.assign(
            do_predict=True,
            per_device_eval_batch_size=batch_size,
            prediction_loss_only=loss_only,
            **_old(jit_mode_eval=jit_mode),
        )
        return self

    def set_save(
        self,
        strategy: str | SaveStrategy = "steps",
        steps: int = 500,
        total_limit: int | None = None,
        on_each_node: bool = False,
    ) -> Self:
        """Checkpoints."""
        _some_steps(strategy, steps)
        self.assign(
            save_strategy=strategy, save_steps=steps, save_total_limit=total_limit, save_on_each_node=on_each_node
        )
        return self

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
        """Logging. Some defaults here, those of the reference library, differ from the arguments' own."""
        _some_steps(strategy, steps)
        self.assign(
            logging_strategy=strategy,
            logging_steps=steps,
            report_to=report_to,
            log_level=level,
            logging_first_step=first_step,
            logging_nan_inf_filter=nan_inf_filter,
            log_on_each_node=on_each_node,
            log_level_replica=replica_level,
        )
        return self

    def set_push_to_hub(
        self,
        model_id: str,
        strategy: str | HubStrategy = "every_save",
        token: str | None = None,
        private_repo: bool | None = None,
        always_push: bool = False,
        revision: str | None = None,
    ) -> Self:
        """Publishing on the hub. Sets `push_to_hub`."""
        self.assign(
            push_to_hub=True,
            hub_model_id=model_id,
            hub_strategy=strategy,
            hub_token=token,
            hub_private_repo=private_repo,
            hub_always_push=always_push,
            hub_revision=revision,
        )
        return self

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
        """The optimizer and its settings."""
        self.assign(
            optim=name,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            adam_beta1=beta1,
            adam_beta2=beta2,
            adam_epsilon=epsilon,
            optim_args=args,
        )
        return self

    def set_lr_scheduler(
        self,
        name: str | SchedulerType = "linear",
        num_epochs: float = 3.0,
        max_steps: int = -1,
        warmup_steps: float = 0,
        *,
        warmup_ratio: float | None = None,
    ) -> Self:
        """The learning-rate schedule and the length of the run; `warmup_ratio` is old."""
        self.assign(
            lr_scheduler_type=name,
            num_train_epochs=num_epochs,
            max_steps=max_steps,
            warmup_steps=warmup_steps,
            **_old(warmup_ratio=warmup_ratio),
        )
        return self

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
        """How batches are loaded."""
        self.assign(
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
        return self


def _old(**given: Any) -> dict[str, Any]:
    """What was given of the parameters of earlier releases, for `assign` to translate."""
    return {name: value for name, value in given.items() if value is not None}


def _some_steps(strategy: str, steps: float) -> None:
    if strategy == "steps" and steps == 0:
        refusal = RefusalError("no number of steps lies between two times", "give steps a positive value")
        raise ConfigurationError([problem({"strategy": strategy, "steps": steps}, refusal)])
