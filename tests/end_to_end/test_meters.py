"""What the time of real runs goes into, how much of a device their steps use, and profiles of them."""

from __future__ import annotations

import gzip
import json
import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from hexloop import ConfigurationError, StepEnded, Trainer, TrainerCallback, TrainingArguments
from hexloop.adapters.storage.local import LocalStorage
from hexloop.app.command_line import main
from hexloop.app.pages.page import content_of
from hexloop.app.pages.watching import WatchedRuns
from hexloop.app.run.profiling import ProfiledSteps, ProfileWindow
from hexloop.domain.events import TrainBegan
from hexloop.domain.run_folder import JOURNAL
from hexloop.domain.state import Cause
from hexloop.testing import ManualClock, MemoryStorage, assert_resume_exact
from tests.end_to_end.report_page import ReportPage
from tests.end_to_end.small.models import Net, net, rows
from tests.end_to_end.small.trainers import same_weights, small_trainer, weights

SHARES = [cause.logged_as for cause in Cause]


class SlowRows(Dataset[dict[str, Tensor]]):
    """Samples of which each takes a second."""

    def __init__(self, clock: ManualClock, count: int = 16) -> None:
        self.rows, self.clock = rows(count), clock

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        self.clock.advance(1)
        return self.rows[index]


class SlowNet(Net):
    """A model whose forward pass takes ten seconds."""

    clock: ManualClock

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        self.clock.advance(10)
        return super().forward(x, labels)


class SlowStorage(LocalStorage):
    """A disk on which each file takes two seconds."""

    clock: ManualClock

    def write(self, path: str, chunks: Any) -> Any:
        self.clock.advance(2)
        return super().write(path, chunks)


