"""From what is asked for of FSDP to the adapter that does it."""

from __future__ import annotations

from typing import Any

from hexloop.app.arguments import TrainingArguments
from hexloop.app.fsdp.settings import FsdpSettings, fsdp_consolidates, read_fsdp
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.device import Device
from hexloop.ports.engine import Engine
from hexloop.ports.parallelism import Parallelism


def make_fsdp(args: TrainingArguments, device: Device) -> Parallelism[Any]:
    """The adapter. Raises ConfigurationError with everything that is wrong with the settings."""
    settings = read_fsdp(args)
    return _first(args, device, settings) if settings.version == 1 else _second(args, device, settings)


def _second(args: TrainingArguments, device: Device, settings: FsdpSettings) -> Parallelism[Any]:
    import torch

    from hexloop.adapters.engines.fsdp.fsdp2 import Fsdp2, Fsdp2Options

    options = Fsdp2Options(
        units=_units(settings),
        mesh=settings.mesh,
        reshard_after_forward=settings.strategy in ("full_shard", "hybrid_shard"),
        formats=_formats(args, settings),
        offload=settings.offload,
        recompute=settings.recompute,
        prefetch=settings.forward_prefetch,
        synchronise_each=settings.synchronise_each,
    )
    return Fsdp2(torch.device(device.name), args.world_size, options)


def _first(args: TrainingArguments, device: Device, settings: FsdpSettings) -> Parallelism[Any]:
    import torch

    from hexloop.adapters.engines.fsdp.fsdp1 import Fsdp1, Fsdp1Options

    if settings.offload and device.name == "cpu":
        raise ConfigurationError(
            [
                "You chose FSDP 1 with weights in host memory on the CPU, but that is where they are; leave offload "
                "out, or set version=2 in fsdp_config."
            ]
        )
    prefetch = settings.backward_prefetch
    options = Fsdp1Options(
        units=_units(settings),
        strategy=settings.strategy,
        mesh=settings.mesh if settings.strategy.startswith("hybrid") else None,
        formats=_formats(args, settings),
        offload=settings.offload,
        recompute=settings.recompute,
        backward_prefetch=None if prefetch == "no_prefetch" else prefetch or "backward_pre",
        forward_prefetch=settings.forward_prefetch,
        limit_all_gathers=settings.limit_all_gathers,
        synchronise_each=settings.synchronise_each,
    )
    return Fsdp1(torch.device(device.name), args.world_size, options)


def _units(settings: FsdpSettings) -> Any:
    from hexloop.adapters.engines.fsdp.units import Units

    if settings.policy == "no_wrap":
        return Units(())
    return Units(settings.classes, settings.least)


def _formats(args: TrainingArguments, settings: FsdpSettings) -> Any:
    """As they are given; else mixed precision gathers weights in its half format, and adds gradients up in float32."""
    import torch

    from hexloop.adapters.engines.fsdp.units import Formats

    types = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    given = settings.formats
    if given is None and args.mixed_precision in ("bf16", "fp16"):
        given = {"param_dtype": args.mixed_precision, "reduce_dtype": "fp32"}
    chosen = {name: types[named] for name, named in (given or {}).items()}
    return Formats(
        chosen.get("param_dtype"), chosen.get("reduce_dtype"), chosen.get("buffer_dtype"), chosen.get("output_dtype")
    )


ENGINE: Engine[TrainingArguments, Any] = Engine(
    "fsdp", make_fsdp, consolidates=fsdp_consolidates, exchanges_host_tensors=True
)
