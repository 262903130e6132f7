"""Callbacks, logs, evaluations and saves match transformers', in the same order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import transformers

import hexloop
from tests.end_to_end.parity.compare import assert_close, assert_same_log
from tests.end_to_end.parity.data import samples_for
from tests.end_to_end.parity.models import make_model
from tests.end_to_end.parity.runs import EVENTS, SWITCHES, Outcome, recorder, run_both

STEPS: dict[str, Any] = {"eval_strategy": "steps", "save_strategy": "steps"}
EPOCHS: dict[str, Any] = {"eval_strategy": "epoch", "save_strategy": "epoch", "logging_strategy": "epoch"}
BEST: dict[str, Any] = {"load_best_model_at_end": True}
BY_ACCURACY: dict[str, Any] = {"metric_for_best_model": "accuracy"}

RHYTHMS: dict[str, dict[str, Any]] = {
    "steps, best by loss": {**STEPS, **BEST, "eval_steps": 7, "save_steps": 7},
    "steps, best by accuracy": {**STEPS, **BEST, **BY_ACCURACY, "eval_steps": 3, "save_steps": 6},
    "epochs accumulated": {**EPOCHS, **BEST, **BY_ACCURACY, "gradient_accumulation_steps": 4},
    "first step and delay": {**STEPS, "logging_first_step": True, "eval_delay": 8, "eval_steps": 5, "save_steps": 11},
    "delay by epochs": {"eval_strategy": "epoch", "eval_delay": 2, "num_train_epochs": 3},
    "save the best only": {"eval_strategy": "steps", "eval_steps": 5, "save_strategy": "best", **BY_ACCURACY},
    "shares of the run": {**STEPS, "logging_steps": 0.1, "eval_steps": 0.25, "save_steps": 0.5},
    "steps within an epoch": {**STEPS, "max_steps": 25, "gradient_accumulation_steps": 4, "save_steps": 10},
    "fraction of an epoch": {"num_train_epochs": 0.3, "gradient_accumulation_steps": 3},
    "one and a half epochs": {"num_train_epochs": 1.5, "eval_strategy": "epoch", "gradient_accumulation_steps": 4},
    "few checkpoints": {**STEPS, **BEST, "eval_steps": 3, "save_steps": 3, "save_total_limit": 2},
    "last batch dropped": {"dataloader_drop_last": True, "gradient_accumulation_steps": 3, "eval_strategy": "epoch"},
    "never logged": {"logging_strategy": "no", "eval_strategy": "epoch"},
    "nothing but training": {},
}
QUICK_RHYTHMS = {"steps, best by accuracy", "epochs accumulated", "first step and delay", "shares of the run"}

STATE = (
    *("global_step", "max_steps", "num_train_epochs", "epoch", "train_batch_size"),
    *("logging_steps", "eval_steps", "save_steps", "best_metric", "best_global_step"),
)


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def train_both(folder: Path, arguments: Mapping[str, Any], **parts: Any) -> tuple[Outcome, Outcome]:
    """Train two epochs of 18 batches with both libraries, and evaluate on 30 samples in batches of 8."""
    common = {
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 8,
        "num_train_epochs": 2,
        "learning_rate": 3e-3,
        "logging_steps": 5,
    }
    parts = {"eval_dataset": samples_for("convolution", 30, seed=1), "compute_metrics": accuracy, **parts}
    train = samples_for("convolution", 70)
    return run_both(folder, make_model("convolution"), {**common, **arguments}, train_dataset=train, **parts)


def assert_equal_runs(ours: Outcome, reference: Outcome, folder: Path, cut_short: bool = False) -> None:
    """Events, flags, logs, final state and checkpoints are equal.

    cut_short: whether an epoch was interrupted. Then `state.epoch` is that of the next epoch at once, in transformers
    only from its first step; and after the last epoch `should_training_stop` is set, which it is not in transformers.
    """
    if cut_short:
        for each in (ours, reference):
            each.events = [(event, step, switches[1:]) for event, step, _epoch, switches in each.events]
    assert ours.events == reference.events
    assert ours.keywords == reference.keywords
    assert_same_log(ours.log, reference.log, 1e-6, exact=("step", "epoch"))
    for name in STATE:
        assert getattr(ours.trainer.state, name) == getattr(reference.trainer.state, name), name
    assert (ours.trainer.state.total_flos > 0) == (ours.trainer.state.global_step > 0)
    assert checkpoints(ours, folder / "hexloop") == checkpoints(reference, folder / "reference")


def checkpoints(outcome: Outcome, folder: Path) -> tuple[str | None, set[str]]:
    """Return the best checkpoint, by path, and all checkpoints."""
    best = outcome.trainer.state.best_model_checkpoint
    return best and str(Path(best).relative_to(folder)), {path.name for path in folder.glob("checkpoint-*")}


@pytest.mark.one_in(4)
@pytest.mark.filterwarnings("ignore:The run ends with the weights of checkpoint-")
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(arguments, id=name, marks=() if name in QUICK_RHYTHMS else pytest.mark.matrix)
        for name, arguments in RHYTHMS.items()
    ],
)
def test_logging_evaluation_and_save_strategies(arguments: dict[str, Any], tmp_path: Path) -> None:
    """A callback sees the same events, steps, epochs and flags, and the history has the same entries."""
    ours, reference = train_both(tmp_path, arguments)
    assert_equal_runs(ours, reference, tmp_path)


def test_stopping_early(tmp_path: Path) -> None:
    """EarlyStoppingCallback ends the run at the same step in both libraries, with the best weights."""
    arguments = {**STEPS, **BEST, **BY_ACCURACY, "eval_steps": 3, "save_steps": 3, "num_train_epochs": 5}
    ours, reference = train_both(
        tmp_path, arguments, callbacks=lambda library: [library.EarlyStoppingCallback(2, 0.05)]
    )
    assert ours.output.global_step < 90, "nothing was stopped"
    assert_equal_runs(ours, reference, tmp_path)
    assert all(weights.equal(reference.weights[name]) for name, weights in ours.weights.items())


EARLY = ("on_init_end", "on_train_begin", "on_epoch_begin")
"""Events before the first step."""


def setter(event: str, switch: str) -> Callable[[Any], list[Any]]:
    """Return callbacks that set a flag at `event` after steps 3 to 9; for earlier events, before the first step."""
    first = 0 if event in EARLY else 3

    def listen(self: Any, args: Any, state: Any, control: Any, **keywords: Any) -> None:
        if first <= state.global_step < 10:
            setattr(control, switch, True)

    return lambda library: [type("Setter", (library.TrainerCallback,), {event: listen})()]


DECISIONS = [(event, switch) for event in EVENTS if event != "on_push_begin" for switch in SWITCHES]
STOPS = ("should_training_stop", "should_epoch_stop")
WITHIN_A_STEP = ("on_epoch_begin", "on_step_begin", "on_substep_end")
DECIDED_OTHERWISE = {
    ("on_train_begin", "should_training_stop"): "hexloop then takes no step, transformers a part of one",
    **{
        (event, stop): "hexloop completes the step, transformers breaks it off"
        for event in WITHIN_A_STEP
        for stop in STOPS
    },
}
"""With accumulation; separate tests cover how."""
QUICK_DECISIONS = {
    ("on_evaluate", "should_epoch_stop"),
    ("on_step_end", "should_training_stop"),
    ("on_step_begin", "should_save"),
    ("on_prediction_step", "should_training_stop"),
    ("on_log", "should_evaluate"),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("event", "switch"),
    [
        pytest.param(*each, marks=() if each in QUICK_DECISIONS else pytest.mark.matrix)
        for each in DECISIONS
        if each not in DECIDED_OTHERWISE
    ],
)
def test_flags_set_by_a_callback(event: str, switch: str, tmp_path: Path) -> None:
    """A flag that a callback sets has the same effect at the same time."""
    arguments = {"gradient_accumulation_steps": 2, "eval_strategy": "steps", "eval_steps": 6}
    held_out = samples_for("convolution", 12, seed=2)
    ours, reference = train_both(
        tmp_path,
        arguments,
        callbacks=setter(event, switch),
        afterwards=lambda trainer: (trainer.evaluate(), trainer.predict(held_out)),
    )
    assert_equal_runs(ours, reference, tmp_path, cut_short=switch == "should_epoch_stop")


@pytest.mark.one_in(4)
@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("event", ["on_epoch_begin", "on_step_begin"])
def test_stopping_at_the_beginning_of_a_step(event: str, stop: str, tmp_path: Path) -> None:
    """If a step is one batch, both libraries run that step and then stop."""
    ours, reference = train_both(tmp_path, {"logging_steps": 1}, callbacks=setter(event, stop))
    assert_equal_runs(ours, reference, tmp_path, cut_short=stop == "should_epoch_stop")


def test_evaluation_on_start_and_prediction(tmp_path: Path) -> None:
    """Evaluations before the first step and after the last, and predictions, send the same events."""
    several = {"few": samples_for("convolution", 10, seed=2), "many": samples_for("convolution", 21, seed=3)}
    ours, reference = train_both(
        tmp_path,
        {"eval_on_start": True, "eval_strategy": "epoch", "save_strategy": "epoch", "gradient_accumulation_steps": 4},
        eval_dataset=several,
        afterwards=lambda trainer: (trainer.evaluate(several["few"]), trainer.predict(several["many"])),
    )
    assert ours.events[2][0] == "on_prediction_step", "nothing was evaluated before the first epoch"
    assert ours.events[-1][0] == "on_predict"
    assert_equal_runs(ours, reference, tmp_path)


def library_of(trainer: Any) -> Any:
    """Return the library of a Trainer class."""
    return hexloop if trainer is hexloop.Trainer else transformers


def stopping_early(trainer: Any) -> Any:
    """Return Trainers with an EarlyStoppingCallback after all others, where transformers calls restored ones."""

    def make(**given: Any) -> Any:
        made = trainer(**given)
        made.add_callback(library_of(trainer).EarlyStoppingCallback(2, 0.05))
        return made

    return make


@pytest.mark.filterwarnings("ignore:The run ends with the weights of checkpoint-")
@pytest.mark.parametrize("saved", [4, pytest.param(8, marks=pytest.mark.matrix)])
def test_resuming(saved: int, tmp_path: Path) -> None:
    """An uninterrupted run, and one resumed in the middle of an epoch up to an early stop."""
    arguments: dict[str, Any] = {
        **STEPS,
        **BEST,
        **BY_ACCURACY,
        "eval_steps": 2,
        "save_steps": 4,
        "gradient_accumulation_steps": 3,
        "num_train_epochs": 9,
        "logging_steps": 2,
        "restore_callback_states_from_checkpoint": True,
    }
    ended = []
    for resume_from in (None, f"checkpoint-{saved}"):
        ours, reference = train_both(tmp_path, arguments, derive=stopping_early, resume_from=resume_from)
        for each in (ours, reference):  # after a resume hexloop averages all steps, a documented difference
            each.log[-1].pop("train_loss")
        assert_equal_runs(ours, reference, tmp_path)
        ended.append(ours.output.global_step)
    assert ours.events[1][:3] == ("on_train_begin", saved, pytest.approx(saved / 6))
    assert saved < ended[0] == ended[1] < 54


def test_a_transformers_callback_gets_the_same_events(tmp_path: Path) -> None:
    """A subclass of transformers' TrainerCallback receives the same events and keywords in hexloop."""
    heard: dict[str, Outcome] = {"hexloop": Outcome(), "transformers": Outcome()}
    train_both(
        tmp_path,
        {**STEPS, "eval_steps": 6, "save_steps": 6, "gradient_accumulation_steps": 2},
        callbacks=lambda library: [recorder(transformers, heard[library.__name__])],
        afterwards=lambda trainer: trainer.predict(samples_for("convolution", 5, seed=2)),
    )
    assert len({name for name, *_ in heard["hexloop"].events}) == len(EVENTS) - 1  # nothing was pushed
    assert heard["hexloop"].events == heard["transformers"].events
    assert heard["hexloop"].keywords == heard["transformers"].keywords


