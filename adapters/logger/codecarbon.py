"""The energy that a run takes, and its emissions of CO2, measured by CodeCarbon."""

from __future__ import annotations

import os
import time
from typing import Any, ClassVar

from hexloop.adapters.logger.tracker import Tracker
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.regular_files import is_link, link_error
from hexloop.ports.logger import Outcome, Record, RunInformation

FILE = "emissions.csv"
"""The file that the library writes by default."""


class CodeCarbon(Tracker):
    """Logger adapter that measures from the start of a run to its end, and writes a row of emissions.csv in its folder.

    Its own variables (CODECARBON_...) and files configure the library. Every `seconds` while values are logged, the row
    is brought up to date, so that a process that is killed leaves one, too. A resumed run adds a row.

    Raises ConfigurationError if codecarbon is missing or too old, or PyTorch is built for ROCm, whose GPUs it cannot
    measure.
    """

    package = ("codecarbon", "codecarbon", "codecarbon", "2.5")

    only_live: ClassVar[bool] = True
    """What it measures is the process that calls it, so its calls cannot be made later by another one."""

    def __init__(self, *, seconds: float = 300.0) -> None:
        super().__init__()
        if _rocm():
            raise ConfigurationError(
                f"Logging to codecarbon does not work with PyTorch for ROCm ({_rocm()}), because it cannot measure "
                "GPUs of AMD; leave 'codecarbon' out of report_to."
            )
        self._seconds = seconds
        self._written = 0.0

    def _open(self, run: RunInformation) -> tuple[Any, bool]:
        """Begin to measure. Rows have no identity that could continue."""
        from codecarbon import EmissionsTracker

        arguments = {}
        if run.folder and "://" not in run.folder:
            os.makedirs(run.folder, exist_ok=True)
            if is_link(os.path.join(run.folder, FILE)):  # the library would write to what it leads to
                raise link_error(os.path.join(run.folder, FILE))
            arguments["output_dir"] = run.folder
        tracker = EmissionsTracker(**arguments, on_csv_write="update")
        tracker.start()
        self._written = time.monotonic()
        return tracker, True

    def write(self, record: Record) -> None:
        """Bring the row up to date if that was long ago; the values themselves are of no use here."""
        if self._run is not None and time.monotonic() - self._written >= self._seconds:
            self._run.flush()
            self._written = time.monotonic()

    def _close(self, run: Any, outcome: Outcome) -> None:
        """End the measurement and write the row."""
        run.stop()


def _rocm() -> str | None:
    """Return the version of ROCm that PyTorch is built for."""
    import torch

    return torch.version.hip