class SlowCallback(TrainerCallback):
    """A callback that takes three seconds at each step."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.clock.advance(3)


def slow_trainer(folder: Path, clock: ManualClock, parts: dict[str, Any] | None = None, **given: Any) -> Any:
    """Return a Trainer whose parts take seconds of a manual clock."""
    model: Any = net(kind=SlowNet)
    model.clock = clock
    chosen = {"model": model, "train_dataset": SlowRows(clock), "clock": clock, **(parts or {})}
    return small_trainer(folder, parts=chosen, log_goodput=True, **given)


def logged(trainer: Any) -> list[dict[str, float]]:
    """Return the shares in each log of a loss, by cause."""
    return [{name: entry[name] for name in SHARES} for entry in trainer.state.log_history if "loss" in entry]


def whole(output: Any) -> dict[str, float]:
    """Return the shares of a whole run, by cause."""
    return {name: output.metrics[f"train_{name}"] for name in SHARES}


def check_sums(trainer: Any, output: Any) -> None:
    """Assert that the shares of each log, and those of the run, are all of the time."""
    for shares in (*logged(trainer), whole(output)):
        assert sum(shares.values()) == pytest.approx(100, abs=1)
        assert all(share >= 0 for share in shares.values())


def percent(**seconds: float) -> dict[str, Any]:
    """Return shares of given seconds, and 0 for other causes."""
    total = sum(seconds.values())
    return {name: pytest.approx(100 * seconds.get(name, 0) / total, abs=0.01) for name in SHARES}


def test_slow_data_are_waited_for(tmp_path: Path) -> None:
    """Four samples a step; those of the first step belong to the start."""
    trainer = slow_trainer(tmp_path, ManualClock())
    output = trainer.train()
    assert logged(trainer)[0] == percent(badput_starting=4, goodput=10)
    assert logged(trainer)[1:] == [percent(badput_data=4, goodput=10)] * 3
    assert whole(output) == percent(badput_starting=4, badput_data=12, goodput=40)


def test_callbacks_and_evaluations_have_their_share(tmp_path: Path) -> None:
    """An evaluation of two batches after every second step."""
    clock = ManualClock()
    parts = {"train_dataset": rows(16), "eval_dataset": rows(8), "callbacks": [SlowCallback(clock)]}
    trainer = slow_trainer(tmp_path, clock, parts, eval_strategy="steps", eval_steps=2)
    output = trainer.train()
    assert logged(trainer)[2] == percent(goodput=10, badput_evaluating=20, badput_other=3)
    assert whole(output) == percent(goodput=40, badput_evaluating=40, badput_other=12)
    assert not any(name in entry for entry in trainer.state.log_history if "eval_loss" in entry for name in SHARES)


def test_saves_have_their_share(tmp_path: Path) -> None:
    """One that training waits for: as long as its files take."""
    clock, storage = ManualClock(), SlowStorage(tmp_path)
    storage.clock = clock
    parts = {"train_dataset": rows(16), "storage": storage}
    trainer = slow_trainer(tmp_path, clock, parts, save_strategy="steps", save_steps=2, save_async=False)
    output = trainer.train()
    before, after = logged(trainer)[1:3]
    assert before == percent(goodput=10)
    assert after["badput_saving"] > 0
    assert after["badput_saving"] + after["goodput"] == pytest.approx(100, abs=0.01)
    check_sums(trainer, output)


def test_a_preempted_run_counts_all_of_its_time(tmp_path: Path) -> None:
    """The stop, an hour in the queue, and the way to the first new step are lost, and the shares are those of all."""
    clock = ManualClock(1e9)
    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "save_async": False}

    class Preempts(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 3:
                raise KeyboardInterrupt

    first = slow_trainer(tmp_path, clock, {"callbacks": [Preempts()]}, **saving)
    with pytest.raises(KeyboardInterrupt):
        first.train()
    clock.advance(3600)
    second = slow_trainer(tmp_path, clock, **saving)
    output = second.train(resume_from_checkpoint=True)
    # After the save: 14 seconds of the third step, the hour, and 4 seconds for the data of its repetition.
    lost = 14 + 3600 + 4
    assert logged(second)[2] == percent(badput_restarting=lost, goodput=10)
    assert whole(output) == percent(badput_starting=4, badput_data=8, goodput=40, badput_restarting=lost)
    assert (4 + 8 + 40 + lost) == clock.wall() - 1e9


def test_a_compiled_model_shows_how_long_it_compiled(tmp_path: Path) -> None:
    """By torch's own announcements, of the forward and of the backward pass; without compiling there is none."""
    torch.compiler.reset()  # another test may have compiled the model
    compiled = small_trainer(tmp_path / "a", log_goodput=True, torch_compile=True, torch_compile_backend="aot_eager")
    output = compiled.train()
    check_sums(compiled, output)
    assert logged(compiled)[0]["badput_compiling"] > 0
    assert logged(compiled)[-1]["badput_compiling"] == 0
    plain = small_trainer(tmp_path / "b", log_goodput=True)
    assert plain.train().metrics["train_badput_compiling"] == 0


@pytest.mark.parametrize(
    "given",
    [
        {"eval_strategy": "steps", "eval_steps": 1},
        {"save_strategy": "steps", "save_steps": 1},
        {"dataloader_num_workers": 1, "gradient_accumulation_steps": 2},
        {"on_nonfinite": "skip", "save_strategy": "epoch", "eval_on_start": True},
        {"reproduce": "transformers"},
    ],
)
def test_real_times_add_up(tmp_path: Path, given: dict[str, Any]) -> None:
    """With the clock of the system, whatever a run does, and without a change to what it trains."""
    trainer = small_trainer(tmp_path / "on", parts={"eval_dataset": rows(8)}, log_goodput=True, **given)
    check_sums(trainer, trainer.train())
    without = small_trainer(tmp_path / "off", parts={"eval_dataset": rows(8)}, **given)
    metrics = without.train().metrics
    assert same_weights(weights(trainer), weights(without))
    assert not any("goodput" in name or "badput" in name for name in metrics)


