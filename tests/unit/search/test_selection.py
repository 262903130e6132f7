"""Which trials are the best: with one objective, and with several."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hexloop.domain.search.records import RecordedTrial
from hexloop.domain.search.selection import best_trials, kept_trials, ranked
from hexloop.ports.search import TrialState

PAIRS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12)
DIRECTIONS = st.sampled_from(["minimize", "maximize"])


def trial(number: int, *values: float, state: TrialState = TrialState.COMPLETE) -> RecordedTrial:
    made = RecordedTrial(number, f"run-{number}", str(number), {}, {}, {})
    made.state = state
    made.values = values or None
    return made


@given(PAIRS, DIRECTIONS)
def test_the_best_of_one_objective(pairs: list[tuple[int, int]], direction: str) -> None:
    """The first of those with the best value; pruned and failed ones do not count."""
    trials = [trial(number, each[0]) for number, each in enumerate(pairs)]
    trials += [trial(90, state=TrialState.PRUNED), trial(91, state=TrialState.FAILED)]
    (best,) = best_trials(trials, [direction])
    values = [each[0] for each in pairs]
    wanted = min(values) if direction == "minimize" else max(values)
    assert best.number == values.index(wanted)
    assert kept_trials(trials, [direction], 2) == {each.number for each in ranked(trials, direction)[:2]}


@given(PAIRS, DIRECTIONS, DIRECTIONS)
def test_the_best_of_two_objectives(pairs: list[tuple[int, int]], first: str, second: str) -> None:
    """No other one beats them, and each of the others is beaten by one of them. All of the best are kept."""
    signs = [1 if each == "minimize" else -1 for each in (first, second)]
    losses = [tuple(sign * value for sign, value in zip(signs, each, strict=True)) for each in pairs]
    best = best_trials([trial(number, *each) for number, each in enumerate(pairs)], [first, second])
    chosen = {each.number for each in best}

    def beats(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
        return one != other and one[0] <= other[0] and one[1] <= other[1]

    assert [each.number for each in best] == sorted(chosen)
    everything = [trial(number, *each) for number, each in enumerate(pairs)]
    assert kept_trials(everything, [first, second], count=1) == chosen
    for number, loss in enumerate(losses):
        assert (number in chosen) == (not any(beats(other, loss) for other in losses))


def test_there_may_be_no_best_trial() -> None:
    """If none was complete."""
    assert best_trials([trial(0, state=TrialState.FAILED)], ["minimize"]) == []
