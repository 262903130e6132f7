"""Every difference from transformers in docs/differences.md, shown with both libraries."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import hexloop
from hexloop.domain.errors import CheckpointError, ConfigurationError
from hexloop.testing import Effect, Fault, FaultyStorage, MemoryStorage
from tests.end_to_end.parity.data import Samples, samples_for
from tests.end_to_end.parity.models import PlainGPT, make_model
from tests.end_to_end.parity.runs import BOTH, Outcome, recorder, run, run_hexloop, run_reference

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

ONE_WINDOW = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 4,
    "max_steps": 1,
    "learning_rate": 0.0,
}
"""Four micro-batches with a learning rate of 0."""

FIVE_STEPS = {"per_device_train_batch_size": 4, "num_train_epochs": 2, "learning_rate": 0.01, "optim": "sgd"}
"""Two epochs of five steps on 20 samples."""

BEST_OF_EVERY_STEP: dict[str, Any] = {
    "eval_strategy": "steps",
    "eval_steps": 1,
    "save_strategy": "steps",
    "save_steps": 1,
    "metric_for_best_model": "loss",
    "load_best_model_at_end": True,
}
"""An evaluation and a checkpoint at each step; the best checkpoint is kept."""


def first_losses(folder: Path, model: nn.Module, data: Samples, **arguments: Any) -> tuple[float, float, float]:
    """Return the first window's loss: hexloop, hexloop with transformers' weighting, transformers."""
    given = {**ONE_WINDOW, **arguments}
    exact = run_hexloop(folder / "exact", model, given, train_dataset=data)
    alike = run_hexloop(folder / "alike", model, {**given, "loss_weighting": "reference"}, train_dataset=data)
    reference = run_reference(folder, model, given, train_dataset=data)
    losses = [outcome.series("loss")[0] for outcome in (exact, alike, reference)]
    return losses[0], losses[1], losses[2]


def micro_batches(data: Samples) -> list[dict[str, Tensor]]:
    return [{name: column[start : start + 4] for name, column in data.columns.items()} for start in range(0, 16, 4)]


def assert_both(losses: tuple[float, float, float], exact: float, reference: float) -> None:
    """The numbers match the documentation, and differ from each other."""
    assert losses[0] == pytest.approx(exact, rel=1e-5)
    assert losses[1] == pytest.approx(reference, rel=1e-5)
    assert losses[2] == pytest.approx(reference, rel=1e-5)
    assert abs(exact - reference) > 1e-4 * exact


@torch.no_grad()
def means_and_counts(model: nn.Module, data: Samples) -> tuple[Tensor, Tensor]:
    """Return the mean loss and the number of labels of each micro-batch."""
    batches = micro_batches(data)
    means = torch.stack([model(**batch)["loss"] for batch in batches])
    return means, torch.tensor([int((batch["labels"] != -100).sum()) for batch in batches])


def test_batches_are_weighted_by_their_number_of_labels(tmp_path: Path) -> None:
    """Transformers takes the mean of means, hexloop the mean over all labels."""
    model, data = make_model("plain GPT"), samples_for("plain GPT", 16)
    means, counts = means_and_counts(model, data)
    assert_both(first_losses(tmp_path, model, data), float((means * counts).sum() / counts.sum()), float(means.mean()))


def test_rows_of_a_small_last_batch_have_the_weight_of_others(tmp_path: Path) -> None:
    """Of 13 rows in batches of 4, transformers weights the last row like four."""
    model, data = make_model("convolution"), samples_for("convolution", 13)
    means, counts = means_and_counts(model, data)
    assert counts.tolist() == [4, 4, 4, 1]
    assert_both(first_losses(tmp_path, model, data), float((means * counts).sum() / 13), float(means.mean()))


class AnyKeyword(PlainGPT):
    """Accepts every keyword, and always divides by the number of its own labels."""

    def forward(
        self, input_ids: Tensor | None = None, labels: Tensor | None = None, **ignored: Any
    ) -> dict[str, Tensor]:
        return super().forward(input_ids, labels)


def test_a_model_that_ignores_the_count_is_weighted_correctly(tmp_path: Path) -> None:
    """Transformers adds up the means of a model that accepts any keyword; hexloop weights them."""
    torch.manual_seed(0)
    model, data = AnyKeyword(), samples_for("plain GPT", 16)
    means, counts = means_and_counts(model, data)
    assert_both(first_losses(tmp_path, model, data), float((means * counts).sum() / counts.sum()), float(means.sum()))


def smoothed_sum(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return the sum of the smoothed losses of all labels of a batch."""
    logits = model(batch["input_ids"])["logits"]
    return cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum", label_smoothing=0.1)


