"""`TrainingArguments`: all groups of arguments in one class, and values derived from them and the environment."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import logging
import math
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from hexloop.app.arguments.base import SEQ2SEQ_ARGUMENTS, plain, problems_of, unknown_argument
from hexloop.app.arguments.choices import ParallelMode
from hexloop.app.arguments.data import AcceleratorArguments, BatchArguments
from hexloop.app.arguments.declaration import arguments_class, default_of, takes
from hexloop.app.arguments.hardware import (
    HardwareArguments,
    KernelArguments,
    MemoryArguments,
    PrecisionArguments,
    ProcessArguments,
    ShardingArguments,
)
from hexloop.app.arguments.hexloop_only import HexloopArguments
from hexloop.app.arguments.legacy import LEGACY_ARGUMENTS
from hexloop.app.arguments.optimization import BestModelArguments, ReproducibilityArguments
from hexloop.app.arguments.outputs import (
    LOG_LEVELS,
    DebuggingArguments,
    HubArguments,
    SavingArguments,
    TrackioArguments,
)
from hexloop.app.arguments.setters import Setters
from hexloop.app.devices import (
    count_devices,
    detect_device,
    missing_device,
    own_parallel_mode,
    torch_name,
    usual_compiler,
)
from hexloop.app.environment import DistributedEnvironment, is_on, launched
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import RefusalError, problem

if TYPE_CHECKING:
    import torch


@arguments_class
class TrainingArguments(
    Setters,
    HexloopArguments,
    DebuggingArguments,
    HubArguments,
    ShardingArguments,
    ProcessArguments,
    ReproducibilityArguments,
    HardwareArguments,
    KernelArguments,
    MemoryArguments,
    PrecisionArguments,
    TrackioArguments,
    BestModelArguments,
    AcceleratorArguments,
    BatchArguments,
    SavingArguments,
):
    """The arguments of a run, with the names and defaults of transformers.

    Each argument is declared in the group of its subject; the fields are in the order of the groups, the last base
    first. `hexloop train --help` lists them. `output_dir` may be passed by position, the others by name.

    It is an attrs class that also works as a dataclass: derive from it with `@dataclass` or with
    `@attrs.define(slots=False)`, and call `super().__post_init__()` from your own `__post_init__`. Arguments may be
    assigned at any time.

    Args:
        output_dir: folder for checkpoints and results; trainer_output if unset
        save_strategy: when to write a checkpoint: no (never), steps (every save_steps), epoch (at the end of each epoch), best (when an evaluation is the best so far)
        save_steps: optimizer steps between checkpoints; below 1, a ratio of the run
        save_total_limit: maximum number of this run's checkpoints to keep; the newest, with load_best_model_at_end the best, and those that contain a file named protected are always kept; no limit if unset
        save_only_model: write only the weights, without the optimizer, schedule and random generators
        save_on_each_node: let one process per machine write what save_model saves, instead of the first one only
        resume_from_checkpoint: checkpoint, or auto for the newest, which scripts pass to Trainer.train
        ignore_data_skip: when resuming within an epoch, start at its first batch instead of the next one
        restore_callback_states_from_checkpoint: when resuming, restore the state of callbacks from the checkpoint
        enable_jit_checkpoint: at SIGTERM, finish the step, save and stop; the same as SIGTERM in interrupts
        per_device_train_batch_size: samples per training micro-batch on each device
        per_device_eval_batch_size: samples per batch on each device in evaluation and prediction
        gradient_accumulation_steps: micro-batches whose gradients are summed before each optimizer step
        num_train_epochs: number of training epochs; the last may be a fraction of one
        max_steps: number of optimizer steps, needed for data of unknown length; -1 to use num_train_epochs
        auto_find_batch_size: restart with a smaller batch size if a training batch does not fit into memory
        average_tokens_across_devices: divide the loss by the number of tokens in all processes together; no effect in one process
        accelerator_config: how batches are shared among processes: a mapping, an AcceleratorConfig, or the path of a JSON file
        learning_rate: peak learning rate, after warmup
        lr_scheduler_type: learning-rate schedule after warmup
        lr_scheduler_kwargs: further options of the schedule, such as {"num_cycles": 2} for cosine_with_restarts
        warmup_steps: optimizer steps of rising learning rate; below 1, a ratio of the run
        optim: name of the optimizer
        optim_args: further options of the optimizer: name=value, separated by commas
        optim_target_modules: modules that GaLore and APOLLO project: their names, a regular expression, or all-linear
        weight_decay: decoupled weight decay, except of biases and norms
        adam_beta1: decay rate of Adam's mean of gradients
        adam_beta2: decay rate of Adam's mean of squared gradients
        adam_epsilon: constant in Adam's denominator
        max_grad_norm: norm to which the whole model's gradient is clipped; 0 disables clipping
        label_smoothing_factor: share of each target that is spread over all classes; 0: no smoothing
        neftune_noise_alpha: strength of NEFTune's noise on embeddings in training; none if unset
        do_train: whether the script should train
        do_eval: whether the script should evaluate; set automatically if eval_strategy is not no
        overwrite_output_dir: old: whether a script may train into a folder that already holds checkpoints
        do_predict: whether the script should predict on the test set
        logging_strategy: when to log training metrics: no (never), steps (every logging_steps), epoch (at the end of each epoch)
        logging_steps: optimizer steps between logs; below 1, a ratio of the run
        logging_first_step: log the first optimizer step as well
        logging_nan_inf_filter: in logs only, replace a non-finite loss by the mean of the others since the last log
        include_num_input_tokens_seen: count the training tokens and log them: all, non_padding, or no
        report_to: names of the trackers to log to; all for every installed one
        run_name: name of the run in trackers
        logging_dir: old: TensorBoard's folder; if unset, a new one in the output folder's runs/
        disable_tqdm: hide the progress bar; if unset, only if the level of hexloop's logger is above WARNING
        log_level: level of hexloop's logger: debug, info, warning, error, critical, or passive to keep the current one
        log_level_replica: the same in all processes of a run but the first
        log_on_each_node: let one process per machine log, not only one of the run
        eval_strategy: when to evaluate during training: no (never), steps (every eval_steps), epoch (at the end of each epoch)
        eval_steps: optimizer steps between evaluations; below 1, a ratio of the run; logging_steps if unset
        eval_delay: steps, or with eval_strategy=epoch epochs, before the first evaluation
        eval_on_start: evaluate once before the first step
        prediction_loss_only: return only the loss in evaluation and prediction, without outputs and labels
        eval_accumulation_steps: batches whose outputs stay on the device until moved to the host; if unset, what fits into 64 MB
        eval_do_concat_batches: concatenate the outputs of all batches; otherwise they are lists with an entry per batch
        eval_use_gather_object: gather outputs that are not tensors from all processes; no effect in one process
        batch_eval_metrics: call compute_metrics after every batch, instead of keeping all outputs
        past_index: old: index of the model output that is the next batch's memory; -1: none
        jit_mode_eval: old: evaluate the model as torch.jit traces it with the first batch
        include_for_metrics: what compute_metrics receives in addition to outputs and labels: inputs, loss
        load_best_model_at_end: load the best checkpoint by metric when training ends
        metric_for_best_model: metric of the best model, with or without the prefix eval_; if unset, loss where needed
        greater_is_better: whether a higher metric is better; if unset, true unless its name ends in loss
        project: trackio project of the run
        trackio_space_id: space on the Hub that trackio logs to, such as name/space; on this machine if unset
        trackio_bucket_id: bucket on the Hub with the data of trackio's space; chosen by trackio if unset
        trackio_static_space_id: space on the Hub for a static copy at the end; false for none
        bf16: train in mixed precision with bfloat16; weights and sensitive operations stay in float32
        fp16: as bf16, but with float16 and loss scaling; prefer bf16 if the device has it
        bf16_full_eval: evaluate with weights and all computation in bfloat16
        fp16_full_eval: evaluate with weights and all computation in float16
        tf32: use TensorFloat-32 in float32 products and convolutions, on Ampere and later GPUs; unchanged if unset, but on with torch_compile
        activation_checkpointing: recompute activations in the backward pass to save memory
        activation_checkpointing_kwargs: options of activation checkpointing, such as {"use_reentrant": false}
        gradient_checkpointing: alias of activation_checkpointing
        gradient_checkpointing_kwargs: alias of activation_checkpointing_kwargs
        use_cache: let the model cache keys and values in training, as in generation
        torch_empty_cache_steps: optimizer steps between releases of cached device memory; never if unset
        skip_memory_metrics: leave memory usage out of the metrics
        torch_compile: compile the model with torch.compile
        torch_compile_backend: backend of torch.compile, usually inductor if unset; setting it turns compilation on
        torch_compile_mode: mode of torch.compile, such as max-autotune; setting it turns compilation on
        use_liger_kernel: replace layers of a transformers model by liger-kernel's, which take less memory
        liger_kernel_config: which layers to replace, such as {"rope": true}; liger-kernel's default if unset
        train_sampling_strategy: order of training samples: random, sequential, group_by_length (random, by similar length), or batch_rebalance (random, each step in micro-batches of nearly equal cost, which differ in size)
        length_column_name: dataset column with the lengths of the samples, for group_by_length and batch_rebalance
        remove_unused_columns: remove dataset columns that the model's forward method does not take
        label_names: model inputs that are labels; if unset, determined from the model's signature
        dataloader_num_workers: processes that load batches; 0 loads them in the training process
        dataloader_prefetch_factor: batches that each worker loads ahead; 2 if unset
        dataloader_persistent_workers: keep the workers alive between epochs
        dataloader_multiprocessing_context: how workers are started: fork, spawn or forkserver; torch's default if unset
        dataloader_in_order: return batches in order, even if a later one is ready earlier
        dataloader_pin_memory: copy batches into pinned memory, which makes copies to a GPU faster
        dataloader_drop_last: drop the last batch if it is incomplete
        use_cpu: train on the CPU even if an accelerator is present
        seed: seed of all random generators, set when training starts
        data_seed: seed of the order of samples; seed if unset
        full_determinism: use only deterministic kernels, which may be slower
        local_rank: rank on this machine as old launchers pass it; read local_process_index
        ddp_backend: backend of torch.distributed: nccl, gloo, mpi, ccl, xccl, hccl, cncl, mccl; if unset, the one that fits the device
        ddp_timeout: seconds to wait for other processes
        ddp_find_unused_parameters: search in every step for parameters that do not contribute to the loss
        ddp_bucket_cap_mb: size in MiB of the gradient buckets that processes exchange
        ddp_broadcast_buffers: copy the first process's buffers to all processes before each forward pass
        ddp_static_graph: assume that every step uses the same parameters in the same order
        fsdp: shard the model over the processes with torch's FSDP: true, or options of earlier releases such as 'full_shard auto_wrap'
        fsdp_config: options of FSDP: a mapping, or the path of a JSON file
        deepspeed: configuration that turns DeepSpeed on: a mapping, or a JSON file
        parallelism_config: accelerate's ParallelismConfig for multi-dimensional meshes
        push_to_hub: publish the model on the Hub when it is saved
        hub_model_id: repository to publish to, such as name/model; named after the output folder if unset
        hub_strategy: what to publish: end (the final model), every_save (the model at each save), checkpoint (the newest checkpoint as well), all_checkpoints, best (the model of each save that is the best so far)
        hub_token: token to publish with, never shown; the login's if unset
        hub_private_repo: whether a new repository is private; the account's default if unset
        hub_always_push: publish each save, instead of only the newest of those that wait for an upload
        hub_revision: branch of the repository to publish to
        debug: debug options, separated by spaces: underflow_overflow (report the first layer whose values overflow), tpu_metrics_debug (metrics of a TPU)
        param_groups: rules for groups of parameters, as JSON: [{"params": "encoder.*", "learning_rate": 1e-5}]
        packing: let several documents share a row of max_length tokens
        packing_strategy: how documents are packed: bfd (whole, cut off at max_length), bfd_split (longer ones in several pieces), wrapped (end to end, cut wherever a row ends)
        max_length: tokens of a row at most; longer samples are cut off at their end; packing needs it
        padding_free: join the samples of a batch in one row without padding; with flash attention, bfd packing turns it on
        tokens_per_batch: tokens of a training micro-batch of a process at most, in place of per_device_train_batch_size
        eval_packing: whether evaluation data are packed as well; as packing if unset
        pad_to_multiple_of: pad batches to a multiple of that many tokens
        ema_decay: decay of an exponential moving average of the weights; none if unset
        ema_start_step: optimizer step at which the averages begin; below 1, a ratio of the run
        ema_update_every: optimizer steps between updates of averages
        ema_weights: whether averages are evaluated and saved instead of the trained weights, or beside them
        chunked_loss: compute the loss over a few positions at a time, so that the logits never exist whole
        loss_type: nll, chunked_nll (the same as chunked_loss) or dft (each label weighted by its probability); the model's own loss if unset
        log_token_accuracy: log which share of the labels were the most probable token, as token_accuracy
        fp8: as bf16, but linear layers multiply in 8 bits: torchao, transformer_engine, or a mapping of options such as {"backend": "torchao", "recipe": "rowwise"}
        log_goodput: log in percent which share of the time went into steps, what the rest went into, and mfu
        peak_flops: floating-point operations per second of one device at most, for mfu; by the device's name if unset
        profile: steps to record with the profiler: their number, or a mapping with wait, warmup and steps
        system_metrics: measure the use of processor, memory, disk, network and GPU in the background
        media_limit: megabytes of the images and other media that are kept of a run
        optim_layerwise: update each parameter in the backward pass, as soon as its gradient is complete, and free the gradient
        on_nonfinite: what to do if a loss or gradient norm is not finite: warn, stop, skip (continue as if the data lacked that step's samples), rollback (the same, from the state of the last save)
        spike_factor: a loss above this times the median of the last 64 is a spike; off if unset
        on_spike: what to do about a spike: warn, stop, skip, rollback
        nonfinite_limit: steps in a row that may be left out before the run stops (if unset, 100 with skip, 3 with rollback)
        interrupts: signals at which the run saves and stops, from SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 (if unset, SIGINT and SIGTERM on the command line, else none)
        stop_file: file that stops the run, after a save, when it is touched
        stop_after: seconds after which the run saves and stops, less stop_margin
        stop_margin: seconds before stop_after that are reserved for a last step and a save
        board_control: let `hexloop board` pause, resume, save and stop the run, through files in output_dir
        journal: what to write to .hexloop/journal.jsonl in output_dir for `hexloop runs diff`: off (nothing), events (logs and saves), steps (each step as well)
        reproduce: transformers: sample order, random draws, losses and evaluation bit-identical to transformers' Trainer
        loss_weighting: how accumulated losses are weighted: exact (by the number of items), or reference (mean of means, the default with reproduce); exact if unset
        keyed_data_randomness: key each sample's random streams by its position even without loader workers
        compile_buckets: pad batches to at most this many lengths, planned from those of the data, so that as few shapes are compiled; as the data_collator pads if unset
        dataloader_timeout: seconds to wait for a batch of a loader worker; 0 waits forever
        predictions_folder: folder in which evaluation keeps predictions as memory-mapped files; in memory if unset
        capture_step: record the operations of a training step once for each kind of batch, and replay them; with torch_compile, compile clipping and the update
        save_async: write checkpoints in the background, without making training wait
        save_full_model: save the whole model in checkpoints, where otherwise only its adapters of PEFT are saved
        save_when_busy: if a save is due while another runs: wait for it, or skip
        rendezvous_timeout: seconds to wait for all processes to join at the start
        outbox_grace: seconds at the end of a run to publish what the Hub does not have yet
        logger_grace: seconds at the end of a run to pass on what trackers do not have yet
        checkpoint_key: file of the key that signs each checkpoint and is required of each one that is loaded
        resume_despite: accepted differences from the checkpoint when resuming: precision, optimizer, data_length, batch_size, base, averages

    Raises:
        ConfigurationError: on construction with every problem; on assignment with the problem of the value by itself.
            Values that are invalid only in combination are found by `check`, which is called again before training,
            as are values that are assigned during a takeover.

    Examples:
        >>> from hexloop import TrainingArguments
        >>> arguments = TrainingArguments("runs/a", learning_rate=1e-3, eval_strategy="epoch")
        >>> arguments.learning_rate = 5e-4
        >>> arguments.set_lr_scheduler("cosine", warmup_steps=0.1).get_warmup_steps(1000)
        100
        >>> TrainingArguments("runs/a", learnin_rate=1e-3)
        Traceback (most recent call last):
            ...
        hexloop.domain.errors.ConfigurationError: ... did you mean learning_rate?
    """  # noqa: E501 - a line of help for each argument

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [
        "accelerator_config",
        "fsdp_config",
        "deepspeed",
        "activation_checkpointing_kwargs",
        "gradient_checkpointing_kwargs",
        "lr_scheduler_kwargs",
    ]
    """The fields that may be given as JSON text; a subclass may extend the list by fields of its own."""

    default_optim: ClassVar[str] = "adamw_torch_fused"
    is_torch_greater_or_equal_than_2_8: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check everything. A subclass that has its own `__post_init__` calls this one from it."""
        for name in self._VALID_DICT_FIELDS:
            value = getattr(self, name, None)
            if name not in TrainingArguments._VALID_DICT_FIELDS and isinstance(value, str) and value.startswith("{"):
                setattr(self, name, _parsed(name, value))
        super().__post_init__()
        self._validate_args()
        configured = getattr(self.accelerator_config, "use_configured_state", False)
        if self.distributed_environment.world_size == 1 and not configured:
            from hexloop.app.joining import share_accelerate_state

            share_accelerate_state(self)

    def _derive(self) -> None:
        super()._derive()
        if self.torch_compile and self.torch_compile_backend is None:
            self.torch_compile_backend = usual_compiler(self.device_name)

    def _validate_args(self) -> None:
        """No-op: everything is checked. A subclass may override it; it is called at the end of `__post_init__`."""

    @property
    def distributed_environment(self) -> DistributedEnvironment:
        """This process's rank, world size and device. Not a field; another value may be assigned."""
        given: DistributedEnvironment | None = vars(self).get("_given_surroundings")
        if given is not None:
            return given
        process = launched()
        if process.world_size == 1:
            return DistributedEnvironment()
        ranks = (process.world_size, process.rank, process.local_rank)
        return DistributedEnvironment(*ranks, self._barrier, local_world_size=process.local_world_size)

    @distributed_environment.setter
    def distributed_environment(self, distributed_environment: DistributedEnvironment) -> None:
        vars(self)["_given_surroundings"] = distributed_environment

    def _barrier(self) -> None:
        from hexloop.app.joining import join

        join(self).barrier("main_process_first")

    @property
    def train_batch_size(self) -> int:
        """Number of samples in a training micro-batch of this process."""
        return self.per_device_train_batch_size * max(1, self.n_gpu)

    @property
    def eval_batch_size(self) -> int:
        """Number of samples in an evaluation batch of this process."""
        return self.per_device_eval_batch_size * max(1, self.n_gpu)

    @property
    def device(self) -> torch.device:
        """The device of this process.

        Raises:
            ConfigurationError: if torch has no device of that name.
        """
        import torch

        name = self.device_name
        try:
            return torch.device(torch_name(name))
        except RuntimeError as error:
            raise missing_device(name) from error

    @property
    def device_name(self) -> str:
        """The name of the device of this process, as the table of devices has it; usually torch's."""
        if self._on_cpu:
            return "cpu"
        distributed_environment = self.distributed_environment
        return distributed_environment.device or detect_device(distributed_environment.local_process_index)

    @property
    def n_gpu(self) -> int:
        """Number of GPUs that this process trains on; 0 on the CPU."""
        if self._on_cpu:
            return 0
        if self.distributed_environment.n_gpu is not None:
            return self.distributed_environment.n_gpu
        return count_devices(self.device_name, self.world_size)

    @property
    def _n_gpu(self) -> int:
        """See `n_gpu`."""
        return self.n_gpu

    @property
    def _setup_devices(self) -> torch.device:
        """See `device`."""
        return self.device

    @property
    def distributed_state(self) -> Any:
        """Accelerate's PartialState of the run, which shares its process group and device."""
        from hexloop.app.joining import accelerate_state

        return accelerate_state(self)

    @property
    def deepspeed_plugin(self) -> Any:
        """Accelerate's plugin for the configuration of DeepSpeed; None without one."""
        if not self.deepspeed:
            return None
        from accelerate.utils import DeepSpeedPlugin

        return DeepSpeedPlugin(hf_ds_config=self.deepspeed)

    @property
    def fsdp_plugin_args(self) -> dict[str, Any] | None:
        """The keywords of accelerate's plugin for FSDP; None without `fsdp`."""
        if not self.fsdp:
            return None
        from hexloop.app.engines import fsdp_plugin_arguments

        return fsdp_plugin_arguments(self)

    @property
    def xla_fsdp_config(self) -> dict[str, Any]:
        """The settings of FSDP on XLA in `fsdp_config`, with torch's types; empty without it."""
        from hexloop.app.engines import xla_fsdp_settings

        return xla_fsdp_settings(self)

    @property
    def _no_sync_in_gradient_accumulation(self) -> bool:
        """Whether the processes may accumulate gradients without exchanging them."""
        return not self.deepspeed

    @property
    def _on_cpu(self) -> bool:
        return self.use_cpu or is_on("ACCELERATE_USE_CPU")

    @property
    def ddp_timeout_delta(self) -> timedelta:
        """`ddp_timeout` as a timedelta, for torch."""
        return timedelta(seconds=self.ddp_timeout)

    @property
    def parallel_mode(self) -> ParallelMode:
        """How the model is parallelized: over processes, over the GPUs of this process, or not at all.

        Runs on XLA have a mode of their own, as in transformers.
        """
        own = own_parallel_mode(self.device_name)
        if own is not None:
            return ParallelMode(own)
        if self.world_size > 1:
            return ParallelMode.DISTRIBUTED
        return ParallelMode.NOT_DISTRIBUTED if self.n_gpu > 1 else ParallelMode.NOT_PARALLEL

    @property
    def world_size(self) -> int:
        """Number of processes in the run."""
        return self.distributed_environment.world_size

    @property
    def process_index(self) -> int:
        """Rank of this process in the run."""
        return self.distributed_environment.process_index

    @property
    def local_process_index(self) -> int:
        """Rank of this process on its machine."""
        return self.distributed_environment.local_process_index

    @property
    def should_log(self) -> bool:
        """Whether this process logs."""
        return (self.local_process_index if self.log_on_each_node else self.process_index) == 0

    @property
    def should_save(self) -> bool:
        """Whether this process writes checkpoints."""
        return (self.local_process_index if self.save_on_each_node else self.process_index) == 0

    @property
    def place_model_on_device(self) -> bool | None:
        """Whether the Trainer moves the model to the device. None lets the Trainer decide; a subclass may override."""
        return None

    def get_process_log_level(self) -> int:
        """Return the logging level of this process; that of hexloop's logger if the argument is `passive`."""
        level = LOG_LEVELS[self.log_level if self.should_log else self.log_level_replica]
        return logging.getLogger("hexloop").getEffectiveLevel() if level == -1 else level

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """Return the number of warmup steps in a run of `num_training_steps`; a ratio of them is rounded up.

        Args:
            num_training_steps: optimizer steps of the whole run.
        """
        if self.warmup_steps >= 1:
            return int(self.warmup_steps)
        return math.ceil(num_training_steps * self.warmup_steps)

    @contextlib.contextmanager
    def main_process_first(self, local: bool = True, desc: str = "work") -> Iterator[None]:
        """Run the block in the first process (of each machine if `local`, else of the run), then in the others.

        Args:
            local: the first process of each machine, instead of the first of all.
            desc: describes the block in debug messages.
        """
        first = (self.local_process_index if local else self.process_index) == 0
        if not first:
            logging.getLogger("hexloop").debug("process %d waits for the first to do: %s", self.process_index, desc)
            self.distributed_environment.barrier()
        try:
            yield
        finally:
            if first:
                self.distributed_environment.barrier()

    @staticmethod
    def _dict_dtype_to_str(d: dict[str, Any]) -> None:
        """Replace each torch dtype in a dictionary, and in those within it, by its name, in place."""
        for name, value in d.items():
            if isinstance(value, dict):
                TrainingArguments._dict_dtype_to_str(value)
            else:
                d[name] = plain(value)

    def to_json_string(self) -> str:
        """Return `to_dict` as JSON; values without a JSON form, such as a path or a torch dtype, as text."""
        return json.dumps(self.to_dict(), indent=2, default=lambda value: str(value).removeprefix("torch."))

    def to_sanitized_dict(self) -> dict[str, Any]:
        """Return `to_dict` and the batch sizes for trackers; values that are not bool, int, float or str as text."""
        values = {**self.to_dict(), "train_batch_size": self.train_batch_size, "eval_batch_size": self.eval_batch_size}
        return {name: value if type(value) in (bool, int, float, str) else str(value) for name, value in values.items()}


def _parsed(name: str, text: str) -> Any:
    """Return the value of JSON text, with strings that spell a truth value or a number converted."""
    try:
        return _without_texts(json.loads(text))
    except ValueError as error:
        raise ConfigurationError(f"{name}={text!r} is not valid JSON ({error}); correct it.") from error


def _without_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_texts(each) for key, each in value.items()}
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    with contextlib.suppress(ValueError):
        return int(value)
    with contextlib.suppress(ValueError):
        return float(value)
    return value


