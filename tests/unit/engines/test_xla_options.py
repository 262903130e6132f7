"""The options of FSDP on XLA, how its shards lie, and what is refused where there is no XLA."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hexloop import ConfigurationError, Trainer, TrainingArguments
from hexloop.adapters.device.torch.kinds import import_error, is_installed
from hexloop.adapters.engines.xla.fsdp import problems_with, spread_of
from hexloop.adapters.engines.xla.options import XlaFsdpOptions, read_options, settings_by_torch
from hexloop.adapters.trainable.torch.units import Units
from hexloop.app.engines import engine_for
from hexloop.ports.engine import RunFacts
from hexloop.ports.mesh import flat_mesh


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
        "truth",
    ):
        assert part in told
    assert len(raised.value.problems) == 3


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


def test_the_second_version_has_no_settings() -> None:
    with pytest.raises(ConfigurationError, match="options of the first version"):
        read(xla_fsdp_settings={"compute_dtype": "bfloat16"})


def first(**settings: Any) -> Any:
    return read(xla_fsdp_v2=False, xla_fsdp_settings=settings).settings


def test_settings_of_the_first_version_are_read() -> None:
    """Types by torch's names, truth values also as texts; what is refused is taken with the value that turns it off."""
    read_settings = first(
        compute_dtype="bfloat16", buffer_dtype="torch.float32", fp32_reduce_scatter="true", reshard_after_forward=False,
        reduce_scatter_bucket_size_mb=4, flatten_parameters=False, sharding_groups=None,
    )  # fmt: skip
    assert read_settings == {
        "compute_dtype": torch.bfloat16,
        "buffer_dtype": torch.float32,
        "fp32_reduce_scatter": True,
        "reshard_after_forward": False,
        "reduce_scatter_bucket_size_mb": 4,
    }


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"compute_dtype": "int8"}, "choose float32, bfloat16 or float16"),
        ({"compute_dtyp": "bfloat16"}, "did you mean compute_dtype"),
        ({"flatten_parameters": True}, "weight decay applies to some"),
        ({"coalesce_all_gather_ops": "true"}, "fails in torch_xla"),
        ({"sharding_groups": [[0, 1]]}, "over all processes"),
        ({"auto_wrap_policy": print}, "holds no functions"),
        ({"sync_on_finalization": "perhaps"}, "takes a truth value"),
        ({"reduce_scatter_bucket_size_mb": "much"}, "takes a number of megabytes"),
    ],
)
def test_wrong_settings_are_told(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        first(**settings)


def test_arguments_have_the_settings_as_transformers_does() -> None:
    """With torch's types, and without changing what was given."""
    config = {"xla": True, "xla_fsdp_settings": {"compute_dtype": "bfloat16", "reshard_after_forward": True}}
    arguments = TrainingArguments("out", report_to=[], use_cpu=True, fsdp="full_shard", fsdp_config=config)
    assert arguments.xla_fsdp_config == {"compute_dtype": torch.bfloat16, "reshard_after_forward": True}
    assert settings_by_torch({"xla_fsdp_settings": {"buffer_dtype": torch.float16}}) == {"buffer_dtype": torch.float16}
    assert arguments.fsdp_config["xla_fsdp_settings"]["compute_dtype"] == "bfloat16"  # type: ignore[index]
    assert TrainingArguments("out", report_to=[], use_cpu=True).xla_fsdp_config == {}


@pytest.mark.parametrize(
    ("config", "name"),
    [({"xla": True}, "xla_fsdp"), ({"xla": "true", "xla_fsdp_v2": True}, "xla_fsdp_v2"), ({"xla": False}, "single")],
)
def test_the_configuration_chooses_the_engine(config: dict[str, Any], name: str) -> None:
    arguments = TrainingArguments("out", report_to=[], use_cpu=True, fsdp="full_shard", fsdp_config=config)
    assert engine_for(arguments).name == name


@given(st.data())
def test_shards_are_put_together_to_the_parameter(data: st.DataObject) -> None:
    """Whatever fills up the last ones: the boxes of all ranks cover each element once, in the order of the ranks."""
    size = data.draw(st.integers(1, 5))
    whole = tuple(data.draw(st.lists(st.integers(1, 7), max_size=3)))
    multiple = data.draw(st.sampled_from([1, 8]))
    by_rows = len(whole) > 1 and data.draw(st.booleans())
    rows = whole[0] if by_rows else int(torch.Size(whole).numel())
    chunk = -(-rows // (size * multiple)) * multiple
    shard = (chunk, *whole[1:]) if by_rows else (chunk,)
    parameter = torch.arange(torch.Size(whole).numel()).view(whole)
    filled = torch.nn.functional.pad(
        parameter if by_rows else parameter.reshape(-1),
        (0, 0) * (len(shard) - 1) + (0, size * chunk - rows),
        value=-1,
    )
    put = torch.full_like(parameter, -2).view(spread_of(whole, shard, flat_mesh(0, size, "shard")).divided)
    for rank in range(size):
        spread = spread_of(whole, shard, flat_mesh(rank, size, "shard"))
        held = filled[rank * chunk : (rank + 1) * chunk][: spread.own.lengths[0]]
        put[spread.own.slices] = held
        assert spread.shape == whole
    assert torch.equal(put.view(whole), parameter)


class Pair(torch.nn.Module):
    """Two modules with the same weight."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.one, self.other = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
        if tied:
            self.other.weight = self.one.weight


def test_models_that_cannot_be_sharded_are_refused() -> None:
    """Ties between units, other types than float32, and state that no parameter holds."""

    def said(model: torch.nn.Module, **config: Any) -> str:
        arguments: Any = SimpleNamespace(fsdp_config={"xla": True, **config})
        return "\n".join(problems_with(arguments, RunFacts(model, 1)))

    assert said(Pair()) == said(Pair(tied=False), min_num_params=5) == ""
    assert "one.weight and other.weight as one parameter" in said(Pair(), transformer_layer_cls_to_wrap="Linear")
    assert "some of torch.bfloat16; load it in float32" in said(Pair().bfloat16())
    assert "meta device" in said(Pair().to("meta"))
    twice = Pair(tied=False)
    twice.other = twice.one
    assert "cannot shard other, which the model has in several places" in said(twice, min_num_params=5)


def test_a_broken_torch_xla_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the error of its import, where FSDP on XLA or the device itself is asked for."""
    (tmp_path / "torch_xla.py").write_text("raise ImportError('undefined symbol: of another torch')")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = {"xla": True}
    try:
        for cached in (import_error, is_installed):
            cached.cache_clear()
        with pytest.raises(ConfigurationError, match=r"(?s)set xla to True.*torch_xla cannot be imported.*of another"):
            Trainer(torch.nn.Linear(2, 1), TrainingArguments("out", report_to=[], fsdp="true", fsdp_config=config))
        monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "xla")
        with pytest.raises(ConfigurationError, match="device xla cannot be used: torch_xla cannot be imported"):
            Trainer(torch.nn.Linear(2, 1), TrainingArguments("out", report_to=[]))
    finally:
        for cached in (import_error, is_installed):
            cached.cache_clear()


def test_other_devices_are_refused() -> None:
    """Before the run has a device."""
    arguments = TrainingArguments(
        "out", use_cpu=True, report_to=[], fsdp="full_shard", fsdp_config={"xla": True, "xla_fsdp_v2": True}
    )
    with pytest.raises(ConfigurationError, match="set xla to True in fsdp_config, but the run trains on cpu; leave it"):
        Trainer(torch.nn.Linear(2, 1), arguments)
