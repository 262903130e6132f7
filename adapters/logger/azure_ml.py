"""Metrics for Azure Machine Learning."""

from __future__ import annotations

import inspect
from typing import Any

from hexloop.adapters.logger.names import numbers_of
from hexloop.adapters.logger.packages import require
from hexloop.ports.logger import FINISHED, Outcome, Record, RunInformation


class AzureML:
    """Logger adapter for azureml-core, with the argument of transformers' callback.

    azureml_run: the run to log to; by default that of the job in which the process runs. Outside of a job azureml
    prints the values. The run belongs to the job, so it is not ended; it gets tags with the outcome. Raises
    ConfigurationError if azureml-core is missing.
    """

    def __init__(self, azureml_run: Any = None) -> None:
        if azureml_run is None:
            require("azureml.core", "azureml-core", "azure_ml")
        self._chosen = azureml_run
        self._run: Any = None
        self._takes_steps = False

    def start(self, run: RunInformation) -> str | None:
        """Find the run of the job; return its id."""
        if self._chosen is None:
            from azureml.core.run import Run

            self._run = Run.get_context()
        else:
            self._run = self._chosen
        self._takes_steps = "step" in inspect.signature(self._run.log).parameters
        identity: str | None = getattr(self._run, "id", None)
        return identity

    def write(self, record: Record) -> None:
        """Log the numbers under their names, at their step where azureml takes steps, as it does within a job."""
        step = {"step": record.step} if self._takes_steps else {}
        for name, value in numbers_of(record.values).items():
            self._run.log(name, value, description=name, **step)

    def finish(self, outcome: Outcome = FINISHED) -> None:
        """Tag the run with the outcome, and wait until azureml has sent everything."""
        run, self._run = self._run, None
        if run is None:
            return
        for name, value in (("hexloop/outcome", outcome.kind), ("hexloop/problem", outcome.problem)):
            if value and hasattr(run, "tag"):
                run.tag(name, value)
        if hasattr(run, "flush"):
            run.flush()
