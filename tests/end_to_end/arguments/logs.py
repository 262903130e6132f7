"""Logs and loggers."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hexloop import PrinterCallback, ProgressCallback
from hexloop.app.callbacks.trackers import missing_package
from hexloop.app.environment import DistributedEnvironment
from hexloop.domain.errors import NotFiniteError
from hexloop.ports.logger import FINISHED, Outcome, Record, RunInformation
from tests.end_to_end.arguments.bench import Bench, Recording, shows
from tests.end_to_end.arguments.optimization import Words, sentences
from tests.end_to_end.small import decoders
from tests.end_to_end.small.trainers import weights


@shows("logging_strategy")
def _(bench: Bench) -> None:
    assert bench.steps_of("loss", logging_strategy="epoch", num_train_epochs=2) == [4, 8]
    assert bench.steps_of("loss", logging_strategy="no") == []


@shows("logging_steps")
def _(bench: Bench) -> None:
    assert bench.steps_of("loss", logging_steps=2) == [2, 4]
    assert bench.steps_of("loss", logging_steps=0.5) == [2, 4]


@shows("logging_first_step")
def _(bench: Bench) -> None:
    assert bench.steps_of("loss", logging_first_step=True, logging_steps=4) == [1, 4]


class Undefined(Recording):
    """Its second loss is NaN and has no gradient."""

    def forward(self, x: Tensor, labels: Tensor | None = None) -> object:
        made = super().forward(x, labels)
        if self.training and len(self.sizes) == 2:
            made["loss"] = made["loss"] * 0 + math.nan * torch.ones(())
        return made


@shows("logging_nan_inf_filter")
def _(bench: Bench) -> None:
    given = {"logging_steps": 2, "max_steps": 2}
    ((_, passed_over),) = bench.logged("loss", {"model": Undefined()}, logging_nan_inf_filter=True, **given)
    ((_, shown),) = bench.logged("loss", {"model": Undefined()}, logging_nan_inf_filter=False, **given)
    assert math.isfinite(passed_over)
    assert math.isnan(shown)


@shows("on_nonfinite")
def _(bench: Bench) -> None:
    assert [step for step, _ in bench.logged("nonfinite_steps", {"model": Undefined()}, logging_steps=2)] == [2]
    with pytest.raises(NotFiniteError, match="At step 2 the loss is nan"):
        bench.trained({"model": Undefined()}, on_nonfinite="stop")
    for reaction in ("skip", "rollback"):
        left_out = bench.trained({"model": Undefined()}, on_nonfinite=reaction, logging_steps=2)
        assert left_out.state.global_step == 3
        assert all(bool(tensor.isfinite().all()) for tensor in weights(left_out).values())


@shows("nonfinite_limit")
def _(bench: Bench) -> None:
    with pytest.raises(NotFiniteError, match="after 0 windows in a row"):
        bench.trained({"model": Undefined()}, on_nonfinite="skip", nonfinite_limit=0)


class Rising(Recording):
    """Its twentieth loss is a hundred times as large."""

    def forward(self, x: Tensor, labels: Tensor | None = None) -> object:
        made = super().forward(x, labels)
        if self.training and len(self.sizes) == 20:
            made["loss"] = made["loss"] * 100
        return made


@shows("spike_factor", "on_spike")
def _(bench: Bench) -> None:
    given = {"num_train_epochs": 6, "logging_steps": 4}
    with pytest.raises(NotFiniteError, match=r"At step 20 the loss is .*, against a median of"):
        bench.trained({"model": Rising()}, spike_factor=20.0, on_spike="stop", **given)
    assert bench.trained({"model": Rising()}, spike_factor=20.0, on_spike="skip", **given).state.global_step == 23
    assert bench.trained({"model": Rising()}, spike_factor=2000.0, on_spike="skip", **given).state.global_step == 24


@shows("log_goodput", "peak_flops")
def _(bench: Bench) -> None:
    assert bench.steps_of("goodput", log_goodput=True) == [1, 2, 3, 4]
    assert all(share > 0 for _, share in bench.logged("mfu", log_goodput=True, peak_flops=1e12))
    assert bench.logged("goodput") == []


@shows("log_token_accuracy")
def _(bench: Bench) -> None:
    def logged(**given: Any) -> list[float]:
        parts = {"model": decoders.llama(), "train_dataset": decoders.sentences(16)}
        return [share for _, share in bench.logged("token_accuracy", parts, **given)]

    assert len(logged(log_token_accuracy=True)) == 4
    assert all(0 <= share <= 1 for share in logged(log_token_accuracy=True))
    assert logged() == []


@shows("profile")
def _(bench: Bench) -> None:
    made = bench.trained(profile={"wait": 0, "warmup": 0, "steps": 2})
    assert (Path(made.args.output_dir) / "profile" / "steps-1-to-2-rank-0.txt").is_file()


@shows("include_num_input_tokens_seen")
def _(bench: Bench) -> None:
    def seen(how: str) -> list[int]:
        parts = {"model": Words(), "train_dataset": sentences()}
        return [count for _, count in bench.logged("num_input_tokens_seen", parts, include_num_input_tokens_seen=how)]

    assert seen("all")[:2] == [24, 48]
    assert seen("non_padding")[:2] == [16, 32]
    assert seen("no") == []


@shows("report_to")
def _(bench: Bench) -> None:
    made = bench.trained({"loggers": None}, report_to="json_lines")
    lines = (Path(made.args.output_dir) / "log.jsonl").read_text().splitlines()
    assert any("loss" in json.loads(line) for line in lines)
    assert "is not a tracker that hexloop knows" in bench.refusal({"loggers": None}, report_to="unknown")


class Watcher:
    """Records what it receives at the start."""

    def __init__(self) -> None:
        self.runs: list[RunInformation] = []

    def start(self, run: RunInformation) -> None:
        self.runs.append(run)

    def write(self, record: Record) -> None:
        pass

    def finish(self, outcome: Outcome = FINISHED) -> None:
        pass


@shows("run_name")
def _(bench: Bench) -> None:
    watcher = Watcher()
    bench.trained({"loggers": [watcher]}, run_name="mine")
    assert [run.name for run in watcher.runs] == ["mine"]


@shows("disable_tqdm")
def _(bench: Bench) -> None:
    def shown_by(disable: bool) -> set[type]:
        made = bench.trainer({"loggers": None}, disable_tqdm=disable)
        return {type(each) for each in made.callback_handler.callbacks} & {PrinterCallback, ProgressCallback}

    assert shown_by(True) == {PrinterCallback}
    assert shown_by(False) == {ProgressCallback}


@shows("log_level", "log_level_replica", "log_on_each_node")
def _(bench: Bench) -> None:
    logger = logging.getLogger("hexloop")
    bench.patch.setattr(logger, "level", logging.NOTSET)
    first = bench.arguments(log_level="info", log_level_replica="error", log_on_each_node=False)
    levels = []
    for index in (0, 1):
        first.distributed_environment = DistributedEnvironment(process_index=index, world_size=2)
        bench.trainer({"kind": _with(first)})
        levels.append(logger.level)
    assert levels == [logging.INFO, logging.ERROR]
    first.log_on_each_node = True
    bench.trainer({"kind": _with(first)})
    assert logger.level == logging.INFO, "it is the first of its machine"


def _with(arguments: object) -> object:
    from hexloop import Trainer

    return lambda args, **parts: Trainer(args=arguments, **parts)  # type: ignore[arg-type]


@shows("project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id")
def _(bench: Bench) -> None:
    for name in ("project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"):
        assert f"{name}='mine'" in bench.remark(**{name: "mine"})
    if (problem := missing_package("trackio", "report_to='trackio'")) is not None:
        assert problem in bench.refusal({"loggers": None}, report_to="trackio", project="mine")


@shows("logging_dir")
def _(bench: Bench) -> None:
    pytest.importorskip("tensorboard")
    folder = bench.new_folder()
    with bench.warned("logging_dir", "TENSORBOARD_LOGGING_DIR"):
        made = bench.trainer({"loggers": None}, report_to="tensorboard", logging_dir=str(folder))
    made.train()
    assert list(folder.glob("events.*"))
    assert not (Path(made.args.output_dir) / "runs").exists()


@shows("system_metrics")
def _(bench: Bench) -> None:
    for given in (True, False):
        made = bench.trained(system_metrics=given, save_strategy="epoch")
        assert Path(made.args.output_dir, ".hexloop", "system-0.jsonl").exists() is given


@shows("media_limit")
def _(bench: Bench) -> None:
    made = bench.trainer(media_limit=0.002)
    for _event in made.stream():
        made.log_media("noise", torch.rand(3, 20, 20))
    kept = list(Path(made.args.output_dir, ".hexloop", "media").iterdir())
    assert sum(each.stat().st_size for each in kept) <= 2000
