"""Output of the console, JSON Lines and TensorBoard loggers."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from hexloop.adapters.logger.console import Console
from hexloop.adapters.logger.json_lines import JsonLines
from hexloop.adapters.logger.tensorboard import TensorBoard
from hexloop.adapters.logger.tracker import grouped
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.logger import Record, RunInformation

RUN = RunInformation("digits", {"learning_rate": 0.1, "seed": 7}, total_steps=120)


class TestConsole:
    def test_a_record_is_one_readable_line(self) -> None:
        """Step, epoch and values are on one line, floats with four digits; nothing else is written."""
        stream = io.StringIO()
        console = Console(stream)
        console.start(RUN)
        console.write(Record(5, 0.5, {"loss": 0.693147, "learning_rate": 5e-05, "epoch": 0.5, "step": 5}))
        console.write(Record(120, 2.0, {"note": "two\nlines", "count": 3, "nothing": None, "broken": math.nan}))
        console.finish()
        assert stream.getvalue().splitlines() == [
            "step   5/120  epoch 0.50  loss 0.6931  learning_rate 5e-05",
            "step 120/120  epoch 2.00  note two lines  count 3  nothing None  broken nan",
        ]
        assert not stream.closed

    def test_a_run_of_unknown_length_shows_only_the_step(self) -> None:
        """A record before any run, or of a run of unknown length, has no total."""
        stream = io.StringIO()
        console = Console(stream)
        console.write(Record(5, 0.5, {}))
        assert stream.getvalue() == "step 5  epoch 0.50\n"

    def test_a_line_is_flushed_at_once(self, tmp_path: Path) -> None:
        """A reader of the file sees a line as soon as it is written."""
        path = tmp_path / "log.txt"
        with path.open("w") as stream:
            Console(stream).write(Record(1, 0.0, {}))
            assert path.read_text() == "step 1  epoch 0.00\n"


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file, each parsed as JSON without NaN."""
    return [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]


