"""A trial that is being run: what its evaluations are, whether it goes on, and what the user's functions receive."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hexloop.adapters.search import SearchOptions
from hexloop.adapters.search.drawing import RandomSearch
from hexloop.domain.errors import ConfigurationError, DataError, RunStateError, StorageError
from hexloop.domain.search.space import Choices, Distribution, Floats, Integers, SpaceTrial, parameters_of
from hexloop.domain.search.trial import (
    ENDS_THE_SEARCH,
    Aim,
    LiveTrial,
    ObjectiveError,
    SharedTrial,
    diverged,
    trial_on_rank0,
)
from hexloop.ports.search import TrialState
from hexloop.testing import SimulatedWorld

Found = TypeVar("Found")

ONE, TWO = Aim(["minimize"], "best"), Aim(["minimize", "maximize"], "best")

NUMBERS: list[tuple[Any, float]] = [
    (3, 3.0),
    (0.5, 0.5),
    (Fraction(1, 4), 0.25),
    (np.float32(0.5), 0.5),
    (np.int64(7), 7.0),
    (np.array(0.5), 0.5),
    (np.array([2]), 2.0),
    (torch.tensor(0.5), 0.5),
    (torch.tensor([[2]]), 2.0),
    (math.inf, math.inf),
]


@pytest.mark.parametrize(("given_number", "number"), NUMBERS)
def test_an_objective_is_a_number_of_python_numpy_or_torch(given_number: Any, number: float) -> None:
    """It becomes a float of Python, alone, in a list or in a tuple."""
    assert ONE.values_of(given_number) == ONE.values_of([given_number]) == (number,)
    both = TWO.values_of((1, given_number))
    assert both == (1.0, number)
    assert [type(each) for each in both] == [float, float]


@pytest.mark.parametrize(
    "objective",
    [
        *(None, "0.5", {"loss": 0.5}, object(), np.zeros(2), torch.ones(3), [0.5, None], ["0.5"]),
        *(True, [True], np.bool_(1), torch.tensor(False)),
        *(10**400, 1j, torch.tensor(1j), np.array("x"), np.array(None)),
    ],
)
def test_an_objective_that_is_no_number_is_an_error(objective: Any) -> None:
    """The message says what may be returned. It is an error of the configuration."""
    with pytest.raises(ConfigurationError, match=r"compute_objective returned .*; let it return a number, or .* list"):
        TWO.values_of(objective)


@pytest.mark.parametrize(
    ("aim", "objective", "message"),
    [
        (ONE, [0.5, 0.25], "returned 2 numbers, and the search has 1 directions, minimize; return one number for each"),
        (ONE, [], "returned 0 numbers"),
        (TWO, 0.5, "returned 1 numbers, and the search has 2 directions, minimize, maximize"),
        (TWO, (1, 2, 3), "returned 3 numbers"),
    ],
)
def test_an_objective_has_a_number_for_each_direction(aim: Aim, objective: Any, message: str) -> None:
    """Fewer or more are an error that names the directions."""
    with pytest.raises(ObjectiveError, match=message):
        aim.values_of(objective)


STEPS = st.dictionaries(st.integers(0, 1000), st.integers(-3, 3).map(float), max_size=8)


@given(STEPS, st.sampled_from(["minimize", "maximize"]))
def test_a_trial_counts_with_its_best_evaluation(values: dict[int, float], direction: str) -> None:
    """The first of equal ones; there is none before the first evaluation."""
    found = Aim([direction], "best").step_of_objective({step: (value,) for step, value in values.items()})
    best = (min if direction == "minimize" else max)(values.values(), default=None)
    assert found == min((step for step, value in values.items() if value == best), default=None)


@given(STEPS, st.sampled_from(["minimize", "maximize"]))
def test_a_trial_counts_with_its_last_evaluation(values: dict[int, float], direction: str) -> None:
    """If that is asked for, or if there are several objectives, of which none need be the best."""
    last = max(values, default=None)
    one, two = ({step: (value,) * count for step, value in values.items()} for count in (1, 2))
    assert Aim([direction], "last").step_of_objective(one) == last
    assert Aim([direction, "minimize"], "best").step_of_objective(two) == last


class Deciding:
    """Decides as a search does whose backend prunes at some steps, and records what it was told."""

    def __init__(self, *pruned: int) -> None:
        self.pruned = pruned
        self.told: list[tuple[int, tuple[float, ...], bool, bool]] = []

    def __call__(self, step: int, values: Sequence[float], has_diverged: bool, asks: bool) -> bool:
        self.told.append((step, tuple(values), has_diverged, asks))
        return not has_diverged and not (asks and step in self.pruned)


def live(decide: Deciding, reports: Mapping[int, Sequence[float]] | None = None, aim: Aim = ONE) -> LiveTrial:
    """Return a trial with these evaluations from before a restart."""
    return LiveTrial(
        number=2,
        identifier="2",
        name="run-2",
        folder="/search/run-2",
        label=None,
        group="search",
        run="abc",
        parameters={"learning_rate": 0.1},
        handle=None,
        aim=aim,
        decide=decide,
        reports=dict(reports or {}),
    )


def test_a_trial_goes_on_until_it_is_pruned() -> None:
    """The backend is asked at each evaluation; after the end, nothing more is reported."""
    decide = Deciding(4, 6)
    trial = live(decide)
    assert trial.observe(2, 0.5, {"eval_loss": 0.5})
    assert (trial.state, trial.reason, trial.step_of_objective) == (None, None, 2)
    assert not trial.observe(4, torch.tensor(0.75), {"eval_loss": 0.75})
    assert (trial.state, trial.reason) == (TrialState.PRUNED, "pruned at step 4")
    assert not trial.observe(6, 0.25, {"eval_loss": 0.25})
    assert decide.told == [(2, (0.5,), False, True), (4, (0.75,), False, True)]
    assert trial.reports == {2: (0.5,), 4: (0.75,)}
    assert trial.step_of_objective == 2


DIVERGED: list[tuple[float, dict[str, Any], str]] = [
    (math.nan, {"eval_loss": 0.5}, "the objective is NaN"),
    (0.5, {"eval_accuracy": 0.5, "eval_loss": math.inf}, "eval_loss is inf"),
    (0.5, {"eval_german_loss": math.nan}, "eval_german_loss is nan"),
]


@pytest.mark.parametrize(("objective", "metrics", "what"), DIVERGED)
@pytest.mark.parametrize("at_the_end", [False, True])
def test_a_trial_that_diverges_fails(objective: float, metrics: dict[str, Any], what: str, at_the_end: bool) -> None:
    """During the run or at its end; the reason says what is not finite, and at which step."""
    decide = Deciding()
    trial = live(decide)
    if at_the_end:
        trial.conclude(3, objective, metrics)
    else:
        assert not trial.observe(3, objective, metrics)
    assert (trial.state, trial.reason) == (TrialState.FAILED, f"it diverged: {what} at step 3")
    assert [(step, has_diverged, asks) for step, _, has_diverged, asks in decide.told] == [(3, True, not at_the_end)]


@pytest.mark.parametrize(
    ("values", "metrics"),
    [
        ((0.5, -math.inf), {}),
        ((0.5,), {"eval_perplexity": math.inf, "eval_accuracy": math.nan}),
        ((0.5,), {"eval_loss": 1e30, "eval_other_loss": None}),
        ((0.5,), {"eval_loss_scale": math.inf}),
    ],
)
def test_only_the_objective_and_losses_tell_that_a_trial_diverged(
    values: tuple[float, ...], metrics: dict[str, Any]
) -> None:
    """Infinity may be an objective, and other metrics may have any value."""
    assert diverged(values, metrics) == ""


def test_the_evaluation_after_a_run_prunes_nothing() -> None:
    """It is recorded without asking the backend, and how the trial ends stays open."""
    decide = Deciding(8)
    trial = live(decide)
    trial.conclude(8, [0.5], {"eval_loss": 0.5})
    assert decide.told == [(8, (0.5,), False, False)]
    assert (trial.state, trial.reason, trial.step_of_objective) == (None, None, 8)


def test_an_evaluation_before_a_restart_is_not_reported_again() -> None:
    """The run repeats it after the checkpoint from which it resumes; its first values count."""
    decide = Deciding(2)
    trial = live(decide, {2: (0.5,), 4: (0.25,)})
    trial.take_up_end(None, None)
    assert trial.observe(2, 9.0, {})
    assert trial.observe(4, 9.0, {})
    assert decide.told == []
    assert trial.observe(6, 0.75, {})
    assert decide.told == [(6, (0.75,), False, True)]
    assert trial.reports == {2: (0.5,), 4: (0.25,), 6: (0.75,)}


@pytest.mark.parametrize(
    ("pruned_at", "diverged_at", "state", "reason"),
    [
        (None, None, None, None),
        (4, None, TrialState.PRUNED, "pruned at step 4"),
        (None, 4, TrialState.FAILED, "it diverged at step 4"),
    ],
)
def test_a_decision_before_a_restart_holds(
    pruned_at: int | None, diverged_at: int | None, state: TrialState | None, reason: str | None
) -> None:
    """A trial that was pruned or has diverged does not go on."""
    decide = Deciding()
    trial = live(decide, {4: (0.5,), 2: (0.25,)})
    trial.take_up_end(pruned_at, diverged_at)
    assert (trial.state, trial.reason) == (state, reason)
    assert trial.observe(6, 0.5, {}) == (state is None)
    assert len(decide.told) == (state is None)


@pytest.mark.parametrize("take_up", [LiveTrial.observe, LiveTrial.conclude])
def test_a_wrong_objective_is_not_recorded(take_up: Callable[..., Any]) -> None:
    """The error that ends the search comes before anything is recorded or decided."""
    decide = Deciding()
    trial = live(decide, aim=TWO)
    with pytest.raises(ObjectiveError, match="returned 1 numbers"):
        take_up(trial, 2, 0.5, {"eval_loss": 0.5})
    assert (decide.told, trial.reports, trial.state) == ([], {}, None)


# In a run of several processes


class LibraryTrial(SpaceTrial):
    """The trial of a library, with an attribute of its own."""

    study = "of the library"


def on_ranks(world: SimulatedWorld, own: Any, act: Callable[[SharedTrial], Found], **drawn: Any) -> list[Found]:
    """Return what a function of the trial returns on each rank; the library's own trial is on rank 0."""

    def on_rank(collectives: Any) -> Found:
        def on_rank0(draw: Callable[[], Any]) -> Any:
            return trial_on_rank0(collectives, draw)

        return act(SharedTrial(3, drawn, own if collectives.rank == 0 else None, on_rank0))

    return world.run(on_rank)


