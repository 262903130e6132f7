"""What a Trainer's run notes in its journal."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import define, field

from hexloop.adapters.batches.torch.fingerprints import batch_fingerprint, random_fingerprint
from hexloop.adapters.batches.torch.structure import Transfer
from hexloop.app.wiring.parts import TrainerParts
from hexloop.domain.checkpoints.reading import read_manifest
from hexloop.domain.events import AnyEvent, EpochBegan, Logged, SaveFailed, StepEnded, TrainBegan, TrainEnded
from hexloop.domain.run import Run
from hexloop.ports.collectives import Collectives, Reduction
from hexloop.ports.journal import Fact, Journal
from hexloop.ports.storage import Storage

ASIDE = frozenset({"output_dir", "run_name", "resume_from_checkpoint", "journal"})
"""Arguments that say nothing about how a run goes."""


@define
class RunJournal:
    """Follows a run, and notes what `hexloop.domain.journal` lists. Losses are read with the next log, not before.

    device: whose random streams are fingerprinted. settings: how the run was set up.
    each_step: whether steps are noted as well as logs and saves. totals: how all processes add up as many numbers.
    Whatever fails here is reported once, and the run goes on without its journal.
    """

    journal: Journal
    device: str
    settings: Mapping[str, Fact]
    each_step: bool
    totals: Callable[[Sequence[float]], Sequence[float]]
    _batches: deque[str | None] = field(factory=deque, init=False)
    _losses: list[list[Any]] = field(factory=list, init=False)
    _run: Run[Any, Any] | None = field(default=None, init=False)
    _failed: bool = field(default=False, init=False)

    def fingerprinted(self, transfer: Transfer) -> Transfer:
        """`transfer`, which takes the fingerprint of each batch before it is moved, where steps are noted."""
        if not self.each_step:
            return transfer
        fingerprint = self._safely(lambda batch: self._batches.append(batch_fingerprint(batch)))

        def fingerprint_and_transfer(batch: Any) -> Any:
            fingerprint(batch)
            return transfer(batch)

        return fingerprint_and_transfer

    def follow(self, run: Run[Any, Any]) -> dict[type[AnyEvent], Callable[[Any], None]]:
        """Begin with a run; gives what is to be told of which event."""
        self._run = run
        heard: dict[type[AnyEvent], Callable[[Any], None]] = {
            TrainBegan: self._safely(self._began),
            Logged: self._logged,
            SaveFailed: self._safely(self._save_failed),
            TrainEnded: self._safely(self._ended),
        }
        if self.each_step:
            heard |= {EpochBegan: self._safely(self._epoch_began), StepEnded: self._step_ended}
        return heard

    def close(self) -> None:
        """The run is over, however it ended."""
        run, self._run = self._run, None
        if run is not None:  # an end that no event told of
            self.journal.note("ended", step=run.state.step)
        self._batches.clear()
        self._losses.clear()
        self.journal.close()

    def _began(self, event: TrainBegan) -> None:
        assert self._run is not None
        name = self._run.state.run
        self.journal.note("began", run=name, step=event.step, settings=self.settings, random=self._random())

    def _epoch_began(self, event: EpochBegan) -> None:
        """Batches that were read ahead in an epoch that was cut short are in no step."""
        self._batches.clear()

    def _step_ended(self, event: StepEnded) -> None:
        """Keep the losses whatever becomes of the note, as the other processes keep theirs."""
        self._losses.append(list(event.losses))
        self._safely(self._note_step)(event)

    def _note_step(self, event: StepEnded) -> None:
        assert self._run is not None
        window = len(event.losses)
        batches = [self._batches.popleft() for _ in range(min(window, len(self._batches)))]
        self.journal.note(
            "step",
            step=event.step,
            batches=batches,
            learning_rate=self._run.state.learning_rate,
            random=self._random(),
        )

    def _logged(self, event: Logged) -> None:
        """Add up what each process has lost in the steps up to this one, and note it with the log."""
        losses = self.totals([sum(shares) for shares in _numbers(self._losses)]) if self._losses else ()
        self._losses.clear()
        self._safely(self._note_log)(event, losses)

    def _note_log(self, event: Logged, losses: Sequence[float]) -> None:
        if losses:
            self.journal.note("losses", first=event.step - len(losses) + 1, losses=list(losses))
        values = {name: value for name, value in event.values.items() if isinstance(value, int | float | str)}
        self.journal.note("logged", step=event.step, values=values, random=self._random())

    def _save_failed(self, event: SaveFailed) -> None:
        self.journal.note("save", phase="failed", step=event.step, error=str(event.error))

    def _ended(self, event: TrainEnded) -> None:
        self._run = None
        self.journal.note("ended", step=event.step, stopped=event.stopped, reasons=list(event.reasons))

    def _random(self) -> str:
        return random_fingerprint(self.device)

    def _safely(self, act: Callable[..., None]) -> Callable[..., None]:
        def act_unless_failed(*subjects: Any) -> None:
            if self._failed:
                return
            try:
                act(*subjects)
            except Exception as error:
                self._failed = True
                warnings.warn(
                    f"The journal cannot follow the run ({type(error).__name__}: {error}), which goes on without it; "
                    "choose journal='off' to do without it from the start.",
                    stacklevel=2,
                )

        return act_unless_failed


def journal_of(parts: TrainerParts) -> RunJournal:
    """Who follows the next run of `trainer`."""
    args, adapters = parts.args, parts.adapters
    settings = {name: value for name, value in args.to_sanitized_dict().items() if name not in ASIDE}
    return RunJournal(
        adapters.journal, adapters.device.name, settings, args.journal == "steps", totals_of(adapters.collectives)
    )


def note_of_saves(journal: Journal, storage: Storage) -> Callable[..., None]:
    """What is told of each phase of a save; with the last come the digests of the weights. Any thread may call it."""

    def note(phase: str, **facts: Fact) -> None:
        if phase == "published":
            facts["weights"] = _weights(storage, str(facts.get("checkpoint")))
        journal.note("save", phase=phase, **facts)

    return note


def _weights(storage: Storage, checkpoint: str) -> Fact:
    """The digests of the files of a checkpoint's weights; None where its manifest cannot be read just now."""
    try:
        files = read_manifest(storage, checkpoint).files
    except Exception:  # the checkpoint is published, and no note about it may say that it failed
        return None
    return {
        path: stored.digest
        for path, stored in sorted(files.items())
        if path.startswith("model") and path.endswith(".safetensors")
    }


def _numbers(windows: list[list[Any]]) -> list[list[float]]:
    """The numbers behind loss handles, with one wait for the device where they are tensors."""
    handles = [handle for shares in windows for handle in shares]
    if handles and all(isinstance(handle, torch.Tensor) for handle in handles):
        numbers = torch.stack([handle.detach().reshape(()) for handle in handles]).tolist()
    else:
        numbers = [float(handle) for handle in handles]
    left = iter(numbers)
    return [[next(left) for _ in shares] for shares in windows]


def totals_of(collectives: Collectives) -> Callable[[Sequence[float]], Sequence[float]]:
    """Return a function that sums numbers over all processes, element by element. Collective."""

    def totals(numbers: Sequence[float]) -> Sequence[float]:
        if collectives.world_size == 1:
            return numbers
        return collectives.start_reduction(numbers, Reduction.SUM).result()

    return totals


def total_of(collectives: Collectives) -> Callable[[float], float]:
    """Return a function that sums one number over all processes. Collective."""
    totals = totals_of(collectives)
    return lambda number: totals([number])[0]
