"""Repeats steps of a run, and records everything that they compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from attrs import define, field
from torch import Tensor

from hexloop.adapters.batches.torch.random_streams import random_fingerprint
from hexloop.adapters.batches.torch.structure import batch_fingerprint, slice_rows
from hexloop.adapters.trainable.torch import step_records
from hexloop.adapters.trainable.torch.names import unwrapped
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.events import StepBegan, StepEnded, TrainBegan
from hexloop.domain.run import Run
from hexloop.domain.why import MicroBatch, RecordedStep, Recording

MOST_STEPS = 10_000
"""Steps that are repeated at most."""

RECORDED: Mapping[str, Any] = {
    "report_to": "none", "push_to_hub": False, "load_best_model_at_end": False, "journal": "off", "profile": None,
    "save_strategy": "no", "eval_strategy": "no", "logging_strategy": "no", "eval_on_start": False,
    "board_control": False, "disable_tqdm": True, "stop_file": None, "stop_after": None, "torch_compile": False,
    "logging_first_step": False, "capture_step": False, "auto_find_batch_size": False,
}  # fmt: skip
"""The arguments of a repetition: it writes nothing, and nothing interrupts its steps."""


@define(eq=False)
class RecordingLearner:
    """A learner that records what another one computes."""

    learner: Any
    run: Run[Any, Any]
    model: Any
    optimizer: Any
    indices: Any
    modules: step_records.ModuleRecorder = field(factory=step_records.ModuleRecorder)
    batches: list[MicroBatch] = field(factory=list)
    gradients: dict[str, str] = field(factory=dict)
    groups: list[dict[str, str]] = field(factory=list)
    _position: int = 0

    def count_items(self, window: Sequence[Any]) -> object:
        """Start a step."""
        self._position = self.run.state.position
        return self.learner.count_items(window)

    def micro_step(self, batch: Any, items: object, last: bool) -> Any:
        """Record a micro-batch and its loss."""
        count = self.run.batches.rows(batch)
        rows = rows_of(batch, count)
        with self.modules.attached(self.model):
            loss = self.learner.micro_step(batch, items, last)
        indices = self.indices(self.run.state.epoch, self._position, count)
        self._position += count
        self.batches.append(MicroBatch(rows, indices, self.modules.taken(), step_records.number_of(loss)))
        return loss

    def update(self, max_norm: float) -> Any:
        """Record the gradients before the update, and the options with which it is made."""
        self.gradients = step_records.gradients_of(self.model)
        self.groups = step_records.groups_of(self.optimizer)
        return self.learner.update(max_norm)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.learner, name)


def rows_of(batch: Any, rows: int) -> list[dict[str, str]]:
    """Return for each row of a batch the digest of each of its fields."""
    found = []
    for number in range(rows):
        row = slice_rows(batch, range(number, number + 1), rows)
        fields = dict(row) if isinstance(row, Mapping) else {"sample": row}
        found.append({str(name): str(batch_fingerprint(_on_host(value))) for name, value in fields.items()})
    return found


def _on_host(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, Tensor) else value


def record_steps(trainer: Any, resume_from: str | None, until: int) -> Recording:
    """Train to a step and record all steps on the way.

    trainer: a Trainer that was made for this, with the arguments `RECORDED` and an output folder of its own.
    resume_from: the checkpoint to start at; None for the start of the run. Raises ConfigurationError for more than
    `MOST_STEPS` steps.
    """
    device = trainer.adapters.device.name
    steps: list[RecordedStep] = []
    start: tuple[dict[str, str], dict[str, str]] = {}, {}
    recorder: RecordingLearner | None = None
    model: Any = None
    random = ""
    with closing(trainer.stream(resume_from)) as events:
        for event in events:
            if type(event) is TrainBegan:
                run = trainer._live("replay").run
                if until - run.state.step > MOST_STEPS:
                    raise ConfigurationError(
                        f"There are {until - run.state.step:,} steps to repeat; at most {MOST_STEPS:,} are. Save more "
                        "often, or record the losses of each step with journal='steps'."
                    )
                model = unwrapped(trainer.adapters.parallelism.unwrap(trainer.model_wrapped))
                recorder = RecordingLearner(run.learner, run, model, trainer.optimizer, _indices_of(trainer))
                run.learner = recorder
                start = step_records.weights_of(model), step_records.optimizer_of(model, trainer.optimizer)
                if run.state.step >= until:
                    break
            elif type(event) is StepBegan:
                random = random_fingerprint(device)
            elif type(event) is StepEnded and recorder is not None:
                steps.append(
                    RecordedStep(
                        event.step,
                        random,
                        recorder.batches,
                        recorder.gradients,
                        repr(float(recorder.run.max_norm)),
                        step_records.number_of(event.gradient_norm),
                        recorder.groups,
                        step_records.weights_of(model),
                        step_records.optimizer_of(model, trainer.optimizer),
                    )
                )
                recorder.batches = []
                if event.step >= until:
                    break
    return Recording(trainer.adapters.mesh.size, *start, steps)


def _indices_of(trainer: Any) -> Any:
    """Return what finds the indices of the samples at a position of an epoch; it returns None for unknown ones."""
    order = getattr(trainer.callback_handler.train_dataloader, "order", None)
    indices_at = getattr(order, "indices_at", None)

    def indices(epoch: int, position: int, count: int) -> Sequence[int] | None:
        return None if indices_at is None else [int(each) for each in indices_at(epoch, position, count)]

    return indices
