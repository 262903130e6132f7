"""A complete engine in one file: it trains copies of the weights and writes them to the model after each step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hexloop.adapters.trainable.torch.model_state import ModelState
from hexloop.adapters.trainable.torch.optimizer_state import OptimizerState
from hexloop.ports.engine import Engine, EngineRow
from hexloop.ports.learner import Trainable
from hexloop.ports.parallelism import ParallelismCapabilities
from hexloop.ports.state import Part


class Copied(nn.Module):
    """A model whose parameters, under the same names, are copies."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner = model
        self.copies = {name: nn.Parameter(weight.detach().clone()) for name, weight in model.named_parameters()}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self.copies.items()

    def collect_gradients(self) -> None:
        for name, weight in self.inner.named_parameters():
            self.copies[name].grad, weight.grad = weight.grad, None

    @torch.no_grad()
    def write_back(self, to_copies: bool = False) -> None:
        """Write the copies to the user's model, or the other way round."""
        for name, weight in self.inner.named_parameters():
            self.copies[name].copy_(weight) if to_copies else weight.copy_(self.copies[name])


class CopiedState(ModelState):
    """The weights of the user's model; loading them updates the copies."""

    def __init__(self, model: Copied, kept: Callable[[str], bool] | None = None) -> None:
        super().__init__(model.inner, kept=kept)
        self._copied = model

    def load(self, parts: Iterable[Part]) -> None:
        super().load(parts)
        self._copied.write_back(to_copies=True)


class ToyLearner:
    """Learner adapter: the engine owns backward and update."""

    def __init__(self, engine: Toy, model: Copied, trainable: Trainable[Any, Tensor], *hooks: Callable[[], None]):
        self.engine, self.model, self.trainable, (self.before, self.after) = engine, model, trainable, hooks
        self.count_items = trainable.count_items

    def micro_step(self, batch: Any, window_items: object, last_of_window: bool) -> Tensor:
        self.engine.synchronise(last_of_window)
        loss = self.trainable.loss(batch, window_items)
        self.engine.backward(loss)
        return self.trainable.detached(loss)

    def update(self, max_norm: float) -> tuple[Any, bool]:
        norm = self.trainable.clip(max_norm)
        self.before()
        self.trainable.optimizer.step()
        self.model.write_back()
        self.after()
        self.trainable.clear_gradients()
        return norm, True


class Toy:
    """Parallelism adapter, with `OwnUpdate` and `OwnState`."""

    capabilities = ParallelismCapabilities("toy", compiles=False, owns_update=True, owns_state=True)
    model: Copied
    last_of_window = True

    def prepare(self, model: Any, make_optimizer: Callable[[Any], Any]) -> tuple[Any, Any]:
        self.model = Copied(model)
        return self.model, make_optimizer(self.model)

    def synchronise(self, last_of_window: bool) -> None:
        self.last_of_window = last_of_window

    def backward(self, loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]
        if self.last_of_window:
            self.model.collect_gradients()

    def unwrap(self, model: Any) -> Any:
        return model.inner if isinstance(model, Copied) else model

    def learner(self, model: Any, trainable: Any, before: Callable[[], None], after: Callable[[], None]) -> ToyLearner:
        return ToyLearner(self, model, trainable, before, after)

    def model_state(self, model: Any, writers: int, kept: Callable[[str], bool] | None = None) -> CopiedState:
        return CopiedState(model, kept)

    def optimizer_state(self, model: Any, optimizer: Any) -> OptimizerState:
        return OptimizerState(model, optimizer)

    def kept_state(self, model: Any, optimizer: Any) -> dict[str, Any]:
        return {"model": self.model_state(model, 1), "optimizer": self.optimizer_state(model, optimizer)}

    def group_sizes(self, model: Any, optimizer: Any) -> list[int]:
        return [len(group["params"]) for group in optimizer.param_groups]

    def spreads_optimizer(self, model: Any) -> bool:
        return False


ENGINE: Engine[Any, Tensor] = Engine("toy", lambda args, device: Toy())
ROW: EngineRow[Any] = EngineRow("toy", lambda args: args.run_name == "toy", "tests.contracts.toy_engine:ENGINE")