class TestJsonLines:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "folders" / "to make" / "log.jsonl"

    def test_a_run_has_a_start_line_and_a_line_per_record(self, path: Path) -> None:
        """Every line is an object whose first values are step and epoch."""
        logger = JsonLines(path)
        logger.start(RUN)
        logger.write(Record(5, 0.5, {"loss": 0.25, "count": 3, "note": "é\n", "ok": True, "nothing": None, "step": 9}))
        logger.finish()
        assert lines(path) == [
            {"event": "started", "run": "digits", "step": 0, "total_steps": 120},
            {"step": 5, "epoch": 0.5, "loss": 0.25, "count": 3, "note": "é\n", "ok": True, "nothing": None},
        ]

    def test_each_line_is_written_at_once(self, path: Path) -> None:
        """Lines are written without waiting for the end, and no file stays open in between."""
        logger = JsonLines(path)
        logger.write(Record(1, 0.1, {"loss": 1.0}))
        assert len(lines(path)) == 1
        path.rename(path.with_name("rotated.jsonl"))
        logger.write(Record(2, 0.2, {"loss": 0.5}))
        assert lines(path) == [{"step": 2, "epoch": 0.2, "loss": 0.5}]

    def test_a_resumed_run_is_marked_and_overwrites_nothing(self, path: Path) -> None:
        """Lines of repeated steps stay, above a line that names the step that the run resumed from."""
        first = JsonLines(path)
        first.start(RUN)
        for step in (10, 20, 30):
            first.write(Record(step, step / 60, {"loss": 1 / step}))
        before = path.read_text()
        second = JsonLines(path)
        second.start(RunInformation("digits", total_steps=120, step=20))
        second.write(Record(30, 0.5, {"loss": 0.1}))
        assert path.read_text().startswith(before)
        assert lines(path)[4:] == [
            {"event": "resumed", "run": "digits", "step": 20, "total_steps": 120},
            {"step": 30, "epoch": 0.5, "loss": 0.1},
        ]

    def test_a_truncated_line_is_terminated(self, path: Path) -> None:
        """After a crash within a line, the next record starts on a new line."""
        logger = JsonLines(path)
        logger.write(Record(1, 0.1, {"loss": 1.0}))
        path.write_bytes(path.read_bytes()[:-9])
        logger.write(Record(2, 0.2, {"loss": 0.5}))
        torn, whole = path.read_text().splitlines()
        with pytest.raises(json.JSONDecodeError):
            json.loads(torn)
        assert json.loads(whole) == {"step": 2, "epoch": 0.2, "loss": 0.5}

    def test_nan_and_infinity_are_strings(self, path: Path) -> None:
        """NaN and the infinities are written as strings, so that any JSON parser reads the line."""
        JsonLines(path).write(Record(1, math.inf, {"a": math.nan, "b": -math.inf, "c": 0.0}))
        assert lines(path) == [{"step": 1, "epoch": "Infinity", "a": "NaN", "b": "-Infinity", "c": 0.0}]


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed")
class TestTensorBoard:
    @staticmethod
    def events(folder: Path) -> Any:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        return EventAccumulator(str(folder)).Reload()

    @staticmethod
    def text(accumulator: Any, name: str) -> str:
        [event] = accumulator.Tensors(f"{name}/text_summary")
        value: bytes = event.tensor_proto.string_val[0]
        return value.decode()

    def test_tags_are_those_of_transformers(self, tmp_path: Path) -> None:
        """Evaluation values are under eval/, test values under test/, all others under train/, each at its step."""
        logger = TensorBoard(tmp_path)
        logger.start(RUN)
        logger.write(Record(5, 0.5, {"loss": 0.25, "eval_loss": 0.5, "test_loss": 1, "ok": True}))
        logger.write(Record(10, 1.0, {"loss": 0.125, "nothing": None, "note": "warm"}))
        logger.finish()
        read = self.events(tmp_path)
        scalars = {name: [(each.step, each.value) for each in read.Scalars(name)] for name in read.Tags()["scalars"]}
        assert scalars == {
            "train/loss": [(5, 0.25), (10, 0.125)],
            "eval/loss": [(5, 0.5)],
            "test/loss": [(5, 1.0)],
            "train/ok": [(5, 1.0)],
        }
        assert self.text(read, "train/note") == "warm"
        assert json.loads(self.text(read, "args")) == dict(RUN.configuration)

    def test_only_a_prefix_splits_a_tag(self) -> None:
        """Only a leading eval_ or test_ selects a group."""
        names = ("eval_loss", "test_eval_loss", "evaluation", "train_loss", "retest_loss")
        assert [grouped(name) for name in names] == [
            "eval/loss",
            "test/eval_loss",
            "train/evaluation",
            "train/train_loss",
            "train/retest_loss",
        ]

    def test_a_record_is_flushed_at_once(self, tmp_path: Path) -> None:
        """A reader sees the last record while the run continues."""
        logger = TensorBoard(tmp_path)
        logger.start(RUN)
        logger.write(Record(5, 0.5, {"loss": 0.25}))
        assert self.events(tmp_path).Scalars("train/loss")[0].value == 0.25
        logger.finish()

    def test_each_run_has_its_own_folder_by_default(self, tmp_path: Path) -> None:
        """Event files are in a folder below runs/ named after time and host, unless a folder is chosen."""
        logger = TensorBoard()
        for name in ("first", "second"):
            logger.start(RunInformation(name, folder=str(tmp_path / name)))
            logger.finish()
            logger.write(Record(1, 0.0, {"loss": 1.0}))
            [folder] = (tmp_path / name / "runs").iterdir()
            assert len(list(folder.iterdir())) == 2
            assert self.events(folder).Scalars("train/loss")[0].value == 1.0

    def test_a_resumed_run_hides_the_steps_that_it_repeats(self, tmp_path: Path) -> None:
        """A run resumed from step 10 keeps what was logged there, and hides what was logged after it."""
        first = TensorBoard(tmp_path)
        first.start(RUN)
        for step in (10, 20):
            first.write(Record(step, 0.0, {"loss": 1.0}))
        first.finish()
        [file] = tmp_path.iterdir()
        os.rename(file, file.with_name(file.name.replace("tfevents.", "tfevents.0")))  # before any file of this second
        second = TensorBoard(tmp_path)
        second.start(RunInformation("digits", step=10))
        second.write(Record(15, 0.0, {"loss": 0.5}))
        second.finish()
        scalars = self.events(tmp_path).Scalars("train/loss")
        assert [(each.step, each.value) for each in scalars] == [(10, 1.0), (15, 0.5)]

    def test_a_run_continues_in_its_folder(self, tmp_path: Path) -> None:
        """The name of the folder identifies the run; one that leads elsewhere is not used."""
        run = RunInformation("digits", folder=str(tmp_path))
        name = TensorBoard().start(run)
        assert name is not None
        assert [each.name for each in (tmp_path / "runs").iterdir()] == [name]
        for saved, chosen in (("earlier", "earlier"), ("../outside", None), ("", None), (None, None)):
            logger = TensorBoard()
            found = logger.start(evolve(run, step=10, tracked_as=saved))
            logger.finish()
            assert (found == chosen) == (chosen is not None)
            assert found in {each.name for each in (tmp_path / "runs").iterdir()}
        assert not (tmp_path / "outside").exists()

    def test_the_configuration_of_the_model_is_a_text(self, tmp_path: Path) -> None:
        """It is JSON, beside the arguments."""
        logger = TensorBoard(tmp_path)
        assert logger.start(evolve(RUN, model_configuration={"layers": 2})) is None
        logger.finish()
        assert json.loads(self.text(self.events(tmp_path), "model_config")) == {"layers": 2}

    def test_repeated_starts_and_ends_are_harmless(self, tmp_path: Path) -> None:
        """Each call leaves at most one file open, and none after the last."""
        logger = TensorBoard(tmp_path)
        logger.finish()
        logger.start(RUN)
        logger.start(RUN)
        logger.finish()
        logger.finish()

    def test_a_missing_library_is_reported_at_construction(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """If neither tensorboard nor tensorboardX is installed, the error says what to install."""
        monkeypatch.setattr("hexloop.adapters.logger.tensorboard.find_spec", lambda name: None)
        with pytest.raises(ConfigurationError, match="pip install 'tensorboard>="):
            TensorBoard()

    def test_heavy_libraries_are_imported_at_the_first_event(self) -> None:
        """Importing the adapter imports neither torch nor tensorboard."""
        program = (
            "import sys, hexloop.adapters.logger.tensorboard as adapter; adapter.TensorBoard();"
            "sys.exit(bool({'torch', 'tensorboard', 'tensorboardX'} & sys.modules.keys()))"
        )
        subprocess.run([sys.executable, "-c", program], check=True)
