"""The callbacks of trackers: which there are, what their methods do, and what subclasses may override."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

import hexloop
from hexloop import (
    CodeCarbonCallback,
    ConfigurationError,
    DVCLiveCallback,
    NeptuneCallback,
    TensorBoardCallback,
    Trainer,
    WandbCallback,
)
from hexloop.app.callbacks import trackers
from hexloop.app.callbacks.trackers import CALLBACKS, TrackerCallback
from hexloop.app.command_line import main
from hexloop.domain.events import StepEnded
from tests.end_to_end.small.models import rows
from tests.end_to_end.small.trainers import small_trainer
from tests.end_to_end.trackers.stand_in import NAME, calls_in, install, steps_in

MAIN = threading.main_thread().name


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of the stand-in, which is a package, and also takes the place of wandb's adapter."""
    monkeypatch.syspath_prepend(str(install(tmp_path / "packages")))
    monkeypatch.setenv("STAND_IN_FILE", str(tmp_path / "kept.jsonl"))
    row = evolve(trackers.TRACKERS["wandb"], adapter="stand_in:StandIn", modules=("stand_in",))
    monkeypatch.setitem(trackers.TRACKERS, "wandb", row)
    yield tmp_path / "kept.jsonl"
    sys.modules.pop("stand_in", None)


def tracked(folder: Path, *callbacks: Any, kind: type[Trainer] = Trainer, **given: Any) -> Trainer:
    parts = {"loggers": None, "eval_dataset": rows(4), "callbacks": list(callbacks)}
    trainer: Trainer = small_trainer(folder / "run", kind, parts, **{"max_steps": 4, **given})
    return trainer


def test_report_to_adds_the_callback(kept: Path, tmp_path: Path) -> None:
    """It is found by its class, receives every log from a thread of its own, and is finished."""
    trainer = tracked(tmp_path, report_to="wandb", run_name="mine", eval_strategy="epoch")
    assert any(type(each) is WandbCallback for each in trainer.callback_handler.callbacks)
    trainer.train()
    assert steps_in(kept) == [1, 2, 3, 4]
    first, *_, last = calls_in(kept)
    assert (first["call"], first["name"], first["tracked_as"]) == ("start", "mine", None)
    assert (last["call"], last["kind"], last["problem"]) == ("finish", "finished", "")
    assert {each["thread"] for each in calls_in(kept)} == {"hexloop logs to wandb"}
    assert any("eval_loss" in each["values"] for each in calls_in(kept, "write"))


@pytest.mark.parametrize("as_instance", [False, True])
def test_a_callback_may_be_passed(as_instance: bool, kept: Path, tmp_path: Path) -> None:
    """As a class or as an instance."""
    tracked(tmp_path, WandbCallback() if as_instance else WandbCallback).train()
    assert steps_in(kept) == [1, 2, 3, 4]


def test_a_callback_may_be_removed(kept: Path, tmp_path: Path) -> None:
    """By its class, and by transformers' class of the same name."""
    integrations = pytest.importorskip("transformers.integrations.integration_utils")
    for kind in (WandbCallback, integrations.WandbCallback):
        trainer = tracked(tmp_path, report_to="wandb")
        trainer.remove_callback(kind)
        assert isinstance(tracked(tmp_path, report_to="wandb").pop_callback(kind), WandbCallback)
        trainer.train()
    assert calls_in(kept) == []
    assert tracked(tmp_path, report_to="wandb").pop_callback(integrations.MLflowCallback) is None


def test_packages_loggers_are_in_the_background(kept: Path, tmp_path: Path) -> None:
    """Those of entry points, and those that are passed to the Trainer, unless the loop is to call them."""
    from stand_in import StandIn  # type: ignore[import-not-found]

    tracked(tmp_path, report_to=NAME).train()
    assert {each["thread"] for each in calls_in(kept)} == {f"hexloop logs to {NAME}"}
    kept.unlink()

    class InLoop(StandIn):  # type: ignore[misc]
        in_loop = True

    small_trainer(tmp_path / "given", parts={"loggers": [StandIn(), InLoop(), StandIn()]}).train()
    assert {each["thread"] for each in calls_in(kept, "write")} == {
        "hexloop logs to StandIn",
        "hexloop logs to StandIn-2",
        MAIN,
    }


class Overriding(WandbCallback):
    """Adds a value to each log, and something of its own at the start."""

    def setup(self, args: Any, state: Any, model: Any = None, **kwargs: Any) -> None:
        super().setup(args, state, model, **kwargs)
        assert self.logger is not None
        assert self._initialized
        self.threads = [threading.current_thread().name]
        self.started = [each["call"] for each in calls_in(self.logger.path)]  # type: ignore[attr-defined]

    def on_log(  # type: ignore[override]  # as those of transformers
        self, args: Any, state: Any, control: Any, model: Any = None, logs: Any = None, **kwargs: Any
    ) -> None:
        self.threads.append(threading.current_thread().name)
        super().on_log(args, state, control, model, {**logs, "added": 1.0}, **kwargs)