T = TypeVar("T", bound=TrainingArguments)


def from_transformers(args: Any, cls: type[T]) -> T | TrainingArguments:
    """Return `args` itself if it is hexloop's, else an object of the class `cls` with the same values.

    Raises ConfigurationError if it is not an object of training arguments, and with everything in it that hexloop does
    not support: unknown arguments, and methods that a subclass overrides.
    """
    if isinstance(args, TrainingArguments):
        return args
    if not _are_from_transformers(args):
        refusal = RefusalError("a Trainer takes TrainingArguments of hexloop or transformers", "make such an object")
        raise ConfigurationError(problem({"args": args}, refusal))
    values = {field.name: getattr(args, field.name) for field in dataclasses.fields(args) if field.init}
    changed = {name: value for name, value in values.items() if not _is_default(args, name, value)}
    ignored = {name for name in SEQ2SEQ_ARGUMENTS if name not in changed} | LEGACY_ARGUMENTS.keys()
    unknown = {name: value for name, value in values.items() if name not in ignored and not takes(cls, name)}
    known = {name: value for name, value in changed.items() if name not in unknown}
    problems = [unknown_argument(name, value, ()) for name, value in unknown.items()] + _overrides(args)
    if problems:
        problems = [f"{each} Or derive {type(args).__name__} from hexloop.TrainingArguments." for each in problems]
        raise ConfigurationError([*problems, *problems_of(lambda: cls(**known))])
    return cls(**known)