def test_smoothed_losses_are_weighted_by_their_labels(tmp_path: Path) -> None:
    """With label smoothing, too, transformers takes the mean of means."""
    model, data = make_model("plain GPT"), samples_for("plain GPT", 16)
    _, counts = means_and_counts(model, data)
    with torch.no_grad():
        sums = [smoothed_sum(model, batch) for batch in micro_batches(data)]
    means = torch.stack(sums) / counts
    losses = first_losses(tmp_path, model, data, label_smoothing_factor=0.1)
    assert_both(losses, float((means * counts).sum() / counts.sum()), float(means.mean()))


def test_labels_without_a_prediction_are_not_counted(tmp_path: Path) -> None:
    """GPT-2's loss ignores the first label of each row, which transformers counts nevertheless."""
    model, data = make_model("GPT-2"), samples_for("GPT-2", 16)
    labels = data.columns["labels"]
    with torch.no_grad():
        mean = float(model(**{name: column[:16] for name, column in data.columns.items()}).loss)
    compared, counted = int((labels[:, 1:] != -100).sum()), int((labels != -100).sum())
    assert_both(first_losses(tmp_path, model, data), mean, mean * compared / counted)


def test_non_finite_losses_are_excluded_from_the_logged_mean(tmp_path: Path) -> None:
    """Of the losses 1, 2, nan, 4, 5 hexloop logs 3; transformers replaces nan by 1."""

    def counted() -> Callable[..., Tensor]:
        values = iter((1.0, 2.0, float("nan"), 4.0, 5.0))
        return lambda outputs, labels, num_items_in_batch: 0 * outputs["logits"].sum() + next(values)

    logged = [
        run(
            library,
            tmp_path / library.__name__,
            make_model("convolution"),
            {**FIVE_STEPS, "num_train_epochs": 1, "logging_steps": 5},
            train_dataset=samples_for("convolution", 20),
            compute_loss_func=counted(),
        ).series("loss")
        for library in (hexloop, transformers)
    ]
    assert logged == [pytest.approx([3.0]), pytest.approx([(1 + 2 + 1 + 4 + 5) / 5])]


def make_trainer(library: Any, folder: Path, outcome: Outcome, **given: Any) -> Any:
    """Return a Trainer of either library with five steps per epoch, whose events are added to `outcome`."""
    callbacks = given.pop("callbacks", [])
    arguments = library.TrainingArguments(output_dir=str(folder), **{**BOTH, **FIVE_STEPS, **given})
    data = samples_for("convolution", 20)
    trainer = library.Trainer(
        model=make_model("convolution"),
        args=arguments,
        train_dataset=data,
        eval_dataset=data,
        callbacks=[*callbacks, recorder(library, outcome)],
    )
    trainer.remove_callback(library.PrinterCallback)
    return trainer


def resumed(library: Any, folder: Path, step: int, **given: Any) -> tuple[Any, Outcome, Any]:
    """Return the uninterrupted result, the events after a resume from its checkpoint of `step`, and its result."""
    given = {"save_strategy": "steps", "save_steps": 1, **given}
    whole = make_trainer(library, folder, Outcome(), **given).train()
    outcome = Outcome()
    outcome.trainer = make_trainer(library, folder, outcome, **given)
    return whole, outcome, outcome.trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{step}"))


