"""The FSDP engine: one version's adapter, by the options."""

from __future__ import annotations

import torch
from torch import Tensor

from hexloop.adapters.engines.arguments import EngineArguments
from hexloop.adapters.engines.fsdp.fsdp1 import Fsdp1
from hexloop.adapters.engines.fsdp.fsdp2 import Fsdp2
from hexloop.adapters.engines.fsdp.options import consolidates, read_options
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.device import Device
from hexloop.ports.engine import Engine
from hexloop.ports.parallelism import Parallelism


def make_fsdp(args: EngineArguments, device: Device) -> Parallelism[Tensor]:
    """Return the adapter. Raises ConfigurationError with all problems of the options."""
    options = read_options(args)
    if options.version == 2:
        return Fsdp2(torch.device(device.name), args.world_size, options)
    if options.offload and device.name == "cpu":
        raise ConfigurationError(
            "You chose FSDP 1 with offload on the CPU, where the weights are in host memory anyway; leave offload "
            "out, or set version=2 in fsdp_config."
        )
    return Fsdp1(torch.device(device.name), args.world_size, options)


ENGINE: Engine[EngineArguments, Tensor] = Engine(
    "fsdp", make_fsdp, consolidates=consolidates, exchanges_host_tensors=True
)