def test_overridden_methods_run_in_the_users_thread(kept: Path, tmp_path: Path) -> None:
    """After super().setup(...) the tracker has started; super().on_log(...) passes on what it is given."""
    callback = Overriding()
    tracked(tmp_path, callback).train()
    assert set(callback.threads) == {MAIN}
    assert callback.started == ["start"]
    assert steps_in(kept) == [1, 2, 3, 4]
    assert all(each["values"]["added"] == 1.0 for each in calls_in(kept, "write"))
    assert len(calls_in(kept, "start")) == len(calls_in(kept, "finish")) == 1


class Silent(WandbCallback):
    def setup(self, args: Any, state: Any, model: Any = None, **kwargs: Any) -> None:
        """Does not call the standard version."""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Passes nothing on."""


def test_a_method_that_is_replaced(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without super().setup(...) the tracker starts with the first log; on_save decides about checkpoints."""
    monkeypatch.setenv("STAND_IN_MODELS", "checkpoints")
    tracked(tmp_path, Silent(), save_strategy="steps", save_steps=2).train()
    assert steps_in(kept) == [1, 2, 3, 4]
    assert [each["name"] for each in calls_in(kept, "save")] == ["model"]


def test_models_are_passed_on(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each checkpoint once it is published, and the model at the end; saves stay in the background."""
    monkeypatch.setenv("STAND_IN_MODELS", "checkpoints")
    trainer = tracked(tmp_path, report_to="wandb", save_strategy="steps", save_steps=2, logger_grace=60.0)
    assert not trainer.callback_handler.overriding("on_save")
    trainer.train()
    saved = calls_in(kept, "save")
    assert [each["name"] for each in saved][-1] == "model"
    assert {each["name"] for each in saved} <= {"checkpoint-2", "checkpoint-4", "model"}
    assert "model.safetensors" in saved[-1]["files"]
    assert (saved[-1]["final"], saved[-1]["step"]) == (True, 4)
    assert not (tmp_path / "run" / ".hexloop/outbox").exists()


def test_a_checkpoint_that_is_published_after_a_failure_is_passed_on(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run fails while it is being written."""
    monkeypatch.setenv("STAND_IN_MODELS", "checkpoints")
    trainer = tracked(tmp_path, Trouble(RuntimeError(), 3), report_to="wandb", save_strategy="steps", save_steps=2)
    with pytest.raises(RuntimeError):
        trainer.train()
    assert [each["name"] for each in calls_in(kept, "save")] == ["checkpoint-2"]
    assert calls_in(kept)[-1]["kind"] == "failed"


class Trouble(hexloop.TrainerCallback):
    def __init__(self, error: BaseException, step: int = 2) -> None:
        self.error, self.step = error, step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise self.error


@pytest.mark.parametrize(
    ("error", "kind", "problem"),
    [
        (RuntimeError("token=hf_0123456789abcdef"), "failed", "RuntimeError: token=***"),
        (KeyboardInterrupt(), "stopped", "KeyboardInterrupt"),
        (SystemExit(3), "failed", "SystemExit: 3"),
        (SystemExit(0), "stopped", "the program exited"),
    ],
)
def test_a_run_that_raises_is_marked(error: BaseException, kind: str, problem: str, kept: Path, tmp_path: Path) -> None:
    """The tracker receives what was logged, and how the run ended, without secrets."""
    with pytest.raises(type(error)):
        tracked(tmp_path, Trouble(error), report_to="wandb").train()
    [outcome] = calls_in(kept, "finish")
    assert (outcome["kind"], outcome["problem"]) == (kind, problem)
    assert steps_in(kept) == [1]


def test_an_error_of_the_model_is_the_outcome(kept: Path, tmp_path: Path) -> None:
    """Also one that is raised within the loop."""

    class Failing(Trainer):
        def training_step(self, *values: Any, **named: Any) -> Any:
            raise ArithmeticError("not a number")

    with pytest.raises(ArithmeticError):
        tracked(tmp_path, kind=Failing, report_to="wandb").train()
    [outcome] = calls_in(kept, "finish")
    assert (outcome["kind"], outcome["problem"]) == ("failed", "ArithmeticError: not a number")


def test_a_stop_and_a_closed_stream_are_outcomes(kept: Path, tmp_path: Path) -> None:
    """With the reasons of the requests."""
    trainer = tracked(tmp_path, report_to="wandb")
    for event in trainer.stream():
        if isinstance(event, StepEnded) and event.step == 2:
            trainer.request_stop("enough")
    stream = trainer.stream()
    next(stream)
    stream.close()
    assert [(each["kind"], each["problem"]) for each in calls_in(kept, "finish")] == [
        ("stopped", "enough"),
        ("stopped", "the stream of the run was closed"),
    ]


def test_a_resumed_run_is_the_same_one(kept: Path, tmp_path: Path) -> None:
    """What the tracker returned is part of the run's checkpoints; several runs of a process are different ones."""
    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "report_to": "wandb"}
    tracked(tmp_path, **saving).train()
    tracked(tmp_path, **saving, max_steps=6).train(resume_from_checkpoint=True)
    tracked(tmp_path / "other", **saving).train()
    first, second, third = calls_in(kept, "start")
    assert first["tracked_as"] is None
    assert second["tracked_as"].startswith("run-of-")
    assert (second["step"], third["tracked_as"]) == (4, None)
    assert steps_in(kept) == [1, 2, 3, 4, 5, 6, 1, 2, 3, 4]