def test_the_mean_loss_of_a_resumed_run_includes_all_steps(tmp_path: Path) -> None:
    """It equals that of the uninterrupted run; transformers averages the steps since the resume."""
    ours, _, ours_resumed = resumed(hexloop, tmp_path / "hexloop", 4)
    theirs, again, theirs_resumed = resumed(transformers, tmp_path / "reference", 4)
    assert ours_resumed.training_loss == pytest.approx(ours.training_loss, rel=1e-6)
    losses = [entry["loss"] for entry in again.trainer.state.log_history if "loss" in entry]
    assert theirs_resumed.training_loss == pytest.approx(sum(losses[4:]) / 6, rel=1e-4)
    assert theirs_resumed.training_loss != pytest.approx(theirs.training_loss, rel=1e-4)


def test_actions_due_at_the_end_of_an_epoch_run_on_resume(tmp_path: Path) -> None:
    """Resumed from the last checkpoint of an epoch, hexloop runs the evaluation that is due; transformers does not."""
    told = {"on_epoch_begin", "on_epoch_end", "on_evaluate", "on_step_begin"}
    seen = []
    for library in (hexloop, transformers):
        _, outcome, _ = resumed(library, tmp_path / library.__name__, 5, eval_strategy="epoch")
        seen.append([name for name, step, *_ in outcome.events if step == 5 and name in told])
    assert seen[0] == ["on_epoch_begin", "on_epoch_end", "on_evaluate", "on_epoch_begin", "on_step_begin"]
    assert seen[1] == ["on_epoch_begin", "on_step_begin"]


def test_attributes_of_callbacks_are_restored(tmp_path: Path) -> None:
    """EarlyStoppingCallback continues counting after a resume; transformers' starts at 0 by default."""
    counters = []
    for library in (hexloop, transformers):
        began: list[int] = []
        patient = library.EarlyStoppingCallback(early_stopping_patience=100, early_stopping_threshold=1e6)

        def note(self: Any, args: Any, state: Any, control: Any, **keywords: Any) -> None:
            began.append(patient.early_stopping_patience_counter)  # noqa: B023 - called before the next iteration

        watcher = type("Watcher", (library.TrainerCallback,), {"on_step_begin": note})()
        folder = tmp_path / library.__name__
        make_trainer(
            library,
            folder,
            Outcome(),
            callbacks=[library.EarlyStoppingCallback(100, 1e6)],
            max_steps=4,
            **BEST_OF_EVERY_STEP,
        ).train()
        trainer = make_trainer(
            library, folder, Outcome(), callbacks=[patient, watcher], max_steps=6, **BEST_OF_EVERY_STEP
        )
        trainer.train(resume_from_checkpoint=str(folder / "checkpoint-4"))
        counters.append(began[0])
    assert counters[0] == 3  # the first evaluation was the best so far
    assert counters[1] == 0


def epochs_at_begin(library: Any, folder: Path) -> list[float]:
    """Return state.epoch at each on_epoch_begin, where a callback ends the first epoch after its third step."""
    outcome = Outcome()

    def end_epoch(self: Any, args: Any, state: Any, control: Any, **keywords: Any) -> None:
        control.should_epoch_stop = state.global_step == 3

    ending = type("Ending", (library.TrainerCallback,), {"on_step_end": end_epoch})()
    make_trainer(library, folder, outcome, callbacks=[ending]).train()
    return [epoch for name, _, epoch, _ in outcome.events if name == "on_epoch_begin"]