def test_all_ranks_get_what_rank_0_draws() -> None:
    """Each name is drawn once, from the range that was named, and not at all if its value is known."""
    asked: list[tuple[str, Distribution]] = []

    def draw(name: str, distribution: Distribution) -> Any:
        asked.append((name, distribution))
        return distribution.at(0.5)

    def space(trial: SharedTrial) -> dict[str, Any]:
        assert trial.suggest_float("rate", 1e-4, 1.0, log=True) == trial.suggest_float("rate", 5.0, 6.0)
        found = {
            "known": trial.suggest_int("known", 0, 1),
            "layers": trial.suggest_int("layers", 0, 8, step=4),
            "dropout": trial.suggest_float("dropout", 0.0, 0.5, step=0.25),
            "kind": trial.suggest_categorical("kind", ["a", "b", None]),
        }
        assert type(found["layers"]) is int
        assert trial.number == 3
        assert trial.params == {**found, "rate": pytest.approx(1e-2)}
        return found

    expected = {"known": 7, "layers": 4, "dropout": 0.25, "kind": "b"}
    assert on_ranks(SimulatedWorld(3), SpaceTrial(3, draw), space, known=7) == [expected] * 3
    assert asked == [
        ("rate", Floats(1e-4, 1.0, log=True)),
        ("layers", Integers(0, 8, step=4)),
        ("dropout", Floats(0.0, 0.5, step=0.25)),
        ("kind", Choices(("a", "b", None))),
    ]


