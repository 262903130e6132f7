"""Engines that each violate their contract in one way; `broken` names the test that detects it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar

from attrs import evolve
from torch import Tensor, nn

from hexloop.adapters.engines.single.engine import SingleProcess
from hexloop.adapters.trainable.torch.layouts import WholeLayout
from hexloop.ports.engine import Engine
from hexloop.ports.mesh import Sharded, Spread
from hexloop.ports.parallelism import ParallelismCapabilities
from tests.contracts.test_engines import OnLeastSquares, OnLine
from tests.contracts.toy_engine import Copied, CopiedState, Toy, ToyLearner


class OptimizingACopy(SingleProcess):
    def prepare(self, model: Any, make_optimizer: Callable[[Any], Any]) -> tuple[Any, Any]:
        return model, make_optimizer(copy.deepcopy(model))


class TestOptimizingACopy(OnLeastSquares):
    broken = "test_the_optimizer_is_built_from_the_prepared_model"

    def make(self) -> SingleProcess:
        return OptimizingACopy()


class UnwrappingACopy(SingleProcess):
    def unwrap(self, model: Any) -> Any:
        return copy.deepcopy(model)


class TestUnwrappingACopy(OnLeastSquares):
    broken = "test_unwrap_returns_the_users_model"

    def make(self) -> SingleProcess:
        return UnwrappingACopy()


class TestUnwrappingACopyInItsContexts(TestUnwrappingACopy):
    broken = "test_models_can_be_created_in_its_contexts"


class KeepingTheFirst(SingleProcess):
    done = False

    def backward(self, loss: Any) -> None:
        if not self.done:
            loss.backward()
            self.done = True


class TestKeepingTheFirst(OnLeastSquares):
    broken = "test_gradients_accumulate_over_a_window"

    def make(self) -> SingleProcess:
        return KeepingTheFirst()


class TestRefusingItsOptions(OnLeastSquares):
    broken = "test_valid_options_have_no_problems"

    def engine(self) -> Engine[Any, Any]:
        return evolve(super().engine(), check=lambda args, facts: ["No model is good enough."])


class WithoutHooks(Toy):
    def learner(self, model: Any, trainable: Any, before: Callable[[], None], after: Callable[[], None]) -> ToyLearner:
        return ToyLearner(self, model, trainable, before, before)


class TestWithoutHooks(OnLine):
    broken = "test_a_step_calls_both_hooks_once"

    def make(self) -> Toy:
        return WithoutHooks()


class NeverWritingBack(Copied):
    def write_back(self, to_copies: bool = False) -> None:
        """No-op."""


class Stuck(Toy):
    def prepare(self, model: Any, make_optimizer: Callable[[Any], Any]) -> tuple[Any, Any]:
        self.model = NeverWritingBack(model)
        return self.model, make_optimizer(self.model)


class TestStuck(OnLine):
    broken = "test_steps_decrease_the_loss"

    def make(self) -> Toy:
        return Stuck()


class Forgetting(CopiedState):
    def load(self, parts: Any) -> None:
        super(CopiedState, self).load(parts)


class LoadingHalf(Toy):
    def model_state(self, model: Any, writers: int, kept: Any = None) -> CopiedState:
        return Forgetting(model, kept)


class TestLoadingHalf(OnLine):
    broken = "test_its_own_state_resumes"

    def make(self) -> Toy:
        return LoadingHalf()


class KeepingNoMoments(Toy):
    def kept_state(self, model: Any, optimizer: Any) -> dict[str, Any]:
        return dict.fromkeys(("model", "optimizer"), self.model_state(model, 1))


class TestKeepingNoMoments(OnLine):
    broken = "test_a_run_returns_to_what_was_kept"

    def make(self) -> Toy:
        return KeepingNoMoments()


class Incomplete(WholeLayout):
    def spread(self, tensor: Tensor, parameter: Tensor) -> Spread:
        return Spread(tuple(tensor.shape), self.mesh, (Sharded("replicate", 0, (1, tensor.numel())),), flat=True)


class LosingAnElement(SingleProcess):
    capabilities = ParallelismCapabilities("incomplete", processes=True, sharded=True)
    layout = Incomplete()
    prepared: ClassVar[list[nn.Module]] = []

    def prepare(self, model: Any, make_optimizer: Callable[[Any], Any]) -> tuple[Any, Any]:
        self.prepared.append(model)
        return model, make_optimizer(model)

    def spreads(self, model: Any) -> bool:
        return any(model is each for each in self.prepared)


class TestLosingAnElement(OnLine):
    broken = "test_sharded_tensors_are_complete"

    def make(self) -> SingleProcess:
        return LosingAnElement()
