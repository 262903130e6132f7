"""Weights of every kind go through the files of a checkpoint and come back bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hexloop.adapters.contents.checkpoint import CheckpointContents
from hexloop.adapters.storage.local import LocalStorage
from hexloop.adapters.trainable.torch.model_state import ModelState
from hexloop.adapters.trainable.torch.serialization import DTYPES
from hexloop.domain.errors import CheckpointError
from hexloop.domain.state import RunState
from tests.contracts.test_optimizer_states import same


class EveryKind(nn.Module):
    """Tensors of every type, and of every shape that is easily forgotten."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        source = torch.Generator().manual_seed(seed)
        for number, dtype in enumerate(DTYPES):
            bits = torch.randint(0, 2 if dtype == torch.bool else 100, (3, dtype.itemsize), generator=source)
            self.register_buffer(f"type_{number}", bits.to(torch.uint8).view(dtype).reshape(3))
        self.none = nn.Parameter(torch.empty(0, 4))
        self.scalar = nn.Parameter(torch.randn((), generator=source))
        self.across = nn.Parameter(torch.randn(4, 6, generator=source).T)
        self.spread = nn.Parameter(torch.randn(5, generator=source)[::2])


class Tied(nn.Module):
    """One matrix under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight


class Counting(nn.Module):
    """Keeps something beside its tensors."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.kept: Any = {"count": count, "table": torch.full((2,), float(count)), "pair": (1, None)}

    def get_extra_state(self) -> Any:
        return self.kept

    def set_extra_state(self, state: Any) -> None:
        self.kept = state


def through_files(folder: Path, saved: nn.Module, loaded: nn.Module) -> list[str]:
    storage = LocalStorage(folder)
    for file in CheckpointContents({"model": ModelState(saved)}).files(RunState()):
        storage.write(file.path, file.chunks)
    names = [path.name for path in folder.iterdir()]
    CheckpointContents({"model": ModelState(loaded)}).restore(names, storage.read)
    return names


def test_tensors_of_every_type_and_shape_come_back(tmp_path: Path) -> None:
    """Empty, without dimensions, by columns, with gaps; numbers of every type, complex and of 8 bits among them."""
    saved, loaded = EveryKind(1), EveryKind(2)
    strides = {name: tensor.stride() for name, tensor in loaded.state_dict().items()}
    through_files(tmp_path, saved, loaded)
    assert same(dict(saved.state_dict()), dict(loaded.state_dict()))
    assert strides == {name: tensor.stride() for name, tensor in loaded.state_dict().items()}


def test_tied_weights_are_written_once_and_stay_tied(tmp_path: Path) -> None:
    """The file has one of the two names, and loading changes both and parts them not."""
    saved, loaded = Tied(), Tied()
    through_files(tmp_path, saved, loaded)
    assert [part.name for part in ModelState(saved).export()] == ["first.weight"]
    assert loaded.second.weight is loaded.first.weight
    assert torch.equal(loaded.second.weight, saved.first.weight)


def test_extra_state_comes_back(tmp_path: Path) -> None:
    """What a module says besides tensors is a document, the tensors within it among the weights."""
    saved, loaded = nn.Sequential(nn.Linear(1, 1), Counting(5)), nn.Sequential(nn.Linear(1, 1), Counting(0))
    assert "model.json" in through_files(tmp_path, saved, loaded)
    assert same(loaded[1].kept, saved[1].kept)


def test_all_differences_are_told_at_once() -> None:
    """Missing, unknown, of other shape and, where asked for, of other type."""
    parts = list(ModelState(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1, bias=False))).export())
    other = nn.Sequential(nn.Linear(2, 4), nn.Linear(3, 1, dtype=torch.float64))
    assert ModelState(other).differences(parts, types=True) == [
        "1.bias is not in the checkpoint",
        "0.bias has shape (3,) in the checkpoint and (4,) in the model",
        "0.weight has shape (3, 2) in the checkpoint and (4, 2) in the model",
        "1.weight has type F32 in the checkpoint and F64 in the model",
    ]
    assert ModelState(other).differences(parts)[1:] == ModelState(other).differences(parts, types=True)[1:3]


def test_a_long_list_of_differences_is_cut_short() -> None:
    """Of a hundred missing tensors twenty are named."""
    told = ModelState(nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in range(100)))).differences([])
    assert len(told) == 21
    assert told[-1] == "and 80 more"


@pytest.mark.parametrize("tensor", [torch.eye(2).to_sparse(), torch.empty(2, dtype=torch.complex128)], ids=["a", "b"])
def test_a_tensor_that_the_format_lacks_is_refused_by_name(tensor: Tensor) -> None:
    """Sparse ones, and complex numbers of double width."""
    model = nn.Module()
    model.register_buffer("odd", tensor)
    with pytest.raises(CheckpointError, match="odd is a tensor of"):
        list(ModelState(model).export())
