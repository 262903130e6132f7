"""`SFTConfig`: the arguments of supervised fine-tuning."""

from __future__ import annotations

from typing import Any, ClassVar

from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.conversion import at_least, steps_or_ratio
from hexloop.app.arguments.declaration import argument, arguments_class, rule
from hexloop.app.rules import rules_of
from hexloop.domain.wording import RefusalError, did_you_mean

SKIPS = "skip_prepare_dataset"
"""The key of `dataset_kwargs` with which data are passed to the collator as they are."""


LONGEST = 1024
"""The default of `max_length`."""


def _options_of_data(value: Any) -> None:
    """Check the keys of `dataset_kwargs`."""
    for name, chosen in value.items() if isinstance(value, dict) else ():
        if name != SKIPS:
            raise RefusalError(f"it has no key {name!r}", did_you_mean(str(name), [SKIPS], f"its only key is {SKIPS}"))
        if not isinstance(chosen, bool):
            raise RefusalError(f"{SKIPS} takes a truth value", "give true or false")


def _multiple(value: Any) -> Any:
    """Convert trl's "auto", which pads on one accelerator only."""
    return None if value == "auto" else value


@arguments_class
class SFTConfig(TrainingArguments):
    """Fine-tuning, the arguments of SFTTrainer.

    They are those of `TrainingArguments`, and how samples become tokens and which of these count in the loss, with the
    names of trl. Of the defaults, `learning_rate`, `logging_steps` and `max_length` are trl's; the precision and
    `gradient_checkpointing` stay those of `TrainingArguments`. Derive from it as from `TrainingArguments`.

    - `model_init_kwargs`: keywords of `AutoModelForCausalLM.from_pretrained`, for a model that is passed by name.
      Without a `dtype` among them the weights are loaded in float32.
    - `chat_template_path`: a file with a Jinja template, or a folder or the name of a model whose tokenizer has one.
      Tokens that only that tokenizer has are added to the tokenizer and to the model.
    - `max_length`: as in `TrainingArguments`. It is unset with `reproduce`, and if the preparation of data is skipped,
      unless another length than 1024 is given.
    - `dataset_kwargs`: `skip_prepare_dataset=True` passes samples to the collator as they are.
    - `dataset_num_proc`: processes that tokenize data with indices before the Trainer is ready, and keep the tokens in
      `token_cache`. If neither is set, samples are tokenized when they are read, and nothing is written. Streams are
      always tokenized as they are read.
    - `token_cache`: a folder with the tokens of samples, under a digest of the samples, the tokenizer and the options.
      If unset, `hexloop-tokens` in the cache of `datasets`.
    - `completion_only_loss`: whether the tokens of a prompt are left out of the loss. If unset, those of samples that
      have a prompt and a completion are.
    - `assistant_only_loss`: count only what the assistant says in a conversation, as the chat template marks it with
      `{% generation %}`.

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
        padding_free: join the samples of a batch in one row without padding; with flash attention, bfd packing turns it on
        tokens_per_batch: tokens of a training micro-batch of a process at most, in place of per_device_train_batch_size
        eval_packing: whether evaluation data are packed as well; as packing if unset
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
        learning_rate: peak learning rate, after warmup
        logging_steps: optimizer steps between logs; below 1, a ratio of the run
        max_length: tokens of a sample at most; longer ones are cut off at their end; with packing, tokens of a row
        pad_to_multiple_of: pad batches to a multiple of that many tokens
        model_init_kwargs: keywords of from_pretrained, for a model that is passed by name
        trust_remote_code: run code that comes with a model or tokenizer that is loaded by name
        chat_template_path: file of a chat template, or folder or name of a model whose tokenizer has one
        dataset_text_field: column of the samples that holds a text
        dataset_kwargs: skip_prepare_dataset: whether samples go to the collator as they are
        dataset_num_proc: processes that tokenize the data before training; as they are read if unset
        token_cache: folder in which tokens are kept for later runs; in the cache of datasets if only dataset_num_proc is set
        eos_token: token that ends a text or completion; that of the tokenizer if unset
        pad_token: token of padding; that of the tokenizer if unset, else its end token
        completion_only_loss: leave prompts out of the loss; where samples have a prompt and a completion if unset
        assistant_only_loss: count only what the assistant says, as the chat template marks it

    Raises:
        ConfigurationError: as `TrainingArguments` does.
    """  # noqa: E501 - a line of help for each argument

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [
        *TrainingArguments._VALID_DICT_FIELDS,
        "model_init_kwargs",
        "dataset_kwargs",
    ]

    learning_rate: float = argument(default=2e-5, check=at_least(0), help="peak learning rate, after warmup")
    logging_steps: float = argument(
        default=10, check=steps_or_ratio, help="optimizer steps between logs; below 1, a ratio of the run"
    )
    max_length: int | None = argument(
        default=LONGEST,
        check=at_least(1),
        help="tokens of a sample at most; longer ones are cut off at their end; with packing, tokens of a row",
    )
    pad_to_multiple_of: int | None = argument(
        default=None, prepare=_multiple, check=at_least(1), help="pad batches to a multiple of that many tokens"
    )
    model_init_kwargs: dict[str, Any] | str | None = argument(
        default=None, help="keywords of from_pretrained, for a model that is passed by name"
    )
    trust_remote_code: bool = argument(
        default=False, help="run code that comes with a model or tokenizer that is loaded by name"
    )
    chat_template_path: str | None = argument(
        default=None, help="file of a chat template, or folder or name of a model whose tokenizer has one"
    )
    dataset_text_field: str = argument(default="text", help="column of the samples that holds a text")
    dataset_kwargs: dict[str, Any] | str | None = argument(
        default=None,
        check=_options_of_data,
        help="skip_prepare_dataset: whether samples go to the collator as they are",
    )
    dataset_num_proc: int | None = argument(
        default=None,
        check=at_least(1),
        help="processes that tokenize the data before training; as they are read if unset",
    )
    token_cache: str | None = argument(
        default=None,
        help="folder in which tokens are kept for later runs; in the cache of datasets if only dataset_num_proc is set",
    )
    eos_token: str | None = argument(
        default=None, help="token that ends a text or completion; that of the tokenizer if unset"
    )
    pad_token: str | None = argument(
        default=None, help="token of padding; that of the tokenizer if unset, else its end token"
    )
    completion_only_loss: bool | None = argument(
        default=None, help="leave prompts out of the loss; where samples have a prompt and a completion if unset"
    )
    assistant_only_loss: bool = argument(
        default=False, help="count only what the assistant says, as the chat template marks it"
    )

    @rule("dataset_kwargs", "completion_only_loss", "assistant_only_loss", "dataset_num_proc", "token_cache")
    def _preparation_that_is_not_skipped(self) -> None:
        if not self.skips_preparation:
            return
        given = ("completion_only_loss", "assistant_only_loss", "dataset_num_proc", "token_cache")
        if unused := [name for name in given if getattr(self, name)]:
            raise RefusalError(
                f"{SKIPS} leaves tokens and labels as the data have them, so {' and '.join(unused)} would do nothing",
                f"leave {'it' if len(unused) == 1 else 'them'} out, or {SKIPS}",
            )

    @property
    def skips_preparation(self) -> bool:
        """Whether samples go to the collator as they are."""
        return isinstance(self.dataset_kwargs, dict) and bool(self.dataset_kwargs.get(SKIPS))

    def _derive(self) -> None:
        super()._derive()
        cuts_nothing = self.skips_preparation or not rules_of(self).own_order
        if cuts_nothing and not (self.packing or self.eval_packing) and self.max_length == LONGEST:
            self.max_length = None