class Flow:
    """A default flow that never saves at the end of an epoch, and evaluates at odd steps only."""

    def __init__(self, library: Any) -> None:
        def on_step_end(self: Any, args: Any, state: Any, control: Any, **keywords: Any) -> Any:
            control = library.DefaultFlowCallback.on_step_end(self, args, state, control, **keywords)
            control.should_evaluate &= state.global_step % 2 == 1
            return control

        def on_epoch_end(self: Any, args: Any, state: Any, control: Any, **keywords: Any) -> Any:
            return control

        own = {"on_step_end": on_step_end, "on_epoch_end": on_epoch_end}
        self.kind = type("Flow", (library.DefaultFlowCallback,), own)


@pytest.mark.one_in(2)
@pytest.mark.filterwarnings("ignore:You are adding")
@pytest.mark.parametrize("arguments", [STEPS | {"eval_steps": 3, "save_steps": 6}, EPOCHS])
def test_an_overridden_flow_callback(arguments: dict[str, Any], tmp_path: Path) -> None:
    """A subclass of DefaultFlowCallback replaces it, and may call its methods."""

    def derive(trainer: Any) -> Any:
        library = library_of(trainer)

        def make(**given: Any) -> Any:
            made = trainer(**given)
            made.remove_callback(library.DefaultFlowCallback)
            made.callback_handler.callbacks.insert(0, Flow(library).kind())
            return made

        return make

    ours, reference = train_both(tmp_path, arguments, derive=derive)
    assert_equal_runs(ours, reference, tmp_path)


