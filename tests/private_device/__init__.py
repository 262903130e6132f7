"""A device that a program adds to torch: built from C++ on first use, and registered under the name "pretend".

A process that registers it keeps it, so tests use it in processes of their own.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

NAME = "pretend"
MEMORY = 2**30


def build() -> Any:
    """Return the extension, which is compiled on first use and cached by torch."""
    from torch.utils.cpp_extension import load

    return load("hexloop_private_device", [str(Path(__file__).with_name("device.cpp"))], extra_cflags=["-O1", "-w"])


def register() -> Any:
    """Add the device to torch, for the rest of the process; return the extension."""
    extension = build()
    backends: Any = torch.utils
    backends.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _module(extension))  # type: ignore[no-untyped-call]
    backends.generate_methods_for_privateuse1_backend()
    return extension


def _module(extension: Any) -> Any:
    """Return what is `torch.pretend`."""
    module: Any = ModuleType(f"torch.{NAME}")
    for name in (
        *("device_count", "current_device", "set_device"),
        *("memory_allocated", "max_memory_allocated", "reset_peak_memory_stats"),
    ):
        setattr(module, name, getattr(extension, name))

    def number(device: Any) -> int:
        index = device if isinstance(device, int) else torch.device(device).index
        return extension.current_device() if index is None else int(index)

    def generators() -> list[Any]:
        return [extension.default_generator(index) for index in range(extension.device_count())]

    def manual_seed_all(seed: int) -> None:
        for each in generators():
            each.manual_seed(seed)

    module.is_available = module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    module.get_device_name = lambda index: f"Pretend {index}"
    module.get_device_properties = lambda index: SimpleNamespace(total_memory=MEMORY)
    module.empty_cache = lambda: None
    module.mem_get_info = lambda device: (MEMORY - extension.memory_allocated(number(device)), MEMORY)
    module.Stream, module.Event = torch.Stream, torch.Event
    module.current_stream = lambda device=NAME: torch.Stream(torch.device(NAME, number(device)))
    module.stream = lambda stream: stream
    module.manual_seed_all = manual_seed_all
    module.manual_seed = lambda seed: extension.default_generator(extension.current_device()).manual_seed(seed)
    module.get_rng_state = lambda device=NAME: extension.default_generator(number(device)).get_state()
    module.get_rng_state_all = lambda: [each.get_state() for each in generators()]
    module.set_rng_state = lambda state, device=NAME: extension.default_generator(number(device)).set_state(state)
    return module
