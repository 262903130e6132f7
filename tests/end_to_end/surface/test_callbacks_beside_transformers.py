"""Callbacks of transformers, of hexloop and of users, added, derived from and removed: the same in both libraries."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import transformers
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter
from transformers.integrations import integration_utils

import hexloop
from hexloop.adapters.logger import RecordingLogger
from hexloop.domain.errors import ConfigurationError
from tests.end_to_end.surface.beside import Observation, assert_same, samples, trained, trainer

TensorBoardCallback: Any = integration_utils.TensorBoardCallback

pytestmark = pytest.mark.filterwarnings("ignore")


def names(made: Any) -> list[str]:
    return [type(each).__name__ for each in made.callback_handler.callbacks]


def scalars(folder: Path) -> dict[str, list[int]]:
    """Return the steps of the scalars of all event files in a folder and those in it."""
    found: dict[str, list[int]] = {}
    for file in sorted(folder.rglob("events.out.tfevents*")):
        events = EventAccumulator(str(file))
        events.Reload()
        found |= {name: [each.step for each in events.Scalars(name)] for name in events.Tags()["scalars"]}
    return dict(sorted(found.items()))


def defaults(library: ModuleType, folder: Path) -> Any:
    bars = trainer(library, folder, disable_tqdm=False)
    mine = trainer(library, folder, parts={"callbacks": [library.EarlyStoppingCallback]})
    return names(trainer(library, folder)), names(bars), names(mine), mine.callback_handler.callback_list


def added(library: ModuleType, folder: Path) -> Any:
    made = trainer(library, folder)
    made.add_callback(TensorBoardCallback)
    made.add_callback(library.EarlyStoppingCallback(3))
    return names(made)


def removed(library: ModuleType, folder: Path) -> Any:
    made = trainer(library, folder, parts={"callbacks": [library.EarlyStoppingCallback(3)]})
    popped = made.pop_callback(library.EarlyStoppingCallback)
    again, flow = made.pop_callback(library.EarlyStoppingCallback), made.callback_handler.callbacks[0]
    made.remove_callback(library.EarlyStoppingCallback)
    same = made.pop_callback(flow) is flow
    made.remove_callback(library.PrinterCallback)
    return popped, again, same, names(made)


def given_writer(library: ModuleType, folder: Path) -> Any:
    """A callback of transformers with the user's own writer."""
    writer: Any = SummaryWriter(str(folder / "own"))
    seen: list[Any] = []
    add = writer.add_scalar

    def watched(name: str, value: float, step: int, *rest: Any, **named: Any) -> None:
        seen.append([name, step])
        add(name, value, step, *rest, **named)

    writer.add_scalar = watched
    trained(library, folder, parts={"callbacks": [TensorBoardCallback(writer)]}, eval_strategy="epoch")
    return seen


def tracked(given: bool) -> Observation:
    def observe(library: ModuleType, folder: Path) -> Any:
        parts: Any = {"callbacks": [TensorBoardCallback()]} if given else {}
        trained(library, folder, parts=parts, report_to="none" if given else "tensorboard", eval_strategy="epoch")
        return {name: steps for name, steps in scalars(folder).items() if not name.endswith("total_flos")}

    return observe


def untracked(library: ModuleType, folder: Path) -> Any:
    """Remove a callback that `report_to` added by its class, and pop another; return what is logged afterwards."""
    made = trainer(library, folder, report_to="tensorboard")
    popping = trainer(library, folder, report_to="tensorboard")
    made.remove_callback(TensorBoardCallback)
    popped = popping.pop_callback(TensorBoardCallback)
    made.train()
    popping.train()
    nothing = scalars(folder)
    popping.add_callback(popped)
    popping.train()
    return type(popped).__name__, nothing, "train/loss" in scalars(folder)


def flow(library: ModuleType, folder: Path) -> Any:
    class Third(library.DefaultFlowCallback):  # type: ignore[misc, name-defined]
        def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> Any:
            control = super().on_step_end(args, state, control, **named)
            control.should_log = state.global_step == 3
            return control

    made = trainer(library, folder)
    made.remove_callback(library.DefaultFlowCallback)
    made.add_callback(Third)
    made.train()
    return [each["step"] for each in made.state.log_history], names(made)


def printing(library: ModuleType, folder: Path) -> Any:
    seen = []

    class Printing(library.PrinterCallback):  # type: ignore[misc, name-defined]
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **named: Any) -> None:
            seen.append(sorted(logs))
            super().on_log(args, state, control, logs=logs, **named)

    made = trainer(library, folder)
    made.remove_callback(library.PrinterCallback)
    made.add_callback(Printing())
    made.train()
    return seen, names(made)


