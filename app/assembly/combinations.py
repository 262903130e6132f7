"""The table of combinations that are refused."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial

from attrs import asdict, frozen

from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.formats import TORCHAO, TRANSFORMER_ENGINE, Fp8Recipe
from hexloop.app.arguments.losses import DFT, loss_wanted
from hexloop.app.arguments.packing import own_value
from hexloop.app.arguments.parameter_groups import parameter_rules
from hexloop.app.assembly.fp8 import INSTALL, is_computed, is_missing, recipe_in_use
from hexloop.app.engines import is_requested
from hexloop.app.environment import is_on, sagemaker_model_parallel
from hexloop.app.rules import TRANSFORMERS, rules_of
from hexloop.domain.installation import Installations
from hexloop.ports.device import DeviceCapabilities
from hexloop.ports.parallelism import ParallelismCapabilities


@frozen
class Setting:
    """The arguments of a run, and the capabilities of its adapters."""

    args: TrainingArguments
    device: DeviceCapabilities
    precision: str
    parallelism: ParallelismCapabilities

    def uses(self, engine: str) -> bool:
        """Return whether the arguments or the launcher choose this engine of hexloop's."""
        return is_requested(engine, self.args)

    @property
    def fp8(self) -> Fp8Recipe | None:
        """How the run trains in fp8; None if it does not, or if the precision was passed as an adapter."""
        return recipe_in_use(self.args, self.precision)

    @property
    def chunks_loss(self) -> bool:
        """Whether the loss is computed over a few positions at a time."""
        wanted = loss_wanted(self.args)
        return wanted.chunked or wanted.kind == DFT

    @property
    def optimizers(self) -> list[str]:
        """The names of all optimizers: that of the run, and those of rules for parameter groups."""
        return [self.optimizer, *(each.optimizer for each in parameter_rules(self.args) if each.optimizer)]

    @property
    def optimizer(self) -> str:
        """The name of the optimizer that the arguments choose."""
        return str(getattr(self.args.optim, "value", self.args.optim))


@frozen
class Refusal:
    """A combination that cannot work: when, what was chosen, why it cannot, what to do.

    The texts may have fields in braces, which `refused_combinations` fills in.
    """

    when: Callable[[Setting], bool]
    chosen: str
    because: str
    instead: str


OF_SHAPES = ("adafactor", "galore", "apollo", "lomo", "lamb", "lars", "layerwise", "muon")
"""Parts of the names of optimizers whose update of an element depends on the rest of its tensor."""

OF_WHOLE_SHAPES = ("adafactor", "stable_adamw")
"""Optimizers whose updates use rows and columns, or the norm of a whole parameter."""


RECORDING_MODES = ("reduce-overhead", "max-autotune")
"""Modes of torch.compile in which it records graphs itself."""


def _updates_whole_matrices(name: str) -> bool:
    """Return whether an optimizer projects, quantizes or updates whole tensors, one at a time."""
    return name.startswith(("galore", "apollo", "lomo", "adalomo", "paged", "muon")) or "bit" in name or "bnb" in name


LAYERWISE = "layer-wise steps (optim_layerwise, or an optimizer like {optimizer})"

CLIPPED_LAYERWISE = LAYERWISE + " with max_grad_norm={args.max_grad_norm}"


def _clips_layerwise(setting: Setting) -> bool:
    """Return whether the norm of all gradients takes a backward pass of its own."""
    args = setting.args
    return args.steps_in_backward and args.max_grad_norm > 0 and args.gradient_accumulation_steps == 1


CHUNKS = "a loss in chunks (chunked_loss, or loss_type 'chunked_nll' or 'dft')"

