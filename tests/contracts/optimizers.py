"""Small working optimizers whose state is laid out differently from that of torch's optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

BLOCK = 4


class EightBitMomentum(Optimizer):
    """Momentum in 8 bits, laid out as in bitsandbytes: codes of a shared map and the maximum of each block."""

    def __init__(self, parameters: Iterable[Tensor], lr: float = 0.1, momentum: float = 0.9) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})
        self.map = torch.linspace(-1, 1, 256)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                momentum = self._decoded(state, parameter) if state else torch.zeros_like(parameter)
                momentum = momentum * group["momentum"] + parameter.grad
                parameter.sub_(momentum, alpha=group["lr"])
                self._encode(momentum, state)

    def _encode(self, value: Tensor, state: dict[str, Any]) -> None:
        blocks = nn.functional.pad(value.flatten(), (0, -value.numel() % BLOCK)).view(-1, BLOCK)
        absmax = blocks.abs().amax(dim=1).clamp_min(1e-12)
        scaled = (blocks / absmax[:, None]).flatten()
        codes = (scaled[:, None] - self.map).abs().argmin(dim=1).to(torch.uint8)
        state.update(state1=codes[: value.numel()].view(value.shape), qmap1=self.map, absmax1=absmax)

    def _decoded(self, state: dict[str, Any], like: Tensor) -> Tensor:
        scales = state["absmax1"].repeat_interleave(BLOCK)[: like.numel()]
        decoded: Tensor = state["qmap1"][state["state1"].flatten().long()] * scales
        return decoded.view(like.shape).to(like.dtype)


class Projector:
    """Projects a gradient on its leading directions, which are recomputed at an interval of steps."""

    def __init__(self, rank: int, every: int = 2) -> None:
        self.rank, self.every, self.seen = rank, every, 0
        self.directions: list[Tensor] = []

    def project(self, gradient: Tensor) -> Tensor:
        if self.seen % self.every == 0:
            self.directions = [torch.linalg.svd(gradient, full_matrices=False)[0][:, : self.rank].contiguous()]
        self.seen += 1
        return self.directions[0].T @ gradient

    def back(self, low: Tensor) -> Tensor:
        return self.directions[0] @ low


class LowRank(Optimizer):
    """Momentum in the subspace of each matrix's projector, as in GaLore."""

    def __init__(self, parameters: Iterable[Tensor], lr: float = 0.1, rank: int = 1) -> None:
        super().__init__(parameters, {"lr": lr, "rank": rank})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None or parameter.dim() != 2:
                    continue
                state = self.state[parameter]
                projector = state.setdefault("projector", Projector(group["rank"]))
                low = projector.project(parameter.grad)
                state["momentum"] = low + 0.9 * state.get("momentum", torch.zeros_like(low))
                parameter.sub_(projector.back(state["momentum"]), alpha=group["lr"])


class StatefulProjector(nn.Module):
    """A projector with its own `state_dict` and `load_state_dict`."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(()))


class WithModule(LowRank):
    """Keeps an object with a state dict, and a value for the whole optimizer."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        super().step()
        whole: Any = self.state
        whole["all"] = {"steps": whole.get("all", {"steps": 0})["steps"] + 1, "norms": [torch.ones(2), None]}
        for state in [self.state[parameter] for group in self.param_groups for parameter in group["params"]]:
            state.setdefault("memory", StatefulProjector()).scale.mul_(1.5)


class ManyKinds(Optimizer):
    """State and options of many kinds: nested, empty, 0-dimensional, of dtypes other than the parameters'."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        defaults = {
            "lr": torch.tensor(0.1), "betas": (0.9, (0.99, None)), "type": torch.bfloat16, "limits": {3: 0.5, "x": [1]},
            "floor": float("-inf"), "name": "odd", "on": True,
        }  # fmt: skip
        super().__init__(parameters, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                before = state.get("nested", {"sum": (torch.zeros_like(parameter, dtype=torch.float64),)})["sum"][0]
                total = before + parameter.grad.double()
                state["nested"] = {"sum": (total,), "none": None, "list": [1, 2.5, {"deep": total.to(torch.bfloat16)}]}
                state["shifted"] = torch.stack([total, total]).transpose(0, -1)[..., :1]
                state["bits"], state["none_at_all"] = total > 0, torch.empty(0, 3, dtype=torch.int16)
                state["waves"] = torch.complex(total.float(), -total.float())
                state["small"] = total.float().to(torch.float8_e4m3fn)
                state["count"] = torch.tensor(int(state.get("count", 0)) + 1, dtype=torch.int64)
                parameter.sub_((float(group["lr"]) * total).to(parameter.dtype))


class KeepingInGroups(Optimizer):
    """Keeps all of its state in its parameter groups, as GrokAdamW, Prodigy and schedule-free optimizers do.

    The state holds moments of each parameter, keyed by the parameter; a count, a growing step size and a norm that is a
    tensor; and functions, which its state dict leaves out.
    """

    def __init__(
        self, parameters: Iterable[Any], lr: float = 0.1, signals: list[Callable[[], float]] | None = None
    ) -> None:
        super().__init__(
            parameters, {"lr": lr, "d": 1e-3, "k": 0, "train_mode": False, "signals": signals, "eps": 1e-8}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            signal = sum(each() for each in group["signals"] or ())
            group["k"] += 1
            group["train_mode"] = True
            group["d"] *= 1.5
            moments = group.setdefault("moments", {})
            for parameter in (each for each in group["params"] if each.grad is not None):
                kept = moments.setdefault(parameter, {"seen": 0, "mean": torch.zeros_like(parameter, device="cpu")})
                kept["seen"] += 1
                kept["mean"] = (0.9 * kept["mean"].to(parameter.device) + parameter.grad).cpu()
                scale = group["d"] * (1.0 + signal) / (group["k"] + group["eps"])
                parameter.sub_(kept["mean"].to(parameter.device), alpha=group["lr"] * scale)
            group["norm"] = sum(kept["mean"].norm() for kept in moments.values())

    def state_dict(self) -> dict[str, Any]:
        """Return the state dict without the functions."""
        document = super().state_dict()
        for group in document["param_groups"]:
            group["signals"] = None
        return document


class KeepingAnObject(KeepingInGroups):
    """Keeps an object in its groups that a checkpoint cannot hold."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        super().step()
        for group in self.param_groups:
            group.setdefault("generator", torch.Generator())
