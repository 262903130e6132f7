"""What a Trainer collects for a run, an evaluation or a save, as frozen values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import define, frozen

from hexloop.app.arguments import TrainingArguments
from hexloop.app.assembly.adapters import Adapters
from hexloop.app.assembly.learner import Modes
from hexloop.app.assembly.publishing import HubPublisher
from hexloop.app.assembly.sharing import data_seed, dispatches, splits
from hexloop.app.assembly.storage import WorkingFolder
from hexloop.app.callbacks import CallbackHandler, EventDispatcher, TrainerControl, TrainerState
from hexloop.app.hooks import Hooks
from hexloop.app.notices import Notices
from hexloop.app.rules import Rules, rules_of
from hexloop.domain.requests import Requests
from hexloop.domain.run import Run
from hexloop.domain.search.trial import LiveTrial


@define
class PreparationTime:
    """Seconds that the first evaluation outside of a run took to prepare the model; None until there was one."""

    seconds: float | None = None


@define(eq=False)
class LossTap:
    """Shows the outputs of the model to the components of the loss of the live run, if there is one.

    components: finds what is logged beside the loss. counts: of labels, by losses that never have all logits.
    """

    components: Any = None
    counts: Any = None

    def show(self, outputs: Any, inputs: Any) -> None:
        """Show the outputs of the model for some inputs."""
        if self.components is not None:
            self.components.see(outputs, inputs)


@frozen
class TrainerParts:
    """What a Trainer holds at one moment: what the user passed or assigned, and what the last run left.

    Functions of the app take this value, or only the values that they need, instead of the Trainer. It is collected
    when a run, an evaluation or a save starts, because users may assign attributes after construction. Each field is an
    attribute of `TrainerAttributes`, where it is described.

    makes_optimizer, makes_scheduler: whether the arguments choose them. own_optimizer: whether the user set none.
    gathers_all_rows: whether evaluation with `reproduce` keeps the rows that fill up the batches of processes.
    train_batch_size: samples of a micro-batch of this process. trial: of a hyperparameter search. live_trial: what the
    search in progress knows of it; None outside of one. run, modes: the run in progress, and the modes that its
    evaluations change; None between runs. backward: called in every step with its loss, instead of the engine's
    backward pass; None if nothing was assigned to `accelerator.backward`.
    """

    hooks: Hooks
    args: TrainingArguments
    adapters: Adapters
    started_in: WorkingFolder
    notices: Notices
    model: Any
    model_wrapped: Any
    optimizer: Any
    lr_scheduler: Any
    makes_optimizer: bool
    makes_scheduler: bool
    own_optimizer: bool
    standard_optimizer: Any
    standard_scheduler: Any
    train_dataset: Any
    eval_dataset: Any
    data_collator: Callable[[list[Any]], Any]
    processing_class: Any
    compute_loss_func: Callable[..., Any] | None
    compute_metrics: Callable[..., dict[str, Any]] | None
    preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None
    label_names: list[str]
    label_smoother: Callable[..., Any] | None
    log_loss_components: Mapping[str, Callable[..., Any] | str]
    loss_tap: LossTap
    model_accepts_loss_kwargs: bool
    loss_is_scaled_for_ga: bool | None
    main_input_name: str
    can_return_loss: bool
    signature_columns: list[str] | None
    train_batch_size: int
    ignore_keys_for_eval: list[str] | None
    callback_handler: CallbackHandler
    state: TrainerState
    control: TrainerControl
    dispatcher: EventDispatcher
    requests: Requests
    preparation: PreparationTime
    kept_loaders: Any
    gathers_all_rows: bool
    trial: Any
    live_trial: LiveTrial | None
    run: Run[Any, Any] | None
    modes: Modes | None
    hub_model_id: str | None
    publisher: HubPublisher
    backward: Callable[[Any], None] | None

    @property
    def rules(self) -> Rules:
        """Whose behaviour the run has where hexloop and transformers differ."""
        return rules_of(self.args)

    @property
    def data_seed(self) -> int:
        """The seed of the order of the samples."""
        return data_seed(self.args)

    @property
    def splits_batches(self) -> bool:
        """Whether the processes split each batch, instead of having one each."""
        return splits(self.args, self.adapters.mesh.data)

    @property
    def dispatches_batches(self) -> bool:
        """Whether rank 0 reads for all."""
        return dispatches(self.args, self.adapters.mesh.data)

    @property
    def folder(self) -> str:
        """The output folder: an absolute path, or a URL."""
        return self.started_in.locate(str(self.args.output_dir))

    @property
    def has_own_loss(self) -> bool:
        """Whether something else than the model computes the loss."""
        smoothed = bool(self.args.label_smoothing_factor)
        return self.compute_loss_func is not None or smoothed or self.hooks.computes_loss

    @property
    def unwrapped_model(self) -> Any:
        """The model as the user wrote it, without the wrapper of the engine and those of the user's own."""
        return self.adapters.framework.unwrapped(self.adapters.parallelism.unwrap(self.model))
