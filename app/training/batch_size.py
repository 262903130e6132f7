"""Finding a batch size that fits into the device's memory."""

from __future__ import annotations

import gc
import json
import logging
from contextlib import suppress
from copy import deepcopy
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from hexloop.app.training.checkpoints import callbacks_state, restore_callbacks
from hexloop.app.training.driving import Events, follow, refuse_second_run
from hexloop.app.training.peeking import likely_checkpoint
from hexloop.app.training.saving import STATE
from hexloop.app.training.session import RunHost
from hexloop.domain.errors import CheckpointError, RunStateError
from hexloop.ports.storage import Storage

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
    def of(cls, host: RunHost) -> Start:
        """Return the current one."""
        host.forget_run()
        parts = host.parts()
        return cls(
            {name: tensor.detach().to("cpu", copy=True) for name, tensor in _tensors(parts.model).items()},
            None if parts.optimizer is None else deepcopy(parts.optimizer.state_dict()),
            None if parts.lr_scheduler is None else deepcopy(parts.lr_scheduler.state_dict()),
            deepcopy(callbacks_state(parts.callback_handler, parts.control)),
        )

    def put_back(self, host: RunHost) -> None:
        """Restore it, and release what the run held."""
        host.forget_run()
        parts = host.parts()
        with torch.no_grad():
            for name, tensor in _tensors(parts.model).items():
                tensor.copy_(self.tensors[name])
        parts.model.zero_grad(set_to_none=True)
        if self.optimizer is not None:
            parts.optimizer.load_state_dict(deepcopy(self.optimizer))
        if self.lr_scheduler is not None:
            parts.lr_scheduler.load_state_dict(deepcopy(self.lr_scheduler))
        restore_callbacks(parts.callback_handler, parts.control, deepcopy(self.callbacks))
        gc.collect()
        parts.adapters.device.release_memory()


def find_batch_size(host: RunHost, resume_from: str | bool | None) -> Events:
    """Yield the events of a run that starts again with a smaller batch each time the device runs out of memory.

    Each attempt starts from the same weights, callbacks and checkpoint; checkpoints that a failed attempt saved are not
    resumed. Raises RunStateError if not even a batch of one sample fits.
    """
    refuse_second_run(host.parts().run)
    host.renew_model()
    start, parts = Start.of(host), host.parts()
    device, run_name = parts.adapters.device, str(parts.hooks.new_run_name())
    size = saved_batch_size(parts.adapters.storage, resume_from) or parts.train_batch_size
    del parts  # it holds the model
    while True:
        host.set_train_batch_size(size)
        try:
            yield from follow(host, resume_from, run_name)
            return
        except Exception as error:
            if not device.is_out_of_memory(error):
                raise
            size = _smaller(size, device.name, error)
        start.put_back(host)


def _smaller(size: int, device: str, error: Exception) -> int:
    smaller = int(size * FACTOR)
    if smaller == 0:
        raise RunStateError(
            f"You chose auto_find_batch_size=True, but {device} has no room for a batch of one "
            "sample; train a smaller model, in fewer bits, or with activation_checkpointing=True."
        ) from error
    logging.getLogger("hexloop").warning(
        "%s has no room for batches of %d samples; the run begins again with batches of %d.", device, size, smaller
    )
    return smaller


def saved_batch_size(own: Storage, resume_from: str | bool | None) -> int | None:
    """Return the batch size that the run had found when it wrote the checkpoint; None if it is not known."""
    if not resume_from:
        return None
    with suppress(CheckpointError, OSError, ValueError):
        storage, name = likely_checkpoint(own, resume_from)
        size = json.loads(b"".join(storage.read(f"{name}/{STATE}"))).get("train_batch_size") if name else None
        return size if isinstance(size, int) and size > 0 else None
    return None


def _tensors(model: Any) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
