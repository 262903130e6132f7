"""Optimizers, schedules, losses and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.end_to_end.arguments.bench import Bench, shows
from tests.end_to_end.small.models import rows
from tests.end_to_end.small.trainers import same_weights, weights


@shows("learning_rate")
def _(bench: Bench) -> None:
    assert bench.learning_rates(learning_rate=0.25, lr_scheduler_type="constant") == [0.25] * 4
    assert bench.trained(learning_rate=0.0).optimizer.param_groups[0]["lr"] == 0.0


@shows("lr_scheduler_type")
def _(bench: Bench) -> None:
    linear = bench.learning_rates(learning_rate=0.4, lr_scheduler_type="linear")
    cosine = bench.learning_rates(learning_rate=0.4, lr_scheduler_type="cosine")
    assert linear == pytest.approx([0.4, 0.3, 0.2, 0.1])
    assert cosine[2] == pytest.approx(0.2)
    assert cosine[1] > linear[1]


@shows("lr_scheduler_kwargs")
def _(bench: Bench) -> None:
    twice = bench.learning_rates(
        learning_rate=0.4, lr_scheduler_type="cosine_with_restarts", lr_scheduler_kwargs={"num_cycles": 2}
    )
    assert twice == pytest.approx([0.4, 0.2, 0.4, 0.2])


@shows("warmup_steps")
def _(bench: Bench) -> None:
    risen = bench.learning_rates(learning_rate=0.4, warmup_steps=2, lr_scheduler_type="constant_with_warmup")
    assert risen == pytest.approx([0.0, 0.2, 0.4, 0.4])
    assert bench.learning_rates(
        learning_rate=0.4, warmup_steps=0.5, lr_scheduler_type="constant_with_warmup"
    ) == pytest.approx(risen)


@shows("optim")
def _(bench: Bench) -> None:
    assert type(bench.optimizer(optim="sgd")) is torch.optim.SGD
    assert type(bench.optimizer(optim="rmsprop")) is torch.optim.RMSprop


@shows("optim_args")
def _(bench: Bench) -> None:
    assert bench.optimizer(optim="sgd", optim_args="momentum=0.5").defaults["momentum"] == 0.5


@shows("optim_target_modules")
def _(bench: Bench) -> None:
    assert "GaLore and APOLLO" in bench.remark(optim_target_modules=["layers"])


@shows("optim_layerwise")
def _(bench: Bench) -> None:
    given: dict[str, Any] = {"optim": "adamw_torch", "num_train_epochs": 2}
    assert same_weights(bench.weights(optim_layerwise=True, **given), bench.weights(**given))
    assert "precision fp16" in bench.refusal(optim_layerwise=True, fp16=True)


@shows("weight_decay")
def _(bench: Bench) -> None:
    decays = {group["weight_decay"] for group in bench.optimizer(weight_decay=0.5).param_groups}
    assert decays == {0.0, 0.5}


@shows("adam_beta1", "adam_beta2", "adam_epsilon")
def _(bench: Bench) -> None:
    defaults = bench.optimizer(adam_beta1=0.5, adam_beta2=0.75, adam_epsilon=1e-3).defaults
    assert (defaults["betas"], defaults["eps"]) == ((0.5, 0.75), 1e-3)


@shows("max_grad_norm")
def _(bench: Bench) -> None:
    given: dict[str, Any] = {"optim": "sgd", "learning_rate": 1.0, "max_steps": 1, "lr_scheduler_type": "constant"}
    began, cut = weights(bench.trainer()), bench.weights(max_grad_norm=0.25, **given)
    moved = torch.cat([(cut[name] - tensor).flatten() for name, tensor in began.items()])
    assert float(moved.norm()) == pytest.approx(0.25, rel=1e-4)
    assert not same_weights(cut, bench.weights(max_grad_norm=0, **given))


class Classifier(nn.Module):
    """(batch, 4) -> (batch, 3)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> object:
        logits = self.layer(x)
        return {"logits": logits} if labels is None else {"loss": cross_entropy(logits, labels), "logits": logits}


@shows("label_smoothing_factor")
def _(bench: Bench) -> None:
    data = [{"x": row["x"], "labels": torch.tensor(index % 3)} for index, row in enumerate(rows(4))]
    model = Classifier()
    x, labels = torch.stack([row["x"] for row in data]), torch.stack([row["labels"] for row in data])
    expected = cross_entropy(model(x)["logits"], labels, label_smoothing=0.3).item()
    parts = {"model": model, "train_dataset": data}
    ((_, loss),) = bench.logged("loss", parts, label_smoothing_factor=0.3)
    assert loss == pytest.approx(expected, abs=1e-3)


class Words(nn.Module):
    """(batch, length) tokens -> a number each; records the output of the embeddings."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embeddings = nn.Embedding(11, 4)
        self.head = nn.Linear(4, 1)
        self.seen: list[tuple[bool, Tensor, Tensor]] = []

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None) -> object:
        hidden = self.embeddings(input_ids)
        self.seen.append((self.training, input_ids, (hidden - self.embeddings.weight[input_ids]).detach().abs().max()))
        logits = self.head(hidden.mean(dim=1))
        return {"loss": logits.square().mean(), "logits": logits}


def sentences(count: int = 8) -> list[dict[str, Tensor]]:
    """Return sequences of 4 to 7 tokens, whose last two are padding."""
    tokens = torch.arange(count * 6).reshape(count, 6) % 10 + 1
    mask = torch.tensor([1, 1, 1, 1, 0, 0])
    return [{"input_ids": one, "attention_mask": mask} for one in tokens]


@shows("neftune_noise_alpha")
def _(bench: Bench) -> None:
    model = Words()
    made = bench.trained({"model": model, "train_dataset": sentences()}, neftune_noise_alpha=3.0)
    made.evaluate(sentences())
    bound = 3.0 / (6 * 4) ** 0.5
    assert all(0 < noise <= bound for training, _, noise in model.seen if training)
    assert all(noise == 0 for training, _, noise in model.seen if not training)
