"""The options of FSDP on XLA, and what is refused where there is no XLA."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hexloop import ConfigurationError, Trainer, TrainingArguments
from hexloop.adapters.engines.xla.options import XlaFsdpOptions, read_options
from hexloop.adapters.trainable.torch.units import Units


def read(**config: Any) -> XlaFsdpOptions:
    arguments: Any = SimpleNamespace(fsdp_config={"xla": True, "xla_fsdp_v2": True, **config})
    return read_options(arguments)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, XlaFsdpOptions()),
        ({"xla_fsdp_grad_ckpt": True, "min_num_params": 100}, XlaFsdpOptions(Units(least=100), recompute=True)),
        ({"transformer_layer_cls_to_wrap": "Block"}, XlaFsdpOptions(Units(("Block",)))),
        ({"fsdp_transformer_layer_cls_to_wrap": ["Block", "Head"]}, XlaFsdpOptions(Units(("Block", "Head")))),
        ({"xla_fsdp_settings": {}, "xla_fsdp_grad_ckpt": "false"}, XlaFsdpOptions()),
    ],
)
def test_options_are_read(config: dict[str, Any], expected: XlaFsdpOptions) -> None:
    assert read(**config) == expected


def test_all_wrong_options_are_told_at_once() -> None:
    """Of the first version, of another engine, and of a wrong type."""
    with pytest.raises(ConfigurationError) as raised:
        read(
            xla_fsdp_v2="perhaps", xla_fsdp_settings={"compute_dtype": "bfloat16"}, cpu_offload=True, min_num_parms=3
        )  # fmt: skip
    told = "\n".join(map(str, raised.value.problems))
    for part in (
        "'cpu_offload'",
        "did you mean min_num_params",
        "second one, which drives all",
        "compute_dtype",
        "truth",
    ):
        assert part in told
    assert len(raised.value.problems) == 5


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"min_num_params": "many"}, "min_num_params='many'.*takes a number; give 0 or more"),
        ({"min_num_params": -1}, "takes a number"),
        ({"transformer_layer_cls_to_wrap": 5}, "takes the name of a class, or a list of names"),
        ({"transformer_layer_cls_to_wrap": ["A", 5]}, "takes the name of a class"),
    ],
)
def test_wrong_types_are_told(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        read(**config)


def test_other_devices_are_refused() -> None:
    """Before the run has a device."""
    arguments = TrainingArguments(
        "out", use_cpu=True, report_to=[], fsdp="full_shard", fsdp_config={"xla": True, "xla_fsdp_v2": True}
    )
    with pytest.raises(ConfigurationError, match="set xla to True in fsdp_config, but the run trains on cpu; leave it"):
        Trainer(torch.nn.Linear(2, 1), arguments)
