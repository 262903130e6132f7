"""Copies between tensors in host memory."""

from __future__ import annotations

import os
import threading

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

PIECE = 1 << 25
"""Bytes that a thread copies at once."""

THREADS = 8
"""How many threads copy at most; fewer use up what a memory can give."""

Bytes = npt.NDArray[np.uint8]


class HostCopier:
    """Copies many tensors by as many threads as there are cores, as the run stands still meanwhile.

    torch's own copy shares out every single tensor and waits for the last of its threads each time, which takes ten
    times as long as the copying where others use the processor too. Here each thread takes the next piece when it has
    time.
    """

    def __init__(self) -> None:
        self._pieces: list[tuple[Bytes, Bytes]] = []

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Copy a tensor of the same shape and kind into the contiguous `target`, until `finish` at the latest."""
        if source.device.type != "cpu" or not source.is_contiguous() or source.is_conj() or source.is_neg():
            target.copy_(source)
            return
        to, of = _bytes(target), _bytes(source)
        self._pieces += [(to[start : start + PIECE], of[start : start + PIECE]) for start in range(0, len(of), PIECE)]

    def finish(self) -> None:
        """Copy what was asked for."""
        self._pieces.reverse()
        size = sum(len(source) for _, source in self._pieces)
        count = min(_cores(), size // PIECE, THREADS)
        others = [threading.Thread(target=self._work, daemon=True) for _ in range(count - 1)]
        for thread in others:
            thread.start()
        self._work()
        for thread in others:
            thread.join()

    def _work(self) -> None:
        while True:
            try:
                target, source = self._pieces.pop()
            except IndexError:
                return
            np.copyto(target, source)


def _cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _bytes(tensor: Tensor) -> Bytes:
    """The memory of a contiguous tensor."""
    array: Bytes = tensor.view(-1).view(torch.uint8).numpy()
    return array
