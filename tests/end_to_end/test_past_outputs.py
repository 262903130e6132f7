"""With past_index a model's memory is passed from each batch to the next, as in earlier transformers releases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from hexloop.domain.errors import ConfigurationError
from tests.end_to_end.small.models import net, rows
from tests.end_to_end.small.trainers import small_trainer

pytestmark = pytest.mark.filterwarnings("ignore:past_index is an argument of earlier releases:FutureWarning")


class Remembering(nn.Module):
    """Returns a memory, which depends on its weights, as its third output, and records the memory that it receives."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()
        self.handed: list[tuple[bool, bool, bool | None]] = []

    def forward(self, x: Tensor, labels: Tensor, mems: tuple[Tensor] | None = None) -> dict[str, Any]:
        self.handed.append((self.training, mems is not None, mems[0].requires_grad if mems else None))
        logits = self.inner.layers(x)
        loss = (logits - labels).square().mean() + (0.0 if mems is None else mems[0].mean())
        return {"loss": loss, "logits": logits, "mems": (logits.sum(dim=0),)}


def remembering(folder: Path, model: nn.Module, **given: Any) -> Any:
    return small_trainer(folder, parts={"model": model, "eval_dataset": rows(8)}, **{"past_index": 2, **given})


def test_memory_is_passed_to_the_next_batch(tmp_path: Path) -> None:
    """The memory is detached; epochs and evaluations start without one, and training then continues with its own."""
    model = Remembering()
    remembering(tmp_path, model, num_train_epochs=2, eval_strategy="steps", eval_steps=2, max_steps=5).train()

    training = [(handed, graph) for trained, handed, graph in model.handed if trained]
    evaluation = [(handed, graph) for trained, handed, graph in model.handed if not trained]
    assert training == [(False, None), (True, False), (True, False), (True, False), (False, None)]
    assert evaluation == [(False, None), (True, False)] * 3


def test_the_model_is_unchanged_afterwards(tmp_path: Path) -> None:
    """After a run, and after an evaluation, the model is unchanged."""
    model = Remembering()
    trainer = remembering(tmp_path, model)
    trainer.train()
    trainer.evaluate()

    assert not model._forward_hooks
    assert not model._forward_pre_hooks


@pytest.mark.parametrize(
    ("model", "index", "said"),
    [
        (net(), 1, "takes no memory; add a parameter mems to its forward"),
        (Remembering(), 3, "returns 3 outputs; choose"),
    ],
)
def test_an_index_out_of_range_is_refused(tmp_path: Path, model: nn.Module, index: int, said: str) -> None:
    """The message names the argument, the model and how to fix it."""
    with pytest.raises(ConfigurationError, match=f"past_index={index}, but {type(model).__name__} {said}"):
        remembering(tmp_path, model, past_index=index).train()