def _are_from_transformers(args: Any) -> bool:
    """Return whether a base class is transformers', judged by its module, as transformers need not be installed."""
    return dataclasses.is_dataclass(args) and any(_is_from_transformers(owner) for owner in inspect.getmro(type(args)))


def _is_from_transformers(owner: type) -> bool:
    return owner.__module__.split(".")[0] == "transformers"


def _is_default(args: Any, name: str, value: object) -> bool:
    default = default_of(type(args), name)
    return bool(value is default or value == default or (name == "fsdp_config" and value == _UNSET_FSDP_CONFIG))


_UNSET_FSDP_CONFIG = {"min_num_params": 0, "xla": False, "xla_fsdp_v2": False, "xla_fsdp_grad_ckpt": False}
"""What transformers makes of fsdp_config=None: before release 5.10 always, later with `fsdp` only."""


def _overrides(args: Any) -> list[str]:
    """Return a problem for each method and property of transformers' class that a subclass of it overrides."""
    return [
        f"You passed args of the class {owner.__name__}, which overrides {name}, but hexloop would not call it."
        for owner in type(args).__mro__
        if owner is not object and not _is_from_transformers(owner)
        for name, member in vars(owner).items()
        if (inspect.isfunction(member) or isinstance(member, property))
        and hasattr(TrainingArguments, name)
        and not name.startswith("__")
    ]
