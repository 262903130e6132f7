"""How a Trainer evaluates and predicts: standard versions of what subclasses override."""

from __future__ import annotations

from typing import Any

from hexloop.app.hooks import is_overridden, standard
from hexloop.app.run import driving
from hexloop.app.run.memory_metrics import measured
from hexloop.app.trainer.attributes import TrainerAttributes
from hexloop.domain.evaluation import EvalLoopOutput, PredictionOutput, best_metric_named
from hexloop.domain.run import Evaluation


class TrainerEvaluation(TrainerAttributes):
    """Evaluation and prediction, within a run and outside of one."""

    _asks_for_each: bool = False
    """Whether an overridden `evaluate` is being called for each of several data sets."""

    @standard
    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Return the metrics on `eval_dataset` (by default the Trainer's), under the prefix, and log them.

        The data sets of a dictionary are evaluated one by one, each under `<prefix>_<name>`; an overridden method is
        called for each.

        Args:
            eval_dataset: a data set, a dictionary of several, or the name of one of several; by default the Trainer's.
            ignore_keys: keys of the model's outputs that are left out of the predictions.
            metric_key_prefix: the prefix of the names of metrics.

        Returns:
            the metrics by name, with the prefix.

        Examples:
            >>> metrics = trainer.evaluate()
            >>> sorted(metrics)
            ['epoch', 'eval_loss', 'eval_runtime', 'eval_samples_per_second', 'eval_steps_per_second']
            >>> metrics["eval_loss"] < 0.1
            True
        """
        several = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(several, dict) and is_overridden(self, "evaluate"):
            return self._evaluate_each(several, eval_dataset is not None, ignore_keys, metric_key_prefix)
        with measured(self._memory, "eval") as figures:
            metrics = driving.evaluate(self._collect_parts(), eval_dataset, ignore_keys, metric_key_prefix)
        return {**metrics, **figures}

    def _evaluate_each(
        self, several: dict[str, Any], given: bool, ignore_keys: list[str] | None, prefix: str
    ) -> dict[str, float]:
        """Call an overridden `evaluate` for each of several data sets; return all metrics together."""
        together: dict[str, float] = {}
        self._asks_for_each = True
        try:
            for name, one in several.items():
                together |= self.evaluate(
                    eval_dataset=one if given else name, ignore_keys=ignore_keys, metric_key_prefix=f"{prefix}_{name}"
                )
        finally:
            self._asks_for_each = False
        return together

    def predict(
        self, test_dataset: Any, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Return predictions, labels and metrics on `test_dataset`, as arrays of shape (samples, ...).

        Args:
            test_dataset: the data set to predict.
            ignore_keys: keys of the model's outputs that are left out of the predictions.
            metric_key_prefix: the prefix of the names of metrics.

        Returns:
            `predictions`, `label_ids` and `metrics`; the labels are None if the data have none.

        Examples:
            >>> output = trainer.predict(rows)
            >>> output.predictions.shape, output.label_ids.shape
            ((4, 1), (4, 1))
        """
        with measured(self._memory, "test") as figures:
            output = driving.predict(self._collect_parts(), test_dataset, ignore_keys, metric_key_prefix)
        return output._replace(metrics={**(output.metrics or {}), **figures})

    @standard
    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Predict every batch of `dataloader`; return predictions, labels, metrics and the number of samples.

        Args:
            dataloader: the batches to predict.
            description: what the evaluation is called in logs.
            prediction_loss_only: return only the loss; by default as in the arguments.
            ignore_keys: keys of the model's outputs that are left out of the predictions.
            metric_key_prefix: the prefix of the names of metrics.
        """
        return driving.evaluation_loop(
            self._collect_parts(), dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
        )

    def prediction_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Call `evaluation_loop`, whose name this was in version 4 of transformers.

        Args:
            dataloader: the batches to predict.
            description: what the evaluation is called in logs.
            prediction_loss_only: return only the loss; by default as in the arguments.
            ignore_keys: keys of the model's outputs that are left out of the predictions.
            metric_key_prefix: the prefix of the names of metrics.
        """
        return self.evaluation_loop(dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)

    @standard
    def prediction_step(
        self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Any, Any, Any]:
        """Return the loss, the logits and the labels of a batch, each None if missing or not asked for.

        Args:
            model: the model that predicts.
            inputs: the batch.
            prediction_loss_only: return only the loss.
            ignore_keys: keys of the model's outputs that are left out of the predictions.
        """
        from hexloop.app.overrides.framework import prediction_step

        step = prediction_step(self._collect_parts())
        predicted: tuple[Any, Any, Any] = step(model, inputs, prediction_loss_only, ignore_keys)
        return predicted

    # Within a run

    @standard
    def evaluation_in_training(self) -> Evaluation:
        """Return the evaluation that the loop runs when one is due."""
        return driving.evaluation_in_training(self._collect_parts())

    @standard
    def _evaluate(
        self, trial: Any, ignore_keys_for_eval: list[str] | None, skip_scheduler: bool = False
    ) -> dict[str, float]:
        """Evaluate within a run, and pass the metrics to a schedule that follows one; return the metrics.

        If overridden, it replaces every evaluation of a run. skip_scheduler: leave the schedule as it is.
        """
        metrics = self.evaluate(ignore_keys=ignore_keys_for_eval)
        hooks, in_search = self._collect_parts().hooks, self._live_trial is not None
        hooks.report_to_hp_search.call_if(in_search, trial, self.state.global_step, metrics)
        if self._session is not None and not skip_scheduler:
            self._session.run.scheduler.observe(metrics)
        return metrics

    @standard
    def _determine_best_metric(self, metrics: dict[str, float], trial: Any = None) -> bool:
        """Return whether an evaluation is the best so far, and if so, record it in `state`.

        If overridden, it is called after every evaluation of a run. Raises ConfigurationError if the run needs
        `metric_for_best_model`, and it is not among the metrics.
        """
        return best_metric_named(self.args).observe(self.state.run_state, metrics)