def test_a_run_whose_tracker_started_late_is_the_same_one(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the tracker returned after the last save is kept beside the checkpoints, also by a flush."""
    monkeypatch.setattr("hexloop.domain.tracking.Tracking.await_start", lambda self: None)
    monkeypatch.setenv("STAND_IN_FAULT", "sleep 1 start")
    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "report_to": "wandb"}
    with pytest.raises(RuntimeError):
        tracked(tmp_path, Trouble(RuntimeError(), 3), **saving).train()
    assert main(["outbox", "flush", str(tmp_path / "run")]) == 0
    tracked(tmp_path, **saving).train(resume_from_checkpoint=True)
    first, second = calls_in(kept, "start")
    assert (first["tracked_as"], second["step"]) == (None, 2)
    assert second["tracked_as"].startswith("run-of-")
    assert not (tmp_path / "run" / ".hexloop/outbox").exists()


def test_a_run_that_starts_again_with_smaller_batches_is_the_same_one(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After running out of memory."""

    class Small(Trainer):
        def training_step(self, model: Any, inputs: Any, *values: Any, **named: Any) -> Any:
            if len(inputs["x"]) > 3:
                raise MemoryError
            return super().training_step(model, inputs, *values, **named)

    trainer = tracked(tmp_path, kind=Small, report_to="wandb", auto_find_batch_size=True)
    monkeypatch.setattr(
        type(trainer.adapters.device), "is_out_of_memory", lambda _, error: isinstance(error, MemoryError)
    )
    trainer.train()
    starts = calls_in(kept, "start")
    assert len(starts) == 2
    assert starts[1]["tracked_as"] is not None


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    """Before the first step, with what to install, also where the callback is made."""
    for name, kind in CALLBACKS.items():
        if trackers.is_installed(name):
            continue
        with pytest.raises(ConfigurationError, match=rf"report_to='{name}' cannot be used: .*`pip install "):
            tracked(tmp_path, report_to=name)
        with pytest.raises(ConfigurationError, match=rf"{kind.__name__} cannot be used") as raised:
            kind()
        assert isinstance(raised.value, ImportError if name == "flyte" else RuntimeError)


def test_a_name_that_is_close_is_suggested(tmp_path: Path) -> None:
    """Of all names that can be chosen."""
    with pytest.raises(ConfigurationError, match=r"report_to='wandbb' .*; did you mean 'wandb'\?"):
        tracked(tmp_path, report_to="wandbb")
    with pytest.raises(ConfigurationError, match=r"choose one of azure_ml, clearml, .*, json_lines, console"):
        tracked(tmp_path, report_to="opcode")


def test_all_chooses_what_is_installed(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not flyte; comet_ml only with a key; azure_ml only without mlflow; kubeflow only where its server is named."""
    assert {"wandb", "tensorboard"} <= set(trackers.available_trackers())
    monkeypatch.setattr(trackers, "_is_there", lambda module: True)
    for variable in ("COMET_API_KEY", "KUBEFLOW_TRAINER_SERVER_URL", "DISABLE_MLFLOW_INTEGRATION"):
        monkeypatch.delenv(variable, raising=False)
    everything = set(trackers.TRACKERS)
    assert set(trackers.available_trackers()) == everything - {"flyte", "comet_ml", "azure_ml", "kubeflow"}
    monkeypatch.setenv("COMET_API_KEY", "0123456789")
    monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_URL", "http://localhost")
    monkeypatch.setenv("DISABLE_MLFLOW_INTEGRATION", "TRUE")
    assert set(trackers.available_trackers()) == everything - {"flyte", "mlflow", "azure_ml"}
    monkeypatch.setenv("DISABLE_KUBEFLOW_INTEGRATION", "true")
    monkeypatch.setattr(trackers, "_is_there", lambda module: module != "mlflow")
    assert set(trackers.available_trackers()) == everything - {"flyte", "mlflow", "kubeflow"}


def test_all_leaves_out_what_cannot_be_used(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a library that is too old, with a warning; by its name it is an error."""
    monkeypatch.setattr(trackers, "available_trackers", lambda: ["wandb"])
    monkeypatch.setattr(
        "hexloop.app.assembly.trackers.make_logger", raising(ConfigurationError("stand_in 0.1 is too old."))
    )
    with pytest.warns(UserWarning, match="report_to='all' leaves wandb out: stand_in 0.1 is too old"):
        tracked(tmp_path, report_to="all").train()
    with pytest.raises(ConfigurationError, match="too old"):
        tracked(tmp_path, report_to="wandb")


def raising(error: Exception) -> Any:
    def fail(*_: object) -> object:
        raise error

    return fail


def test_a_folder_of_a_run_is_not_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trackers write folders of their own names, such as ./swanlab."""
    if trackers.is_installed("swanlab"):
        pytest.skip("swanlab is installed")
    (tmp_path / "swanlab").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not trackers.is_installed("swanlab")


def test_loggers_replace_trackers(kept: Path, tmp_path: Path) -> None:
    """If loggers are passed, no trackers are added."""
    trainer = small_trainer(tmp_path / "run", parts={"loggers": []}, report_to="wandb")
    assert not any(isinstance(each, TrackerCallback) for each in trainer.callback_handler.callbacks)


def test_every_tracker_of_transformers_is_known() -> None:
    """By its name, with a callback of the same name, which hexloop exports."""
    integrations = pytest.importorskip("transformers.integrations.integration_utils")
    theirs = {name: kind.__name__ for name, kind in integrations.INTEGRATION_TO_CALLBACK.items()}
    assert {name: kind.__name__ for name, kind in CALLBACKS.items()} == theirs
    assert trackers.TRACKERS.keys() == CALLBACKS.keys()
    assert all(getattr(hexloop, kind.__name__) is kind for kind in CALLBACKS.values())


def test_modules_of_trackers_are_attributes(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the attributes that subclasses of transformers' callbacks read."""
    monkeypatch.setattr(WandbCallback, "module", ("_wandb", "json"))
    import json

    assert WandbCallback()._wandb is json
    with pytest.raises(AttributeError, match="has no attribute '_other'"):
        _ = WandbCallback()._other


def test_objects_of_libraries_are_attributes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of transformers' callbacks: the run of Neptune, the Live of DVCLive, the tracker of codecarbon."""
    monkeypatch.setattr(trackers, "_is_there", lambda module: True)
    neptune, live, carbon = NeptuneCallback(), DVCLiveCallback(), CodeCarbonCallback()
    assert (neptune.run, live.live, carbon.tracker) == (None, None, None)
    neptune.logger = SimpleNamespace(run="the run")
    trainer = small_trainer(tmp_path / "run")
    with pytest.raises(ConfigurationError, match="has no NeptuneCallback"):
        NeptuneCallback.get_run(trainer)
    trainer.add_callback(neptune)
    assert NeptuneCallback.get_run(trainer) == "the run"


def test_a_writer_of_the_program_is_used(tmp_path: Path) -> None:
    """TensorBoardCallback takes it by position, as transformers' does, and leaves it open; else it has its own."""
    writer = SummaryWriter(str(tmp_path / "own"))
    tracked(tmp_path, TensorBoardCallback(writer)).train()
    assert not (tmp_path / "run" / "runs").exists()
    writer.add_scalar("later", 1.0, 9)
    writer.close()
    events = EventAccumulator(str(tmp_path / "own")).Reload()
    assert [each.step for each in events.Scalars("train/loss")] == [1, 2, 3, 4]
    assert [each.step for each in events.Scalars("later")] == [9]

    seen = list[Any]()

    class Own(TensorBoardCallback):
        def on_log(self, *args: Any, **kwargs: Any) -> None:
            super().on_log(*args, **kwargs)
            seen.append(self.tb_writer)

    callback = Own()
    assert callback.tb_writer is None
    tracked(tmp_path / "other", callback).train()
    assert {type(each) for each in seen} == {SummaryWriter}


def test_logs_between_runs_are_not_passed_on(kept: Path, tmp_path: Path) -> None:
    """The methods of a callback do nothing then."""
    trainer = tracked(tmp_path, report_to="wandb")
    trainer.log({"before": 1.0})
    trainer.evaluate()
    callback = WandbCallback()
    callback.setup(trainer.args, trainer.state, trainer.model)
    callback.on_log(trainer.args, trainer.state, trainer.control, logs={"a": 1})
    callback.on_save(trainer.args, trainer.state, trainer.control)
    callback.on_train_end(trainer.args, trainer.state, trainer.control)
    assert calls_in(kept) == []
