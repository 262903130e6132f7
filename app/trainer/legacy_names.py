"""The rest of the interface of transformers' Trainer: names that are old, missing or internal."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from hexloop.app.assembly import torch as assembly
from hexloop.app.engines import is_requested
from hexloop.app.run.memory_metrics import MemoryTracker
from hexloop.app.trainer.attribute_kinds import computed, made
from hexloop.app.trainer.attributes import TrainerAttributes
from hexloop.domain.errors import ConfigurationError, RunStateError
from hexloop.domain.wording import Problem


class TransformersAttributes(TrainerAttributes):
    """Attributes with the meaning that they have in transformers, also where a value is assigned."""

    current_flos: float = 0.0
    """Operations since the last `store_flos`; always 0, because `state.total_flos` contains them."""

    # Engines

    @computed
    def is_deepspeed_enabled(self) -> bool:
        """Whether the run trains with DeepSpeed."""
        return is_requested("deepspeed", self.args)

    @computed
    def is_fsdp_enabled(self) -> bool:
        """Whether the run trains with FSDP."""
        sharded = self.adapters.parallelism.capabilities.sharded
        return self.is_fsdp_xla_enabled or (sharded and not self.is_deepspeed_enabled)

    @computed
    def is_fsdp_xla_enabled(self) -> bool:
        """Whether the run trains with FSDP on XLA."""
        return self.is_fsdp_xla_v1_enabled or self.is_fsdp_xla_v2_enabled

    @computed
    def is_fsdp_xla_v1_enabled(self) -> bool:
        """Whether the run trains with the first version of FSDP on XLA."""
        return self.adapters.parallelism.capabilities.name == "xla_fsdp"

    @computed
    def is_fsdp_xla_v2_enabled(self) -> bool:
        """Whether the run trains with the second version of FSDP on XLA."""
        return self.adapters.parallelism.capabilities.name == "xla_fsdp_v2"

    @computed
    def is_distributed_loading_by_transformers(self) -> bool:
        """False: models that transformers shards while it loads them are refused."""
        return False

    @computed
    def deepspeed(self) -> Any:
        """The engine of DeepSpeed, None if the run does not train with it."""
        return self.model_wrapped if self.is_deepspeed_enabled and self.model_wrapped is not self.model else None

    # What a run does

    @computed
    def _memory_tracker(self) -> MemoryTracker:
        """Starts and ends the memory metrics of `train`, `evaluate` and `predict`, for overrides of these methods."""
        return MemoryTracker(self._memory)

    @property
    def _created_lr_scheduler(self) -> bool:
        """Whether a run made the schedule, so that the next run makes a new one; an overridden method may assign it."""
        return self.lr_scheduler is not None and self.lr_scheduler is self._scheduler_of_run

    @_created_lr_scheduler.setter
    def _created_lr_scheduler(self, created: bool) -> None:
        self._scheduler_of_run = self.lr_scheduler if created else None

    # Logs

    @property
    def _globalstep_last_logged(self) -> int:
        """The step of the last log of a loss; an overridden `_maybe_log_save_evaluate` may assign it."""
        return self.state.run_state.logged_step if self._session is None else self._session.run.state.logged_step

    @_globalstep_last_logged.setter
    def _globalstep_last_logged(self, step: int) -> None:
        if self._session is not None:
            self._session.run.state.logged_step = step

    @property
    def _total_loss_scalar(self) -> float:
        """The sum of the losses of all logged steps of the live or last run; an override that logs may add to it."""
        return float(self.state.run_state.loss_total if self._session is None else self._session.run.state.loss_total)

    @_total_loss_scalar.setter
    def _total_loss_scalar(self, total: float) -> None:
        if self._session is not None:
            self._session.run.losses.drain()  # the assigned sum contains them
            self._session.run.state.loss_total = float(total)

    @computed
    def _initial_global_step(self) -> int:
        """The step at which the live run started."""
        return 0 if self._session is None else int(self._session.run.start.step)

    @computed
    def _initial_num_input_tokens_seen(self) -> int:
        """The input tokens at which the live run started."""
        return 0 if self._session is None else int(self._session.run.start.tokens)

    @computed
    def _loss_shifts_labels(self) -> bool:
        """Whether the loss compares each position with the next label."""
        return assembly.losses.standard_loss(self._collect_parts()).shifted


# Old and unsupported names


class LegacyNames(TrainerAttributes):
    """Old names, each with a warning that states the new one, and methods that are refused."""

    @property
    def tokenizer(self) -> Any:
        """The old name of `processing_class`."""
        warn_of_old_name("Trainer.tokenizer", "Trainer.processing_class")
        return self.processing_class

    @tokenizer.setter
    def tokenizer(self, processing_class: Any) -> None:
        warn_of_old_name("Trainer.tokenizer", "Trainer.processing_class")
        self.processing_class = processing_class

    @staticmethod
    def take_tokenizer(tokenizer: Any, processing_class: Any) -> Any:
        """Return what was passed under the old name.

        Args:
            tokenizer: what was passed as `tokenizer`.
            processing_class: what was passed as `processing_class`.

        Raises:
            ConfigurationError: if both names are used.
        """
        if processing_class is not None:
            raise ConfigurationError(
                "You passed both tokenizer and processing_class, its new name; pass processing_class alone."
            )
        warn_of_old_name("Trainer(tokenizer=...)", "processing_class=...")
        return tokenizer

    def torch_jit_model_eval(self, model: Any, dataloader: Any, training: bool = False) -> Any:
        """Return the model unchanged: TorchScript is no longer developed; use torch.compile.

        Args:
            model: the model.
            dataloader: ignored.
            training: ignored.
        """
        warn_of_old_name("torch_jit_model_eval", "torch_compile=True")
        return model

    def ipex_optimize_model(self, model: Any, training: bool = False, dtype: Any = None) -> Any:
        """Return the model unchanged: torch itself contains the optimizations of Intel's extension.

        Args:
            model: the model.
            training: ignored.
            dtype: ignored.
        """
        warn_of_old_name("ipex_optimize_model", "bf16=True or torch_compile=True")
        return model

    def end(self) -> None:
        """Raise RunStateError while a run is live; otherwise a no-op, because a run closes all that it opened."""
        if self._session is not None:
            raise RunStateError("You called end() while a run is live; finish it, or close its stream.")

    def propagate_args_to_deepspeed(self, auto_find_batch_size: bool = False) -> NoReturn:
        """Raise ConfigurationError: arguments reach DeepSpeed when a run starts.

        Args:
            auto_find_batch_size: ignored.
        """
        _refuse("propagate_args_to_deepspeed", "arguments reach DeepSpeed when a run starts", "remove the call")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return an attribute that a replaced constructor has not set.

            Raises AttributeError for any other name; for an internal method of transformers it states what to use.
            """
            declared = getattr(type(self), name, None)
            if isinstance(declared, made) and "args" in vars(self):
                return declared.make(self)  # to raise its own AttributeError
            instead = INSTEAD.get(name) or RETIRED.get(name) or ATTRIBUTES_INSTEAD.get(name)
            known = f": {instead}" if instead else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{known}")