def test_a_proposal_is_drawn_again_on_every_rank_from_what_is_recorded() -> None:
    """The search space has the same parameters there as in the process that asked for the trial."""

    def space(trial: Any) -> dict[str, Any]:
        return {
            "learning_rate": trial.suggest_float("rate", 1e-5, 1e-1, log=True),
            "seed": trial.suggest_int("s", 0, 9),
        }

    search = RandomSearch(SearchOptions(space, seed=5))
    proposal = search.ask()
    assert proposal is not None
    drawn = search.export_trial(proposal).drawn
    found = on_ranks(SimulatedWorld(2), None, lambda trial: parameters_of(space, trial), **drawn)
    assert found == [proposal.parameters] * 2


def test_a_range_that_is_wrong_is_an_error_on_all_ranks() -> None:
    """None of them waits for the others, and all of them say what is wrong. No value is taken up."""

    def space(trial: SharedTrial) -> str:
        with pytest.raises(ConfigurationError, match=r"'rate' wrong: low=1\.0 and high=0\.0 are not a range") as raised:
            trial.suggest_float("rate", 1.0, 0.0)
        assert trial.params == {}
        return str(raised.value)

    first, second = on_ranks(SimulatedWorld(2), SpaceTrial(3, lambda name, distribution: None), space)
    assert first == second


