"""Layers that multiply in 8 bits by torchao, emulated on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hexloop.adapters.precision.torchao import TorchaoPrecision
from hexloop.domain.errors import ConfigurationError
from tests.unit.precision.models import wide

pytest.importorskip("torchao")

LAYERS = ["inner.0", "inner.3"]


def converted(**options: Any) -> Any:
    """Return the model with its layers in 8 bits."""
    model = wide()
    TorchaoPrecision("cpu", options, emulates=True).convert(model)
    return model


def in_8_bits(model: nn.Module) -> list[str]:
    """Return the names of the layers of torchao."""
    return [name for name, module in model.named_modules() if type(module).__name__ == "Float8Linear"]


def test_weights_are_those_of_the_model() -> None:
    """The layers are replaced in place; their parameters are the same objects, under the same names."""
    model = wide()
    before = dict(model.named_parameters())
    generator = torch.get_rng_state()
    TorchaoPrecision("cpu", emulates=True).convert(model)
    assert torch.equal(torch.get_rng_state(), generator)
    assert in_8_bits(model) == LAYERS
    after = dict(model.named_parameters())
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)
    assert all(type(value) is Tensor for value in model.state_dict().values())


def rounded(values: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> Tensor:
    """Return numbers rounded to 8 bits, scaled so that the largest is the largest of the format."""
    scale = (torch.finfo(dtype).max / values.abs().max().double()).float()
    return (values * scale).to(dtype).float() / scale


def test_a_layer_multiplies_what_is_rounded_to_8_bits() -> None:
    """Forward and backward, with a scale for each tensor: 4 bits of exponent, for gradients of outputs 5."""
    layer = converted().inner[0]
    x = torch.randn(6, 32, generator=torch.Generator().manual_seed(0), requires_grad=True)
    out = layer(x)
    weight, bias = layer.weight.detach(), layer.bias.detach()
    torch.testing.assert_close(out, rounded(x.detach()) @ rounded(weight).T + bias, rtol=1e-5, atol=1e-6)
    grad = torch.randn(6, 32, generator=torch.Generator().manual_seed(1))
    out.backward(grad)
    of_output = rounded(grad, torch.float8_e5m2)
    torch.testing.assert_close(x.grad, of_output @ rounded(weight), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(layer.weight.grad, of_output.T @ rounded(x.detach()), rtol=1e-5, atol=1e-6)
    assert not torch.equal(out, nn.functional.linear(x, weight, bias))


def test_recipes_and_options_of_torchao() -> None:
    """A scale for each row gives other products; a configuration and a choice of layers are those of the caller."""
    from torchao.float8 import Float8LinearConfig

    x = torch.randn(6, 32, generator=torch.Generator().manual_seed(0))
    outputs = [converted(recipe=name).inner[0](x) for name in ("tensorwise", "rowwise", "rowwise_with_gw_hp")]
    assert not torch.equal(outputs[0], outputs[1])
    torch.testing.assert_close(outputs[0], outputs[1], rtol=0.1, atol=0.15)
    assert torch.equal(outputs[1], outputs[2])  # which differ in the gradients of weights
    assert in_8_bits(converted(excluded_modules=["inner.3"])) == ["inner.0"]
    config = Float8LinearConfig(emulate=True, round_scales_to_power_of_2=True, enable_fsdp_float8_all_gather=True)
    model = converted(config=config, module_filter_func=lambda module, name: name == "inner.3")
    assert in_8_bits(model) == ["inner.3"]
    assert model.inner[3].config.round_scales_to_power_of_2
    assert not model.inner[3].config.pad_inner_dim
    assert not model.inner[3].config.enable_fsdp_float8_all_gather  # the model is not sharded
    assert converted().inner[0].config.pad_inner_dim


def test_a_layer_converts_its_input_under_autocast() -> None:
    """As a linear layer of torch does, also on the CPU, where torchao does not."""
    precision, model = TorchaoPrecision("cpu", emulates=True), wide()
    precision.convert(model)
    forward: Callable[..., Tensor] = precision.wrap(model.inner[0].__call__)
    assert forward(torch.ones(2, 32)).dtype == torch.bfloat16
    assert model.inner[0](torch.ones(2, 32)).dtype == torch.float32


def test_layers_of_another_conversion_are_refused() -> None:
    """A model that was converted with other options would train with those."""
    model = converted(recipe="rowwise")
    with pytest.raises(ConfigurationError, match="compute in fp8 with other options than those of this run"):
        TorchaoPrecision("cpu", emulates=True).convert(model)
    layers = list(model.modules())
    TorchaoPrecision("cpu", {"recipe": "rowwise"}, emulates=True).convert(model)
    assert list(model.modules()) == layers