REFUSALS = (
    Refusal(
        lambda setting: setting.precision not in setting.device.precisions | {"fp8"},
        "the precision {precision}",
        "the device {device.kind} computes in {precisions} only",
        "choose one of these, or another device",
    ),
    Refusal(
        lambda setting: setting.args.torch_compile and not setting.parallelism.compiles,
        "torch_compile=True with the parallelism {parallelism.name}",
        "a model that it has prepared cannot be compiled",
        "set torch_compile=False",
    ),
    Refusal(
        lambda setting: setting.args.auto_find_batch_size and setting.args.world_size > 1,
        "auto_find_batch_size=True in a run of several processes",
        "processes with enough memory would wait for the one that ran out of it",
        "set per_device_train_batch_size to one that fits",
    ),
    Refusal(
        lambda setting: (
            setting.args.capture_step
            and not setting.device.captures
            and (setting.device.records or not setting.args.torch_compile)
        ),
        "capture_step=True on the device {device.kind}",
        "it cannot record operations",
        "leave it out, or on a device without a runtime of its own set torch_compile=True, with which gradient "
        "clipping and the update are compiled",
    ),
    Refusal(
        lambda setting: setting.args.capture_step and setting.parallelism.name != "single",
        "capture_step=True with the parallelism {parallelism.name}",
        "only the step of one process on one device is recorded",
        "leave it out, or train on one device",
    ),
    Refusal(
        lambda setting: setting.args.capture_step and setting.precision == "fp16",
        "capture_step=True with the precision fp16",
        "this process must read after every step whether a gradient has overflowed",
        "choose bf16, or leave it out",
    ),
    Refusal(
        lambda setting: (
            setting.args.capture_step and setting.fp8 is not None and setting.fp8.backend == TRANSFORMER_ENGINE
        ),
        "capture_step=True with the precision fp8 by transformer_engine",
        "its scales follow from maxima that Python code updates in every step",
        "choose fp8='torchao', or leave capture_step out",
    ),
    Refusal(
        lambda setting: setting.args.capture_step and rules_of(setting.args) is TRANSFORMERS,
        "capture_step=True with reproduce='transformers'",
        "its learning rates are rounded as tensors are, and those of transformers are not",
        "leave one of them out",
    ),
    Refusal(
        lambda setting: setting.args.capture_step and setting.args.past_index >= 0,
        "capture_step=True with past_index={args.past_index}",
        "the outputs that are passed from step to step would stay those of the step that was recorded",
        "leave one of them out",
    ),
    Refusal(
        lambda setting: setting.args.capture_step and setting.args.torch_compile_mode in RECORDING_MODES,
        "capture_step=True with torch_compile_mode={args.torch_compile_mode}",
        "the compiler then records the model by itself",
        "leave the mode out, or choose 'max-autotune-no-cudagraphs'",
    ),
    Refusal(
        lambda setting: setting.parallelism.several_devices and own_value(setting.args, "padding_free"),
        "padding_free=True with the parallelism {parallelism.name}",
        "it splits batches by their rows, and such a batch is one row",
        "start one process for each device, as with `torchrun --nproc-per-node 2`, or use one device",
    ),
    Refusal(
        lambda setting: setting.args.bf16_full_eval and "bf16" not in setting.device.precisions,
        "bf16_full_eval=True",
        "the device {device.kind} computes in {precisions} only",
        "set bf16_full_eval=False",
    ),
    Refusal(
        lambda setting: setting.args.fp16_full_eval and "fp16" not in setting.device.precisions,
        "fp16_full_eval=True",
        "the device {device.kind} computes in {precisions} only",
        "set fp16_full_eval=False",
    ),
    Refusal(
        lambda setting: setting.uses("deepspeed") and importlib.util.find_spec("deepspeed") is None,
        "DeepSpeed (deepspeed, or the environment variable ACCELERATE_USE_DEEPSPEED)",
        "the package deepspeed is not installed",
        "{install[deepspeed]}",
    ),
    Refusal(
        lambda setting: setting.uses("deepspeed") and setting.uses("fsdp"),
        "DeepSpeed and FSDP",
        "both shard the same model",
        "leave one of them out",
    ),
    Refusal(
        lambda setting: (
            (setting.parallelism.owns_update and not setting.parallelism.owns_state)
            and not {"skip", "rollback"}.isdisjoint((setting.args.on_nonfinite, setting.args.on_spike))
        ),
        "on_nonfinite or on_spike 'skip' or 'rollback' with the parallelism {parallelism.name}",
        "the engine does not say what state a run could return to",
        "choose 'stop', and resume from the last checkpoint, or 'warn'",
    ),
    Refusal(
        lambda setting: (
            setting.optimizer.startswith("schedule_free")
            and (setting.parallelism.owns_update or not setting.parallelism.averages)
        ),
        "the optimizer {optimizer} with the parallelism {parallelism.name}",
        "it keeps the weights in a form of its own, in which they cannot be averaged",
        "choose another, such as adamw_torch, or train with DDP or with FSDP version 2",
    ),
    Refusal(
        lambda setting: (
            setting.args.ema_decay is not None and (setting.parallelism.owns_update or not setting.parallelism.averages)
        ),
        "a moving average of weights (ema_decay) with the parallelism {parallelism.name}",
        "it keeps the weights in a form of its own, in which they cannot be averaged",
        "leave it out, or train with DDP or with FSDP version 2",
    ),
    Refusal(
        lambda setting: setting.parallelism.owns_update and setting.args.auto_find_batch_size,
        "auto_find_batch_size=True with {parallelism.name}",
        "its engine is built for one batch size",
        "set per_device_train_batch_size to one that fits",
    ),
    Refusal(
        lambda setting: setting.uses("deepspeed") and any(word in setting.optimizer for word in OF_SHAPES),
        "optim={optimizer} with DeepSpeed",
        "its partitions are flat, and this optimizer needs the rows and columns of each weight",
        "choose another, such as adamw_torch",
    ),
    Refusal(
        lambda setting: setting.uses("fsdp") and setting.args.world_size == 1 and not setting.device.records,
        "FSDP (fsdp, or the environment variable ACCELERATE_USE_FSDP) in a run of one process",
        "there are no other processes to shard the model over",
        "start several processes, as with `torchrun --nproc-per-node 2`, or leave it out",
    ),
    Refusal(
        lambda setting: setting.uses("fsdp") and setting.device.records,
        "FSDP (fsdp, or the environment variable ACCELERATE_USE_FSDP) on the device {device.kind}",
        "torch's FSDP needs devices that run each operation at once",
        "set xla to True in fsdp_config, which chooses FSDP on XLA",
    ),
    Refusal(
        lambda setting: setting.uses("deepspeed") and setting.device.records,
        "DeepSpeed on the device {device.kind}",
        "it needs devices that run each operation at once",
        "leave it out, or shard the model by fsdp='full_shard' with fsdp_config={{'xla': True}}",
    ),
    Refusal(
        lambda setting: (
            setting.parallelism.sharded and not (setting.device.exchanges or setting.parallelism.own_exchange)
        ),
        "the parallelism {parallelism.name} on the device {device.kind}",
        "its processes cannot exchange tensors there",
        "leave it out, or train on another kind of device",
    ),
    Refusal(
        lambda setting: setting.parallelism.name == "fsdp1" and setting.precision == "fp16",
        "the precision fp16 with FSDP 1",
        "its processes would not agree on where gradients overflow",
        "choose bf16, or set version=2 in fsdp_config",
    ),
    Refusal(
        lambda setting: setting.parallelism.sharded and (setting.args.bf16_full_eval or setting.args.fp16_full_eval),
        "an evaluation in half precision (bf16_full_eval or fp16_full_eval) with the parallelism {parallelism.name}",
        "a sharded model keeps the precision that it is trained in",
        "leave it out, or train in that precision, too",
    ),
    Refusal(
        lambda setting: setting.parallelism.sharded and any(map(_updates_whole_matrices, setting.optimizers)),
        "the optimizer {optimizer}, or one of param_groups, with the parallelism {parallelism.name}",
        "it updates whole matrices, and each process holds only a part of each",
        "choose another, such as adamw_torch",
    ),
    Refusal(
        lambda setting: (
            bool(setting.args.param_groups) and (setting.parallelism.owns_update or setting.parallelism.flattens)
        ),
        "param_groups with the parallelism {parallelism.name}",
        "it flattens the parameters of a group, or makes the optimizer's groups itself",
        "leave it out, train with DDP, or shard with FSDP 2 (fsdp='full_shard', version=2 in fsdp_config)",
    ),
    Refusal(
        lambda setting: setting.args.capture_step and setting.optimizer == "muon",
        "capture_step=True with the optimizer muon",
        "only the step of one optimizer can be recorded",
        "leave it out, or choose another optimizer, such as adamw_torch",
    ),
    Refusal(
        lambda setting: setting.parallelism.name == "fsdp1" and getattr(setting.args, "predict_with_generate", False),
        "predict_with_generate=True with FSDP 1",
        "the model cannot generate text while its parameters are flat shards",
        "set version=2 in fsdp_config",
    ),
    Refusal(
        lambda setting: (
            setting.parallelism.name == "xla_fsdp" and getattr(setting.args, "predict_with_generate", False)
        ),
        "predict_with_generate=True with FSDP on XLA",
        "the model cannot generate text while its parameters are flat shards",
        "set xla_fsdp_v2 to True in fsdp_config",
    ),
    Refusal(
        lambda setting: setting.parallelism.name == "xla_fsdp" and setting.optimizer in OF_WHOLE_SHAPES,
        "the optimizer {optimizer} with FSDP on XLA",
        "its updates depend on the shape of a parameter, of which each process holds a flat shard",
        "choose another, such as adamw_torch, or set xla_fsdp_v2 to True in fsdp_config",
    ),
    Refusal(
        lambda setting: setting.parallelism.name == "fsdp1" and setting.optimizer in OF_WHOLE_SHAPES,
        "the optimizer {optimizer} with FSDP 1",
        "its updates depend on the shape of a parameter, of which each process holds a flat shard",
        "choose another, such as adamw_torch, or set version=2 in fsdp_config",
    ),
    Refusal(
        lambda setting: setting.args.steps_in_backward and not setting.parallelism.steps_in_backward,
        LAYERWISE + " with the parallelism {parallelism.name}",
        "its gradients are complete only when the whole backward pass has ended",
        "train in one process on one device or with DDP, or choose an optimizer that steps at the end",
    ),
    Refusal(
        lambda setting: setting.args.steps_in_backward and setting.precision == "fp16",
        LAYERWISE + " with the precision fp16",
        "whether a scaled gradient overflowed is known only after the last one, when the others have been used",
        "choose bf16",
    ),
    Refusal(
        lambda setting: setting.args.steps_in_backward and setting.args.capture_step,
        LAYERWISE + " with capture_step=True",
        "the updates within the backward pass are not recorded",
        "leave capture_step out",
    ),
    Refusal(
        lambda setting: setting.args.steps_in_backward and rules_of(setting.args) is TRANSFORMERS,
        LAYERWISE + " with reproduce='transformers'",
        "transformers neither clips nor accumulates gradients there, and does not save the state of such an optimizer",
        "leave reproduce out, or choose an optimizer that steps at the end",
    ),
    Refusal(
        lambda setting: _clips_layerwise(setting) and setting.args.torch_compile,
        CLIPPED_LAYERWISE + " and torch_compile=True",
        "the norm of all gradients takes a second backward pass, which a compiled model does not allow",
        "set max_grad_norm=0, or leave torch_compile out",
    ),
    Refusal(
        lambda setting: _clips_layerwise(setting) and setting.args.use_liger_kernel,
        CLIPPED_LAYERWISE + " and use_liger_kernel=True",
        "the norm of all gradients takes a second backward pass, and liger-kernel's loss allows only one",
        "set max_grad_norm=0, or leave use_liger_kernel out",
    ),
    Refusal(
        lambda setting: setting.args.parallelism_config is not None or is_on("ACCELERATE_USE_PARALLELISM_CONFIG"),
        "multi-dimensional device meshes (parallelism_config, or the environment variable "
        "ACCELERATE_USE_PARALLELISM_CONFIG)",
        "only one-dimensional device meshes are supported so far",
        "leave it out",
    ),
    Refusal(
        lambda setting: setting.args.world_size == 1 and setting.args.local_rank > 0,
        "local_rank={args.local_rank}",
        "no launcher has set the number of processes, so each would train a model of its own",
        "start the script with torchrun or hexloop launch, which set RANK and WORLD_SIZE",
    ),
    Refusal(
        lambda setting: rules_of(setting.args) is TRANSFORMERS and setting.parallelism.name not in ("single", "ddp"),
        "reproduce='transformers' with the parallelism {parallelism.name}",
        "the sums of this engine are in another order than those of transformers",
        "leave reproduce out, or train in one process on one device or with one process per device",
    ),
    Refusal(
        lambda setting: rules_of(setting.args) is TRANSFORMERS and setting.args.auto_find_batch_size,
        "auto_find_batch_size=True with reproduce='transformers'",
        "hexloop starts again with the first weights and random streams, and transformers with those that the failed "
        "attempt left",
        "set per_device_train_batch_size to one that fits",
    ),
    Refusal(
        lambda setting: (
            setting.args.push_to_hub
            and setting.args.hub_strategy == "best"
            and not (setting.args.metric_for_best_model and setting.args.eval_strategy != "no")
        ),
        "hub_strategy='best'",
        "without metric_for_best_model and evaluations no checkpoint is the best",
        "set metric_for_best_model and eval_strategy",
    ),
    Refusal(
        lambda setting: (
            setting.precision == "fp8"
            and not setting.uses("deepspeed")
            and not is_computed(setting.fp8, setting.device)
        ),
        "the precision fp8",
        "the device {device.kind} has no products of 8 bits; NVIDIA's GPUs have them from compute capability 8.9 on "
        "(Ada, Hopper), AMD's from the MI300 on",
        "choose bf16, or with torchao set emulate to True in fp8, which is slower than bf16",
    ),
    *(
        Refusal(
            partial(lambda backend, setting: is_missing(setting.fp8, backend), backend),
            f"the precision fp8 by {backend}",
            f"the package {backend} is not installed",
            INSTALL[backend],
        )
        for backend in (TORCHAO, TRANSFORMER_ENGINE)
    ),
    Refusal(
        lambda setting: setting.precision == "fp8" and setting.uses("deepspeed"),
        "the precision fp8 with DeepSpeed",
        "its engine decides itself in which formats layers compute",
        "choose bf16, or shard with FSDP 2 (fsdp='full_shard', version=2 in fsdp_config)",
    ),
    Refusal(
        lambda setting: setting.precision == "fp8" and setting.parallelism.name == "fsdp1",
        "the precision fp8 with FSDP 1",
        "its flat shards do not keep the layers that compute in 8 bits",
        "set version=2 in fsdp_config",
    ),
    Refusal(
        lambda setting: (
            setting.parallelism.sharded and setting.fp8 is not None and setting.fp8.backend == TRANSFORMER_ENGINE
        ),
        "the precision fp8 by transformer_engine with the parallelism {parallelism.name}",
        "its layers are made on the device before they are sharded",
        "choose fp8='torchao'",
    ),
    Refusal(
        lambda setting: setting.precision == "fp8" and rules_of(setting.args) is TRANSFORMERS,
        "the precision fp8 with reproduce='transformers'",
        "transformers leaves fp8 to accelerate, whose numbers are not reproduced",
        "leave one of them out",
    ),
    Refusal(
        lambda setting: setting.chunks_loss and setting.parallelism.sharded,
        CHUNKS + " with the parallelism {parallelism.name}",
        "it reads the weights of the output layer, of which each process holds a part",
        "leave it out, or train with DDP",
    ),
    Refusal(
        lambda setting: setting.chunks_loss and setting.parallelism.several_devices,
        CHUNKS + " with the parallelism {parallelism.name}",
        "the outputs of several devices are joined, and logits that are pending cannot be",
        "start one process per device, as with `torchrun`, or leave it out",
    ),
    Refusal(
        lambda setting: setting.chunks_loss and setting.args.torch_compile,
        CHUNKS + " with torch_compile=True",
        "the compiler cannot follow logits that are pending",
        "leave one of them out; torch.compile can be called on the layers of the model alone",
    ),
    Refusal(
        lambda setting: setting.chunks_loss and setting.args.capture_step,
        CHUNKS + " with capture_step=True",
        "the gradients that its forward pass computes are not recorded",
        "leave one of them out",
    ),
    Refusal(
        lambda setting: setting.chunks_loss and setting.args.use_liger_kernel,
        CHUNKS + " with use_liger_kernel=True",
        "liger-kernel computes the loss of the models that it knows without their output layer",
        "leave one of them out",
    ),
    Refusal(
        lambda setting: setting.args.log_token_accuracy and setting.args.capture_step,
        "log_token_accuracy=True with capture_step=True",
        "Python code that looks at the logits runs only while the step is recorded",
        "leave one of them out",
    ),
    Refusal(
        lambda setting: sagemaker_model_parallel(),
        "SageMaker's model parallelism (the environment variables SM_HP_MP_PARAMETERS and SM_FRAMEWORK_PARAMS)",
        "hexloop does not have it",
        "leave modelparallel out of the estimator's distribution, start the processes with torch_distributed, and "
        "shard the model by fsdp or deepspeed",
    ),
)


def refusals_of(setting: Setting) -> list[Refusal]:
    """Return the rows of the table that apply."""
    return [row for row in REFUSALS if row.when(setting)]


def refused_combinations(setting: Setting) -> list[str]:
    """Return a sentence for each row of the table that applies."""
    precisions = ", ".join(sorted(setting.device.precisions))
    fields = asdict(setting, recurse=False) | {"precisions": precisions, "optimizer": setting.optimizer}
    fields["install"] = Installations()
    return [
        f"You chose {row.chosen}, but {row.because}; {row.instead}.".format_map(fields) for row in refusals_of(setting)
    ]