class OwnStages(Trainer):
    """Carries out each epoch, and the end, itself."""

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        super()._run_epoch(*args, **kwargs)

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        return super()._finalize_training(*args, **kwargs)


def test_overridden_stages_are_measured(tmp_path: Path) -> None:
    """Their events go to the callbacks from within."""
    clock = ManualClock()
    trainer = slow_trainer(tmp_path, clock, {"callbacks": [SlowCallback(clock)]}, kind=OwnStages)
    output = trainer.train()
    assert whole(output) == percent(badput_starting=4, badput_data=12, goodput=40, badput_other=12)


def test_a_program_between_two_steps_is_not_the_loop(tmp_path: Path) -> None:
    """What the receiver of a stream does counts as other."""
    clock = ManualClock()
    trainer = slow_trainer(tmp_path, clock, {"train_dataset": rows(16)})
    for event in trainer.stream():
        if isinstance(event, StepEnded):
            clock.advance(10)
    assert logged(trainer)[1] == percent(goodput=10, badput_other=10)


def measured_trainer(folder: str) -> Any:
    return small_trainer(Path(folder), log_goodput=True, peak_flops=1e12, save_strategy="steps", save_steps=2)


@pytest.mark.matrix
def test_an_exact_resume_ignores_times() -> None:
    """They are readings of the clock, in the log and in the state of the run."""
    assert_resume_exact(measured_trainer, stops=[2])


def test_checkpoints_differ_in_times_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which the command leaves out, as other readings of the clock."""
    for name in ("a", "b"):
        measured_trainer(str(tmp_path / name)).train()
    assert main(["checkpoints", "diff", str(tmp_path / "a/checkpoint-4"), str(tmp_path / "b/checkpoint-4")]) == 0
    assert "goodput" not in capsys.readouterr().out


# Model FLOP utilisation


def test_utilisation_is_that_of_the_given_peak(tmp_path: Path) -> None:
    """Operations of the steps of a log, by the seconds in which the device may have worked."""

    class Counted(SlowNet):
        def floating_point_ops(self, batch: Any) -> float:
            return 5e9 * len(batch["x"])

    clock = ManualClock()
    model: Any = net(kind=Counted)
    model.clock = clock
    trainer = slow_trainer(
        tmp_path, clock, {"model": model, "eval_dataset": rows(8)}, peak_flops=4e9, eval_strategy="epoch"
    )
    metrics = trainer.train().metrics
    # 4 samples of 5e9 operations in 10 seconds of a step and 4 of data, of which the first log counts as starting
    assert [entry["mfu"] for entry in trainer.state.log_history if "mfu" in entry] == [
        pytest.approx(100 * 20 / (4 * 10), abs=0.01),
        *[pytest.approx(100 * 20 / (4 * 14), abs=0.01)] * 3,
    ]
    assert metrics["train_mfu"] == pytest.approx(100 * 80 / (4 * 52), abs=0.01)


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "mfu" in each.getMessage()]


def test_a_missing_peak_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With the device, the format, and what to set; no number is made up."""
    with caplog.at_level(logging.WARNING, "hexloop"):
        trainer = small_trainer(tmp_path, log_goodput=True)
        trainer.train()
    (said,) = messages(caplog)
    assert "the operations per second that cpu does at most in fp32 are not known; set peak_flops" in said
    assert not any("mfu" in entry for entry in trainer.state.log_history)