def stopped_within_a_step(library: Any, folder: Path, event: str, switch: str) -> list[tuple[str, int]]:
    """Return the events from step 1 on, with windows of two batches; a callback sets a flag at an event of step 1."""
    outcome = Outcome()

    def stop(self: Any, args: Any, state: Any, control: Any, **keywords: Any) -> None:
        if state.global_step == 1:
            setattr(control, switch, True)

    stopping = type("Stopping", (library.TrainerCallback,), {event: stop})()
    given = {"callbacks": [stopping], "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    make_trainer(library, folder, outcome, **given).train()
    told = ("on_step_begin", "on_substep_end", "on_step_end", "on_epoch_end", "on_epoch_begin")
    return [(name, step) for name, step, *_ in outcome.events if name in told and step in (1, 2)][1:]


@pytest.mark.parametrize("event", ["on_step_begin", "on_substep_end"])
@pytest.mark.parametrize("switch", ["should_training_stop", "should_epoch_stop"])
def test_a_started_step_is_completed(event: str, switch: str, tmp_path: Path) -> None:
    """A stop within an accumulation window is handled after its update; transformers stops within the window."""
    ours = stopped_within_a_step(hexloop, tmp_path / "hexloop", event, switch)
    theirs = stopped_within_a_step(transformers, tmp_path / "reference", event, switch)
    assert ours[:4] == [("on_step_begin", 1), ("on_substep_end", 1), ("on_step_end", 2), ("on_epoch_end", 2)]
    assert theirs[:3] == [("on_step_begin", 1), ("on_substep_end", 1), ("on_epoch_end", 1)]


def test_a_run_stopped_at_its_start_takes_no_step(tmp_path: Path) -> None:
    """Transformers computes one more batch."""

    def stop(self: Any, args: Any, state: Any, control: Any, **keywords: Any) -> None:
        control.should_training_stop = True

    steps = []
    for library in (hexloop, transformers):
        stopping = type("Stopping", (library.TrainerCallback,), {"on_train_begin": stop})()
        trainer = make_trainer(library, tmp_path / library.__name__, Outcome(), callbacks=[stopping])
        steps.append(trainer.train().global_step)
    assert steps == [0, 1]


def test_max_steps_ends_the_run_without_the_flow_callback(tmp_path: Path) -> None:
    """Without a DefaultFlowCallback a run still ends at max_steps; in transformers it ends with that epoch."""
    steps = []
    for library in (hexloop, transformers):
        trainer = make_trainer(library, tmp_path / library.__name__, Outcome(), max_steps=7)
        trainer.remove_callback(library.DefaultFlowCallback)
        steps.append(trainer.train().global_step)
        assert [entry for entry in trainer.state.log_history if "loss" in entry] == []
    assert steps == [7, 10]


def test_restored_callbacks_keep_their_order(tmp_path: Path) -> None:
    """Both rebuild callbacks from a checkpoint on request; transformers then calls them last."""
    orders, counts = [], []
    for library in (hexloop, transformers):
        given = {**BEST_OF_EVERY_STEP, "restore_callback_states_from_checkpoint": True}
        folder = tmp_path / library.__name__
        stop = library.EarlyStoppingCallback
        make_trainer(library, folder, Outcome(), callbacks=[stop(100, 1e6)], max_steps=4, **given).train()
        trainer = make_trainer(library, folder, Outcome(), callbacks=[stop(3)], max_steps=6, **given)
        trainer.train(resume_from_checkpoint=str(folder / "checkpoint-4"))
        names = [type(each).__name__ for each in trainer.callback_handler.callbacks]
        [restored] = [each for each in trainer.callback_handler.callbacks if isinstance(each, stop)]
        orders.append(names.index("EarlyStoppingCallback") < names.index("Recorder"))
        counts.append((restored.early_stopping_patience, restored.early_stopping_patience_counter))
    assert orders == [True, False]
    assert counts[0] == counts[1] == (100, 5)


def test_state_epoch_is_an_integer_at_the_start_of_an_epoch(tmp_path: Path) -> None:
    """After an interrupted epoch the next starts at 1.0 in hexloop, and at 0.6 in transformers."""
    assert epochs_at_begin(hexloop, tmp_path / "hexloop") == [0.0, 1.0]
    assert epochs_at_begin(transformers, tmp_path / "reference") == [0, 0.6]


def modes(library: Any, folder: Path, part: str) -> list[bool]:
    """Return whether the first layer was in training mode in each of two steps, after `part.eval()` before them."""
    seen: list[bool] = []

    class Resting(library.TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            kwargs["model"].get_submodule(part).eval()

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seen.append(kwargs["model"].first.training)

    parts = {"train_dataset": samples_for("convolution", 20), "callbacks": lambda _library: [Resting()]}
    run(library, folder, make_model("convolution"), {"max_steps": 2}, **parts)
    return seen


def test_a_module_in_evaluation_mode_stays_in_it(tmp_path: Path) -> None:
    """In transformers it returns to training mode in the next step. A whole model does in both."""
    assert modes(hexloop, tmp_path, "first") == [False, False]
    assert modes(transformers, tmp_path, "first") == [True, True]
    assert modes(hexloop, tmp_path, "") == modes(transformers, tmp_path, "") == [True, True]


def test_a_second_run_has_a_new_optimizer(tmp_path: Path) -> None:
    """Transformers' Adam counts the steps of both runs."""
    steps: list[float] = []
    for library in (hexloop, transformers):
        trainer = make_trainer(library, tmp_path / library.__name__, Outcome(), optim="adamw_torch", max_steps=3)
        trainer.train()
        trainer.train()
        steps += {float(each["step"]) for each in trainer.optimizer.state_dict()["state"].values()}
    assert steps == [3.0, 6.0]


def test_unknown_schedule_options_are_refused(tmp_path: Path) -> None:
    """An unknown schedule option is an error before the first step; transformers ignores it."""
    given: dict[str, Any] = {"lr_scheduler_type": "constant", "lr_scheduler_kwargs": {"power": 2}, "max_steps": 1}
    with pytest.raises(ConfigurationError, match="'power'"):
        make_trainer(hexloop, tmp_path, Outcome(), **given).train()
    assert make_trainer(transformers, tmp_path, Outcome(), **given).train().global_step == 1


def test_contradictory_arguments_are_refused(tmp_path: Path) -> None:
    """load_best_model_at_end without an evaluation is refused at once; transformers accepts it."""
    given: dict[str, Any] = {"output_dir": str(tmp_path), "save_strategy": "best", "metric_for_best_model": "loss"}
    with pytest.raises(ConfigurationError, match="only evaluation determines the best model"):
        hexloop.TrainingArguments(**given)
    transformers.TrainingArguments(**given)
    with pytest.raises(ConfigurationError, match="learning_rate"):
        hexloop.TrainingArguments(learning_rate=math.nan)
    assert math.isnan(transformers.TrainingArguments(learning_rate=math.nan).learning_rate)
    with pytest.raises(ConfigurationError, match="did you mean learning_rate"):
        hexloop.TrainingArguments(learnign_rate=1e-3)  # type: ignore[call-arg]


def test_arguments_are_checked_when_they_are_assigned() -> None:
    """An invalid value is refused on assignment, and the previous one is kept."""
    arguments = hexloop.TrainingArguments(max_steps=5)
    with pytest.raises(ConfigurationError, match="learning_rate"):
        arguments.learning_rate = math.nan
    assert arguments.learning_rate == 5e-5


@pytest.mark.parametrize(("library", "kept"), [(hexloop, True), (transformers, False)], ids=["hexloop", "reference"])
def test_printing_does_not_change_the_logs(library: Any, kept: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Later callbacks find `total_flos` in the logs; neither library prints it."""
    logs = {"loss": 1.0, "total_flos": 2.0}
    library.PrinterCallback().on_log(None, library.TrainerState(), None, logs=logs)
    assert ("total_flos" in logs) == kept
    assert "total_flos" not in capsys.readouterr().out


@pytest.mark.parametrize(("library", "begins"), [(hexloop, 7), (transformers, 0)], ids=["hexloop", "reference"])
def test_the_progress_bar_starts_at_the_resumed_step(library: Any, begins: int) -> None:
    """A run that is resumed at step 7 of 10 shows 7."""
    state = library.TrainerState()
    state.global_step, state.max_steps = 7, 10
    callback = library.ProgressCallback()
    callback.on_train_begin(None, state, None)
    assert callback.training_bar.n == begins
    callback.training_bar.close()


def test_passing_loggers_replaces_all_default_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If the caller passes loggers, there is no progress bar and nothing is printed."""
    trainer = hexloop.Trainer(
        model=make_model("convolution"),
        args=hexloop.TrainingArguments(output_dir=str(tmp_path), max_steps=2, logging_steps=1, use_cpu=True),
        train_dataset=samples_for("convolution", 20),
        loggers=[],
    )
    trainer.train()
    assert capsys.readouterr() == ("", "")


WAYS_TO_STOP: dict[str, Callable[[hexloop.Trainer], None]] = {
    "request_stop": lambda trainer: trainer.request_stop(),
    "should_training_stop": lambda trainer: setattr(trainer.control, "should_training_stop", True),
}


@pytest.mark.parametrize(("way", "announced"), [("request_stop", False), ("should_training_stop", True)])
def test_a_requested_stop_does_not_end_the_epoch(way: str, announced: bool, tmp_path: Path) -> None:
    """A stop by a callback ends the epoch, as in transformers; a requested stop does not."""
    outcome = Outcome()
    trainer = make_trainer(hexloop, tmp_path, outcome)
    stop = WAYS_TO_STOP[way]
    stopping = type("Stopping", (hexloop.TrainerCallback,), {"on_step_end": lambda *_, **__: stop(trainer)})()
    trainer.add_callback(stopping)
    assert trainer.train().global_step == 1
    assert ("on_epoch_end" in [name for name, *_ in outcome.events]) == announced


def test_no_pickle_is_written(tmp_path: Path) -> None:
    """A checkpoint contains safetensors and JSON where transformers' contains pickles."""
    endings = []
    for library in (hexloop, transformers):
        folder = tmp_path / library.__name__
        make_trainer(library, folder, Outcome(), save_strategy="steps", save_steps=5, max_steps=5).train()
        endings.append({path.suffix for path in (folder / "checkpoint-5").iterdir()})
        assert (folder / "checkpoint-5" / "model.safetensors").exists()
    assert endings[0] == {".safetensors", ".json"}
    assert {".bin", ".pt", ".pth"} <= endings[1]


def test_a_failed_save_does_not_end_the_run(tmp_path: Path) -> None:
    """The first of three checkpoints fails; the run finishes, and the other checkpoints exist."""
    failing_once = FaultyStorage(MemoryStorage(), [Fault(1, Effect.FAIL, operation="write")])
    trainer = hexloop.Trainer(
        model=make_model("convolution"),
        args=hexloop.TrainingArguments(output_dir=str(tmp_path), max_steps=3, save_steps=1, use_cpu=True),
        train_dataset=samples_for("convolution", 20),
        storage=failing_once,
        loggers=[],
    )
    with pytest.warns(UserWarning, match="checkpoint-1 was not saved"):
        assert trainer.train().global_step == 3
    folders = [entry.name for entry in failing_once.list("") if entry.is_folder]
    assert folders == [".hexloop", "checkpoint-2", "checkpoint-3"]


class Looking(hexloop.TrainerCallback):
    """Records the files on disk when it is notified of a save."""

    def __init__(self) -> None:
        self.found: list[list[str]] = []

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.found.append(sorted(path.name for path in Path(args.output_dir).glob("checkpoint-*")))


def test_on_save_finds_the_folder(tmp_path: Path) -> None:
    """Each save is on disk when `on_save` is called, although saves are otherwise written in the background."""
    looking = Looking()
    trainer = hexloop.Trainer(
        model=make_model("convolution"),
        args=hexloop.TrainingArguments(output_dir=str(tmp_path), max_steps=2, save_steps=1, use_cpu=True),
        train_dataset=samples_for("convolution", 20),
        callbacks=[looking],
        loggers=[],
    )
    assert trainer.args.save_async
    trainer.train()
    assert looking.found == [["checkpoint-1"], ["checkpoint-1", "checkpoint-2"]]


def test_the_run_to_resume_is_not_guessed(tmp_path: Path) -> None:
    """With two runs in one folder, resuming needs the checkpoint's name, and the error lists both."""
    given = {**BOTH, **FIVE_STEPS, "save_strategy": "steps", "num_train_epochs": 1}
    data = samples_for("convolution", 20)

    def make(**more: Any) -> Any:
        args = hexloop.TrainingArguments(output_dir=str(tmp_path), **{**given, **more})
        return hexloop.Trainer(model=make_model("convolution"), args=args, train_dataset=data)

    make(save_steps=4, max_steps=4).train()
    make(save_steps=3, max_steps=3).train()
    with pytest.raises(CheckpointError, match=r"2 runs: .*checkpoint-[34] of the run .*checkpoint-[34] of"):
        make(max_steps=6).train(resume_from_checkpoint=True)
    assert make(max_steps=6).train(resume_from_checkpoint=str(tmp_path / "checkpoint-4")).global_step == 6


def test_random_orders_differ(tmp_path: Path) -> None:
    """Each epoch contains every sample once in both, in different orders; sequential orders are equal."""

    def order(library: Any, strategy: str) -> list[int]:
        seen: list[int] = []
        data = samples_for("convolution", 20)
        rows = [{**data[index], "index": index} for index in range(20)]

        def collate(batch: list[dict[str, Any]]) -> dict[str, Tensor]:
            seen.extend(row["index"] for row in batch)
            return {name: torch.stack([row[name] for row in batch]) for name in ("pixels", "labels")}

        given = {**BOTH, **FIVE_STEPS, "train_sampling_strategy": strategy, "num_train_epochs": 1}
        library.Trainer(
            model=make_model("convolution"),
            args=library.TrainingArguments(output_dir=str(tmp_path), remove_unused_columns=False, **given),
            train_dataset=rows,
            data_collator=collate,
        ).train()
        return seen

    ours, theirs = order(hexloop, "random"), order(transformers, "random")
    assert ours != theirs
    assert sorted(ours) == sorted(theirs) == list(range(20))
    assert order(hexloop, "sequential") == order(transformers, "sequential") == list(range(20))


def test_a_damaged_checkpoint_is_skipped(tmp_path: Path) -> None:
    """If the newest checkpoint is damaged, hexloop resumes from the previous one; transformers fails."""
    given: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1}
    for library in (hexloop, transformers):
        folder = tmp_path / library.__name__
        make_trainer(library, folder, Outcome(), max_steps=4, **given).train()
        weights = folder / "checkpoint-4" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:100])
    outcome = Outcome()
    with pytest.warns(UserWarning, match="checkpoint-4"):
        make_trainer(hexloop, tmp_path / "hexloop", outcome, max_steps=6, **given).train(resume_from_checkpoint=True)
    assert next(step for name, step, *_ in outcome.events if name == "on_train_begin") == 3
    with pytest.raises(SafetensorError):
        make_trainer(transformers, tmp_path / "transformers", Outcome(), max_steps=6, **given).train(
            resume_from_checkpoint=True
        )


