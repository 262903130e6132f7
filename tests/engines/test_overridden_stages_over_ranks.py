"""Overridden stages of `train` in two processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers.trainer_pt_utils import nested_gather

from hexloop import Trainer
from tests.engines.several.training import Training, distance, fresh, run


class OwnBoundary(Trainer):
    """Logs by itself, and gathers losses with transformers' own function, as overrides of this method do."""

    def _maybe_log_save_evaluate(  # type: ignore[override]
        self, loss: Any, norm: Any, model: Any, trial: Any, epoch: Any, ignored: Any, start: Any, learning_rate: float
    ) -> None:
        if self.control.should_log and self.state.global_step > self._globalstep_last_logged:
            total = nested_gather(loss, self.args.parallel_mode).mean().item()  # type: ignore[no-untyped-call]
            loss -= loss
            steps = self.state.global_step - self._globalstep_last_logged
            self._total_loss_scalar += total
            self._globalstep_last_logged = self.state.global_step
            self.log({"loss": total / steps, "grad_norm": float(norm), "learning_rate": learning_rate})


class CallingStandard(Trainer):
    """Overrides stages by methods that call the standard ones."""

    def _run_epoch(self, *args: Any, **named: Any) -> None:
        super()._run_epoch(*args, **named)

    def _finalize_training(self, trial: Any, num_train_samples: float, start_time: float) -> Any:
        return super()._finalize_training(trial, num_train_samples, start_time)

    def _get_num_items_in_batch(self, batch_samples: Any, device: Any) -> Any:
        return super()._get_num_items_in_batch(batch_samples, device)

    def _track_num_input_tokens(self, inputs: Any) -> None:
        super()._track_num_input_tokens(inputs)


@pytest.mark.matrix
@pytest.mark.parametrize("kind", [OwnBoundary, CallingStandard])
def test_overridden_stages_report_the_numbers_of_all_processes(tmp_path: Path, kind: type[Trainer]) -> None:
    """Losses are the means over both processes, at every log and at the end; the weights are equal."""
    training = Training(arguments={"num_train_epochs": 2, "logging_steps": 2}, kind=kind, rows=29)
    own = run(training.of(2), fresh(tmp_path / "own"))
    plain = run(Training(arguments=training.arguments, rows=29).of(2), fresh(tmp_path / "plain"))

    def losses(logged: list[dict[str, float]]) -> list[float]:
        return [entry[name] for entry in logged for name in ("loss", "train_loss") if name in entry]

    assert len(losses(own.logged)) > 3
    assert losses(own.logged) == pytest.approx(losses(plain.logged), rel=1e-6)
    assert distance(own.weights, plain.weights) == 0
