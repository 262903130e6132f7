"""Muon for the matrices of a model's layers, with AdamW for everything else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import AdamW, Muon

from hexloop.adapters.trainable.torch.composite import PART, CompositeOptimizer
from hexloop.domain.parameter_rules import in_layers

MUON, ADAMW = "muon", "adamw"


class MuonWithAdamW(CompositeOptimizer):
    """torch's Muon for matrices, and torch's AdamW for the other parameters.

    params: parameters, or parameter groups. Those of a group whose "part" is "muon" or "adamw" are that optimizer's; of
    a group without one, Muon updates those with two dimensions.
    lr: the rate of AdamW, and of Muon without `muon_lr`. With `adjust_lr_fn="match_rms_adamw"` the updates of both have
    the same size at the same rate (Liu et al. 2025, "Muon is Scalable for LLM Training"); with "original" those of a
    matrix of A rows and B columns are multiplied by the square root of max(1, A / B), and a rate of 0.02 is usual.
    muon_weight_decay: the decay of Muon's groups; None for the `weight_decay` of each group.
    momentum, nesterov, ns_steps: of Muon, the last being the steps of its Newton-Schulz iteration. betas, eps, fused:
    of AdamW.
    """

    parts = (MUON, ADAMW)
    """The values of a group's "part"."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        muon_lr: float | None = None,
        weight_decay: float = 0.0,
        muon_weight_decay: float | None = None,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        adjust_lr_fn: str = "match_rms_adamw",
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        fused: bool | None = None,
    ) -> None:
        own = {MUON: list[dict[str, Any]](), ADAMW: list[dict[str, Any]]()}
        for group in _as_groups(params):
            for part, members in _divided(group).items():
                own[part].append({**group, PART: part, "params": members})
        if muon_weight_decay is not None:
            own[MUON] = [{**group, "weight_decay": muon_weight_decay} for group in own[MUON]]
        nothing: dict[str, Any] = {"params": []}
        adamw = AdamW(
            own[ADAMW] or [{**nothing, PART: ADAMW}],
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            fused=fused if own[ADAMW] else None,
        )
        muon = Muon(
            own[MUON] or [{**nothing, PART: MUON}],
            lr=lr if muon_lr is None else muon_lr,
            weight_decay=weight_decay if muon_weight_decay is None else muon_weight_decay,
            momentum=momentum,
            nesterov=nesterov,
            ns_steps=ns_steps,
            adjust_lr_fn=adjust_lr_fn,
        )
        super().__init__({ADAMW: adamw, MUON: muon})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the optimizer that it names as "part"; without one, divide it as the constructor does."""
        if self._adopts:
            super().add_param_group(param_group)
            return
        given = param_group["params"]
        group = {**param_group, "params": [given] if isinstance(given, Tensor) else list(given)}
        for part, members in _divided(group).items():
            self._add(part, {**group, PART: part, "params": members})

    @staticmethod
    def parts_of(model: nn.Module, named: Mapping[str, Tensor]) -> dict[str, str]:
        """Return which of the two optimizers updates each parameter of a model.

        named: the parameters by name, in the model's order. Muon updates the matrices within the model's layers, or in
        a model without numbered layers all matrices, except embeddings and the output layer.
        """
        embeddings = {id(each.weight) for each in model.modules() if isinstance(each, nn.Embedding | nn.EmbeddingBag)}
        layered = in_layers(list(named))
        matrices = [
            name
            for name, parameter in named.items()
            if parameter.ndim == 2 and id(parameter) not in embeddings and "embed" not in name.lower()
        ]
        hidden = [name for name in matrices if name in layered or not layered]
        if hidden and not _has_output_layer(model, named, matrices, hidden):
            hidden.pop()
        chosen = set(hidden)
        return {name: MUON if name in chosen else ADAMW for name in named}


def _has_output_layer(model: nn.Module, named: Mapping[str, Tensor], matrices: list[str], hidden: list[str]) -> bool:
    """Return whether the output layer is known, and is not among the hidden matrices; otherwise it is their last."""
    find = getattr(model, "get_output_embeddings", None)
    weight = getattr(find() if callable(find) else None, "weight", None)
    if weight is not None:
        return all(named[name] is not weight for name in hidden)
    order = {name: number for number, name in enumerate(named)}
    return any(name not in hidden and order[name] > order[hidden[-1]] for name in matrices)


def _as_groups(params: Iterable[Any]) -> list[dict[str, Any]]:
    given = list(params)
    if not given:
        raise ValueError("optimizer got an empty parameter list")
    groups = given if isinstance(given[0], dict) else [{"params": given}]
    return [{**group, "params": list(group["params"])} for group in groups]


def _divided(group: Mapping[str, Any]) -> dict[str, list[Tensor]]:
    """Return the parameters of a group by the optimizer that updates them."""
    members = group["params"]
    if PART in group:
        return {group[PART]: members}
    by_part = {
        ADAMW: [each for each in members if each.ndim != 2],
        MUON: [each for each in members if each.ndim == 2],
    }
    return {part: each for part, each in by_part.items() if each}