@pytest.mark.parametrize(
    ("library", "kept"),
    [(hexloop, {"checkpoint-3", "checkpoint-10"}), (transformers, {"checkpoint-10"})],
    ids=["hexloop", "reference"],
)
def test_checkpoints_of_another_run_are_not_deleted(library: Any, kept: set[str], tmp_path: Path) -> None:
    """A run that keeps one checkpoint deletes its own, and no other run's."""
    given: dict[str, Any] = {"save_strategy": "steps"}
    make_trainer(library, tmp_path, Outcome(), max_steps=3, save_steps=3, **given).train()
    make_trainer(library, tmp_path, Outcome(), max_steps=10, save_steps=5, save_total_limit=1, **given).train()
    assert {path.name for path in tmp_path.glob("checkpoint-*")} == kept


@pytest.mark.parametrize(
    ("library", "kept"),
    [(hexloop, {"checkpoint-3", "checkpoint-12"}), (transformers, {"checkpoint-3"})],
    ids=["hexloop", "reference"],
)
def test_the_newest_checkpoint_stays_beside_the_best(library: Any, kept: set[str], tmp_path: Path) -> None:
    """With a limit of one checkpoint, a finished run can still be continued from its last step."""
    measured = iter([0.1, 0.2, 0.3, 0.4])
    trainer = make_trainer(
        library, tmp_path, Outcome(), max_steps=12, save_strategy="steps", save_steps=3, save_total_limit=1,
        eval_strategy="steps", eval_steps=3, load_best_model_at_end=True, metric_for_best_model="measured",
        greater_is_better=False,
    )  # fmt: skip
    trainer.compute_metrics = lambda prediction: {"measured": next(measured)}
    trainer.train()

    assert {path.name for path in tmp_path.glob("checkpoint-*")} == kept


