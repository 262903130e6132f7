"""Metrics for Azure Machine Learning."""

from __future__ import annotations

import inspect
from typing import Any

from hexloop.adapters.logger.tracker import Tracker, numbers_of, require, values_of
from hexloop.ports.logger import Outcome, Record, RunInformation


class AzureML(Tracker):
    """Logger adapter for azureml-core, with the argument of transformers' callback.

    azureml_run: the run to log to; by default that of the job in which the process runs. Outside of a job azureml
    prints the values. The run belongs to the job, so it is not ended; it gets tags with the outcome. Raises
    ConfigurationError if azureml-core is missing.
    """

    def __init__(self, azureml_run: Any = None) -> None:
        if azureml_run is None:
            require("azureml.core", "azureml-core", "azure_ml")
        super().__init__()
        self._chosen = azureml_run
        self._takes_steps = False

    def _open(self, run: RunInformation) -> tuple[Any, bool]:
        if self._chosen is not None:
            return self._chosen, False
        from azureml.core.run import Run

        return Run.get_context(), False

    def _describe(self, run: RunInformation) -> str | None:
        self._takes_steps = "step" in inspect.signature(self._run.log).parameters
        identity: str | None = getattr(self._run, "id", None)
        return identity

    def write(self, record: Record) -> None:
        """Log the numbers under their names, at their step where azureml takes steps, as it does within a job."""
        step = {"step": record.step} if self._takes_steps else {}
        for name, value in numbers_of(record.values).items():
            self._run.log(name, value, description=name, **step)

    def _log_outcome(self, run: Any, outcome: Outcome) -> None:
        """Tag the run with the outcome, and wait until azureml has sent everything."""
        if hasattr(run, "tag"):
            for name, value in values_of(outcome).items():
                run.tag(name, value)
        if hasattr(run, "flush"):
            run.flush()