def old_model_path(given: dict[str, Any]) -> Any:
    """Return `model_path`, the old keyword of `train`, with a warning. Raises TypeError for other keywords."""
    for name in given:
        if name != "model_path":
            raise TypeError(f"train() got an unexpected keyword argument {name!r}")
    warn_of_old_name("train(model_path=...)", "resume_from_checkpoint=...")
    return given["model_path"]


def warn_of_old_name(old: str, new: str) -> None:
    """Warn the caller of a method of the Trainer."""
    warnings.warn(f"{old} is a name of older releases of transformers; use {new}.", FutureWarning, stacklevel=3)


def _refuse(method: str, because: str, instead: str, kind: type[Exception] | None = None) -> NoReturn:
    raise ConfigurationError(Problem(f"{method} is not supported: {because}; {instead}.", kind=kind))


# Internal methods of transformers' Trainer

PLACE = "load the whole model, and pass parallelism=... or fsdp=... to shard it"

INSTEAD = {
    "_defer_fsdp_gradient_reduction": PLACE,
    "_has_mixed_mesh_grads": "override _clip_grad_norm",
    "_mixed_mesh_grad_norm": "override _clip_grad_norm",
    "_prepare_context_parallel_inputs": "override _prepare_inputs",
    "_sync_replicated_trainable_parameters": PLACE,
}
"""What to use instead of each internal method whose override is refused, because nothing would call it.

They belong to models that transformers shards while it loads them, and to context parallelism, neither of which
hexloop has.
"""

GATHER = "use accelerator.gather_for_metrics"
HUB = "override push_to_hub"
NOISE = "set neftune_noise_alpha"

RETIRED = {
    "_activate_neftune": NOISE,
    "_add_sm_patterns_to_gitignore": HUB,
    "_deactivate_neftune": f"{NOISE}; the noise is removed at the end of the run",
    "_fsdp_qlora_plugin_updates": "pass parallelism=..., an adapter whose prepare wraps the model",
    "_gather_and_numpify": GATHER,
    "_get_decay_parameter_names": "override get_decay_parameter_names",
    "_load_state_dict_in_model": "override _load_best_model or _load_from_checkpoint",
    "_nested_gather": GATHER,
    "_pad_across_processes": GATHER,
    "_rotate_checkpoints": "set save_total_limit",
    "_save_tpu": "override save_model",
    "_sorted_checkpoints": "set save_total_limit",
}
"""What to use instead of each internal method that transformers 4 called, and transformers 5 does not either."""

ATTRIBUTES_INSTEAD = {
    "_loggers_initialized": "read is_in_train",
    "_mixed_mesh_grads": "override _clip_grad_norm",
    "_tr_loss": "read loss in a callback's on_log, or the losses of the StepEnded events of stream()",
}
"""What to read instead of the internal attributes that do not exist."""


def refuse_overridden_internals(kind: type[Any], standard: type[Any]) -> None:
    """Raise ConfigurationError for every internal method that a subclass overrides without effect."""
    problems = [
        f"{owner} overrides {name}, an internal method of transformers' Trainer that hexloop never calls; "
        f"{INSTEAD[name]}. If it is a method of your own, rename it."
        for owner, name in _overridden(kind, standard, INSTEAD)
    ]
    if problems:
        raise ConfigurationError(problems)


def log_retired_internals(kind: type[Any], standard: type[Any]) -> None:
    """Log a warning for every method that a subclass overrides and only transformers 4 called."""
    for owner, name in _overridden(kind, standard, RETIRED):
        logging.getLogger("hexloop").warning(
            "%s overrides %s, which transformers called until version 4. transformers 5 does not call it, nor does "
            "hexloop; %s.",
            owner,
            name,
            RETIRED[name],
        )


def _overridden(kind: type[Any], standard: type[Any], names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield class and name of each of the methods that a class outside of hexloop defines."""
    for each in kind.__mro__:
        if each not in standard.__mro__ and not each.__module__.startswith("hexloop."):
            yield from ((each.__qualname__, name) for name in sorted(vars(each).keys() & names.keys()))