def progress(library: ModuleType, folder: Path) -> Any:
    """Every method calls the standard one; the bar counts."""
    seen: list[Any] = []

    class Watching(library.ProgressCallback):  # type: ignore[misc, name-defined]
        def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            super().on_train_begin(args, state, control, **named)
            seen.append([self.training_bar is not None, self.current_step])

        def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            super().on_step_end(args, state, control, **named)
            seen.append([self.current_step, self.training_bar.n])

        def on_prediction_step(
            self, args: Any, state: Any, control: Any, eval_dataloader: Any = None, **named: Any
        ) -> None:
            super().on_prediction_step(args, state, control, eval_dataloader=eval_dataloader, **named)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **named: Any) -> None:
            super().on_log(args, state, control, logs=logs, **named)
            seen.append(list(logs))

        def on_train_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            super().on_train_end(args, state, control, **named)
            seen.append(self.training_bar)

    made = trainer(library, folder, disable_tqdm=False, eval_strategy="epoch")
    made.remove_callback(library.ProgressCallback)
    made.add_callback(Watching(max_str_len=7))
    made.train()
    return seen, names(made), made.callback_handler.callbacks[-1].max_str_len


def stopping(library: ModuleType, folder: Path) -> Any:
    class Counting(library.EarlyStoppingCallback):  # type: ignore[misc, name-defined]
        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **named: Any) -> None:
            metrics["eval_constant"] = 0.5
            super().on_evaluate(args, state, control, metrics=metrics, **named)

    callback = Counting(early_stopping_patience=2)
    parts = {"callbacks": [callback], "compute_metrics": lambda prediction: {"constant": 0.5}}
    made = trained(
        library, folder, parts=parts, num_train_epochs=6, eval_strategy="epoch", save_strategy="epoch",
        load_best_model_at_end=True, metric_for_best_model="constant",
    )  # fmt: skip
    return made.state.global_step, made.state.epoch, vars(callback), callback.state(), made.state.stateful_callbacks


def events(library: ModuleType, folder: Path) -> Any:
    """Every event of the base class, in order, with its keywords and whether they are set."""
    seen: list[Any] = []
    listed = [name for name in dir(library.TrainerCallback) if name.startswith("on_")]

    def noting(name: str) -> Any:
        def note(self: Any, args: Any, state: Any, control: Any, **named: Any) -> None:
            seen.append([name, {key: value is not None for key, value in sorted(named.items())}])

        return note

    watching = type("Watching", (library.TrainerCallback,), {name: noting(name) for name in listed})
    made = trained(
        library, folder, parts={"callbacks": [watching]}, eval_strategy="epoch", save_strategy="epoch",
        gradient_accumulation_steps=2,
    )  # fmt: skip
    made.predict(samples(3))
    return listed, seen


def answers(library: ModuleType, folder: Path) -> Any:
    """A callback stops by the control that it gets, or by one that it returns."""

    class Setting(library.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            control.should_training_stop = state.global_step == 2

    class Returning(library.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> Any:
            return library.TrainerControl(should_training_stop=state.global_step == 3)

    runs = [trained(library, folder, parts={"callbacks": [each]}) for each in (Setting, Returning)]
    return [[made.state.global_step, [each["step"] for each in made.state.log_history]] for made in runs]


OBSERVATIONS: dict[str, Observation] = {
    each.__name__: each
    for each in (
        defaults, added, removed, given_writer, untracked, flow, printing, progress, stopping, events, answers,
    )
} | {"tracked by a given callback": tracked(True), "tracked by name": tracked(False)}  # fmt: skip


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", OBSERVATIONS)
def test_callbacks_do_the_same(name: str, tmp_path: Path) -> None:
    """Hexloop by the names of transformers, which a takeover has replaced."""

    def observe(library: ModuleType, folder: Path) -> Any:
        if library is transformers:
            return OBSERVATIONS[name](transformers, folder)
        with hexloop.takeover():
            assert issubclass(transformers.Trainer, hexloop.Trainer)
            return OBSERVATIONS[name](transformers, folder)

    assert assert_same(observe, tmp_path)


def test_a_removed_callback_that_is_not_there(tmp_path: Path) -> None:
    """An instance is an error, as for a list; a class is none; what is no callback is refused when it is added."""
    made = trainer(hexloop, tmp_path)
    made.remove_callback(hexloop.EarlyStoppingCallback)

    with pytest.raises(ValueError, match="is not among the callbacks"):
        made.remove_callback(hexloop.EarlyStoppingCallback(1))
    with pytest.raises(ConfigurationError, match="is not a callback: it has none of the methods"):
        made.add_callback(object())


class Broken(hexloop.TensorBoardCallback):
    """A tracker whose library raises at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.logger = RecordingLogger(ValueError("no server"), in_loop=False)


def test_a_broken_tracker_changes_nothing(tmp_path: Path) -> None:
    """The run has the logs and the weights of one without it."""
    plain, broken = (
        trained(hexloop, tmp_path / name, parts={"callbacks": callbacks}, eval_strategy="epoch")
        for name, callbacks in (("plain", []), ("broken", [Broken]))
    )
    timed = ("runtime", "per_second")

    assert [
        {name: value for name, value in entry.items() if not name.endswith(timed)} for entry in plain.state.log_history
    ] == [
        {name: value for name, value in entry.items() if not name.endswith(timed)} for entry in broken.state.log_history
    ]
    assert all(
        (one == other).all() for one, other in zip(plain.model.parameters(), broken.model.parameters(), strict=True)
    )
