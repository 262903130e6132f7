"""The forecast of a Trainer's next run."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

from hexloop.app.assembly.passed_adapters import private_adapters
from hexloop.app.callbacks import CallbackHandler, TrainerControl
from hexloop.app.callbacks.flow import all_callbacks
from hexloop.app.run import driving
from hexloop.app.run.forecasting import forecast_run
from hexloop.app.trainer.attributes import TrainerAttributes
from hexloop.domain.forecast import Forecast


class TrainerForecast(TrainerAttributes):
    """Computes what a run will need, with copies of the Trainer."""

    def forecast(self, steps: int = 10) -> Forecast:
        """Return what the next run will need: memory, time, steps, tokens, and the size of a checkpoint.

        The memory is that of a step with fake tensors, which takes none; the time is that of a few real steps of a copy
        of the model. Nothing is written to the run's folder, and model, data order and random generators stay as they
        are. `print(trainer.forecast())` prints what `hexloop train --dry-run` does.

        Args:
            steps: How many real steps are measured after the first one. 0 measures none, and `timing` is None.

        Returns:
            The forecast. Its `notes` say what is not known, its `warnings` what will go wrong.

        Raises:
            ConfigurationError: For every problem that the run would be refused for, and for training data that can be
                read only once.
            RunStateError: While a run is live.
        """
        driving.refuse_second_run(None if self._session is None else self._session.run)
        return forecast_run(self._collect_parts(), self._copy_for_forecast, steps)

    def _copy_for_forecast(
        self, *, model: Any, optimizer: Any, lr_scheduler: Any, arguments: Mapping[str, Any], alone: bool
    ) -> Any:
        """Return a Trainer with other arguments, its own callbacks, and adapters that report and publish nothing.

        alone: the model stays where it is, and is not spread over processes; their data are.
        """
        trainer: Any = self
        kept: dict[str, Any] = {**trainer.__getstate__(), "_accelerator": None, "model_init": None}
        args = copy(self.args)
        args.assign(**arguments)
        for made in ("state", "control", "callback_handler", "_own_gather_function", "_trial"):
            kept.pop(made, None)
        if alone:
            kept["place_model_on_device"] = False
        passed = private_adapters(trainer._passed, alone)
        kept |= {"args": args, "_passed": type(trainer._passed)(passed)}
        kept |= {"model": model, "model_wrapped": model, "optimizer": optimizer, "lr_scheduler": lr_scheduler}
        kept |= {"_optimizer_of_run": None, "_scheduler_of_run": None, "_renews_model": False, "outcome": None}
        found: Any = object.__new__(type(self))
        found.__setstate__(kept)
        found.control = TrainerControl()
        found.callback_handler = CallbackHandler(all_callbacks(args, (), True), model, self.processing_class)
        return found
