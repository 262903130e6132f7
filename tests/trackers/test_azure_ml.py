"""The adapter of Azure Machine Learning: on a stand-in of a job's run, and on the real library outside of a job.

A real run needs a workspace in the cloud. The stand-in has the methods of the real class with the same parameters.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hexloop.ports.logger import Outcome, Record
from tests.trackers.contract import FIRST, PROBLEM, information
from tests.trackers.running import PROGRAMS, Answer, SentRun, pinned, run, track

ADAPTER = "hexloop.adapters.logger.azure_ml:AzureML"
SAME_PARAMETERS = """
import importlib.util, inspect, sys
from azureml.core.run import Run

spec = importlib.util.spec_from_file_location("stand_in", sys.argv[1])
stand_in = importlib.util.module_from_spec(spec)
spec.loader.exec_module(stand_in)
for name in ("get_context", "log", "tag", "flush"):
    real, other = (list(inspect.signature(getattr(kind, name)).parameters) for kind in (Run, stand_in.Run))
    assert real == other, (name, real, other)
assert isinstance(Run.id, property)
"""


def tracked(folder: Path, *runs: SentRun, stand_in: bool = True, **more: Any) -> Answer:
    variables = {"AZUREML_RUN_ID": "job-1", "AZURE_CALLS": str(folder / "calls.jsonl")} if stand_in else {}
    if stand_in:
        paths = [str(PROGRAMS / "stand_ins"), os.environ.get("PYTHONPATH", "")]
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return track("azure", ADAPTER, "azureml-core", runs, folder=folder, variables=variables, **more)


def calls(folder: Path) -> list[list[Any]]:
    return [json.loads(line) for line in (folder / "calls.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.matrix
class TestAzureML:
    def test_numbers_are_logged_at_their_steps(self, tmp_path: Path) -> None:
        """Each number has its own name, also as description, and its step; texts and None are left out."""
        record = Record(30, 0.75, {"loss": 0.25, "note": "a text", "nothing": None, "ok": True})
        answer = tracked(tmp_path, SentRun(information(), (FIRST[0], record)))
        assert answer.error is None, answer.output
        assert answer.version == pinned("azure", "azureml-core")
        assert answer.identities == ["job-1"]
        assert calls(tmp_path) == [
            ["log", "loss", 0.75, "loss", 10],
            ["log", "grad_norm", 1.5, "grad_norm", 10],
            ["log", "learning_rate", 0.00075, "learning_rate", 10],
            ["log", "epoch", 0.25, "epoch", 10],
            ["log", "loss", 0.25, "loss", 30],
            ["log", "ok", True, "ok", 30],
            ["tag", "hexloop/outcome", "finished"],
            ["flush"],
        ]

    def test_a_failed_run_is_tagged(self, tmp_path: Path) -> None:
        """The job's own status is that of its process; the tags say what failed."""
        tracked(tmp_path, SentRun(information(), (), outcome=Outcome("failed", PROBLEM)))
        assert calls(tmp_path) == [
            ["tag", "hexloop/outcome", "failed"],
            ["tag", "hexloop/problem", PROBLEM],
            ["flush"],
        ]

    def test_the_stand_in_is_like_the_real_run(self, tmp_path: Path) -> None:
        """Its methods have the parameters of the installed release."""
        program = PROGRAMS / "stand_ins" / "azureml" / "core" / "run.py"
        run("azure", "-c", SAME_PARAMETERS, program, folder=tmp_path, variables={})

    def test_outside_of_a_job_the_library_prints(self, tmp_path: Path) -> None:
        """The real library takes the values without a login, also on a terminal."""
        answer = tracked(tmp_path, SentRun(information(), FIRST), stand_in=False, on_terminal=True)
        assert answer.error is None, answer.output
        assert (answer.identities[0] or "").startswith("OfflineRun_")
        assert "Attempted to log scalar metric loss:" in answer.output
        assert "hexloop/outcome" in answer.output

    def test_a_missing_package_is_an_error_of_the_constructor(self, tmp_path: Path) -> None:
        """It names what to install; a run that the user passes needs no package."""
        answer = tracked(tmp_path, SentRun(information()), stand_in=False, hidden=["azureml"])
        assert answer.error is not None
        assert "run `pip install " in answer.error["text"]
        program = """
import sys
sys.modules["azureml"] = None
from hexloop.adapters.logger.azure_ml import AzureML
from hexloop.ports.logger import Record, RunInformation

class Mine:
    def log(self, name, value, description):
        print(name, value)

logger = AzureML(azureml_run=Mine())
assert logger.start(RunInformation("digits")) is None
logger.write(Record(1, 0.0, {"loss": 0.5}))
logger.finish()
"""
        assert run("azure", "-c", program, folder=tmp_path, variables={}) == "loss 0.5\n"
