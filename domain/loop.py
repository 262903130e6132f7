"""The loop: what happens in training, in order."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import TypeVar

from hexloop.domain.boundary import begin, end_epoch, end_pass, finish, settle
from hexloop.domain.events import AnyEvent, EpochBegan, MicroStepEnded, StepBegan, StepEnded
from hexloop.domain.run import Run

Batch = TypeVar("Batch")
Loss = TypeVar("Loss")


def train(run: Run[Batch, Loss]) -> Generator[AnyEvent, None, None]:
    """Train until the plan's last step, or until somebody stops the run.

    Between two events nothing is open: `next` may come from another thread each time. However the generator ends, what
    the run holds is released, and then the original exception goes on; nothing is yielded or saved on that way.
    """
    try:
        yield from begin(run)
        while not run.control.should_training_stop:
            yield from _train_epoch(run)
            if not run.stopped:
                yield from end_epoch(run)
        yield from finish(run)
    finally:
        run.close()


def _train_epoch(run: Run[Batch, Loss]) -> Generator[AnyEvent, None, None]:
    """What is left of the present pass over the data. A window of micro-batches ends in one update."""
    state, control, learner = run.state, run.control, run.learner
    count_items, add_loss = learner.count_items, run.losses.add
    if state.step >= run.plan.total_steps:
        control.should_training_stop = True
        return
    control.should_epoch_stop = False
    yield EpochBegan(state.step, state.epoch)
    control.set_due([])
    with closing(run.windows(run.batches.epoch(state.epoch, state.position), run.plan.accumulation)) as epoch_windows:
        for window in epoch_windows:
            yield StepBegan(state.step)
            items = count_items(window)
            shares: list[Loss] = []
            for batch in window:
                last_of_window = len(shares) + 1 == len(window)
                share = learner.micro_step(batch, items, last_of_window)
                shares.append(share)
                add_loss(share)
                if not last_of_window:
                    yield MicroStepEnded(state.step, share)
            run.gradient_norm, taken = learner.update(run.max_norm)
            run.note_step(window, taken)
            yield StepEnded(state.step, shares, run.gradient_norm, taken)
            if run.anything_due():
                yield from settle(run)
            if control.should_training_stop:
                return
            if control.should_epoch_stop:
                break
    end_pass(run)