ERRORS: list[tuple[Exception, Any, str]] = [
    (ConfigurationError("the range is empty"), ConfigurationError, "the range is empty"),
    (KeyError("rate"), RunStateError, "KeyError: 'rate'"),
    (DataError("no rows"), RunStateError, "no rows"),
    (ObjectiveError("no number"), (ObjectiveError, StorageError), "no number"),
    (StorageError("the disk is gone"), StorageError, "the disk is gone"),
]


@pytest.mark.parametrize(("error", "kind", "text"), ERRORS)
def test_ranks_agree_on_whether_an_error_is_that_of_the_trial(error: Exception, kind: Any, text: str) -> None:
    """It is of the same kind on all of them; one that ends the search does so on all of them."""

    def fail() -> Any:
        raise error

    def on_rank(collectives: Any) -> bool:
        with pytest.raises(kind, match=re.escape(text)) as raised:
            trial_on_rank0(collectives, fail)
        assert collectives.rank > 0 or error in (raised.value, raised.value.__cause__)
        return isinstance(raised.value, ENDS_THE_SEARCH)

    assert SimulatedWorld(3).run(on_rank) == [isinstance(error, ENDS_THE_SEARCH)] * 3
    with pytest.raises(type(error)) as alone:
        SimulatedWorld(1).run(lambda collectives: trial_on_rank0(collectives, fail))
    assert alone.value is error


def test_an_attribute_that_the_user_sets_is_in_the_library() -> None:
    """On rank 0, which has the library's trial; the trial itself has it on every rank."""
    own = LibraryTrial(3, lambda name, distribution: None)

    def act(trial: SharedTrial) -> dict[str, Any]:
        trial.set_user_attr("size", 7)
        return trial.user_attrs

    assert on_ranks(SimulatedWorld(2), own, act) == [{"size": 7}] * 2
    assert own.user_attrs == {"size": 7}


def test_other_attributes_are_those_of_the_library_on_rank_0() -> None:
    """On the other ranks, there are none of them, and the error names the attribute."""

    def study(trial: SharedTrial) -> str:
        try:
            return str(trial.study)
        except AttributeError as error:
            return str(error)

    own = LibraryTrial(3, lambda name, distribution: None)
    assert on_ranks(SimulatedWorld(2), own, study) == [
        "of the library",
        "'SharedTrial' object has no attribute 'study'",
    ]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_shared_trial_can_be_copied(copied: Callable[[SharedTrial], SharedTrial]) -> None:
    """A copy looks up attributes before it has any; private ones are not those of the library."""
    own = LibraryTrial(3, lambda name, distribution: None)
    trial = SharedTrial(3, {"rate": 0.5}, own, lambda draw: draw())
    made = copied(trial)
    assert (made.number, made.params, made.study) == (3, {"rate": 0.5}, "of the library")
    with pytest.raises(AttributeError, match="no attribute '_suggestions'"):
        _ = made._suggestions
