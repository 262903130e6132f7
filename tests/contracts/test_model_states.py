"""Model weights of every kind are restored bitwise from checkpoint files."""

from __future__ import annotations

import json
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
    """Tensors of every dtype and of unusual shapes."""

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
    """A module with extra state besides its tensors."""

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


def test_tensors_of_every_dtype_and_shape_are_restored(tmp_path: Path) -> None:
    """Tensors that are empty, 0-dimensional, transposed or strided, of every dtype including complex and 8-bit ones."""
    saved, loaded = EveryKind(1), EveryKind(2)
    strides = {name: tensor.stride() for name, tensor in loaded.state_dict().items()}
    through_files(tmp_path, saved, loaded)
    assert same(dict(saved.state_dict()), dict(loaded.state_dict()))
    assert strides == {name: tensor.stride() for name, tensor in loaded.state_dict().items()}


def test_tied_weights_are_written_once_and_stay_tied(tmp_path: Path) -> None:
    """The file has one of the two names, and loading updates both without untying them."""
    saved, loaded = Tied(), Tied()
    through_files(tmp_path, saved, loaded)
    assert [part.name for part in ModelState(saved).export()] == ["first.weight"]
    assert loaded.second.weight is loaded.first.weight
    assert torch.equal(loaded.second.weight, saved.first.weight)


def test_extra_state_is_restored(tmp_path: Path) -> None:
    """Extra state of a module is a JSON document, with the tensors in it stored among the weights."""
    saved, loaded = nn.Sequential(nn.Linear(1, 1), Counting(5)), nn.Sequential(nn.Linear(1, 1), Counting(0))
    assert through_files(tmp_path, saved, loaded).count("run_state.json") == 1
    assert "model" in json.loads((tmp_path / "run_state.json").read_text())
    assert same(loaded[1].kept, saved[1].kept)


def test_all_differences_are_reported_at_once() -> None:
    """The error lists missing and unknown tensors, and those of another shape or, on request, dtype."""
    parts = list(ModelState(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1, bias=False))).export())
    other = nn.Sequential(nn.Linear(2, 4), nn.Linear(3, 1, dtype=torch.float64))
    assert ModelState(other).differences(parts, types=True) == [
        "1.bias is not in the checkpoint",
        "0.bias has shape (3,) in the checkpoint and (4,) in the model",
        "0.weight has shape (3, 2) in the checkpoint and (4, 2) in the model",
        "1.weight has type F32 in the checkpoint and F64 in the model",
    ]
    assert ModelState(other).differences(parts)[1:] == ModelState(other).differences(parts, types=True)[1:3]


def test_a_long_list_of_differences_is_truncated() -> None:
    """Of a hundred missing tensors, twenty are named."""
    found = ModelState(nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in range(100)))).differences([])
    assert len(found) == 21
    assert found[-1] == "and 80 more"


@pytest.mark.parametrize("tensor", [torch.eye(2).to_sparse(), torch.empty(2, dtype=torch.complex128)], ids=["a", "b"])
def test_an_unsupported_tensor_is_refused_by_name(tensor: Tensor) -> None:
    """Sparse tensors and complex128 are refused."""
    model = nn.Module()
    model.register_buffer("odd", tensor)
    with pytest.raises(CheckpointError, match="odd is a tensor of"):
        list(ModelState(model).export())
