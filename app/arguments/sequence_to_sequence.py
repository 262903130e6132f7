"""`Seq2SeqTrainingArguments`: the arguments of a run whose model generates sequences."""

from __future__ import annotations

import warnings
from typing import Any

from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.conversion import at_least
from hexloop.app.arguments.declaration import argument, arguments_class
from hexloop.domain.wording import RefusalError


def generation_configuration(value: object) -> None:
    """Check that a value is a name, a path, or an object such as transformers' `GenerationConfig`."""
    if not isinstance(value, str) and not hasattr(value, "to_dict"):
        raise RefusalError(
            "it takes a model's name, the path of a folder or file, or a GenerationConfig", "give one of them"
        )


@arguments_class
class Seq2SeqTrainingArguments(TrainingArguments):
    """Generation, the arguments of Seq2SeqTrainer.

    They are those of `TrainingArguments`, and how evaluation and prediction generate sequences. Derive from it as from
    `TrainingArguments`.

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
        sortish_sampler: sort samples by length within windows; the same as train_sampling_strategy=group_by_length
        predict_with_generate: in evaluation and prediction, return generated sequences instead of logits
        generation_max_length: maximum length of generated sequences in tokens; the model's if unset
        generation_num_beams: number of beams in beam search; the model's if unset
        generation_config: generation config that replaces the model's own: the name of a model, or the path of a folder or file; from Python also a GenerationConfig
        generation_samples: with predict_with_generate, samples of each evaluation of a run that are logged as a table; 0: none

    Raises:
        ConfigurationError: as `TrainingArguments` does.
    """  # noqa: E501 - a line of help for each argument

    sortish_sampler: bool = argument(
        default=False, help="sort samples by length within windows; the same as train_sampling_strategy=group_by_length"
    )
    predict_with_generate: bool = argument(
        default=False, help="in evaluation and prediction, return generated sequences instead of logits"
    )
    generation_max_length: int | None = argument(
        default=None, check=at_least(1), help="maximum length of generated sequences in tokens; the model's if unset"
    )
    generation_num_beams: int | None = argument(
        default=None, check=at_least(1), help="number of beams in beam search; the model's if unset"
    )
    generation_config: str | Any | None = argument(
        default=None,
        check=generation_configuration,
        help="generation config that replaces the model's own: the name of a model, or the path of a folder or file; "
        "from Python also a GenerationConfig",
    )

    generation_samples: int = argument(
        default=8,
        check=at_least(0),
        help="with predict_with_generate, samples of each evaluation of a run that are logged as a table; 0: none",
    )

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments as `TrainingArguments.to_dict` does, with a generation config as a dictionary."""
        described = super().to_dict()
        if not isinstance(self.generation_config, str | None):
            described["generation_config"] = self.generation_config.to_dict()
        return described

    def _derive(self) -> None:
        super()._derive()
        if self.sortish_sampler and self.train_sampling_strategy == "random":
            warnings.warn(
                "sortish_sampler is deprecated; train_sampling_strategy='group_by_length' does the same, and has been "
                "set.",
                FutureWarning,
                stacklevel=2,
            )
            self.train_sampling_strategy = "group_by_length"
