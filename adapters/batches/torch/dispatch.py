"""One process reads the data for all, and hands the others what is theirs, as JSON and the bytes of tensors."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from contextlib import closing
from enum import IntEnum
from typing import Any

import torch
import torch.distributed as dist
from attrs import frozen
from torch import Tensor

from hexloop.adapters.batches.torch.data_state import NAMES, DataState, capture, contents, tensor_of
from hexloop.adapters.batches.torch.shares import Share, as_padding
from hexloop.domain.errors import DataError
from hexloop.ports.batches import Padding

Parts = Generator[tuple[Share, ...], None, None]


class Message(IntEnum):
    """What the first process says."""

    BATCH = 0
    PADDING = 1
    END = 2
    FAILURE = 3


@frozen
class Dispatcher:
    """Hands out what rank 0 reads, over a group of torch.distributed that carries tensors of the host.

    All processes have to ask for the same batches in the same order.
    """

    rank: int
    world_size: int
    group: Any

    def hand_out(self, parts: Parts) -> Generator[Share, None, None]:
        """This process's share of each batch. Only rank 0 reads `parts`, which are of all processes.

        Raises DataError where rank 0 could not read, and where a batch holds what cannot be sent.
        """
        return self._give(parts) if self.rank == 0 else self._take()

    def _give(self, parts: Parts) -> Generator[Share, None, None]:
        with closing(parts):
            while True:
                try:
                    shares = next(parts, None)
                    messages = [] if shares is None else [_encoded(share) for share in shares[1:]]
                except Exception as error:
                    failure = _bytes_of({"failure": f"{type(error).__name__}: {error}"})
                    self._send_all([(Message.FAILURE, 0, failure, [])] * (self.world_size - 1))
                    raise
                if shares is None:
                    self._send_all([(Message.END, 0, _bytes_of(None), [])] * (self.world_size - 1))
                    return
                self._send_all(messages)
                yield shares[0]

    def _take(self) -> Generator[Share, None, None]:
        while True:
            header = torch.zeros(4, dtype=torch.int64)
            dist.recv(header, 0, self.group)
            kind, samples, length, size = header.tolist()
            document, data = torch.empty(length, dtype=torch.uint8), torch.empty(size, dtype=torch.uint8)
            dist.recv(document, 0, self.group)
            if size:
                dist.recv(data, 0, self.group)
            said = json.loads(document.numpy().tobytes())
            if kind == Message.END:
                return
            if kind == Message.FAILURE:
                raise DataError(f"Rank 0, which reads the data for all (dispatch_batches), failed: {said['failure']}")
            batch = _decoded(said, data)
            yield Share(as_padding(batch) if kind == Message.PADDING else batch, samples)

    def _send_all(self, messages: list[tuple[Message, int, Tensor, list[Tensor]]]) -> None:
        for rank, (kind, samples, document, tensors) in enumerate(messages, 1):
            data = torch.cat(tensors) if tensors else torch.empty(0, dtype=torch.uint8)
            dist.send(torch.tensor([kind, samples, len(document), len(data)]), rank, self.group)
            dist.send(document, rank, self.group)
            if len(data):
                dist.send(data, rank, self.group)


def _encoded(share: Share) -> tuple[Message, int, Tensor, list[Tensor]]:
    try:
        state = capture(share.batch, _plain(share.batch))
    except DataError as error:
        raise DataError(
            f"You chose dispatch_batches=True, but a batch of type {type(share.batch).__name__} cannot be sent to the "
            "other processes, as it holds more than numbers, texts, lists, dictionaries and tensors; let the "
            "data_collator leave the rest out, or let every process read."
        ) from error
    described = {name: [NAMES[tensor.dtype], *tensor.shape] for name, tensor in state.tensors.items()}
    document = _bytes_of({"document": state.document, "tensors": described})
    kind = Message.PADDING if isinstance(share.batch, Padding) else Message.BATCH
    return kind, share.samples, document, [each.reshape(-1).view(torch.uint8) for each in state.tensors.values()]


def _decoded(said: dict[str, Any], data: Tensor) -> Any:
    tensors, at = {}, 0
    for name, (dtype, *shape) in said["tensors"].items():
        tensors[name], at = tensor_of(data, at, dtype, shape)
    return contents(DataState(said["document"], tensors))


def _plain(value: Any) -> Any:
    """Mappings of any kind as dictionaries, so that they can be told from objects."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    return value


def _bytes_of(value: Any) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