def test_operations_that_are_not_counted_are_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A compiled model without a method has no count."""
    with caplog.at_level(logging.WARNING, "hexloop"):
        trainer = small_trainer(
            tmp_path, log_goodput=True, peak_flops=1e12, torch_compile=True, torch_compile_backend="eager"
        )
        trainer.train()
    (said,) = messages(caplog)
    assert "the operations of Net are not counted; give it a method floating_point_ops" in said


def test_a_peak_without_goodput_is_refused() -> None:
    """It would have no effect."""
    with pytest.raises(ConfigurationError, match="set log_goodput=True, or leave peak_flops out"):
        TrainingArguments("out", peak_flops=1e12)


# Profiles


def files_of(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "profile").iterdir())


def events_in(path: Path) -> list[dict[str, Any]]:
    """Return the events of a trace."""
    found: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return found


def test_a_profile_leaves_a_trace_and_a_table(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of the steps that were asked for, named in the log; the run trains what it trains without."""
    window = {"wait": 1, "warmup": 1, "steps": 2}
    with caplog.at_level(logging.INFO, "hexloop"):
        trainer = small_trainer(tmp_path / "a", num_train_epochs=2, profile=window)
        trainer.train()
    name = "steps-3-to-4-rank-0"
    assert files_of(tmp_path / "a") == [f"{name}.trace.json.gz", f"{name}.txt"]
    steps = {each["name"] for each in events_in(tmp_path / f"a/profile/{name}.trace.json.gz")}
    assert {"ProfilerStep#1", "ProfilerStep#2"} <= steps
    assert "ProfilerStep#3" not in steps
    assert any("Optimizer.step" in each for each in steps)
    assert "aten::" in (tmp_path / f"a/profile/{name}.txt").read_text()
    (said,) = [each.getMessage() for each in caplog.records if "profile" in each.getMessage()]
    assert str(tmp_path / f"a/profile/{name}.trace.json.gz") in said
    without = small_trainer(tmp_path / "b", num_train_epochs=2)
    without.train()
    assert same_weights(weights(trainer), weights(without))


def test_a_window_is_that_of_the_process(tmp_path: Path) -> None:
    """A run that resumes after step 4 waits for its own first steps; the earlier profile stays."""
    given: dict[str, Any] = {"save_strategy": "steps", "save_steps": 4, "profile": {"wait": 0, "warmup": 0, "steps": 1}}
    small_trainer(tmp_path, max_steps=4, **given).train()
    small_trainer(tmp_path, max_steps=8, **given).train(resume_from_checkpoint=True)
    assert [name for name in files_of(tmp_path) if name.endswith("txt")] == [
        "steps-1-to-1-rank-0.txt",
        "steps-5-to-5-rank-0.txt",
    ]


def test_a_run_that_ends_within_the_window_leaves_what_it_has(tmp_path: Path) -> None:
    """And says what is missing."""
    with pytest.warns(UserWarning, match="recorded 2 of 9 steps, because this process made only 4"):
        small_trainer(tmp_path, profile={"wait": 1, "warmup": 1, "steps": 9}).train()
    assert [name for name in files_of(tmp_path) if name.endswith("txt")] == ["steps-3-to-4-rank-0.txt"]
    with pytest.warns(UserWarning, match="recorded 0 of 3 steps, because this process made only 4; choose earlier"):
        small_trainer(tmp_path / "none", profile=3).train()
    assert not (tmp_path / "none" / "profile").exists()


def test_a_profiler_that_fails_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As where the program profiles itself, which goes on: torch has one profiler for all."""
    trainer = small_trainer(tmp_path, profile={"wait": 0, "warmup": 0, "steps": 1})
    with torch.profiler.profile() as own:
        trainer.train()
    assert "another profile of torch is being recorded" in caplog.text
    assert trainer.state.global_step == 4
    assert any("Optimizer.step" in each.key for each in own.key_averages())


class Failing:
    """A profiler that fails at one of its methods, and counts those that stop it."""

    def __init__(self, method: str) -> None:
        self.method, self.stopped = method, 0

    def __getattr__(self, name: str) -> Any:
        def act(*given: Any) -> str:
            self.stopped += name == "finish"
            if name == self.method:
                raise RuntimeError("planted")
            if name == "write_trace":
                Path(given[0]).write_bytes(b"")
            return ""

        return act


@pytest.mark.parametrize("method", ["start", "step", "finish", "write_trace", "table"])
def test_a_profiler_may_fail_anywhere(method: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is stopped once it has started, and not called again."""
    failing, storage = Failing(method), MemoryStorage()
    steps = ProfiledSteps(failing, ProfileWindow(0, 0, 2), storage, Silent(), 0)

    handlers = steps.handlers()
    handlers[TrainBegan](TrainBegan(0))
    for step in range(1, 5):
        handlers[StepEnded](StepEnded(step, (), None, True))
    steps.close()

    (told,) = caplog.messages
    assert told.startswith("The profiler failed")
    assert "planted" in told
    assert failing.stopped == {"start": 0, "stop": 1}.get(method, 1)


