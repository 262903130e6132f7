"""Hyperparameter search by a Trainer: what it passes to a search, and how it runs a trial."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, overload

from hexloop.app.arguments.choices import HPSearchBackend
from hexloop.app.assembly.outboxes import state_folder
from hexloop.app.assembly.random_state import seeded
from hexloop.app.assembly.searches import ChosenBackend
from hexloop.app.assembly.storage import joined, storage_for, storage_within
from hexloop.app.hooks import Hooks, standard
from hexloop.app.run import driving
from hexloop.app.run.checkpoint_folders import make_output_folder
from hexloop.app.run.checkpoints import callbacks_state, restore_callbacks
from hexloop.app.search.call import checked_call
from hexloop.app.search.checkpoints import TrialCheckpoints
from hexloop.app.search.parameters import set_hyperparameters
from hexloop.app.search.results import BestRun, default_compute_objective, hp_params
from hexloop.app.search.searching import SearchCall, SearchHost, search
from hexloop.app.search.services import search_by_service
from hexloop.app.search.stored import best_recorded, drawn_trial
from hexloop.app.trainer.attributes import TrainerAttributes
from hexloop.domain.errors import ConfigurationError, RunStateError
from hexloop.domain.folders import Folder
from hexloop.domain.ranks import run_on_rank0
from hexloop.domain.search.trial import LiveTrial
from hexloop.ports.storage import Storage

OF_A_TRIAL = ("args", "_passed", "adapters", "_dispatcher", "found_batch_size", "_accelerator")
"""The attributes that a trial has for itself; the Trainer has its own again afterwards."""

OF_ITS_ARGUMENTS = ("adapters", "_dispatcher", "found_batch_size")
"""Those of them that are made from the arguments when they are needed."""


class TrainerSearch(TrainerAttributes):
    """Hyperparameter search, with the signature, the attributes and the hooks of transformers' Trainer."""

    hp_search_backend: Any = None
    """The backend of the search in progress; None outside of one."""

    hp_space: Callable[[Any], Any] | None = None
    compute_objective: Callable[[dict[str, float]], Any] = staticmethod(default_compute_objective)
    objective: Any = None
    """The objective of the newest evaluation of a trial."""

    @overload
    def hyperparameter_search(
        self,
        hp_space: Callable[[Any], Any] | Mapping[str, Any] | None = ...,
        compute_objective: Callable[[dict[str, float]], Any] | None = ...,
        n_trials: int | None = ...,
        direction: str = ...,
        backend: str | HPSearchBackend | None = ...,
        hp_name: Callable[[Any], str] | None = ...,
        *,
        resume: bool | str = ...,
        objective: str | None = ...,
        keep_trials: int | None = ...,
        seed: int | None = ...,
        **kwargs: Any,
    ) -> BestRun: ...

    @overload
    def hyperparameter_search(
        self,
        hp_space: Callable[[Any], Any] | Mapping[str, Any] | None = ...,
        compute_objective: Callable[[dict[str, float]], Any] | None = ...,
        n_trials: int | None = ...,
        *,
        direction: list[str],
        backend: str | HPSearchBackend | None = ...,
        hp_name: Callable[[Any], str] | None = ...,
        resume: bool | str = ...,
        objective: str | None = ...,
        keep_trials: int | None = ...,
        seed: int | None = ...,
        **kwargs: Any,
    ) -> list[BestRun]: ...

    def hyperparameter_search(
        self,
        hp_space: Callable[[Any], Any] | Mapping[str, Any] | None = None,
        compute_objective: Callable[[dict[str, float]], Any] | None = None,
        n_trials: int | None = 20,
        direction: str | list[str] = "minimize",
        backend: str | HPSearchBackend | None = None,
        hp_name: Callable[[Any], str] | None = None,
        *,
        resume: bool | str = False,
        objective: str | None = None,
        keep_trials: int | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> BestRun | list[BestRun]:
        """Train `n_trials` times with other arguments, and return the best trial.

        A trial trains with a copy of the arguments; the Trainer's own stay as they are. A trial that fails, diverges
        or runs out of memory counts as failed. With several directions, the trials that no other one beats are
        returned. Collective; every rank receives the result.

        Args:
            hp_space: receives the trial of the backend, and returns the parameters of the trial by argument; a name
                with dots is an entry of a dictionary, such as "lr_scheduler_kwargs.num_cycles". A dictionary of choices
                and ranges is a space as well.
            compute_objective: returns the objective of a dictionary of metrics, by default the loss or the sum of the
                other metrics; for several directions a list.
            n_trials: how many trials to run; None for no limit but the time or the space.
            direction: "minimize" or "maximize", or a list of these.
            backend: "optuna", "ray", "wandb", "random", "grid", or one of an installed package; by default the first of
                optuna, ray and wandb that is installed.
            hp_name: returns the name of a trial, and of its folder; by default `run-<number>`.
            resume: True continues the search that is recorded in `output_dir`, at the trial that it was in and from
                that trial's newest checkpoint; "auto" does so if there is one.
            objective: "best" or "last", the evaluation that a trial counts with; "best" unless `reproduce` or a
                takeover follows transformers.
            keep_trials: of how many of the best trials the checkpoints are kept; by default of all.
            seed: of the proposals, by default `args.seed`.
            **kwargs: for the backend, and `timeout` in seconds, after which no further trial starts; `catch`, the
                errors after which a trial counts as failed, by default all; and `gc_after_trial`.

        Returns:
            the best trial; with several directions, the trials that no other one beats.

        Raises:
            ConfigurationError: with every problem, before the first trial trains.
            RunStateError: while a run is live, and if no trial was complete.

        Examples:
            >>> trainer = Trainer(
            ...     args=TrainingArguments("runs/search", max_steps=50, eval_strategy="epoch"),
            ...     model_init=lambda: torch.nn.Linear(1, 1),
            ...     train_dataset=rows,
            ...     eval_dataset=rows,
            ...     compute_loss_func=loss,
            ...     loggers=[],
            ... )
            >>> best = trainer.hyperparameter_search({"learning_rate": [1e-6, 0.1]}, backend="grid")
            >>> best.hyperparameters
            {'learning_rate': 0.1}
        """
        self._refuse_search()
        is_own = self._own_optimizer and self._own_scheduler
        call = checked_call(
            *(self.args, self._notices, self.model_init),
            has_own_optimizer=not is_own,
            hp_space=hp_space,
            compute_objective=compute_objective,
            n_trials=n_trials,
            direction=direction,
            backend=backend,
            hp_name=hp_name,
            resume=resume,
            objective=objective,
            keep_trials=keep_trials,
            seed=seed,
            options=kwargs,
        )
        return self._search(call)

    def load_best_trial(self) -> BestRun:
        """Load the model of the best trial of the search in `output_dir`, from its checkpoint, and return that trial.

        `model_init` makes the model again, with what the trial had drawn. The arguments stay as they are; see
        `hexloop.with_hyperparameters`. Of several objectives, the first of the best trials is loaded. Collective.

        Raises:
            RunStateError: if there is no search, no complete trial, or no checkpoint of it.
        """
        self._refuse_search()
        trainer: Any = self
        folder = self._search_folder()
        found: Any = run_on_rank0(self.adapters.collectives, lambda: best_recorded(folder))
        with seeded(self.adapters.device, int(found["parameters"].get("seed", self.args.seed))):
            self.model = self.model_wrapped = trainer.call_model_init(drawn_trial(found))
        framework = self.adapters.framework
        framework.receive(framework.unwrapped(self.model), self.args)
        self.optimizer = self.lr_scheduler = None
        self._renews_model = True
        trainer._load_from_checkpoint(joined(str(self.args.output_dir), found["checkpoint"]))
        objective = found["values"] if found["several"] else found["values"][0]
        return BestRun(found["identifier"], objective, found["parameters"])

    def _search(self, call: SearchCall) -> BestRun | list[BestRun]:
        self.hp_search_backend = _member(call.backend)
        self.hp_space, self.hp_name = call.space, call.name
        self.compute_objective = call.compute_objective
        try:
            host = self._search_host()
            if call.backend.service is not None:
                return search_by_service(host, call, self, run_sent_trial)
            return search(host, call)
        finally:
            self.hp_search_backend, self._renews_model = None, True

    def _refuse_search(self) -> None:
        """Raise RunStateError if a run is live, or a search is in progress."""
        driving.refuse_second_run(None if self._session is None else self._session.run)
        if self._live_trial is not None:
            raise RunStateError("A hyperparameter search of this Trainer is in progress; start another one after it.")

    # A trial

    def _run_trial(self, live: LiveTrial, resume_from: str | None) -> bool:
        """Train a trial and take its objective; see `RunTrial`."""
        trainer: Any = self
        with self._as_trial(live):
            self._renews_model = True
            trainer.train(resume_from_checkpoint=resume_from, trial=live.handle)
            if live.state is None and self.outcome is not None and self.outcome.stopped:
                return False
            if live.state is None and not live.reports:
                metrics = trainer.evaluate()
                self.objective = self.compute_objective(dict(metrics))
                live.conclude(int(self.state.global_step), self.objective, metrics)
        return True

    @standard
    def _hp_search_setup(self, trial: Any) -> None:
        """Set the parameters of a trial in the arguments. `train` calls it first, in a search or if it is overridden.

        Raises ConfigurationError if `hp_search_backend` is set outside of a search.
        """
        self._trial = trial
        live = self._live_trial
        if live is None:
            if self.hp_search_backend is not None and trial is not None:
                raise ConfigurationError(
                    f"hp_search_backend={self.hp_search_backend!r} is set, but no search is in progress; call "
                    "hyperparameter_search, which sets it."
                )
            return
        set_hyperparameters(self.args, live.parameters, self._notices)
        for name in OF_ITS_ARGUMENTS:
            vars(self).pop(name, None)
        make_output_folder(self.args, self.adapters.storage, self.adapters.mesh.writes)
        self.state.checkpoints_folder = str(self.args.output_dir)
        self.state.is_hyper_param_search, self.state.trial_name = True, live.label
        self.state.trial_params = hp_params(trial)
        Hooks.of(self).create_accelerator_and_postprocess()

    @standard
    def _report_to_hp_search(self, trial: Any, step: int, metrics: dict[str, float]) -> None:
        """Report an evaluation to the search in progress, and end the trial if it is pruned or has diverged.

        Called after each evaluation of a run, in a search or if it is overridden. No-op outside of a search.
        """
        live = self._live_trial
        if live is None or trial is None:
            return
        self.objective = self.compute_objective(dict(metrics))
        if not live.observe(step, self.objective, metrics) and self._session is not None:
            self._session.end_here(str(live.reason))

    def _tune_save_checkpoint(self, checkpoint_dir: str) -> None:
        """Take a checkpoint of the live run, and copy it to `checkpoint_dir`/checkpoint-<step>, on rank 0.

        Raises RunStateError if no run is live, or its checkpoints are not in a local folder.
        """
        session = self._live("_tune_save_checkpoint")
        name = f"checkpoint-{self.state.global_step}"
        for event in session.checkpoints.take(session.run.state):
            session.run.resolve_save_requests(event)
        root = self.adapters.storage.capabilities.local_folder
        if root is None:
            raise RunStateError("_tune_save_checkpoint needs checkpoints in a local folder; set such an output_dir.")
        if self.adapters.mesh.writes:
            import shutil

            shutil.copytree(joined(root, name), joined(checkpoint_dir, name), dirs_exist_ok=True)

    @contextmanager
    def _as_trial(self, live: LiveTrial) -> Iterator[None]:
        """Let the Trainer be that of a trial: with a copy of its arguments, and adapters for them."""
        kept = {name: vars(self)[name] for name in OF_A_TRIAL if name in vars(self)}
        callbacks = copy.deepcopy(callbacks_state(self.callback_handler, self.control))
        passed = vars(self).get("_passed", {})
        if passed.get("storage") is not None:
            self._passed = type(passed)({**passed, "storage": storage_within(passed["storage"], live.name)})
        self.args = copy.copy(self.args)
        self.args.output_dir = live.folder
        for name in OF_ITS_ARGUMENTS:
            vars(self).pop(name, None)
        self._live_trial, self.objective = live, None
        try:
            yield
        finally:
            self._live_trial = self._trial = None
            for name in OF_A_TRIAL:
                vars(self).pop(name, None)
            vars(self).update(kept)
            restore_callbacks(self.callback_handler, self.control, callbacks, self._notices)

    # The search

    def _search_folder(self) -> Folder:
        """Return the local folder of the record of a search: the output folder, or for a URL that of its outbox."""
        folder = self.adapters.storage.capabilities.local_folder
        return Folder(folder or state_folder(self._folder))

    def _search_host(self) -> SearchHost:
        trainer: Any = self
        args, adapters, passed = self.args, self.adapters, vars(self).get("_passed", {})

        def storage(name: str) -> Storage:
            if passed.get("storage") is not None:
                return storage_within(adapters.storage, name)
            return storage_for(joined(self._folder, name), signatures=adapters.storage.capabilities.signatures)

        def check(parameters: Mapping[str, Any]) -> None:
            set_hyperparameters(copy.copy(args), parameters, self._notices)

        return SearchHost(
            folder=self._search_folder(),
            location=partial(joined, str(args.output_dir)),
            group=str(args.run_name or args.output_dir),
            collectives=adapters.collectives,
            device=adapters.device,
            clock=adapters.clock,
            checkpoints=TrialCheckpoints(storage),
            run=self._run_trial,
            check=check,
            release=trainer._forget_run,
        )


def _member(backend: ChosenBackend) -> Any:
    """Return the member of transformers' enumeration for a backend; the name of another one."""
    names = {each.value: each for each in HPSearchBackend}
    return names.get(backend.name, backend.name)


def run_sent_trial(trainer: Any, live: LiveTrial, resume_from: str | None) -> bool:
    """Train a trial with a Trainer that was sent to this process, or made in it; see `RunTrial`."""
    return bool(trainer._run_trial(live, resume_from))
