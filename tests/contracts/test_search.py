"""Contract of the Search port, run on the adapters that need no service."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from hexloop.adapters.search import SearchOptions
from hexloop.adapters.search.drawing import GridSearch, RandomSearch, ScriptedSearch
from hexloop.adapters.search.optuna import OptunaSearch
from hexloop.app.testing.contracts.search import SearchContract
from hexloop.domain.errors import CheckpointError, ConfigurationError
from hexloop.ports.search import Search, TrialState

pytest.importorskip("optuna")


def space(trial: Any) -> dict[str, Any]:
    return {
        "learning_rate": trial.suggest_float("rate", 1e-6, 1e-1, log=True),
        "warmup_steps": trial.suggest_int("warmup", 0, 10),
        "per_device_train_batch_size": trial.suggest_categorical("batch", [4, 8, 16]),
    }


def finite_space(trial: Any) -> dict[str, Any]:
    optim = trial.suggest_categorical("optim", ["adamw_torch", "sgd"])
    steps = trial.suggest_float("momentum", 0.0, 0.9, step=0.3) if optim == "sgd" else 0.0
    return {"optim": optim, "adam_beta1": steps, "warmup_steps": trial.suggest_int("warmup", 0, 4, step=2)}


class TestRandomSearch(SearchContract):
    @pytest.fixture
    def make_search(self) -> Callable[[], Search]:
        return partial(RandomSearch, SearchOptions(space, seed=7))

    def test_another_seed_proposes_something_else(self) -> None:
        """The proposals depend on the seed."""
        first, second = (RandomSearch(SearchOptions(space, seed=seed)).ask() for seed in (1, 2))

        assert first is not None
        assert second is not None
        assert first.parameters != second.parameters


class TestGridSearch(SearchContract):
    @pytest.fixture
    def make_search(self) -> Callable[[], Search]:
        return partial(GridSearch, SearchOptions(finite_space))

    def test_every_combination_is_proposed_once(self) -> None:
        """A space whose values depend on others is gone through completely."""
        search = GridSearch(SearchOptions(finite_space))
        found = []
        while (proposal := search.ask()) is not None:
            optim, momentum, warmup = proposal.parameters.values()
            found.append((optim, round(cast("float", momentum), 9), warmup))

        expected = [("adamw_torch", 0.0, warmup) for warmup in (0, 2, 4)]
        expected += [("sgd", momentum, warmup) for momentum in (0.0, 0.3, 0.6, 0.9) for warmup in (0, 2, 4)]
        assert found == expected

    def test_a_range_without_steps_is_refused(self) -> None:
        """A grid needs finitely many values."""
        with pytest.raises(ConfigurationError, match="'rate' without a step"):
            GridSearch(SearchOptions(space)).ask()

    def test_a_draw_outside_of_the_space_is_refused(self) -> None:
        """What the grid does not contain is not drawn."""
        proposal = GridSearch(SearchOptions(finite_space)).ask()

        assert proposal is not None
        with pytest.raises(ConfigurationError, match="drawn outside"):
            cast("Any", proposal.trial).suggest_int("rank", 1, 8)


class TestScriptedSearch(SearchContract):
    @pytest.fixture
    def make_search(self) -> Callable[[], Search]:
        return partial(ScriptedSearch, [{"learning_rate": 0.1 * each} for each in range(6)])

    def test_it_notes_what_it_is_told(self) -> None:
        """The test can look at what the search received, and decides what is pruned."""
        search = ScriptedSearch([{"seed": 1}], prunes=lambda number, step, values: step == 2)
        proposal = search.ask()

        assert proposal is not None
        assert search.report(proposal, 1, [0.5])
        assert not search.report(proposal, 2, [0.4])
        search.tell(proposal, TrialState.PRUNED)
        search.close()
        assert search.ask() is None
        assert search.reports == [(0, 1, (0.5,)), (0, 2, (0.4,))]
        assert search.told == {0: (TrialState.PRUNED, None)}
        assert search.closed


class TestOptunaSearch(SearchContract):
    @pytest.fixture
    def make_search(self) -> Callable[[], Search]:
        return partial(OptunaSearch, SearchOptions(space, seed=7))

    def test_a_generator_of_another_sampler_is_refused(self) -> None:
        """The random stream of one sampler does not fit another one."""
        import optuna

        state = OptunaSearch(SearchOptions(space)).export_state()
        other = OptunaSearch(SearchOptions(space, options={"sampler": optuna.samplers.RandomSampler(seed=1)}))
        with pytest.raises(CheckpointError, match="another sampler"):
            other.load_state(state, [])

    def test_a_study_has_the_directions_of_the_search(self, tmp_path: Path) -> None:
        """A study that is continued with other directions is refused."""
        options = {"storage": f"sqlite:///{tmp_path}/study.db", "study_name": "one", "load_if_exists": True}
        OptunaSearch(SearchOptions(space, options=options)).close()

        with pytest.raises(ConfigurationError, match="has the directions"):
            OptunaSearch(SearchOptions(space, directions=["maximize"], options=options))

    def test_unknown_options_are_refused(self) -> None:
        """A keyword that create_study does not have is named, with the nearest one."""
        with pytest.raises(ConfigurationError, match=r"no option 'prunner'; did you mean pruner\?"):
            OptunaSearch(SearchOptions(space, options={"prunner": None}))


@pytest.mark.parametrize("name", ["RandomSampler", "TPESampler", "NSGAIISampler", "QMCSampler"])
class TestSamplers(SearchContract):
    """The samplers of optuna whose random streams can be read."""

    @pytest.fixture
    def make_search(self, name: str) -> Callable[[], Search]:
        import optuna

        def make() -> Search:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                sampler = getattr(optuna.samplers, name)(seed=5)
            return OptunaSearch(SearchOptions(space, options={"sampler": sampler}))

        return make


class TestOptunaSearchInStorage(SearchContract):
    """A study on the disk. Each search has one of its own here; see `test_a_study_on_the_disk_is_continued`."""

    resumes = False

    @pytest.fixture
    def make_search(self, tmp_path: Path) -> Callable[[], Search]:
        made = [0]

        def make() -> Search:
            made[0] += 1
            options = {"storage": f"sqlite:///{tmp_path}/study-{made[0]}.db", "study_name": "one"}
            return OptunaSearch(SearchOptions(space, seed=7, options=options))

        return make


def test_a_study_on_the_disk_is_continued(tmp_path: Path) -> None:
    """A second process finds the trials in the storage, and proposes what the first one would have proposed."""

    def made(name: str) -> Search:
        options = {"storage": f"sqlite:///{tmp_path}/{name}.db", "study_name": "one", "load_if_exists": True}
        return OptunaSearch(SearchOptions(space, seed=7, options=options))

    from hexloop.app.testing.contracts.search import _asked, _complete, _past, _run

    undisturbed = _complete(made("undisturbed"), 6)
    first = made("restarted")
    past = [_run(first, _asked(first)) for _ in range(3)]
    unfinished = _asked(first)
    past.append(_past(first, unfinished, None, {}))
    state = first.export_state()
    first.close()
    second = made("restarted")
    (resumed,) = second.load_state(state, past)
    _run(second, resumed)
    parameters = [*(each.parameters for each in past), *(_run(second, _asked(second)).parameters for _ in range(2))]

    assert list(map(dict, parameters)) == undisturbed
