"""Which engine spreads the model, by the arguments and the processes that there are."""

from __future__ import annotations

from functools import partial
from typing import Any

from hexloop.adapters.parallelism.single import SingleProcess
from hexloop.app.arguments import TrainingArguments
from hexloop.app.deepspeed.configuration import deepspeed_configuration
from hexloop.app.deepspeed.engine import deepspeed_parallelism
from hexloop.app.fsdp import fsdp_is_asked_for, make_fsdp
from hexloop.ports.device import Device
from hexloop.ports.parallelism import Parallelism


def choose_parallelism(args: TrainingArguments, device: Device) -> Parallelism[Any]:
    """The engine that is asked for; DistributedDataParallel where there are several processes and nothing else is."""
    deepspeed = deepspeed_configuration(args)
    if deepspeed is not None:
        return deepspeed_parallelism(args, device, deepspeed)
    if fsdp_is_asked_for(args) and args.world_size > 1:
        return make_fsdp(args, device)
    if args.world_size == 1:
        several = args.n_gpu > 1 and device.name == str(args.device)
        return _data_parallel(args) if several else SingleProcess()
    import torch

    from hexloop.adapters.parallelism.torch.ddp import Ddp, DdpOptions

    options = DdpOptions(
        find_unused_parameters=args.ddp_find_unused_parameters,
        bucket_cap_mb=args.ddp_bucket_cap_mb,
        broadcast_buffers=args.ddp_broadcast_buffers,
        static_graph=args.ddp_static_graph,
    )
    return Ddp(torch.device(device.name), args.world_size, options)


def _data_parallel(args: TrainingArguments) -> Parallelism[Any]:
    """All GPUs that this process sees, as in the reference library."""
    from hexloop.adapters.parallelism.torch.data_parallel import DataParallel
    from hexloop.adapters.trainable.torch.items import item_count

    if args.loss_weighting == "reference":
        return DataParallel(range(args.n_gpu))
    return DataParallel(
        range(args.n_gpu), partial(item_count, label_names=args.label_names or ["labels"], shifted=False)
    )
