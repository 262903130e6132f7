"""The cases: short runs that look at `trainer.accelerator`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from attrs import field, frozen

from tests.end_to_end.accelerators import user_code
from tests.end_to_end.accelerators.engines import engine_case
from tests.end_to_end.accelerators.moments import OF_MOMENTS, OF_MOMENTS_DDP
from tests.end_to_end.accelerators.objects import prepared, tensors


@frozen
class Case:
    """A run that looks at the accelerator: returns what it saw, given the library's module and an output folder."""

    run: Callable[[Any, Path], Any]
    ranks: int = 1
    environment: Mapping[str, str] = field(factory=dict)


OF_ENGINES = {"DS_ACCELERATOR": "cpu"}

CASES: dict[str, Case] = {
    **{name: Case(run) for name, run in OF_MOMENTS.items()},
    **{name: Case(run, ranks=2) for name, run in OF_MOMENTS_DDP.items()},
    "tensors": Case(tensors),
    "tensors ddp": Case(tensors, ranks=2),
    "prepared": Case(prepared),
    "prepared ddp": Case(prepared, ranks=2),
    "distillation": Case(user_code.distillation),
    "distillation ddp": Case(user_code.distillation, ranks=2),
    "distillation bf16": Case(partial(user_code.distillation, bf16=True)),
    "own step": Case(user_code.own_step),
    "own step ddp": Case(user_code.own_step, ranks=2),
    "own step bf16": Case(partial(user_code.own_step, bf16=True)),
    "own loader": Case(user_code.own_loader),
    "own loader ddp": Case(user_code.own_loader, ranks=2),
    "own loop": Case(user_code.own_loop),
    "own loop ddp": Case(user_code.own_loop, ranks=2),
    "own loop fsdp 2": Case(user_code.own_loop_fsdp2, ranks=2, environment=OF_ENGINES),
    "own loop bf16": Case(partial(user_code.own_loop, bf16=True)),
    "saved state": Case(user_code.saved_state),
    "own accelerators": Case(user_code.own_accelerators),
    "configured": Case(user_code.configured),
    "tools": Case(user_code.tools),
    **{
        name: Case(partial(engine_case, engine=engine, stage=stage), ranks=2, environment=OF_ENGINES)
        for name, engine, stage in (
            ("zero 1", "zero", 1),
            ("zero 2", "zero", 2),
            ("zero 3", "zero", 3),
            ("fsdp 1", "fsdp1", 0),
            ("fsdp 2", "fsdp2", 0),
        )
    },
}