def test_several_evaluation_sets(tmp_path: Path) -> None:
    """A dictionary of datasets is evaluated under their names."""
    several = {"few": samples_for("convolution", 10, seed=2), "many": samples_for("convolution", 21, seed=3)}
    ours, reference = train_both(tmp_path, {"eval_strategy": "epoch"}, eval_dataset=several)
    assert {"eval_few_accuracy", "eval_many_loss"} <= set().union(*ours.log)
    assert_equal_runs(ours, reference, tmp_path)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("model", ["plain GPT", "GPT-2"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bf16", [False, pytest.param(True, marks=pytest.mark.matrix)])
def test_evaluation(model: str, smoothing: float, bf16: bool, tmp_path: Path) -> None:
    """Metrics of ragged labels are equal, in training, called alone, and for predictions."""
    arguments = {
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 8,
        "max_steps": 8,
        "eval_strategy": "steps",
        "eval_steps": 4,
        "label_smoothing_factor": smoothing,
        "bf16": bf16,
    }
    held_out = samples_for(model, 27, seed=1)
    runs = run_both(
        tmp_path,
        make_model(model),
        arguments,
        train_dataset=samples_for(model, 70),
        eval_dataset=held_out,
        compute_metrics=accuracy,
    )
    ours, reference = runs
    assert_same_log(ours.log, reference.log, 1e-6)
    alone = [each.trainer.evaluate() for each in runs]
    predicted = [each.trainer.predict(held_out) for each in runs]
    for one, other in (alone, [each.metrics for each in predicted]):
        for name in (each for each in one if each.endswith(("loss", "accuracy"))):
            assert_close(one[name], other[name], 1e-6, name)
    assert {"eval_loss", "eval_accuracy", "epoch"} <= alone[0].keys() == alone[1].keys()
    assert predicted[0].predictions.dtype == predicted[1].predictions.dtype
    assert predicted[0].predictions == pytest.approx(predicted[1].predictions, rel=1e-5, abs=1e-6)
    assert (predicted[0].label_ids == predicted[1].label_ids).all()
