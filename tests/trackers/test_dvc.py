"""The adapter of dvclive on the real library, whose folder is read back; with git and DVC, too."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from hexloop.ports.logger import SavedModel
from tests.trackers.contract import CONFIGURATION, FIRST, LAST, SECOND, TrackerContract, information
from tests.trackers.running import SentRun, StoredRun, python_of

USERS_OWN_LIVE = """
from dvclive import Live
from hexloop.adapters.logger.dvclive import DVCLive
from hexloop.ports.logger import Outcome, Record, RunInformation

with Live("own", save_dvc_exp=False) as live:
    logger = DVCLive(live)
    print(logger.start(RunInformation("digits", {"seed": 7, "path": object()})))
    logger.write(Record(5, 0.5, {"loss": 0.5}))
    logger.finish()
    live.log_metric("mine", 1.0)
try:
    DVCLive(live="own")
except ValueError as error:
    print(error)
"""


class TestDVCLive(TrackerContract):
    adapter = "hexloop.adapters.logger.dvclive:DVCLive"
    package = module = extra = environment = "dvclive"
    program = "read_dvc.py"
    options: ClassVar[Mapping[str, object]] = {"save_dvc_exp": False}
    statuses: ClassVar[Mapping[str, str | None]] = {
        each: each for each in ("finished", "failed", "stopped", "preempted")
    }

    def variables(self, folder: Path) -> dict[str, str]:
        return {"DVC_NO_ANALYTICS": "true", "GIT_CONFIG_GLOBAL": "/dev/null"}

    def name_of(self, name: str) -> str:
        for group in ("eval", "train"):
            name = name.replace(f"{group}_", f"{group}/")
        return name

    def parameter(self, name: str) -> str:
        return "seed" if name == "hidden_size" else name  # only arguments are parameters, as in transformers

    def same(self, found: object, value: object) -> bool:
        return found in (value, CONFIGURATION["seed"])

    def check_summary(self, one: StoredRun) -> None:
        assert one.summary["step"] == 40
        assert one.summary["train"] == {
            name.removeprefix("train_"): value for name, value in LAST.values.items() if name.startswith("train_")
        }
        assert one.parameters == CONFIGURATION

    @pytest.mark.matrix
    def test_several_runs_in_a_process(self, tmp_path: Path) -> None:
        """A new run replaces the files of the one before, as the library does; DVC's experiments are what remains."""
        self.track(tmp_path, *(SentRun(information(), (record,)) for record in (FIRST[0], SECOND[0])))
        [one] = self.read(tmp_path)
        assert one.history["loss"] == [(30, 0.25)]

    @pytest.mark.matrix
    def test_the_users_own_live_is_used(self, tmp_path: Path) -> None:
        """In a `with` statement it stays open; an object of another type is refused."""
        printed = self.run(tmp_path, USERS_OWN_LIVE)
        [one] = self.read(tmp_path, "own")
        assert str(tmp_path / "own") in printed
        assert "live='own' is of the type str; pass a dvclive.Live." in printed
        assert one.history == {"loss": [(5, 0.5)], "mine": [(6, 1.0)]}
        assert one.parameters["seed"] == 7

    def experiments(self, folder: Path) -> str:
        words = ["git", "for-each-ref", "--format=%(refname)", "refs/exps"]
        return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True).stdout

    def repository(self, folder: Path) -> dict[str, Any]:
        """Make a git repository with DVC, and a model; return the variables for it."""
        names = {
            f"GIT_{who}_{what}": "test@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
        }
        variables = {**self.variables(folder), **names}
        (folder / ".gitignore").write_text("home\nout\n*.json\n")
        dvc = [str(python_of("dvclive")), "-m", "dvc"]
        for words in (["git", "init", "-q"], [*dvc, "init", "-q"], ["git", "add", "-A"], ["git", "commit", "-qm", "x"]):
            environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), **variables}
            subprocess.run(words, cwd=folder, env=environment, check=True)
        for name in ("checkpoint-20", "model"):
            (folder / "out" / name).mkdir(parents=True)
            (folder / "out" / name / "weights").write_text(name)
        return {"options": {}, "variables": names}

    @pytest.mark.matrix
    @pytest.mark.parametrize("best", [False, True])
    def test_models_and_an_experiment_are_saved(self, best: bool, tmp_path: Path) -> None:
        """With git, checkpoints and the last or best model are artifacts, and the run is a named experiment."""
        settings = self.repository(tmp_path)
        settings["variables"]["HF_DVCLIVE_LOG_MODEL"] = "all"
        models = (
            SavedModel(str(tmp_path / "out/checkpoint-20"), "checkpoint-20", 20, 0.5),
            SavedModel("out/model", "model", 40, 1.0, final=True),
        )
        configuration = {**CONFIGURATION, "load_best_model_at_end": best}
        sent = SentRun(information(chosen_name="tiny", configuration=configuration), FIRST, models)
        answer = self.track(tmp_path, sent, **settings)
        assert answer.error is None, answer.output
        [one] = self.read(tmp_path)
        last = "best" if best else "last"
        assert {"artifacts/checkpoint-20/weights", f"artifacts/{last}/weights"} <= set(one.more["artifacts"])
        assert (tmp_path / f"dvclive/artifacts/{last}/weights").read_text() == "model"
        assert f"{last}.dvc" in "".join(one.more["artifacts"])
        assert "/tiny\n" in self.experiments(tmp_path)

    @pytest.mark.matrix
    @pytest.mark.parametrize(
        ("variable", "argument", "models"),
        [("", None, "none"), ("1", None, "final"), ("TRUE", None, "final"), ("all", None, "checkpoints"),
         ("all", False, "none"), ("", True, "final"), ("", "all", "checkpoints")],
    )  # fmt: skip
    def test_which_models_are_taken(self, variable: str, argument: Any, models: str, tmp_path: Path) -> None:
        """The argument, or else the variable, says so."""
        program = f"from hexloop.adapters.logger.dvclive import DVCLive; print(DVCLive(log_model={argument!r}).models)"
        assert self.run(tmp_path, program, HF_DVCLIVE_LOG_MODEL=variable).split()[-1] == models
