"""Short runs of the small model in which an argument's effect is checked."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import pytest
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from hexloop import Trainer, TrainingArguments
from hexloop.domain.errors import ConfigurationError
from tests.end_to_end.small.models import net, rows
from tests.end_to_end.small.trainers import DEFAULTS, small_trainer, weights

EARLIER = "is an argument of earlier releases"


@attrs.define
class Bench:
    """Runs Trainers on 16 samples in batches of 4, on the CPU, without output.

    folder: contains a folder for each run.
    patch: undone after the check.
    log: records of Python's logging.
    """

    folder: Path
    patch: pytest.MonkeyPatch
    log: pytest.LogCaptureFixture
    _count: int = 0

    def new_folder(self) -> Path:
        """Return an empty folder."""
        self._count += 1
        return self.folder / str(self._count)

    def trainer(self, parts: dict[str, Any] | None = None, **given: Any) -> Any:
        """Return a Trainer with these arguments; `parts` are further arguments of its constructor."""
        kind = (parts or {}).pop("kind", Trainer)
        others = {"eval_dataset": rows(8), **(parts or {})}
        return small_trainer(Path(given.pop("output_dir", self.new_folder())), kind, others, **given)

    def trained(self, parts: dict[str, Any] | None = None, **given: Any) -> Any:
        """Return a Trainer after its run."""
        made = self.trainer(parts, **given)
        made.train()
        return made

    def logged(self, name: str, parts: dict[str, Any] | None = None, **given: Any) -> list[tuple[int, Any]]:
        """Return what a run logs under a name, with steps."""
        history = self.trained(parts, **given).state.log_history
        return [(entry["step"], entry[name]) for entry in history if name in entry]

    def steps_of(self, name: str, **given: Any) -> list[int]:
        """Return the steps at which a run logs something under a name."""
        return [step for step, _ in self.logged(name, **given)]

    def learning_rates(self, **given: Any) -> list[float]:
        """Return the learning rate of each step of a run."""
        return [rate for _, rate in self.logged("learning_rate", **given)]

    def optimizer(self, **given: Any) -> Any:
        """Return the optimizer that the arguments create."""
        return self.trainer(**given).create_optimizer()

    def weights(self, parts: dict[str, Any] | None = None, **given: Any) -> dict[str, Tensor]:
        """Return the weights after a run."""
        return weights(self.trained(parts, **given))

    def remark(self, **given: Any) -> str:
        """Return the only log message about an argument without effect; the run is the same as without it."""
        with self.log.at_level(logging.INFO, "hexloop"):
            self.log.clear()
            made = self.trainer(**given)
        (said,) = [record.getMessage() for record in self.log.records if "no effect here" in record.getMessage()]
        made.train()
        plain = self.trained()
        assert all(bool((weights(made)[name] == tensor).all()) for name, tensor in weights(plain).items())
        return said

    def refusal(self, parts: dict[str, Any] | None = None, **given: Any) -> str:
        """Return the only problem with which a Trainer, or its run, is refused."""
        with pytest.raises(ConfigurationError) as caught:
            self.trained(parts, **given)
        (problem,) = caught.value.problems
        return problem

    def arguments(self, **given: Any) -> TrainingArguments:
        """Return the arguments of a run."""
        return TrainingArguments(str(self.new_folder()), **{**DEFAULTS, **given})

    @contextmanager
    def warned(self, name: str, instead: str) -> Iterator[None]:
        """Expect exactly one warning about an old name, which names the new one."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        (told,) = [each for each in caught if EARLIER in str(each.message)]
        assert told.category is FutureWarning
        assert str(told.message).startswith(f"{name} ")
        assert instead in str(told.message)


Effect: TypeAlias = Callable[[Bench], None]
"""Asserts that an argument has its effect."""

EFFECTS: dict[str, Effect] = {}
"""Checks by argument name."""


def shows(*names: str) -> Callable[[Effect], Effect]:
    """Register a check under the names of all arguments whose effect it shows."""

    def enter(observe: Effect) -> Effect:
        assert not EFFECTS.keys() & set(names)
        EFFECTS.update(dict.fromkeys(names, observe))
        return observe

    return enter


class Recording(nn.Module):
    """(batch, 4) -> (batch, 1); records each batch's size, keywords, device and dtype."""

    def __init__(self, given: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.inner = net()
        self.sizes: list[tuple[bool, int]] = []
        self.types: list[Any] = []

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        self.sizes.append((self.training, len(x)))
        logits = self.inner.layers(x)
        self.types.append(logits.dtype)
        return {"logits": logits} if labels is None else {"loss": mse_loss(logits.float(), labels), "logits": logits}
