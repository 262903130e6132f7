"""Contract suite of the Search port."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from hexloop.app.testing.contracts.overriding import not_overridden
from hexloop.domain.errors import CheckpointError
from hexloop.ports.collectives import Json
from hexloop.ports.search import PastTrial, Proposal, Search, TrialExport, TrialState


def _stored(value: Any) -> Any:
    """Return a value as it is read from a file."""
    return json.loads(json.dumps(value, allow_nan=False))


def _objective(proposal: Proposal) -> float:
    return float(sum(zlib.crc32(repr(each).encode()) % 97 for each in proposal.parameters.values()))


class SearchContract:
    """Contract suite of the Search port."""

    resumes: bool = True
    """Whether a search continues after a restart: it exports its random stream."""

    @pytest.fixture
    def make_search(self) -> Callable[[], Search]:
        """Return a function that makes a search of one objective, of at least six trials and always the same."""
        raise not_overridden(self)

    @pytest.fixture
    def search(self, make_search: Callable[[], Search]) -> Search:
        """The adapter under test."""
        return make_search()

    def test_trials_have_numbers_and_names(self, search: Search) -> None:
        """Numbers increase, identifiers are unique, and parameters are named values that JSON can hold."""
        proposals = [_asked(search) for _ in range(4)]

        numbers = [each.number for each in proposals]
        assert numbers == sorted(set(numbers))
        assert len({each.identifier for each in proposals}) == len(proposals)
        for each in proposals:
            assert all(isinstance(name, str) for name in each.parameters)
            assert _stored(dict(each.parameters)) == dict(each.parameters)
            search.tell(each, TrialState.FAILED)
        search.close()

    def test_a_trial_ends_in_any_way(self, search: Search) -> None:
        """A trial may be complete, pruned or failed, with reports at increasing steps before."""
        for state, values in (
            (TrialState.COMPLETE, [0.5]),
            (TrialState.PRUNED, None),
            (TrialState.FAILED, None),
        ):
            proposal = _asked(search)
            assert search.report(proposal, 10, [1.0]) in (True, False)
            assert search.report(proposal, 20, [0.5]) in (True, False)
            search.tell(proposal, state, values)
        search.close()

    def test_several_trials_are_in_progress(self, search: Search) -> None:
        """A second trial may be asked for before the first one ends, and they may end in any order."""
        first, second = _asked(search), _asked(search)

        assert first.number != second.number
        search.tell(second, TrialState.COMPLETE, [1.0])
        search.tell(first, TrialState.COMPLETE, [2.0])
        search.close()

    def test_the_same_search_proposes_the_same(self, make_search: Callable[[], Search]) -> None:
        """Two searches that are made and told alike make the same proposals."""
        first, second = make_search(), make_search()

        assert _complete(first, 5) == _complete(second, 5)

    def test_what_is_exported_is_json(self, search: Search) -> None:
        """The state and each trial can be stored, and a trial's drawn values have names."""
        proposal = _asked(search)
        exported = search.export_trial(proposal)

        assert _stored(search.export_state()) == search.export_state()
        assert _stored(dict(exported.drawn)) == dict(exported.drawn)
        assert _stored(dict(exported.details)) == dict(exported.details)

    @pytest.mark.parametrize("ended", [True, False])
    def test_a_restart_changes_nothing(self, make_search: Callable[[], Search], ended: bool) -> None:
        """A search that is loaded proposes what the first one would have, after a trial that it resumes, if any."""
        if not self.resumes:
            pytest.skip("the adapter cannot continue after a restart")
        undisturbed = _complete(make_search(), 6)
        first = make_search()
        past = [_run(first, _asked(first)) for _ in range(3)]
        resumed: list[Proposal] = []
        if not ended:
            resumed.append(_asked(first))
            past.append(_past(first, resumed[0], None, {}))
        state = _stored(first.export_state())
        first.close()

        second = make_search()
        found = second.load_state(state, past)

        assert [(each.number, each.identifier, dict(each.parameters)) for each in found] == [
            (each.number, each.identifier, dict(each.parameters)) for each in resumed
        ]
        parameters = [dict(each.parameters) for each in past]
        for each in found:
            _run(second, each)
        parameters += [dict(_run(second, _asked(second)).parameters) for _ in range(6 - len(past))]
        assert parameters == undisturbed
        second.close()

    @pytest.mark.parametrize("state", [{"made": "up"}, {"next": "three", "random": {"_rng": [1, 2]}}])
    def test_a_wrong_state_is_refused(self, search: Search, state: Json) -> None:
        """A state that is not the search's own raises CheckpointError."""
        if not self.resumes:
            pytest.skip("the adapter cannot continue after a restart")
        with pytest.raises(CheckpointError):
            search.load_state(state, [])


def _asked(search: Search) -> Proposal:
    proposal = search.ask()
    assert proposal is not None
    return proposal


def _run(search: Search, proposal: Proposal) -> PastTrial:
    """Run a trial to its end, and return what is recorded of it."""
    value = _objective(proposal)
    reports: dict[int, Sequence[float]] = {}
    continues = True
    for step in (1, 2):
        reports[step] = [value * (3 - step)]
        continues = search.report(proposal, step, reports[step])
        if not continues:
            break
    state = TrialState.COMPLETE if continues else TrialState.PRUNED
    search.tell(proposal, state, [value] if continues else None)
    return _past(search, proposal, state, reports, [value] if continues else None)


def _past(
    search: Search,
    proposal: Proposal,
    state: TrialState | None,
    reports: dict[int, Sequence[float]],
    values: Sequence[float] | None = None,
) -> PastTrial:
    exported = search.export_trial(proposal)
    export = TrialExport(_stored(dict(exported.drawn)), _stored(dict(exported.details)))
    parameters = _stored(dict(proposal.parameters))
    return PastTrial(proposal.number, proposal.identifier, parameters, export, reports, state, values)


def _complete(search: Search, trials: int) -> list[dict[str, Any]]:
    """Run trials and return their parameters."""
    found = [dict(_run(search, _asked(search)).parameters) for _ in range(trials)]
    search.close()
    return found
