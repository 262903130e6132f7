"""Finding a batch size that fits into the device's memory."""

from __future__ import annotations

import gc
import json
import logging
from contextlib import suppress
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from attrs import frozen
from torch import Tensor

from hexloop.app.training.checkpoints import callbacks_state, restore_callbacks
from hexloop.app.training.driving import Events, follow, renew_model
from hexloop.app.training.peeking import likely_checkpoint
from hexloop.app.training.saving import STATE
from hexloop.domain.errors import CheckpointError, RunStateError

if TYPE_CHECKING:
    from hexloop.app.trainer import Trainer

FACTOR = 0.9
"""What the batch size is multiplied by where it does not fit; the reference library's."""


@frozen
class Start:
    """Where a Trainer stood before its run: weights and buffers in the host's memory, and what the user's own hold."""

    tensors: dict[str, Tensor]
    optimizer: Any
    lr_scheduler: Any
    callbacks: dict[str, Any]

    @classmethod
    def of(cls, trainer: Trainer) -> Start:
        """The present one."""
        trainer.forget_own_optimizer()
        return cls(
            {name: tensor.detach().to("cpu", copy=True) for name, tensor in _tensors(trainer.model).items()},
            None if trainer.optimizer is None else deepcopy(trainer.optimizer.state_dict()),
            None if trainer.lr_scheduler is None else deepcopy(trainer.lr_scheduler.state_dict()),
            deepcopy(callbacks_state(trainer)),
        )

    def put_back(self, trainer: Trainer) -> None:
        """Let the trainer stand there again, and let go of what its run held."""
        trainer.forget_own_optimizer()
        with torch.no_grad():
            for name, tensor in _tensors(trainer.model).items():
                tensor.copy_(self.tensors[name])
        trainer.model.zero_grad(set_to_none=True)
        trainer.model_wrapped = trainer.model
        if self.optimizer is not None:
            trainer.optimizer.load_state_dict(deepcopy(self.optimizer))
        if self.lr_scheduler is not None:
            trainer.lr_scheduler.load_state_dict(deepcopy(self.lr_scheduler))
        restore_callbacks(trainer, deepcopy(self.callbacks))
        gc.collect()
        trainer.adapters.device.release_memory()


def find_batch_size(trainer: Trainer, resume_from: str | bool | None) -> Events:
    """The events of a run that begins again with smaller batches each time the device has no room.

    Each time it begins where it began at first: same weights, same callbacks, the same checkpoint. What it saved until
    then belongs to a past that was given up. Raises RunStateError where not even one sample fits.
    """
    trainer.refuse_second_run()
    renew_model(trainer)
    start, run_name = Start.of(trainer), trainer.new_run_name()
    trainer._train_batch_size = saved_batch_size(trainer, resume_from) or trainer._train_batch_size
    while True:
        try:
            yield from follow(trainer, resume_from, run_name)
            return
        except Exception as error:
            if not trainer.adapters.device.is_out_of_memory(error):
                raise
            trainer._train_batch_size = _smaller(trainer, error)
        start.put_back(trainer)


def _smaller(trainer: Trainer, error: Exception) -> int:
    size = trainer._train_batch_size
    smaller = int(size * FACTOR)
    if smaller == 0:
        raise RunStateError(
            f"You chose auto_find_batch_size=True, but {trainer.adapters.device.name} has no room for a batch of one "
            "sample; train a smaller model, in fewer bits, or with activation_checkpointing=True."
        ) from error
    logging.getLogger("hexloop").warning(
        "%s has no room for batches of %d samples; the run begins again with batches of %d.",
        trainer.adapters.device.name,
        size,
        smaller,
    )
    return smaller


def saved_batch_size(trainer: Trainer, resume_from: str | bool | None) -> int | None:
    """The batch size that the run had found when it wrote the checkpoint; None where nobody knows."""
    if not resume_from:
        return None
    with suppress(CheckpointError, OSError, ValueError):
        storage, name = likely_checkpoint(trainer, resume_from)
        size = json.loads(b"".join(storage.read(f"{name}/{STATE}"))).get("train_batch_size") if name else None
        return size if isinstance(size, int) and size > 0 else None
    return None


def _tensors(model: Any) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
