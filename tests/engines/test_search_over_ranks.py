"""Hyperparameter search in several processes: pruning, time limits and failures are agreed by all of them."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hexloop import Trainer, TrainerCallback, TrainingArguments
from tests.end_to_end.small.models import rows
from tests.engines.processes import CONTEXT, free_port
from tests.engines.several.training import PATIENCE

optuna = pytest.importorskip("optuna")

GLOBAL_BATCH = 4


class Wide(nn.Module):
    """(batch, 4) -> (batch, 1), through a hidden layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, x: Any, labels: Any = None) -> Any:
        logits = self.layers(x)
        return {"loss": nn.functional.mse_loss(logits, labels), "logits": logits}


def model_init(trial: Any) -> nn.Module:
    return Wide(4 if trial is None else trial.suggest_int("width", 3, 9))


def draw_wrongly(trial: Any) -> nn.Module:
    """Draw the width of every other trial from a range that is empty."""
    return Wide(4 if trial is None else trial.suggest_int("width", 3, 9 if trial.number % 2 == 0 else 2))


def space(trial: Any) -> dict[str, Any]:
    return {"learning_rate": trial.suggest_float("rate", 1e-4, 0.3, log=True)}


class Failing(TrainerCallback):
    """Raises at the third step of some trials: on all ranks, or on one of them alone."""

    def __init__(self, trials: tuple[str, ...], rank: str | None = None) -> None:
        self.trials, self.rank = trials, rank

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        name = os.path.basename(args.output_dir)
        if state.global_step == 3 and name in self.trials and self.rank in (None, os.environ["RANK"]):
            raise ValueError(f"{name} fails")


class SlowOnRank0(TrainerCallback):
    """Takes a while on rank 0 alone."""

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if os.environ["RANK"] == "0":
            import time

            time.sleep(0.4)


def searched(folder: str, size: int, callbacks: list[Any], call: dict[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("ignore")
    args = TrainingArguments(
        folder,
        max_steps=8,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        save_total_limit=1,
        logging_steps=4,
        per_device_train_batch_size=GLOBAL_BATCH // size,
        per_device_eval_batch_size=4,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        ddp_timeout=60,
    )
    trainer = Trainer(
        args=args,
        model_init=call.pop("model_init", model_init),
        train_dataset=rows(16),
        eval_dataset=rows(8, seed=1),
        callbacks=callbacks,
    )
    if "pruner" in call:
        call["pruner"] = getattr(optuna.pruners, call["pruner"])(n_startup_trials=2)
    best = trainer.hyperparameter_search(space, backend="optuna", **call)
    loaded = trainer.load_best_trial()
    layers: Any = trainer.model.layers
    return {"best": list(best[:3]), "loaded": list(loaded[:3]), "width": layers[0].out_features}


def _in_process(folder: str, size: int, rank: int, port: int, writer: Any, callbacks: Any, call: Any) -> None:
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port), LOCAL_WORLD_SIZE=str(size),
    )  # fmt: skip
    try:
        writer.send(searched(folder, size, callbacks, dict(call)))
    except BaseException as error:
        writer.send(f"{type(error).__name__}: {error}")
    finally:
        writer.close()
        os._exit(0)  # threads of torch may abort a normal exit of the interpreter


def in_processes(folder: Path, size: int, callbacks: list[Any] | None = None, **call: Any) -> list[Any]:
    """Search in real processes; return what each of them found, or its error, by rank."""
    port, processes, pipes = free_port(), [], []
    for rank in range(size):
        reader, writer = CONTEXT.Pipe(duplex=False)
        given = (str(folder), size, rank, port, writer, callbacks or [], {"n_trials": 8, **call})
        process = CONTEXT.Process(target=_in_process, args=given, daemon=False)
        process.start()
        writer.close()
        processes.append(process)
        pipes.append(reader)
    try:
        return [each.recv() if each.poll(PATIENCE) else "stuck" for each in pipes]
    finally:
        for process in processes:
            process.join(PATIENCE)
            process.kill()


def lines(folder: Path, kind: str) -> list[dict[str, Any]]:
    read = map(json.loads, (folder / "search.jsonl").read_text().splitlines())
    return [line for line in read if line["kind"] == kind]


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.matrix)])
def test_several_processes_find_what_one_finds(size: int, tmp_path: Path) -> None:
    """With the same global batch: the same proposals, pruned trials and best trial, and objectives to 1e-5."""
    call: dict[str, Any] = {"pruner": "MedianPruner"}
    alone = in_processes(tmp_path / "alone", 1, **call)
    together = in_processes(tmp_path / "together", size, **call)
    assert all(isinstance(each, dict) for each in (*alone, *together)), (alone, together)
    ended = [lines(tmp_path / name, "ended") for name in ("alone", "together")]
    assert [line["state"] for line in ended[0]] == [line["state"] for line in ended[1]]
    assert {line["state"] for line in ended[0]} == {"complete", "pruned"}
    for one, other in zip(*ended, strict=True):
        assert other["drawn"] == pytest.approx(one["drawn"], rel=1e-6)
        assert other["values"] == (None if one["values"] is None else pytest.approx(one["values"], rel=1e-5))
    for each in together:
        assert each["best"][0] == each["loaded"][0] == alone[0]["best"][0]
        assert each["best"][1] == pytest.approx(alone[0]["best"][1], rel=1e-5)
        assert each["width"] == alone[0]["width"]


@pytest.mark.matrix
@pytest.mark.parametrize("size", [2, 4])
def test_a_time_limit_is_agreed(size: int, tmp_path: Path) -> None:
    """Rank 0 decides; all end, with a pruner too."""
    found = in_processes(tmp_path, size, [SlowOnRank0()], timeout=1.0, n_trials=500, pruner="MedianPruner")
    assert all(isinstance(each, dict) for each in found), found
    assert all(each == found[0] for each in found)
    assert 1 <= len(lines(tmp_path, "ended")) < 500


def test_a_failure_on_all_ranks_is_that_of_the_trial(tmp_path: Path) -> None:
    """The search goes on with the next one."""
    found = in_processes(tmp_path, 2, [Failing(("run-1", "run-2"))], n_trials=4)
    assert all(isinstance(each, dict) for each in found), found
    states = [line["state"] for line in lines(tmp_path, "ended")]
    assert states == ["complete", "failed", "failed", "complete"]


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.matrix), 2])
def test_an_error_of_a_draw_is_that_of_the_trial(size: int, tmp_path: Path) -> None:
    """Rank 0 alone meets it, all end the trial, and the search goes on with the next one."""
    found = in_processes(tmp_path, size, n_trials=4, model_init=draw_wrongly)
    assert all(isinstance(each, dict) for each in found), found
    ended = lines(tmp_path, "ended")
    assert [line["state"] for line in ended] == ["complete", "failed", "complete", "failed"]
    assert "ValueError: " in ended[1]["reason"]


@pytest.mark.matrix
def test_a_failure_on_one_rank_ends_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process waits for ever, and the search resumes at that trial."""
    found = in_processes(tmp_path, 2, [Failing(("run-1",), rank="1")], n_trials=3)
    assert all(isinstance(each, str) and each != "stuck" for each in found), found
    assert "run-1 fails" in found[1]
    assert [line["trial"] for line in lines(tmp_path, "ended")] == [0]
    again = in_processes(tmp_path, 2, n_trials=3, resume=True)
    assert all(isinstance(each, dict) for each in again), again
    assert [line["state"] for line in lines(tmp_path, "ended")] == ["complete"] * 3
