"""The digest of a base depends on every name, type, shape and byte of it, and on nothing else."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hexloop.adapters.trainable.torch.base_digest import digest_of, digests_of_parts, joined
from hexloop.adapters.trainable.torch.serialization import tensor_part

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.uint8, torch.int64, torch.bool]


def tensors() -> st.SearchStrategy[dict[str, Tensor]]:
    def made(sizes: dict[str, tuple[int, int]]) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(1)
        return {
            name: torch.randint(0, 2, (rows, 3), generator=generator).to(DTYPES[kind])
            for name, (rows, kind) in sizes.items()
        }

    sizes = st.tuples(st.integers(0, 5), st.integers(0, len(DTYPES) - 1))
    return st.dictionaries(st.text("abc.", min_size=1, max_size=6), sizes, min_size=1, max_size=6).map(made)


@given(tensors(), st.randoms())
def test_the_order_does_not_matter(found: dict[str, Tensor], random: object) -> None:
    """Nor does it matter whether a tensor is contiguous, or is read as a part."""
    names = sorted(found, reverse=True)
    strided = {name: torch.stack([found[name], found[name]], -1)[..., 0] for name in names}
    assert digest_of(strided) == digest_of(found)
    full = {name: each for name, each in found.items() if each.numel()}
    parts = [tensor_part(f"model.{name}", each) for name, each in full.items()]
    assert joined(digests_of_parts(parts, {f"model.{name}": name for name in full})) == digest_of(full)


@given(tensors(), st.data())
def test_every_change_changes_it(found: dict[str, Tensor], data: st.DataObject) -> None:
    """A single element, a name, a type, a shape, and a tensor more or less."""
    digest = digest_of(found)
    name = data.draw(st.sampled_from(sorted(found)))
    others = {each: tensor for each, tensor in found.items() if each != name}
    tensor = found[name]
    changed = [others, {**others, f"{name}x": tensor}, {**others, name: tensor.reshape(3, -1, 1)}]
    if tensor.dtype != torch.float64:
        changed.append({**others, name: tensor.to(torch.float64)})
    if tensor.numel():
        other = tensor.clone()
        index = data.draw(st.integers(0, tensor.numel() - 1))
        other.view(-1)[index] = 1 - other.view(-1)[index].to(torch.int64)
        changed.append({**others, name: other})
    assert all(digest_of(each) != digest for each in changed)


def test_quantized_tensors_count_as_what_they_consist_of() -> None:
    """Their numbers and scales."""
    quantization = pytest.importorskip("torchao.quantization")
    layers = []
    for scale in (1.0, 1.0, 2.0):
        torch.manual_seed(0)
        layer = torch.nn.Linear(8, 8)
        with torch.no_grad():
            layer.weight.mul_(scale)
        quantization.quantize_(layer, quantization.Int8WeightOnlyConfig())
        layers.append(layer)
    first, same, other = (digest_of({"weight": layer.weight}) for layer in layers)
    assert first == same
    assert first != other