def first_sample_after(library: Any, folder: Path, accepted: list[str]) -> float:
    """Return the first sample after a resume at sample 8, with batches twice as large as before."""
    pixels = torch.arange(20.0).repeat_interleave(64).view(20, 1, 8, 8) / 20
    data = Samples(pixels=pixels, labels=torch.zeros(20, dtype=torch.int64))
    seen: list[float] = []
    given: dict[str, Any] = {"train_sampling_strategy": "sequential", "save_strategy": "steps", "save_steps": 2}
    if library is hexloop:
        given["resume_despite"] = accepted
    first = make_trainer(library, folder, Outcome(), max_steps=2, **given)
    first.train_dataset = data
    first.train()
    trainer = make_trainer(library, folder, Outcome(), max_steps=3, per_device_train_batch_size=8, **given)
    trainer.train_dataset = data
    trainer.model.register_forward_pre_hook(
        lambda _model, _arguments, keywords: seen.append(float(keywords["pixels"][0].max()) * 20), with_kwargs=True
    )
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-2"))
    return round(seen[0])


def test_another_batch_size_is_refused_or_resumes_at_the_same_sample(tmp_path: Path) -> None:
    """Transformers resumes at sample 16, counting two steps of eight; hexloop refuses, or resumes at sample 8."""
    assert first_sample_after(transformers, tmp_path / "reference", []) == 16
    with pytest.raises(
        CheckpointError, match=r"had 4 samples, and those of this run have 8.*resume_despite=\['batch_size'\]"
    ):
        first_sample_after(hexloop, tmp_path / "refused", [])
    assert first_sample_after(hexloop, tmp_path / "accepted", ["batch_size"]) == 8


def test_another_weight_decay_is_refused_or_applied(tmp_path: Path) -> None:
    """Transformers resumes with the saved value; hexloop refuses, or resumes with the new one."""
    kept: dict[str, float] = {}
    for library in (hexloop, transformers):
        given: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "optim": "adamw_torch"}
        folder = tmp_path / library.__name__
        make_trainer(library, folder, Outcome(), max_steps=2, weight_decay=0.1, **given).train()
        given |= {"max_steps": 3, "weight_decay": 0.3}
        if library is hexloop:
            with pytest.raises(CheckpointError, match=r"weight_decay of group 0 was 0\.1 and is 0\.3"):
                make_trainer(library, folder, Outcome(), **given).train(str(folder / "checkpoint-2"))
            given["resume_despite"] = ["optimizer"]
        trainer = make_trainer(library, folder, Outcome(), **given)
        trainer.train(str(folder / "checkpoint-2"))
        kept[library.__name__] = trainer.optimizer.param_groups[0]["weight_decay"]
    assert kept == {"hexloop": 0.3, "transformers": 0.1}
