"""Searches by optuna: its study, samplers, pruners and storages, driven by ask and tell."""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hexloop.adapters.search import SearchOptions, refuse_unknown_options
from hexloop.domain.errors import CheckpointError, ConfigurationError
from hexloop.domain.search.space import parameters_of
from hexloop.ports.collectives import Json
from hexloop.ports.search import PastTrial, Proposal, TrialExport, TrialState

STUDY = "hexloop"
"""The name of a study that is only in memory. Some pruners decide by the name, so it is the same in every process."""

DEEPEST = 6
"""How many objects within a sampler are looked through for random generators."""


class OptunaSearch:
    """Search adapter of optuna.

    The options are the keywords of `optuna.create_study`. Without a `sampler`, a TPESampler with the seed of the search
    proposes, and without a `pruner` a MedianPruner prunes, as in optuna. With `storage` and `load_if_exists=True` the
    search continues a study, and its trials count for the proposals.

    The random generators of samplers are exported where they are NumPy's, as those of all samplers of optuna itself
    are; what a sampler keeps beside them and outside of the study, as CmaEsSampler does not, is not.
    """

    def __init__(self, options: SearchOptions) -> None:
        import optuna

        known = [name for name in inspect.signature(optuna.create_study).parameters if not name.startswith("direction")]
        refuse_unknown_options(options.options, known, "optuna")
        given = dict(options.options)
        if given.get("sampler") is None:
            given["sampler"] = optuna.samplers.TPESampler(seed=options.seed)
        self._in_memory = given.get("storage") is None
        if self._in_memory and given.get("study_name") is None:
            given["study_name"] = STUDY
        self._space = options.space
        self._study = _quietly(lambda: optuna.create_study(directions=list(options.directions), **given))
        self._stopped = False
        self._study.stop = self._stop  # samplers of a finite space call it after their last trial
        wanted = [each.name.lower() for each in self._study.directions]
        if wanted != list(options.directions):
            raise ConfigurationError(
                f"The study {self._study.study_name!r} has the directions {wanted}, and this search has "
                f"{list(options.directions)}; choose the same, or another study_name."
            )

    @property
    def summary(self) -> Any:
        """The study."""
        return self._study

    def ask(self) -> Proposal | None:
        """Return the next trial; None once the sampler has stopped the study, as a grid does at its end.

        A trial whose space raises counts as failed in the study.
        """
        from optuna.trial import TrialState as State

        if self._stopped:
            return None
        trial = self._study.ask()
        try:
            return self._proposal(trial)
        except BaseException:
            self._study.tell(trial, state=State.FAIL)
            raise

    def report(self, proposal: Proposal, step: int, values: Sequence[float]) -> bool:
        """Report to the pruner; see `Search.report`. Pruners compare one objective: of several, nothing is reported."""
        if len(self._study.directions) > 1:
            return True
        trial: Any = proposal.trial
        if step not in self._study._storage.get_trial(trial._trial_id).intermediate_values:
            trial.report(values[0], step)
        return not trial.should_prune()

    def tell(self, proposal: Proposal, state: TrialState, values: Sequence[float] | None = None) -> None:
        """Record how a trial ended. One that the study has finished already is left as it is."""
        from optuna.trial import TrialState as State

        states = {TrialState.COMPLETE: State.COMPLETE, TrialState.PRUNED: State.PRUNED, TrialState.FAILED: State.FAIL}
        told = None if values is None else list(values)
        self._study.tell(proposal.trial, told, states[state], skip_if_finished=True)

    def close(self) -> None:
        """Release the connections of the storage."""
        self._study._storage.remove_session()

    # State

    def export_state(self) -> Json:
        """Return the states of the sampler's random generators; None if it has others than NumPy's, or none."""
        found = {place: _exported(generator) for place, generator in _generators(self._study.sampler)}
        if not found or None in found.values():
            return None
        storage, study = self._study._storage, self._study._study_id
        attributes = _json_like(storage.get_study_system_attrs(study)) if self._in_memory else {}
        return {"random": found, "study": attributes, "stopped": self._stopped}

    def export_trial(self, proposal: Proposal) -> TrialExport:
        """Return the trial's values, distributions and attributes."""
        from optuna.distributions import distribution_to_json

        trial: Any = proposal.trial
        frozen = self._study._storage.get_trial(trial._trial_id)
        details = {
            "distributions": {name: distribution_to_json(each) for name, each in frozen.distributions.items()},
            "system_attrs": _json_like(frozen.system_attrs),
            "user_attrs": _json_like(frozen.user_attrs),
        }
        return TrialExport({name: _plain(each) for name, each in frozen.params.items()}, details)

    def load_state(self, state: Json, trials: Sequence[PastTrial]) -> Sequence[Proposal]:
        """Continue after these trials; see `Search.load_state`.

        A study in memory is rebuilt from them. One in a storage has them, except for what the process that died did not
        write any more.
        """
        try:
            running = [found for each in trials if (found := self._loaded(each)) is not None]
            if isinstance(state, dict):
                self._load_generators(state.get("random"))
                self._stopped = bool(state.get("stopped"))
                attributes: Any = state.get("study") or {}
                for name, value in attributes.items() if self._in_memory else ():
                    self._study._storage.set_study_system_attr(self._study._study_id, name, value)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"The record of the search cannot be used: {error!r:.300}.") from error
        return running

    def _stop(self) -> None:
        self._stopped = True

    def _loaded(self, past: PastTrial) -> Proposal | None:
        """Take up a trial; return its proposal if it has not ended."""
        import optuna

        if self._in_memory:
            while len(self._study._storage.get_all_trials(self._study._study_id)) < past.number:  # not in the record
                self._study.add_trial(optuna.trial.create_trial(state=optuna.trial.TrialState.FAIL))
            self._study.add_trial(self._rebuilt(past))
        storage = self._study._storage
        identifier = storage.get_trial_id_from_study_id_trial_number(self._study._study_id, past.number)
        if past.state is not None:
            return None
        trial = optuna.Trial(self._study, identifier)
        if self._in_memory and len(self._study.directions) == 1:
            for step, values in sorted(past.reports.items()):
                trial.report(values[0], step)
                trial.should_prune()  # some pruners note in the trial what they found
        return self._proposal(trial)

    def _rebuilt(self, past: PastTrial) -> Any:
        """Return a trial of optuna from its record."""
        import optuna
        from optuna.distributions import json_to_distribution
        from optuna.trial import TrialState as State

        several = len(self._study.directions) > 1
        details: Mapping[str, Any] = past.export.details
        kinds: Mapping[str, Any] = details.get("distributions", {})
        distributions = {name: json_to_distribution(each) for name, each in kinds.items()}
        reports = {} if several or past.state is None else {step: each[0] for step, each in past.reports.items()}
        values = past.values
        if past.state is TrialState.PRUNED and reports:
            last = reports[max(reports)]
            values = None if last != last else [last]  # NaN
        states = {
            None: State.RUNNING,
            TrialState.COMPLETE: State.COMPLETE,
            TrialState.PRUNED: State.PRUNED,
            TrialState.FAILED: State.FAIL,
        }
        return optuna.trial.create_trial(
            state=states[past.state],
            values=None if values is None else list(values),
            params={name: _of_kind(distributions[name], value) for name, value in past.export.drawn.items()},
            distributions=distributions,
            intermediate_values=reports,
            system_attrs=dict(details.get("system_attrs", {})),
            user_attrs=dict(details.get("user_attrs", {})),
        )

    def _proposal(self, trial: Any) -> Proposal:
        return Proposal(trial.number, str(trial.number), parameters_of(self._space, trial), trial)

    def _load_generators(self, states: Any) -> None:
        found = dict(_generators(self._study.sampler))
        if not isinstance(states, dict) or states.keys() != found.keys():
            raise ValueError("its random generators are those of another sampler")
        for place, generator in found.items():
            _restore(generator, states[place])


