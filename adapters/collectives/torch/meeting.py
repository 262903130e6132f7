"""By what processes meet through torch.distributed, and how they part."""

from __future__ import annotations

from contextlib import suppress

import torch.distributed as dist

from hexloop.adapters.collectives.torch.collectives import TorchCollectives

OF_DEVICES = frozenset({"nccl", "xccl", "hccl", "cncl", "mccl"})
"""What carries the tensors of one kind of device alone. Others carry the host's as well."""


def backend_of(kind: str, chosen: str | None, with_host: bool) -> str:
    """How tensors of a kind of device travel: as is `chosen`, else as fits the device.

    with_host: tensors of the host travel, too; where the device's way carries none of them, they have gloo beside it.
    """
    way = chosen or {"cuda": "nccl", "xpu": "xccl"}.get(kind, "gloo")
    return f"cpu:gloo,{kind}:{way}" if with_host and kind != "cpu" and way in OF_DEVICES else way


def is_built_in(backend: str) -> bool:
    """Whether this torch has all that `backend` names."""
    return all(dist.is_backend_available(each.rpartition(":")[2]) for each in backend.split(","))


def part(joined: list[TorchCollectives], backend: str) -> None:
    """Leave together and in order: gloo's threads may abort a process whose partners go at another time.

    backend: of the default group. NCCL's waits for the work in flight before it goes, and without the others that never
    ends; left alone, it gives that work up when the process ends.
    """
    ends = [collectives.leave() for collectives in joined]
    joined.clear()
    if (ends and all(ends)) or "nccl" not in backend:
        with suppress(Exception):  # whoever left before has closed the connection
            dist.destroy_process_group()
