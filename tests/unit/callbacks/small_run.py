"""A real run of the domain's loop on one number: gradient descent on w**2 without torch."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hexloop.domain.evaluation import evaluate
from hexloop.domain.events import AnyEvent, Saved
from hexloop.domain.run import Evaluation, NoCheckpoints, Run
from hexloop.domain.state import RunState
from hexloop.domain.triggers import Triggers, make_plan
from hexloop.ports.state import Part


class Stateless:
    """Has no state to save in a checkpoint."""

    def export(self) -> Iterator[Part]:
        return iter(())

    def load(self, parts: Iterable[Part]) -> None:
        assert not list(parts)


class Descent:
    """Moves w against the gradients of batch * w**2."""

    def __init__(self) -> None:
        self.w, self._gradient, self._rate = 1.0, 0.0, 0.0

    def count_items(self, window: Sequence[float]) -> int:
        return len(window)

    def micro_step(self, batch: float, window_items: object, last_of_window: bool) -> float:
        assert isinstance(window_items, int)
        self._gradient += 2 * batch * self.w / window_items
        return batch * self.w**2 / window_items

    def update(self, max_norm: float) -> tuple[float, bool]:
        gradient, self._gradient = self._gradient, 0.0
        self.w -= self._rate * gradient
        return abs(gradient), True

    def set_learning_rates(self, rates: Sequence[float]) -> None:
        [self._rate] = rates


class Numbers(Stateless):
    """Yields the batches 1, 2, ... of one sample each."""

    def __init__(self, batches: int) -> None:
        self._batches = batches

    def batches_per_epoch(self) -> int:
        return self._batches

    samples_per_epoch = batches_per_epoch

    def epoch(self, epoch: int, position: int) -> Generator[float, None, None]:
        for number in range(position, self._batches):
            yield float(number + 1)

    def rows(self, batch: float) -> int:
        return 1


class Sum(Stateless):
    """Sums losses."""

    def __init__(self) -> None:
        self._total = 0.0

    def add(self, loss: float) -> None:
        self._total += loss

    def drain(self) -> float:
        total, self._total = self._total, 0.0
        return total

    def drain_components(self) -> dict[str, float]:
        return {}


class Constant(Stateless):
    """A constant learning rate."""

    def __init__(self, learner: Descent) -> None:
        self._learner = learner

    def start(self, updates: int) -> None:
        self._learner.set_learning_rates(self.rates())

    def advance(self, updates: int) -> None:
        pass

    def observe(self, metrics: Mapping[str, float]) -> None:
        pass

    def rates(self) -> tuple[float, ...]:
        return (0.01,)


class Ticks:
    """A clock that advances by one second at each reading."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        self._now += 1
        return self._now

    wall = monotonic

    def sleep(self, seconds: float) -> None:
        self._now += seconds


class Measure:
    """Evaluates w on the given number of batches."""

    def __init__(self, learner: Descent, batches: int) -> None:
        self._learner, self._batches = learner, batches

    def batches(self) -> Generator[float, None, None]:
        yield from (float(number) for number in range(self._batches))

    def begin(self) -> None:
        pass

    def step(self, batch: float) -> int:
        return 1

    def metrics(self) -> dict[str, float]:
        return {"eval_loss": self._learner.w**2}

    def end(self) -> None:
        pass


class NamedCheckpoints(NoCheckpoints):
    """Returns the path of each checkpoint and saves nothing."""

    def save(self, state: RunState, required: bool = True) -> Iterator[AnyEvent]:
        yield Saved(state.step, f"checkpoint-{state.step}")


def small_run(
    triggers: Triggers,
    *,
    batches: int = 3,
    epochs: float = 1,
    accumulation: int = 1,
    report: Callable[[dict[str, float]], None] = lambda values: None,
    **parts: Any,
) -> Run[float, float]:
    """Return a run with `batches` batches an epoch that evaluates on two batches when due."""
    learner, clock = Descent(), Ticks()

    def evaluation() -> Evaluation:
        measure = Measure(learner, batches=2)
        return evaluate(
            measure,
            prefix="eval",
            step=run.state.step,
            clock=clock,
            report=report,
            apply_requests=lambda: iter(()),
            interrupted=lambda: False,
        )

    run: Run[float, float] = Run(
        learner=learner,
        batches=Numbers(batches),
        losses=Sum(),
        scheduler=Constant(learner),
        clock=clock,
        plan=make_plan(batches, accumulation, epochs, -1),
        triggers=triggers,
        report=report,
        evaluate=evaluation,
        checkpoints=NamedCheckpoints(),
        **parts,
    )
    return run
