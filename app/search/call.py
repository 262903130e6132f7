"""What `hyperparameter_search` is called with, checked: every problem in one error, before the first trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hexloop.app.arguments import TrainingArguments
from hexloop.app.assembly.searches import ChosenBackend, choose_backend
from hexloop.app.notices import Notices
from hexloop.app.rules import rules_of
from hexloop.app.search.results import default_compute_objective
from hexloop.app.search.searching import AUTO, SearchCall
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.search.records import BEST, LAST, MAXIMIZE, MINIMIZE
from hexloop.domain.search.space import declared, space_function
from hexloop.domain.search.trial import Aim
from hexloop.domain.wording import Problem, shown

DIRECTIONS = (MINIMIZE, MAXIMIZE)


def checked_call(
    args: TrainingArguments,
    notices: Notices,
    model_init: Callable[..., Any] | None,
    *,
    has_own_optimizer: bool,
    hp_space: Any,
    compute_objective: Any,
    n_trials: Any,
    direction: Any,
    backend: Any,
    hp_name: Any,
    resume: Any,
    objective: Any,
    keep_trials: Any,
    seed: Any,
    options: Mapping[str, Any],
) -> SearchCall:
    """Return what a search is called with. Raises ConfigurationError with every problem, some also RuntimeErrors.

    has_own_optimizer: whether the user set an optimizer or a schedule, which belong to one model.
    """
    problems: list[str] = _problems_of_model(model_init, has_own_optimizer)
    several, rules = isinstance(direction, list | tuple), rules_of(args)
    directions = [getattr(each, "value", each) for each in (direction if several else [direction])]
    if not directions or any(each not in DIRECTIONS for each in directions):
        problems.append(
            f"You chose direction={shown(direction)}, but it takes 'minimize', 'maximize' or a list of them; give one."
        )
    as_transformers = not rules.own_search or notices.as_transformers
    which = (LAST if as_transformers else BEST) if objective is None else objective
    if which not in (BEST, LAST):
        problems.append(f"You chose objective={shown(objective)}, but there is only 'best' and 'last'; choose one.")
    if resume not in (True, False, AUTO):
        problems.append(f"You chose resume={shown(resume)}, but it takes True, False or 'auto'; choose one.")
    given = dict(options)
    timeout, jobs = given.pop("timeout", None), given.pop("n_jobs", None)
    collects, catch = given.pop("gc_after_trial", False), given.pop("catch", None)
    if jobs not in (None, 1):
        problems.append(
            f"You chose n_jobs={shown(jobs)}, but the trials of one Trainer run one at a time; leave it out, and for "
            f"trials in several processes run `hexloop search RECIPE --parallel {shown(jobs)}`."
        )
    if timeout is not None and not (_is_number(timeout) and timeout > 0):
        problems.append(f"You chose timeout={shown(timeout)}, but it takes a number of seconds above 0; give one.")
    if n_trials is not None and not _is_count(n_trials):
        problems.append(
            f"You chose n_trials={shown(n_trials)}, but it takes a whole number above 0, or None; give one."
        )
    if keep_trials is not None and not _is_count(keep_trials):
        problems.append(f"You chose keep_trials={shown(keep_trials)}, but it takes a whole number above 0; give one.")
    if seed is not None and not (type(seed) is int and 0 <= seed < 2**32):
        problems.append(f"You chose seed={shown(seed)}, but seeds range from 0 to 4294967295; give one.")
    if hp_name is not None and not callable(hp_name):
        problems.append(f"You chose hp_name={shown(hp_name)}, but it is a function of the trial; pass one.")
    if compute_objective is not None and not callable(compute_objective):
        problems.append(
            f"You chose compute_objective={shown(compute_objective)}, but it is a function of the metrics; pass one."
        )
    if hp_space is not None and not (callable(hp_space) or isinstance(hp_space, Mapping)):
        problems.append(
            f"You chose hp_space={shown(hp_space)}, but it is a function of the trial, or a dictionary of choices and "
            "ranges; pass one."
        )
    chosen = _chosen(backend, n_trials, timeout, problems)
    space = _space(hp_space, chosen, problems)
    if chosen is not None and several and not chosen.several:
        problems.append(
            f"You chose {len(directions)} directions, but the search backend {chosen.name} has one; choose "
            "backend='optuna'."
        )
    if problems:
        raise ConfigurationError(problems)
    assert chosen is not None  # otherwise there is a problem
    errors: tuple[type[BaseException], ...] = () if not rules.own_search else (Exception,)
    if catch is not None:
        errors = tuple(catch) if isinstance(catch, list | tuple) else (catch,)
    return SearchCall(
        backend=chosen,
        space=space,
        compute_objective=default_compute_objective if compute_objective is None else compute_objective,
        declared=dict(hp_space) if isinstance(hp_space, Mapping) else None,
        trials=n_trials,
        name=hp_name,
        aim=Aim(tuple(directions), which),
        several=several,
        seed=args.seed if seed is None else seed,
        resume=resume,
        timeout=timeout,
        catch=errors,
        collects=bool(collects),
        keep=keep_trials,
        options=given,
    )


def _problems_of_model(model_init: Callable[..., Any] | None, has_own_optimizer: bool) -> list[str]:
    problems: list[str] = []
    if model_init is None:
        because = "each trial starts from a new model, which model_init makes; pass model_init to the Trainer"
        problems.append(
            Problem(f"hyperparameter_search is not possible without model_init: {because}.", kind=RuntimeError)
        )
    if has_own_optimizer:
        problem = (
            "An optimizer or a schedule was passed or assigned to the Trainer, but it belongs to one model, and each "
            "trial makes a new one; pass optimizer_cls_and_kwargs, or override create_optimizer."
        )
        problems.append(Problem(problem, kind=RuntimeError))
    return problems


def _chosen(backend: Any, n_trials: Any, timeout: Any, problems: list[str]) -> ChosenBackend | None:
    """Return the backend; None with a problem if it cannot be used."""
    name = getattr(backend, "value", backend)
    if name is not None and not isinstance(name, str):
        problems.append(f"You chose backend={shown(backend)}, but it is the name of a search backend; give one.")
        return None
    try:
        chosen = choose_backend(name)
    except ConfigurationError as error:
        problems += error.problems
        return None
    if n_trials is None and timeout is None and name != "grid":
        problems.append("You chose n_trials=None without a timeout, so the search has no end; give one of the two.")
    return chosen


def _space(hp_space: Any, chosen: ChosenBackend | None, problems: list[str]) -> Callable[[Any], Any]:
    if isinstance(hp_space, Mapping):
        try:
            found = declared(hp_space)
            runs = chosen is not None and chosen.service is not None
            return (lambda _: found) if runs else space_function(found)
        except ConfigurationError as error:
            problems += error.problems
    if callable(hp_space):
        space: Callable[[Any], Any] = hp_space
        return space
    return chosen.space if chosen is not None else dict


def _is_count(value: object) -> bool:
    return type(value) is int and value > 0


def _is_number(value: object) -> bool:
    return type(value) in (int, float)
