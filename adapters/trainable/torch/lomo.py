"""LOMO and AdaLOMO of lomo-optim, as optimizers with parameter groups and a step.

The package's own classes update a model in hooks of its tensors, all parameters that have a gradient at each hook. They
can neither accumulate gradients nor average them over processes. Here their formula updates one parameter at a time,
with the learning rate and the weight decay of its group, whenever `step` is called; see `layerwise` for when it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import lomo_optim
import torch
from torch import Tensor, nn

from hexloop.domain.errors import ConfigurationError

Groups = Iterable[Any]
"""Parameters, or parameter groups."""


class _OneParameter:
    """Stands for a model with one parameter, or with none, in the classes of lomo-optim.

    They ask a model for its parameters when they are constructed, and for names and parameters at each update.
    """

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self.parameter: nn.Parameter | None = None

    def parameters(self) -> Groups:
        return self._groups

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        if self.parameter is not None:
            yield NAME, self.parameter


NAME = "parameter"
"""The name under which the classes of lomo-optim see each parameter."""


class _Stepping:
    """The step of both classes, over the groups of an optimizer."""

    updates_one_by_one = True  # although attributes of the optimizer change with each parameter

    param_groups: list[dict[str, Any]]
    state: Any
    model: Any
    grad_func: Callable[[int], int]
    lr: float
    weight_decay: float
    do_weight_decay: bool

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Update each parameter that has a gradient, and clear its gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self.lr, self.weight_decay = float(group["lr"]), group["weight_decay"]
            self.do_weight_decay = self.weight_decay > 0
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._take_state(parameter)
                    self.model.parameter = parameter
                    try:
                        self.grad_func(0)
                    finally:
                        self.model.parameter = None
        return loss

    def _take_state(self, parameter: nn.Parameter) -> None:
        """Let the formula use the state of a parameter."""

    def fused_backward(self, loss: Tensor, lr: float) -> None:
        """Run the backward pass of a loss, and update the weights with a learning rate."""
        for group in self.param_groups:
            group["lr"] = lr
        loss.backward()  # type: ignore[no-untyped-call]
        self.step()


class Lomo(_Stepping, lomo_optim.Lomo):  # type: ignore[misc]  # a class without types
    """Stochastic gradient descent as in Lv et al., "Full Parameter Fine-tuning for Large Language Models" (2023).

    It has no state. clip_grad_value: the largest absolute value of an element of a gradient.
    """

    def __init__(
        self, params: Groups, lr: float = 1e-3, clip_grad_value: float | None = None, weight_decay: float = 0.0
    ) -> None:
        super().__init__(_OneParameter(params), lr=lr, clip_grad_value=clip_grad_value, weight_decay=weight_decay)
        for group in self.param_groups:
            group.setdefault("weight_decay", weight_decay)


class AdaLomo(_Stepping, lomo_optim.AdaLomo):  # type: ignore[misc]  # a class without types
    """LOMO with a factored second moment, and steps relative to the size of the weights, as in Lv et al. (2023).

    The state of a matrix are the means of its squared gradients over rows and over columns, in float32; that of a
    vector is as long as it. Raises ConfigurationError for a parameter of other dimensions.
    """

    def __init__(
        self,
        params: Groups,
        lr: float = 1e-3,
        eps: tuple[float, float] = (1e-30, 1e-3),
        clip_threshold: float = 1.0,
        decay_rate: float = -0.8,
        clip_grad_value: float | None = None,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(
            _OneParameter(params),
            lr=lr,
            loss_scale=0,  # by which it would divide gradients
            eps=eps,
            clip_threshold=clip_threshold,
            decay_rate=decay_rate,
            clip_grad_value=clip_grad_value,
            weight_decay=weight_decay,
        )
        odd = [each for group in self.param_groups for each in group["params"] if each.ndim not in (1, 2)]
        if odd:
            raise ConfigurationError(
                f"optim='adalomo' cannot update a parameter of shape {tuple(odd[0].shape)}: it averages over the rows "
                "and columns of matrices, and updates vectors; freeze it, or choose adafactor."
            )

    def _take_state(self, parameter: nn.Parameter) -> None:
        state = self.state[parameter]
        if not state:
            lengths = {"exp_avg_sq": parameter.shape[0]}
            if parameter.ndim == 2:
                lengths = {"exp_avg_sq_row": parameter.shape[0], "exp_avg_sq_col": parameter.shape[1]}
            for name, length in lengths.items():
                state[name] = torch.zeros(length, dtype=torch.float32, device=parameter.device)
            state["step"] = 0
        state["step"] += 1
        self.step_num = state["step"]
        for name in ("exp_avg_sq", "exp_avg_sq_row", "exp_avg_sq_col"):
            setattr(self, name, {NAME: state.get(name)})
