"""Arguments that transformers does not have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hexloop.app.arguments.averages import AverageArguments
from hexloop.app.arguments.choices import BusyText, JournalText, ReactionText, ReproducedText, WeightingText
from hexloop.app.arguments.conversion import NONE_WORDS, above_zero, at_least, decoded, each_one_of, one_of
from hexloop.app.arguments.declaration import ArgumentGroup, argument, argument_group, rule
from hexloop.app.arguments.formats import Fp8Arguments
from hexloop.app.arguments.losses import LossArguments
from hexloop.app.arguments.packing import PackingArguments
from hexloop.app.arguments.parameter_groups import ParameterGroupArguments
from hexloop.domain.wording import RefusalError, did_you_mean

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
"""The signals that can stop a run; loader workers ignore all of them."""


def _signal_names(value: Any) -> Any:
    """Convert a single name to a list."""
    return [value] if isinstance(value, str) and not value.startswith("[") else value


@argument_group
class PreemptionArguments(ArgumentGroup):
    """Stopping a run early.

    Each of these finishes the current optimizer step, saves a checkpoint, and stops the run, which then reports it
    (`Trainer.outcome`; exit code 3 on the command line). All are off by default.

    Args:
        interrupts: names of the signals that stop the run; a second signal of the same kind stops it at once. Python
            delivers signals only to a program's main thread, so the run must start there. On the command line the
            default is SIGINT and SIGTERM, and an empty list turns them off.
        stop_file: touching this file stops the run. A file that exists before the run starts does not.
        stop_after: the run stops this many seconds after the Trainer was created, less `stop_margin`.
        stop_margin: the seconds before `stop_after` in which the current step and the save must complete.
    """

    interrupts: list[str] | None = argument(
        default=None,
        prepare=_signal_names,
        check=each_one_of(*SIGNALS),
        help=f"signals at which the run saves and stops, from {', '.join(SIGNALS)} (if unset, SIGINT and SIGTERM on "
        "the command line, else none)",
    )
    stop_file: str | None = argument(default=None, help="file that stops the run, after a save, when it is touched")
    stop_after: float | None = argument(
        default=None, check=above_zero, help="seconds after which the run saves and stops, less stop_margin"
    )
    stop_margin: float = argument(
        default=60.0, check=at_least(0), help="seconds before stop_after that are reserved for a last step and a save"
    )

    @rule("stop_after", "stop_margin")
    def _some_time_before_the_deadline(self) -> None:
        if self.stop_after is not None and self.stop_margin >= self.stop_after:
            raise RefusalError(
                "the margin leaves no time to train", "choose a later deadline, or a smaller stop_margin"
            )


@argument_group
class JournalArguments(ArgumentGroup):
    """The run's journal.

    Args:
        journal: what is written to `.hexloop/journal.jsonl` in the output folder, which `hexloop runs diff` compares to
            find where two runs diverge. `events`: each log and each phase of each save, with fingerprints of the random
            generators and the saved weights; steps without either cost nothing, and a run with save_strategy="no"
            writes no journal. `steps`: in addition, for every step, fingerprints of its batch and of the random
            generators, its learning rate and its loss, which is read from the device with the next log. `off`: no
            journal.
    """

    journal: JournalText = argument(
        default="events",
        check=one_of("off", "events", "steps"),
        help="what to write to .hexloop/journal.jsonl in output_dir for `hexloop runs diff`: off (nothing), events "
        "(logs and saves), steps (each step as well)",
    )


LAYERWISE, LOMO = "_layerwise", ("lomo", "adalomo")
"""How the names of optimizers that are layer-wise by themselves end, and further such names."""


@argument_group
class LayerwiseArguments(ArgumentGroup):
    """Optimizer steps within the backward pass.

    Args:
        optim_layerwise: each parameter is updated as soon as its gradient is complete, and the gradient is freed at
            once, so that without accumulation only a few gradients exist at a time. The results are those of the same
            optimizer that steps at the end. Optimizers whose names end in `_layerwise`, and LOMO, always step like
            this. With `max_grad_norm` above 0 the backward pass of a step of one micro-batch runs twice, first to find
            the norm.
    """

    optim_layerwise: bool = argument(
        default=False,
        help="update each parameter in the backward pass, as soon as its gradient is complete, and free the gradient",
    )

    @property
    def steps_in_backward(self) -> bool:
        """Whether each parameter is updated as soon as its gradient is complete."""
        optim = getattr(self, "optim", "")
        name = str(getattr(optim, "value", optim))
        return self.optim_layerwise or name.endswith(LAYERWISE) or name in LOMO

    @rule("reproduce", "optim_layerwise")
    def _steps_that_can_be_reproduced(self) -> None:
        if getattr(self, "reproduce", None) is not None and self.optim_layerwise:
            raise RefusalError("transformers steps at the end of the backward pass", "leave optim_layerwise out")


@argument_group
class BoardArguments(ArgumentGroup):
    """What `hexloop board` may do.

    Args:
        board_control: whether the board can pause, resume, save and stop the run, by files in the folder `commands` of
            the output folder. A thread of the first process looks for them twice a second; steps cost nothing.
    """

    board_control: bool = argument(
        default=True, help="let `hexloop board` pause, resume, save and stop the run, through files in output_dir"
    )


REACTIONS = ("warn", "stop", "skip", "rollback")
"""What a run can do about a step whose loss is not usable."""


@argument_group
class GuardArguments(ArgumentGroup):
    """Losses that are not finite, and loss spikes.

    Args:
        on_nonfinite: what to do about an optimizer step whose loss or gradient norm is NaN or infinite. `warn`: log a
            warning at the first one. `stop`: stop with an error. `skip` and `rollback`: continue as if the data lacked
            the samples of that step. The run finds out where it reads the loss anyway, at logs, evaluations, saves and
            the end of an epoch; until then nothing waits for the device. It then returns to the state that it keeps in
            memory, and trains again from there without those samples. `skip` keeps the state at saves and every 100
            steps, `rollback` at saves only.
        spike_factor: a loss that is greater than this times the median of the last 64 finite losses is a spike. Nothing
            is judged before the 17th step, or while the median is not above 0. If unset, spikes are not looked for.
        on_spike: what to do about a spike; the same four words.
        nonfinite_limit: how many steps in a row may be left out. One more stops the run with an error.
    """

    on_nonfinite: ReactionText = argument(
        default="warn",
        check=one_of(*REACTIONS),
        help="what to do if a loss or gradient norm is not finite: warn, stop, skip (continue as if the data lacked "
        "that step's samples), rollback (the same, from the state of the last save)",
    )
    spike_factor: float | None = argument(
        default=None,
        check=at_least(1),
        help="a loss above this times the median of the last 64 is a spike; off if unset",
    )
    on_spike: ReactionText = argument(
        default="warn", check=one_of(*REACTIONS), help="what to do about a spike: warn, stop, skip, rollback"
    )
    nonfinite_limit: int | None = argument(
        default=None,
        check=at_least(0),
        help="steps in a row that may be left out before the run stops (if unset, 100 with skip, 3 with rollback)",
    )


WINDOW = {"wait": 5, "warmup": 2, "steps": 3}
"""The keys of `profile`, with their defaults."""


def _profile_window(value: Any) -> Any:
    """Convert a number of steps, or a mapping or JSON text of one, to a mapping with all keys of a window."""
    given = decoded(value) if isinstance(value, str) else value
    if given is None or (isinstance(given, str) and given.lower() in NONE_WORDS):
        return None
    remedy = f"give a number of steps, or a mapping such as {WINDOW}"
    if not isinstance(given, Mapping):
        if isinstance(given, bool) or not isinstance(given, int):
            raise RefusalError("it takes the steps to record", remedy)
        given = {"steps": given}
    for name, number in given.items():
        if name not in WINDOW:
            raise RefusalError(f"it has no key {name!r}", did_you_mean(str(name), [*WINDOW], remedy))
        if isinstance(number, bool) or not isinstance(number, int):
            raise RefusalError(f"{name} is not a whole number", remedy)
        if number < (least := int(name == "steps")):
            raise RefusalError(f"{name} must be at least {least}", remedy)
    return {**WINDOW, **given}


@argument_group
class MeterArguments(ArgumentGroup):
    """What a run is measured by.

    Args:
        log_goodput: add to each log of the loss in which share of the time since the last one the run made steps
            (`goodput`), and in which it did something else (`badput_data`: waiting for batches, `badput_saving`,
            `badput_evaluating`, `badput_compiling`, `badput_starting`, `badput_restarting`, `badput_paused`,
            `badput_other`), in percent; and the model FLOP utilisation (`mfu`). At the end, the shares of the whole run
            are among the results, over all resumes, with "train_" before their names. It costs some clock readings per
            step, and no wait for the device.
        peak_flops: floating-point operations per second that one device does at most in the format of the run, of which
            `mfu` is a share. If unset, it is known for some accelerators by their name.
        profile: record some steps with the profiler of the framework, and leave a Chrome trace and a table in the
            folder `profile` of `output_dir`, one for each process. `wait` steps of the process pass by first, then
            `warmup` steps in which the profiler runs and nothing is kept, then `steps` are recorded. A number is that
            of `steps`.
        system_metrics: measure in the background what each process and its machine use of processor, memory, disk,
            network and GPU, and write it to `.hexloop/system-<rank>.jsonl` in the output folder. A thread does so, with
            at most a thousandth of a processor. A run that writes no journal writes none of it.
        media_limit: megabytes that the media of a run, such as images that `log_media` gets, may take in the output
            folder. Beyond it, steps in the middle are left out.
    """

    log_goodput: bool = argument(
        default=False, help="log in percent which share of the time went into steps, what the rest went into, and mfu"
    )
    peak_flops: float | None = argument(
        default=None,
        check=above_zero,
        help="floating-point operations per second of one device at most, for mfu; by the device's name if unset",
    )
    profile: dict[str, int] | str | int | None = argument(
        default=None,
        prepare=_profile_window,
        help="steps to record with the profiler: their number, or a mapping with wait, warmup and steps",
    )

    system_metrics: bool = argument(
        default=True, help="measure the use of processor, memory, disk, network and GPU in the background"
    )
    media_limit: float = argument(
        default=1000.0, check=above_zero, help="megabytes of the images and other media that are kept of a run"
    )

    @rule("peak_flops", "log_goodput")
    def _utilisation_that_is_logged(self) -> None:
        if self.peak_flops is not None and not self.log_goodput:
            raise RefusalError(
                "peak_flops is for mfu, which is logged with goodput", "set log_goodput=True, or leave peak_flops out"
            )


@argument_group
class HexloopArguments(
    JournalArguments,
    BoardArguments,
    PreemptionArguments,
    GuardArguments,
    LayerwiseArguments,
    MeterArguments,
    Fp8Arguments,
    LossArguments,
    AverageArguments,
    PackingArguments,
    ParameterGroupArguments,
):
    """hexloop's own.

    Args:
        reproduce: `transformers` makes a run draw the random numbers of transformers' Trainer, at the same moments, and
            weight, sum and evaluate in the same way, so that on the same machine both are bit-identical.
        loss_weighting: how the losses of the micro-batches of one optimizer step are combined. `exact` weights each by
            its number of items (labels that count, else rows), so that accumulating 4 batches equals one batch four
            times as large. `reference` takes the mean of the micro-batches' means, as transformers does for models that
            do not take the number of items; it is the default with `reproduce`.
        keyed_data_randomness: with loader workers or several processes, the random streams of each sample are keyed by
            its position. True does so in a single process without workers as well, so that any number of workers
            produces the same samples, at a cost of a few microseconds per sample.
        compile_buckets: batches are padded to at most that many lengths, which are planned from the lengths of the data
            so that they add as little padding as possible. So a compiled model, or a device that compiles programs,
            gets training batches of at most that many shapes. The order of samples stays the same. All batches must
            have the same number of samples: set `dataloader_drop_last`, unless it divides the number of samples of the
            data.
        dataloader_timeout: seconds to wait for a batch of a loader worker; then the run ends with an error. 0 waits
            without end. A warning that names the worker and the data comes after 2 minutes in any case.
        predictions_folder: a folder in which evaluation keeps the arrays of predictions, labels and inputs as
            memory-mapped files, deleted together with the arrays. It allows evaluations that are larger than memory.
        capture_step: record the operations of a training step (forward, backward, clipping, update) on the device, and
            replay them for every further batch of the same shapes, so that the host starts a few operations a step in
            place of hundreds. Python code of the model and of a loss function runs only while it is recorded; what
            cannot be recorded runs as usual, with a warning. With torch_compile, clipping and the update are compiled
            as well, also on devices that cannot record.
        save_async: write checkpoints in the background instead of making training wait. It takes memory for another
            copy of the weights and the optimizer state. With a callback that overrides `on_save`, or a Trainer that
            overrides `save_model`, training waits regardless.
        save_full_model: save the whole model in each checkpoint, where otherwise only its adapters of PEFT are saved,
            and the base that they were trained on is named.
        save_when_busy: what to do when a save is due while an earlier one is still being written: `wait` for it, or
            `skip` the new one, unless it was requested, is that of the best evaluation so far, or is the run's last.
        rendezvous_timeout: seconds that a process waits for the others to start and join the run; then it ends with an
            error that names the missing ranks. `ddp_timeout` is for what follows. A script that initializes
            torch.distributed itself sets a timeout there.
        outbox_grace: seconds at the end of a run for what is not published on the Hub yet; what is left then stays in
            the outbox, is named in a warning, and is published by the next run or by `hexloop outbox flush`.
        logger_grace: seconds at the end of a run for what trackers do not have yet; what is left then stays in the
            outbox, is named in a warning, and is delivered by the next run or by `hexloop outbox flush`.
        checkpoint_key: a file with a key by which each checkpoint is signed, and without whose signature none is
            loaded: at least 32 random bytes, or an ed25519 key in PEM (private to train; public is enough to evaluate).
        resume_despite: differences from the checkpoint that are accepted when resuming, instead of refused.
            `precision`: the weights are converted. `optimizer`: one of another class or with other groups starts fresh;
            otherwise this run's options apply. `data_length`: the order of samples is that of the new data.
            `batch_size`: the run continues at the same sample, and a schedule of its own is stretched over the
            remaining steps. `base`: the adapters continue on another base than the one that they were trained on.
            `averages`: averages of weights begin at the checkpoint, or end there, or are saved in another place.
    """

    reproduce: ReproducedText | None = argument(
        default=None,
        check=one_of("transformers"),
        help="transformers: sample order, random draws, losses and evaluation bit-identical to transformers' Trainer",
    )
    loss_weighting: WeightingText | None = argument(
        default=None,
        check=one_of("exact", "reference"),
        help="how accumulated losses are weighted: exact (by the number of items), or reference (mean of means, the "
        "default with reproduce); exact if unset",
    )
    keyed_data_randomness: bool = argument(
        default=False, help="key each sample's random streams by its position even without loader workers"
    )
    compile_buckets: int | None = argument(
        default=None,
        check=at_least(1),
        help="pad batches to at most this many lengths, planned from those of the data, so that as few shapes are "
        "compiled; as the data_collator pads if unset",
    )
    dataloader_timeout: float = argument(
        default=0.0, check=at_least(0), help="seconds to wait for a batch of a loader worker; 0 waits forever"
    )
    predictions_folder: str | None = argument(
        default=None, help="folder in which evaluation keeps predictions as memory-mapped files; in memory if unset"
    )
    capture_step: bool = argument(
        default=False,
        help="record the operations of a training step once for each kind of batch, and replay them; with "
        "torch_compile, compile clipping and the update",
    )
    save_async: bool = argument(default=True, help="write checkpoints in the background, without making training wait")
    save_full_model: bool = argument(
        default=False, help="save the whole model in checkpoints, where otherwise only its adapters of PEFT are saved"
    )
    save_when_busy: BusyText = argument(
        default="wait", check=one_of("wait", "skip"), help="if a save is due while another runs: wait for it, or skip"
    )
    rendezvous_timeout: float = argument(
        default=60.0, check=above_zero, help="seconds to wait for all processes to join at the start"
    )
    outbox_grace: float = argument(
        default=60.0, check=at_least(0), help="seconds at the end of a run to publish what the Hub does not have yet"
    )
    logger_grace: float = argument(
        default=30.0, check=at_least(0), help="seconds at the end of a run to pass on what trackers do not have yet"
    )
    checkpoint_key: str | None = argument(
        default=None, help="file of the key that signs each checkpoint and is required of each one that is loaded"
    )
    resume_despite: list[str] = argument(
        factory=list,
        check=each_one_of("precision", "optimizer", "data_length", "batch_size", "base", "averages"),
        help="accepted differences from the checkpoint when resuming: precision, optimizer, data_length, batch_size, "
        "base, averages",
    )

    def _derive(self) -> None:
        super()._derive()
        if self.loss_weighting is None:
            self.loss_weighting = "exact" if self.reproduce is None else "reference"

    @rule("dataloader_timeout", "dataloader_num_workers")
    def _workers_to_wait_for(self) -> None:
        if self.dataloader_timeout and getattr(self, "dataloader_num_workers", 1) == 0:
            raise RefusalError(
                "there are no workers to wait for", "give dataloader_num_workers a positive value, or leave it out"
            )

    @rule("reproduce", "loss_weighting")
    def _weights_that_can_be_reproduced(self) -> None:
        if self.reproduce is not None and self.loss_weighting == "exact":
            raise RefusalError("transformers does not weight losses exactly", "leave loss_weighting out")

    @rule("reproduce", "keyed_data_randomness")
    def _streams_that_can_be_reproduced(self) -> None:
        if self.reproduce is not None and self.keyed_data_randomness:
            raise RefusalError(
                "transformers does not key random streams by the position of a sample", "leave one of them out"
            )

    @rule("reproduce", "compile_buckets")
    def _padding_that_can_be_reproduced(self) -> None:
        if self.reproduce is not None and self.compile_buckets is not None:
            raise RefusalError("transformers pads batches as the data_collator does", "leave compile_buckets out")

    @rule("compile_buckets", "train_sampling_strategy")
    def _batches_of_one_size(self) -> None:
        sampling = getattr(self, "train_sampling_strategy", "random")
        if self.compile_buckets is not None and str(getattr(sampling, "value", sampling)) == "batch_rebalance":
            raise RefusalError(
                "batch_rebalance makes batches of different sizes, each of which is a shape of its own",
                "choose another strategy, such as group_by_length",
            )

    @rule("reproduce", "on_nonfinite", "on_spike")
    def _windows_that_can_be_reproduced(self) -> None:
        left_out = {"skip", "rollback"} & {self.on_nonfinite, self.on_spike}
        if self.reproduce is not None and left_out:
            raise RefusalError("transformers trains on every step", "choose warn or stop")

    @rule("reproduce", "resume_despite")
    def _positions_that_can_be_reproduced(self) -> None:
        if self.reproduce is not None and {"data_length", "batch_size"} & {*self.resume_despite}:
            raise RefusalError(
                "the order of transformers' samples cannot be resumed with other batches or other data",
                "resume with the settings of the checkpoint",
            )
