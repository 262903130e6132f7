"""The same training with a hand-written loop, hexloop and accelerate, under an engine for several processes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from tests.bench.libraries import accelerated, trainer_arguments
from tests.bench.workloads import BATCH, RATE, Block, collate

Loop = Callable[[nn.Module, Any, int], None]

STAGES = {"zero0": 0, "zero1": 1, "zero2": 2, "zero3": 3}


def _layers(model: nn.Module) -> list[nn.Module]:
    """Classes of modules that are sharded as units: a GPT's blocks, or a classifier's linear layers."""
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    return list(blocks) or [module for module in model.modules() if isinstance(module, nn.Linear)]


def _schedule(optimizer: torch.optim.Optimizer, steps: int) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1.0 - step / steps))


def _deepspeed(stage: int) -> dict[str, Any]:
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0} if stage == 3 else {"stage": stage}
    return {
        "train_micro_batch_size_per_gpu": BATCH, "gradient_clipping": 1.0, "zero_optimization": zero,
        "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
    }  # fmt: skip


def _let_deepspeed_start() -> None:
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # building it takes a minute


def by_hand(engine: str) -> Loop:
    """The hand-written loop around the engine."""

    def loop(model: nn.Module, dataset: Any, steps: int) -> None:
        train = _of_deepspeed if engine in STAGES else _of_torch
        data = DataLoader(dataset, batch_size=BATCH, sampler=DistributedSampler(dataset), collate_fn=collate)
        train(engine, model, data, steps)

    return loop


def _of_torch(engine: str, model: Any, data: Any, steps: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    if engine == "fsdp1":
        model = FullyShardedDataParallel(
            model,
            auto_wrap_policy=ModuleWrapPolicy({type(layer) for layer in _layers(model)}),
            use_orig_params=True,
            device_id=torch.device("cpu"),
            device_mesh=init_device_mesh("cpu", (dist.get_world_size(),)),
        )
    else:
        for layer in _layers(model):
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    schedule, parameters, total = _schedule(optimizer, steps), list(model.parameters()), torch.zeros(())
    model.train()
    for batch in islice(data, steps):
        loss: Tensor = model(**batch)["loss"]
        loss.backward()  # type: ignore[no-untyped-call]
        model.clip_grad_norm_(1.0) if engine == "fsdp1" else nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        total += loss.detach()


def _of_deepspeed(engine: str, model: nn.Module, data: Any, steps: int) -> None:
    import deepspeed

    _let_deepspeed_start()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    schedule, total = _schedule(optimizer, steps), torch.zeros(())
    spread: Any = deepspeed.initialize(
        model=model, optimizer=optimizer, lr_scheduler=schedule, config=_deepspeed(STAGES[engine])
    )[0]
    spread.train()
    for batch in islice(data, steps):
        loss = spread(**batch)["loss"]
        spread.backward(loss)
        spread.step()
        total += loss.detach()


def by_hexloop(engine: str) -> Loop:
    """Hexloop's Trainer with its default callbacks."""

    def loop(model: nn.Module, dataset: Any, steps: int) -> None:
        from hexloop import Trainer, TrainingArguments

        chosen: dict[str, Any] = {"deepspeed": _deepspeed(STAGES.get(engine, 0))}
        if engine not in STAGES:
            layers = sorted({type(layer).__name__ for layer in _layers(model)})
            config = {"version": int(engine[-1]), "transformer_layer_cls_to_wrap": layers}
            chosen = {"fsdp": "full_shard", "fsdp_config": config}
        folder = os.path.join(tempfile.gettempdir(), f"hexloop-bench-{os.environ['MASTER_PORT']}")
        arguments = TrainingArguments(**trainer_arguments(folder, steps), **chosen)
        Trainer(model, arguments, data_collator=collate, train_dataset=dataset).train()

    return loop


def by_accelerate(engine: str) -> Loop:
    """The hand-written loop with accelerate."""

    def loop(model: nn.Module, dataset: Any, steps: int) -> None:
        with _accelerator(engine, model) as accelerator:
            accelerated(accelerator, model, dataset, steps)

    return loop


@contextmanager
def _accelerator(engine: str, model: nn.Module) -> Iterator[Any]:
    """Return an accelerator with the engine, which it uses on a CPU only if forced. Leaves no variables."""
    from accelerate import Accelerator, DeepSpeedPlugin, FullyShardedDataParallelPlugin, PartialState
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedType

    variables = dict(os.environ)
    AcceleratorState._reset_state(reset_partial_state=True)
    if engine in STAGES:
        _let_deepspeed_start()
        os.environ.update(ACCELERATE_USE_DEEPSPEED="true", ACCELERATE_USE_CPU="false")
        PartialState(backend="gloo")
        yield Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=_deepspeed(STAGES[engine])))
    else:
        state = PartialState(cpu=True)
        state.distributed_type = DistributedType.MULTI_GPU
        state.device = torch.device("cpu")  # without an index, which FSDP 1 does not accept for a CPU
        layers = sorted({type(layer).__name__ for layer in _layers(model)})
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=int(engine[-1]),
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=layers,
            use_orig_params=True if engine == "fsdp1" else None,
        )
        yield Accelerator(fsdp_plugin=plugin)
    os.environ.clear()
    os.environ.update(variables)


def loops(engine: str) -> dict[str, Loop]:
    """The three loops, by name."""
    return {"by hand": by_hand(engine), "hexloop": by_hexloop(engine), "accelerate": by_accelerate(engine)}