class Silent:
    """A journal of which nothing is read."""

    def note(self, kind: str, **facts: Any) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (0, "steps must be at least 1"),
        (True, "it takes the steps to record"),
        (1.5, "it takes the steps to record"),
        ("many", "it takes the steps to record"),
        ({"wait": -1}, "wait must be at least 0"),
        ({"warmup": "2"}, "warmup is not a whole number"),
        ({"active": 3}, "it has no key 'active'"),
        ({"warm_up": 3}, "did you mean warmup"),
    ],
)
def test_a_wrong_window_is_refused(value: Any, reason: str) -> None:
    """Before the first step, with what it takes."""
    with pytest.raises(ConfigurationError, match=reason):
        TrainingArguments("out", profile=value)


@pytest.mark.parametrize(
    ("value", "window"),
    [
        (None, None),
        ("none", None),
        (4, {"wait": 5, "warmup": 2, "steps": 4}),
        ("4", {"wait": 5, "warmup": 2, "steps": 4}),
        ('{"wait": 1}', {"wait": 1, "warmup": 2, "steps": 3}),
    ],
)
def test_a_window_is_written_in_several_ways(value: Any, window: Any) -> None:
    """As a number, as a mapping, and as text of either on the command line."""
    assert TrainingArguments("out", profile=value).profile == window


# The report


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """The folder of a run that was measured and profiled."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        given: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "log_goodput": True, "peak_flops": 1e12}
        small_trainer(tmp_path / "run", profile={"wait": 0, "warmup": 1, "steps": 2}, **given).train()
    return tmp_path / "run"


def test_the_report_says_where_the_time_went(recorded: Path) -> None:
    """The seconds of the journal, the curves of the shares, and the files of the profile."""
    assert main(["report", str(recorded)]) == 0
    page = ReportPage(recorded / "report.html")
    page.check_policy()
    assert "Where the time went" in page.headings
    table = page.tables["What the time of each run went into"]
    assert table[0] == ["what", "run"]
    notes = [json.loads(line) for line in (recorded / JOURNAL).read_text().splitlines()]
    seconds = [note["seconds"] for note in notes if note["kind"] == "goodput"][-1]
    part = seconds["step"] / sum(seconds.values())
    assert page.row("What the time of each run went into", "steps (goodput)")[1].startswith(f"{part:.1%} (")
    shares = [float(row[1].split("%")[0]) for row in table[1:-1] if row[1] != "-"]
    assert sum(shares) == pytest.approx(100, abs=1)
    assert [step for step, _ in page.curve("goodput")] == [1, 2, 3, 4]
    assert len(page.curve("mfu")) == 4
    (profile,) = page.tables["Profiles"][1:]
    assert profile[:2] == ["run", "2 to 3"]
    assert Path(profile[2]).is_file()
    assert Path(profile[3]).is_file()


def test_the_board_shows_the_same(recorded: Path) -> None:
    """As another section of the page of a run."""
    runs = WatchedRuns(recorded.parent)
    runs.listing()
    content = runs.show(["run"], lambda records: content_of(records, 0.0))
    (shown,) = [each.content for each in content.sections if each.identifier == "time"]
    assert "steps (goodput)" in shown
    assert "steps-2-to-3-rank-0.trace.json.gz" in shown
