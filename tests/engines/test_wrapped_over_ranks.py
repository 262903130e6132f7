"""Models that the user wrapped train over real processes, and are saved under the names of the user's model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.nn.parallel import DistributedDataParallel

from hexloop import Trainer
from tests.engines.several.training import Reader, Training, distance, ended, fresh, run
from tests.engines.test_ddp import same
from tests.engines.test_fsdp import alone, fsdp

SAVES: dict[str, Any] = {"eval_strategy": "epoch", "save_strategy": "steps", "save_steps": 4}


class InDdp(Trainer):
    """A Trainer of a model in the user's own DistributedDataParallel, with the user's options."""

    def __init__(self, model: Any, args: Any, *values: Any, **named: Any) -> None:
        dist.init_process_group("gloo")
        own = DistributedDataParallel(model, gradient_as_bucket_view=True)
        super().__init__(own, args, *values, **named)


class InCompiledDdp(Trainer):
    """The same, compiled."""

    def __init__(self, model: Any, args: Any, *values: Any, **named: Any) -> None:
        dist.init_process_group("gloo")
        own = torch.compile(DistributedDataParallel(model), backend="eager")
        super().__init__(own, args, *values, **named)


class Compiled(Trainer):
    """A Trainer of a compiled model."""

    def __init__(self, model: Any, *values: Any, **named: Any) -> None:
        super().__init__(torch.compile(model, backend="eager"), *values, **named)


class CompiledLayers(Trainer):
    """A Trainer of a model whose layers are compiled."""

    def __init__(self, model: Any, *values: Any, **named: Any) -> None:
        for number, layer in enumerate(model.layers):
            model.layers[number] = torch.compile(layer, backend="eager")
        super().__init__(model, *values, **named)


MORE = pytest.mark.matrix


@pytest.mark.parametrize(
    ("kind", "engine"),
    [
        (InDdp, "DistributedDataParallel"),
        pytest.param(InCompiledDdp, "OptimizedModule", marks=MORE),
        pytest.param(Compiled, "DistributedDataParallel", marks=MORE),
        pytest.param(CompiledLayers, "DistributedDataParallel", marks=MORE),
    ],
)
def test_two_processes_match_one_with_any_wrapper(tmp_path: Path, kind: type[Any], engine: str) -> None:
    """Logs, evaluation with rows left over, and weights match; a plain model resumes from the checkpoint."""
    training = Training(arguments=SAVES)
    one = run(training, fresh(tmp_path / "1"))
    both = run(training.of(2, kind=kind, engine=engine), fresh(tmp_path / "2"))
    same(one, both)
    saved = tmp_path / "2" / "checkpoint-4"
    assert load_file(saved / "model.safetensors").keys() == Reader().state_dict().keys() == both.weights.keys()
    resumed = run(training.of(2, resume=str(saved)), fresh(tmp_path / "3"))
    assert distance(resumed.weights, both.weights) < 1e-6


UNDER_FSDP: list[tuple[int, type[Any], str]] = [
    (1, Compiled, "FullyShardedDataParallel"),
    (2, Compiled, "FSDPOptimizedModule"),
    (2, CompiledLayers, "FSDPReader"),
]


@MORE
@pytest.mark.parametrize(("version", "kind", "engine"), UNDER_FSDP)
def test_compiled_models_under_fsdp_keep_their_names(
    tmp_path: Path, version: int, kind: type[Any], engine: str
) -> None:
    """In shards and whole files; resumed as they were, and without the wrapper."""
    training = fsdp(version, save_strategy="steps", save_steps=4, num_train_epochs=2)
    one = run(alone(training), fresh(tmp_path / "1"))
    both = run(training.of(2, kind=kind, engine=engine), fresh(tmp_path / "2"))
    same(one, both)
    assert both.weights.keys() == Reader().state_dict().keys()
    saved = str(tmp_path / "2" / "checkpoint-4")
    resumed = run(training.of(2, kind=kind, engine=engine, resume=saved), fresh(tmp_path / "3"))
    assert distance(resumed.weights, both.weights) == 0.0
    same(one, run(training.of(2, resume=saved), fresh(tmp_path / "4")))


@MORE
def test_fsdp_1_refuses_layers_that_were_compiled_by_themselves(tmp_path: Path) -> None:
    """Their compiled code would call them as they were before they were sharded."""
    for said in ended(fsdp(1).of(2, kind=CompiledLayers), fresh(tmp_path / "1")):
        assert "ConfigurationError" in said
        assert "version=2" in said