def _of_kind(distribution: Any, value: Any) -> Any:
    """Return a value that was read from JSON as the choice that it is: a tuple among choices has become a list."""
    choices = getattr(distribution, "choices", None)
    return value if choices is None or not isinstance(value, list) else tuple(value)


def _quietly(make: Any) -> Any:
    """Call `make` without optuna's warnings of what is experimental."""
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return make()


# Random generators of samplers


def _generators(holder: object, place: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield NumPy's generators in a sampler, and those of the samplers and objects within it, by place."""
    import numpy

    if isinstance(holder, numpy.random.RandomState | numpy.random.Generator):
        yield place, holder
        return
    if depth >= DEEPEST:
        return
    if type(holder).__module__.partition(".")[0] != "optuna" and depth:
        return
    if type(holder).__name__ == "LazyRandomState":
        yield place, holder.rng  # type: ignore[attr-defined]
        return
    for name, value in sorted(getattr(holder, "__dict__", {}).items()):
        yield from _generators(value, f"{place}.{name}" if place else name, depth + 1)


def _exported(generator: Any) -> Json:
    """Return the state of a generator of NumPy as JSON; None if it has a form that is not known."""
    state = generator.get_state() if hasattr(generator, "get_state") else generator.bit_generator.state
    try:
        exported: Json = json.loads(json.dumps(list(state) if isinstance(state, tuple) else state, default=_list_of))
    except TypeError:
        return None
    return exported


def _list_of(array: Any) -> Any:
    if hasattr(array, "tolist"):
        return array.tolist()
    raise TypeError(f"{array!r} is not an array")


def _restore(generator: Any, state: Any) -> None:
    """Set the state of a generator. Raises ValueError or TypeError if it is not one of its kind."""
    if hasattr(generator, "set_state"):
        kind, keys, position, has_gauss, cached = state
        generator.set_state((kind, keys, position, has_gauss, cached))
    else:
        generator.bit_generator.state = state


# JSON


def _plain(value: Any) -> Any:
    """Return a value that was drawn as JSON can hold it."""
    return json.loads(json.dumps(value, default=str))


def _json_like(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that JSON can hold."""
    found = {}
    for name, value in values.items():
        try:
            found[name] = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError):
            continue
    return found


# Importance of parameters


def parameter_importances(
    parameters: Mapping[str, Sequence[Any]], objective: Sequence[float], direction: str
) -> dict[str, float]:
    """Return how much each parameter matters by optuna's own evaluator, the largest first; they sum to 1.

    parameters: the values of each in all trials. objective: of these trials. The ranges are those of the values.
    Raises RuntimeError if optuna has no result for them.
    """
    import optuna

    study = _quietly(lambda: optuna.create_study(study_name=STUDY, direction=direction))
    kinds = {name: _observed(values) for name, values in parameters.items()}
    columns = {name: _drawn_from(kinds[name], values) for name, values in parameters.items()}
    for number, value in enumerate(objective):
        drawn = {name: column[number] for name, column in columns.items()}
        study.add_trial(optuna.trial.create_trial(params=drawn, distributions=kinds, values=[value]))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = optuna.importance.get_param_importances(study)
    except (ImportError, RuntimeError, ValueError) as error:
        raise RuntimeError(f"optuna has no importance of these parameters: {error}") from error
    return {name: float(value) for name, value in sorted(found.items(), key=lambda item: -item[1])}


def _observed(values: Sequence[Any]) -> Any:
    """Return a distribution from which the values may have been drawn."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if all(isinstance(each, int | float) and not isinstance(each, bool) for each in values):
        return FloatDistribution(float(min(values)), float(max(values)))
    return CategoricalDistribution(sorted({repr(each) for each in values}))


def _drawn_from(kind: Any, values: Sequence[Any]) -> list[Any]:
    is_word = hasattr(kind, "choices")
    return [repr(each) if is_word else float(each) for each in values]
