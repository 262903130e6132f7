"""Names of older releases of transformers, and methods that hexloop does not have yet."""

from __future__ import annotations

import warnings
from typing import Any, NoReturn

from hexloop.app.trainer.base import TrainerBase
from hexloop.domain.errors import ConfigurationError, RunStateError


class LegacyNames(TrainerBase):
    """Old names, each with a warning that states the new one, and methods that are refused."""

    @property
    def tokenizer(self) -> Any:
        """The old name of `processing_class`."""
        _warn("Trainer.tokenizer", "Trainer.processing_class")
        return self.processing_class

    @tokenizer.setter
    def tokenizer(self, processing_class: Any) -> None:
        _warn("Trainer.tokenizer", "Trainer.processing_class")
        self.processing_class = processing_class

    @staticmethod
    def take_tokenizer(tokenizer: Any, processing_class: Any) -> Any:
        """Return what was passed under the old name. Raises ConfigurationError if both names are used."""
        if processing_class is not None:
            raise ConfigurationError(
                ["You passed both tokenizer and processing_class, its new name; pass processing_class alone."]
            )
        _warn("Trainer(tokenizer=...)", "processing_class=...")
        return tokenizer

    def create_accelerator_and_postprocess(self) -> None:
        """No-op: `accelerator` is made on access, and the adapters do its work."""

    def torch_jit_model_eval(self, model: Any, dataloader: Any, training: bool = False) -> Any:
        """Return the model unchanged: TorchScript is no longer developed; use torch.compile."""
        _warn("torch_jit_model_eval", "torch_compile=True")
        return model

    def ipex_optimize_model(self, model: Any, training: bool = False, dtype: Any = None) -> Any:
        """Return the model unchanged: torch itself contains the optimizations of Intel's extension."""
        _warn("ipex_optimize_model", "bf16=True or torch_compile=True")
        return model

    def end(self) -> None:
        """No-op if no run is live: loggers, workers and files are closed with the run itself.

        Raises RunStateError while a run is live.
        """
        if self._session is not None:
            raise RunStateError("You called end() while a run is live; finish it, or close its stream.")

    def propagate_args_to_deepspeed(self, auto_find_batch_size: bool = False) -> NoReturn:
        """Raise ConfigurationError: arguments reach DeepSpeed when a run starts."""
        _refuse("propagate_args_to_deepspeed", "arguments reach DeepSpeed when a run starts", "remove the call")

    def hyperparameter_search(
        self,
        hp_space: Any = None,
        compute_objective: Any = None,
        n_trials: int = 20,
        direction: Any = "minimize",
        backend: Any = None,
        hp_name: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Raise ConfigurationError: there is no hyperparameter search yet."""
        search = "make a Trainer with model_init for each trial of a search library of your choice, and call train"
        _refuse("hyperparameter_search", "hexloop has no search yet", search)

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> Any:
        """Raise ConfigurationError: publishing is not supported yet."""
        _refuse("init_hf_repo", "hexloop does not publish models yet", PUBLISH)

    def create_model_card(
        self,
        language: str | None = None,
        license: str | None = None,
        tags: Any = None,
        model_name: str | None = None,
        finetuned_from: str | None = None,
        tasks: Any = None,
        dataset_tags: Any = None,
        dataset: Any = None,
        dataset_args: Any = None,
    ) -> Any:
        """Raise ConfigurationError: publishing is not supported yet."""
        _refuse("create_model_card", "hexloop does not write model cards yet", PUBLISH)

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Raise ConfigurationError: publishing is not supported yet."""
        _refuse("push_to_hub", "hexloop does not publish models yet", PUBLISH)


PUBLISH = "save_model to a folder, and publish that with huggingface_hub.upload_folder"


def without_old_names(method: str, given: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Return the values of old keyword arguments under their current `names`, each with a warning.

    Raises TypeError for other keywords.
    """
    for name in given:
        if name not in names:
            raise TypeError(f"{method}() got an unexpected keyword argument {name!r}")
        _warn(f"{method}({name}=...)", f"{names[name]}=...")
    return {names[name]: value for name, value in given.items()}


def _warn(old: str, new: str) -> None:
    warnings.warn(f"{old} is a name of older releases of transformers; use {new}.", FutureWarning, stacklevel=3)


def _refuse(method: str, because: str, instead: str) -> NoReturn:
    raise ConfigurationError([f"You called {method}, but {because}; {instead}."])
