"""Evaluation, its outputs, and the best model."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tests.end_to_end.arguments.bench import Bench, Recording, shows
from tests.end_to_end.small.models import Net, net, rows


@shows("eval_strategy")
def _(bench: Bench) -> None:
    assert bench.steps_of("eval_loss", eval_strategy="epoch", num_train_epochs=2) == [4, 8]
    assert bench.steps_of("eval_loss", eval_strategy="no") == []


@shows("eval_steps")
def _(bench: Bench) -> None:
    assert bench.steps_of("eval_loss", eval_strategy="steps", eval_steps=2) == [2, 4]


@shows("eval_delay")
def _(bench: Bench) -> None:
    assert bench.steps_of("eval_loss", eval_strategy="steps", eval_steps=1, eval_delay=3) == [3, 4]


@shows("eval_on_start")
def _(bench: Bench) -> None:
    assert bench.steps_of("eval_loss", eval_strategy="epoch", eval_on_start=True) == [0, 4]


@shows("prediction_loss_only")
def _(bench: Bench) -> None:
    assert bench.trainer(prediction_loss_only=True).predict(rows(8)).predictions is None
    assert bench.trainer().predict(rows(8)).predictions.shape == (8, 1)


@shows("eval_accumulation_steps")
def _(bench: Bench) -> None:
    """Return how many batches' outputs exist at once, as the model's own tensors."""
    alive: list[int] = []

    class Counting(Recording):
        def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
            alive.append(sum(reference() is not None for reference in references))
            made = super().forward(x, labels)
            references.append(weakref.ref(made["logits"]))
            return made

    references: list[Any] = []
    parts = {"model": Counting()}
    plain = bench.trainer({"model": Counting()}, per_device_eval_batch_size=1).predict(rows(8)).predictions
    references.clear()
    alive.clear()
    given = {"per_device_eval_batch_size": 1, "eval_accumulation_steps": 2}
    kept = bench.trainer(parts, **given).predict(rows(8)).predictions
    assert np.array_equal(kept, plain)
    assert max(alive) <= 2


@shows("eval_do_concat_batches")
def _(bench: Bench) -> None:
    predictions = bench.trainer(eval_do_concat_batches=False).predict(rows(8)).predictions
    assert [batch.shape for batch in predictions] == [(4, 1), (4, 1)]


@shows("eval_use_gather_object")
def _(bench: Bench) -> None:
    assert "for runs with several processes" in bench.remark(eval_use_gather_object=True)


@shows("batch_eval_metrics")
def _(bench: Bench) -> None:
    sizes: list[tuple[int, bool]] = []

    def compute(prediction: Any, compute_result: bool) -> dict[str, float]:
        sizes.append((len(prediction.predictions), compute_result))
        return {"batches": float(len(sizes))} if compute_result else {}

    metrics = bench.trainer({"compute_metrics": compute}, batch_eval_metrics=True).evaluate()
    assert sizes == [(4, False), (4, True)]
    assert metrics["eval_batches"] == 2


@shows("include_for_metrics")
def _(bench: Bench) -> None:
    seen: list[Any] = []

    class Named(Recording):
        main_input_name = "x"

    def compute(prediction: Any) -> dict[str, float]:
        seen.append(prediction)
        return {}

    parts = {"model": Named(), "compute_metrics": compute}
    bench.trainer(parts, include_for_metrics=["inputs", "loss"]).evaluate()
    bench.trainer(parts).evaluate()
    both, neither = seen
    assert (both.inputs.shape, len(both.losses)) == ((8, 4), 8)
    assert (neither.inputs, neither.losses) == (None, None)


class Remembering(nn.Module):
    """Returns a memory as its third output, and records the memory that it receives."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()
        self.handed: list[float | None] = []

    def forward(self, x: Tensor, labels: Tensor, mems: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        self.handed.append(None if mems is None else float(mems))
        logits = self.inner.layers(x)
        return (logits - labels).square().mean(), logits, torch.tensor(float(len(self.handed)))


@shows("past_index")
def _(bench: Bench) -> None:
    model, forgetful = Remembering(), Remembering()
    with bench.warned("past_index", "keep its memory itself"):
        made = bench.trainer({"model": model}, past_index=2, num_train_epochs=1)
    made.train()
    assert model.handed == [None, 1.0, 2.0, 3.0]
    made.evaluate()
    assert model.handed[4:] == [None, 5.0]
    bench.trained({"model": forgetful})
    assert forgetful.handed == [None] * 4


@shows("jit_mode_eval")
def _(bench: Bench) -> None:
    calls = list[bool]()

    class Counting(Net):
        def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
            calls.append(torch.jit.is_tracing())  # type: ignore[attr-defined,no-untyped-call]
            return super().forward(x, labels)

    with bench.warned("jit_mode_eval", "set torch_compile=True"):
        made = bench.trainer({"model": Counting()}, jit_mode_eval=True)
    made.evaluate()
    assert calls == [False, True]


def _accuracies(*values: float) -> Any:
    left = list(values)
    return lambda _: {"accuracy": left.pop(0)}


@shows("load_best_model_at_end", "metric_for_best_model", "greater_is_better")
def _(bench: Bench) -> None:
    def best(accuracies: tuple[float, ...], **given: Any) -> int:
        parts = {"compute_metrics": _accuracies(*accuracies)}
        made = bench.trained(parts, eval_strategy="epoch", save_strategy="epoch", num_train_epochs=3, **given)
        loaded = {name: tensor.clone() for name, tensor in made.model.state_dict().items()}
        assert made.state.best_model_checkpoint.endswith(f"checkpoint-{made.state.best_global_step}")
        saved = load_file(Path(made.state.best_model_checkpoint) / "model.safetensors")
        assert all(bool((loaded[name] == tensor).all()) for name, tensor in saved.items())
        return int(made.state.best_global_step)

    given = {"load_best_model_at_end": True, "metric_for_best_model": "accuracy"}
    assert best((0.1, 0.9, 0.5), **given) == 8
    assert best((0.1, 0.9, 0.5), greater_is_better=False, **given) == 4
    assert best((0.1, 0.9, 0.5), load_best_model_at_end=True) == 12, "by the loss, which falls"
