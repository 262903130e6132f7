"""Setters of what comes of a run: measurements, predictions, checkpoints, logs, what is published."""

from __future__ import annotations

from typing import Self

from hexloop.app.arguments.choices import HubStrategy, IntervalStrategy, SaveStrategy
from hexloop.app.arguments.setters.chained import ChainedSetters
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import RefusalError, problem


class ResultSetters(ChainedSetters):
    """Evaluation, prediction, checkpoints, logging and the hub."""

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
        """Prediction on a held-out dataset. Sets `do_predict`; `jit_mode` is old."""
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
        """Checkpoints."""
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
        """Logging. Some defaults here, those of the reference library, differ from the arguments' own."""
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
        """Publishing on the hub. Sets `push_to_hub`."""
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
        refusal = RefusalError("no number of steps lies between two times", "give steps a positive value")
        raise ConfigurationError([problem({"strategy": strategy, "steps": steps}, refusal)])
