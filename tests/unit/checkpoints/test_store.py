from __future__ import annotations

import warnings

import pytest

from hexloop.adapters.storage.faults import Died, Effect, Fault, FaultyStorage
from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.domain.checkpoints.commit import CheckpointPolicy, publisher_for
from hexloop.domain.checkpoints.names import Owner
from hexloop.domain.checkpoints.reading import read_manifest, verify
from hexloop.domain.checkpoints.selection import newest
from hexloop.domain.checkpoints.store import CheckpointStore
from hexloop.domain.errors import CheckpointError, StorageError
from hexloop.domain.events import CheckpointPublished, Saved, SaveFailed
from hexloop.domain.run import Checkpoints
from hexloop.domain.state import RunState
from hexloop.ports.storage import Publication
from tests.unit.checkpoints.small_contents import SmallContents
from tests.unit.checkpoints.small_store import (
    checkpoint_names,
    make_store,
    names,
    next_session,
    save_all,
    save_at,
    tree,
    weights_at,
)


@pytest.fixture(params=list(Publication), ids=lambda publication: publication.name.lower())
def storage(request: pytest.FixtureRequest) -> MemoryStorage:
    """An empty storage of either kind."""
    return MemoryStorage(request.param)


def weights_of(store: CheckpointStore) -> bytes:
    assert isinstance(store.contents, SmallContents)
    return store.contents.weights


def test_a_save_is_published_before_it_is_told(storage: MemoryStorage) -> None:
    """When the first event of a save comes, the checkpoint is there, whole and by its name."""
    store: Checkpoints = make_store(storage)
    events = store.save(RunState(run="mine", step=5))
    assert next(events) == Saved(5, "checkpoint-5")
    assert names(storage) == ["checkpoint-5"]
    assert verify(storage, "checkpoint-5").manifest.step == 5
    assert list(events) == [CheckpointPublished(5, "checkpoint-5")]
    assert list(store.finish()) == []
    store.close()


@pytest.mark.parametrize("alone", [False, True])
def test_what_a_run_of_another_name_left_unfinished_goes_only_where_nobody_else_saves(
    storage: MemoryStorage, alone: bool
) -> None:
    """A run that dies before its first checkpoint leaves no name by which it could go on."""
    publisher = publisher_for(storage, Owner("nobody's", next_session()))
    storage.write(f"{publisher.begin('checkpoint-3')}/weights", [b"half"])
    list(make_store(storage, exclusive=alone).save(RunState(run="mine", step=5)))
    assert (names(storage) == ["checkpoint-5"]) == alone
    assert len(names(storage)) == 2 - alone


def test_a_checkpoint_says_where_it_comes_from(storage: MemoryStorage) -> None:
    """The manifest names run, step, parent, processes and environment, and the saved state its parent and its best."""
    contents = SmallContents(b"weights")
    store = CheckpointStore(storage, contents, environment={"python": "3.11"}, session="s")
    state = RunState(run="mine", step=5)
    list(store.save(state))
    state.step = state.best_step = 10
    list(store.save(state))
    manifest = read_manifest(storage, "checkpoint-10")
    assert (manifest.run, manifest.session, manifest.step, manifest.parent) == ("mine", "s", 10, "checkpoint-5")
    assert (manifest.world_size, manifest.environment) == (1, {"python": "3.11"})
    assert sorted(manifest.files) == ["state.json", "weights/all.bin"]
    assert store.latest == "checkpoint-10"
    saved = CheckpointStore(storage, contents, environment={"python": "3.11"}).resume("checkpoint-10")
    assert saved == state
    assert (state.parent_checkpoint, state.best_checkpoint) == ("checkpoint-5", "checkpoint-10")


def test_a_resumed_run_stands_where_the_newest_checkpoint_says(storage: MemoryStorage) -> None:
    """State and weights come from the newest good checkpoint, and what is saved then goes on from it."""
    save_all(storage, "mine", [5, 10])
    store = make_store(storage)
    state = store.resume()
    assert state is not None
    assert (state.step, weights_of(store), store.latest) == (10, weights_at("mine", 10), "checkpoint-10")
    save_at(store, state, 15)
    assert read_manifest(storage, "checkpoint-15").parent == "checkpoint-10"
    assert list(read_manifest(storage, "checkpoint-15").ancestors.values()) == [10]


def test_there_may_be_nothing_to_resume_from(storage: MemoryStorage) -> None:
    """In an empty storage there is no state to go on from, unless a name is asked for."""
    assert make_store(storage).resume() is None
    with pytest.raises(CheckpointError, match="checkpoint-5 in memory"):
        make_store(storage).resume("checkpoint-5")


def test_a_damaged_checkpoint_is_passed_over(storage: MemoryStorage) -> None:
    """A run goes on from the newest good checkpoint, and a warning says which was not good and why."""
    save_all(storage, "mine", [5, 10])
    storage.damage("checkpoint-10/state.json", b"{}")
    with pytest.warns(UserWarning, match=r"is skipped: checkpoint-10 in memory is damaged: state.json has 2 bytes"):
        state = make_store(storage).resume()
    assert state is not None
    assert state.step == 5
    with pytest.raises(CheckpointError, match="good checkpoints: checkpoint-5"):
        make_store(storage).resume("checkpoint-10")


def test_other_surroundings_are_told(storage: MemoryStorage) -> None:
    """Facts that differ from those the checkpoint was written with are named in a warning; the run goes on."""
    first = CheckpointStore(storage, SmallContents(), environment={"python": "3.11", "torch": "2.9"})
    list(first.save(RunState(run="mine", step=5)))
    then = CheckpointStore(storage, SmallContents(), environment={"python": "3.12", "threads": "1"})
    differences = "python was 3.11 and is 3.12; threads was unknown and is 1; torch was 2.9 and is unknown"
    with pytest.warns(UserWarning, match=differences):
        assert then.resume() is not None


def test_a_checkpoint_without_surroundings_is_not_warned_of(storage: MemoryStorage) -> None:
    """One that says nothing of where it was written gives nothing to compare."""
    list(CheckpointStore(storage, SmallContents()).save(RunState(run="mine", step=5)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert CheckpointStore(storage, SmallContents(), environment={"python": "3.12"}).resume() is not None


def test_a_second_save_at_a_step_changes_nothing(storage: MemoryStorage) -> None:
    """A step that has its checkpoint is not saved again, in the same session or the next; it is told as published."""
    store = save_all(storage, "mine", [5])
    before = tree(storage)
    state = RunState(run="mine", best_step=5)
    assert save_at(store, state, 5) == [CheckpointPublished(5, "checkpoint-5")]
    assert state.best_checkpoint == "checkpoint-5"
    resumed = make_store(storage)
    assert resumed.resume() is not None
    assert save_at(resumed, state, 5) == [CheckpointPublished(5, "checkpoint-5")]
    assert tree(storage) == before


def test_a_checkpoint_that_somebody_removed_is_saved_again(storage: MemoryStorage) -> None:
    """What counts is what the storage holds."""
    store = save_all(storage, "mine", [5])
    storage.remove("checkpoint-5")
    assert save_at(store, RunState(run="mine"), 5)[0] == Saved(5, "checkpoint-5")
    assert names(storage) == ["checkpoint-5"]


@pytest.mark.parametrize("run", ["mine", "another"])
def test_a_folder_in_the_way_is_kept_under_another_name(storage: MemoryStorage, run: str) -> None:
    """A checkpoint of another run, or of a past of this one that was given up, is renamed, with all that is in it."""
    save_all(storage, run, [5, 10])
    storage.write("checkpoint-10/notes/mine.txt", [b"mine"])
    before = tree(storage, "checkpoint-10")
    store = make_store(storage)
    assert store.resume("checkpoint-5") is not None
    save_at(store, RunState(run="mine"), 10)
    assert names(storage) == ["checkpoint-10", "checkpoint-5", "replaced-1-checkpoint-10"]
    assert tree(storage, "replaced-1-checkpoint-10") == {f"replaced-1-{path}": data for path, data in before.items()}
    assert verify(storage, "replaced-1-checkpoint-10").manifest.run == run
    assert verify(storage, "checkpoint-10").manifest.run == "mine"


def test_a_folder_without_a_manifest_in_the_way_is_kept_too(storage: MemoryStorage) -> None:
    """A checkpoint that another program wrote, or that is damaged, is renamed like any other."""
    storage.write("checkpoint-5/model.bin", [b"foreign"])
    for run in ("first", "second"):
        save_all(storage, run, [5])
    assert names(storage) == ["checkpoint-5", "replaced-1-checkpoint-5", "replaced-2-checkpoint-5"]
    assert tree(storage, "replaced-1-checkpoint-5") == {"replaced-1-checkpoint-5/model.bin": b"foreign"}
    assert verify(storage, "replaced-2-checkpoint-5").manifest.run == "first"
    assert verify(storage, "checkpoint-5").manifest.run == "second"


def test_only_the_limit_is_kept(storage: MemoryStorage) -> None:
    """Once a checkpoint is published, the oldest beyond the limit go, the best excepted."""
    store = make_store(storage, limit=2)
    state = RunState(run="mine")
    for step in (8, 9, 10, 11):
        state.best_step = 9
        save_at(store, state, step)
    assert names(storage) == checkpoint_names(9, 11)
    assert state.best_checkpoint == "checkpoint-9"


def test_rotation_goes_on_after_a_resume(storage: MemoryStorage) -> None:
    """A resumed run counts the checkpoints that led to it, and removes those that the limit no longer allows."""
    save_all(storage, "mine", [1, 2, 3])
    store = make_store(storage, limit=2)
    assert store.resume() is not None
    save_at(store, RunState(run="mine"), 4)
    assert names(storage) == checkpoint_names(3, 4)


def test_rotation_leaves_what_is_not_of_this_lineage(storage: MemoryStorage) -> None:
    """Other runs' checkpoints, those of a past that was given up, and damaged ones are neither counted nor removed."""
    save_all(storage, "another", [1])
    save_all(storage, "mine", [2, 3, 4, 5, 6])
    storage.damage("checkpoint-3/manifest.json", b"")
    store = make_store(storage, limit=1)
    assert store.resume("checkpoint-4") is not None
    save_at(store, RunState(run="mine"), 7)
    assert names(storage) == checkpoint_names(1, 3, 5, 6, 7)


def test_rotation_looks_again_before_it_removes(storage: MemoryStorage) -> None:
    """What another run has put under the name of one of this run's checkpoints is not removed in its stead."""
    store = save_all(storage, "mine", [1], limit=1)
    save_all(storage, "another", [1])
    save_at(store, RunState(run="mine"), 2)
    assert "checkpoint-1" in names(storage)
    assert verify(storage, "checkpoint-1").manifest.run == "another"


@pytest.mark.parametrize("back_to", [None, "checkpoint-2"])
def test_a_clock_that_is_behind_takes_nothing_back(storage: MemoryStorage, back_to: str | None) -> None:
    """A run that goes on where the clock says an earlier time is found where it was left last, with all of it."""
    early, late = next_session(), next_session()
    ahead = make_store(storage, session=late)
    for step in (2, 4):
        save_at(ahead, RunState(run="mine"), step)
    overtaken = make_store(storage, session=early)
    state = overtaken.resume(back_to)
    assert state is not None
    save_at(overtaken, state, state.step + 1)
    found = newest(storage)
    assert found is not None
    assert found.name == f"checkpoint-{state.step}"
    assert found.manifest.session > late
    save_at(overtaken, state, state.step + 1)
    assert verify(storage, f"checkpoint-{state.step}").manifest.session == found.manifest.session


def test_nothing_is_rotated_out_for_one_that_cannot_be_read_back(storage: MemoryStorage) -> None:
    """Where the disk lost the manifest that it acknowledged, the older checkpoints stay."""
    counting = FaultyStorage(storage)
    store = make_store(counting, limit=1)
    state = RunState(run="mine")
    save_at(store, state, 1)
    writes = sum(operation == "write" for operation, _ in counting.operations)
    store.storage = FaultyStorage(storage, [Fault(writes, Effect.TEAR, "write")])
    with pytest.warns(UserWarning, match="could not be removed"):
        save_at(store, state, 2)
    with pytest.warns(UserWarning, match="its manifest is damaged"):
        assert newest(storage) == verify(storage, "checkpoint-1")


def test_a_failure_to_rotate_is_no_failure_to_save(storage: MemoryStorage) -> None:
    """Where an old checkpoint cannot be removed the save counts, a warning says so, and the next save tries again."""
    store = make_store(storage, limit=1)
    state = RunState(run="mine")
    save_at(store, state, 1)
    operation = "move" if storage.capabilities.publication is Publication.RENAME else "remove"
    store.storage = FaultyStorage(storage, [Fault(2, Effect.FAIL, operation)])
    with pytest.warns(UserWarning, match="could not be removed: Planned fault"):
        assert save_at(store, state, 2)[-1] == CheckpointPublished(2, "checkpoint-2")
    store.storage = storage
    save_at(store, state, 3)
    assert names(storage) == ["checkpoint-3"]
    assert names(storage, "checkpoint-3") == ["manifest.json", "state.json", "weights"]


def test_what_a_failed_rotation_left_is_cleaned_up(storage: MemoryStorage) -> None:
    """At whichever removal a rotation fails, the next save of the same session leaves nothing of it."""
    for failing in range(1, 6):
        store = make_store(storage, limit=1)
        state = RunState(run=f"run {failing}")
        save_at(store, state, 1)
        store.storage = FaultyStorage(storage, [Fault(failing, Effect.FAIL, "remove")])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            save_at(store, state, 2)
        store.storage = storage
        save_at(store, state, 3)
        assert names(storage) == ["checkpoint-3"]
        assert names(storage, "checkpoint-3") == ["manifest.json", "state.json", "weights"]
        storage.remove("checkpoint-3")


def test_only_a_step_that_has_its_checkpoint_is_the_best(storage: MemoryStorage) -> None:
    """Without a best evaluation there is no best checkpoint; one whose step was never saved leaves the one before."""
    store = make_store(storage)
    state = RunState(run="mine")
    best = []
    for step, best_step in ((1, None), (2, 2), (4, 3), (5, 2), (6, 6)):
        state.best_step = best_step
        save_at(store, state, step)
        best.append(state.best_checkpoint)
    assert best == [None, "checkpoint-2", "checkpoint-2", "checkpoint-2", "checkpoint-6"]


def test_a_failed_save_is_told_and_the_run_goes_on(storage: MemoryStorage) -> None:
    """A failure is an event and a warning; all that was saved is intact, the state as before, nothing left over."""
    store = make_store(storage)
    state = RunState(run="mine", best_step=1)
    save_at(store, state, 1)
    store.storage = FaultyStorage(storage, [Fault(2, Effect.FAIL, "write")])
    state.best_step = 2
    with pytest.warns(UserWarning, match="checkpoint-2 was not saved"):
        (event,) = save_at(store, state, 2)
    assert isinstance(event, SaveFailed)
    assert event.step == 2
    assert (state.parent_checkpoint, state.best_checkpoint) == (None, "checkpoint-1")
    assert names(storage) == ["checkpoint-1"]
    assert save_at(store, state, 3)[0] == Saved(3, "checkpoint-3")
    assert read_manifest(storage, "checkpoint-3").parent == "checkpoint-1"


def test_three_failures_in_a_row_end_the_run(storage: MemoryStorage) -> None:
    """Each failure is told, the third is raised after that; a save that succeeds starts the count again."""
    store = make_store(storage)
    state = RunState(run="mine")

    def fail(step: int) -> None:
        store.storage = FaultyStorage(storage, [Fault(1, Effect.FAIL, "write", times=99)])
        events = store.save(state)
        with pytest.warns(UserWarning, match="was not saved"):
            assert isinstance(next(events), SaveFailed)
        assert list(events) == []

    for step in (1, 2):
        fail(step)
    store.storage = storage
    save_at(store, state, 3)
    for step in (4, 5):
        state.step = step
        fail(step)
    with pytest.raises(StorageError, match=r"3 saves in a row failed.*Everything up to checkpoint-3 is saved"):
        fail(6)
    assert names(storage) == ["checkpoint-3"]


def test_an_error_in_the_contents_leaves_nothing_behind(storage: MemoryStorage) -> None:
    """Where what is to be saved raises, that error comes out, and no trace of the save is left."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    store = CheckpointStore(storage, SmallContents(b"weights", interrupt))
    with pytest.raises(KeyboardInterrupt):
        list(store.save(RunState(run="mine", step=1)))
    assert names(storage) == []


def test_the_run_ends_with_its_best_weights(storage: MemoryStorage) -> None:
    """Where that was wished, the weights of the best checkpoint come back at the end, and only then."""
    store = make_store(storage)
    state = RunState(run="mine")
    for step in (1, 2, 3):
        state.best_step = min(step, 2)
        save_at(store, state, step)
    store.load_best(state)
    assert weights_of(store) == weights_at("mine", 3)
    store.load_best_at_end = True
    store.load_best(state)
    assert weights_of(store) == weights_at("mine", 2)


def test_an_evaluation_after_the_save_finds_its_checkpoint(storage: MemoryStorage) -> None:
    """The best evaluation may come after its step was saved: the next save notes that checkpoint as the best."""
    store = make_store(storage, limit=1)
    state = RunState(run="mine")
    save_at(store, state, 1)
    state.best_step = 1
    save_at(store, state, 2)
    assert state.best_checkpoint == "checkpoint-1"
    assert names(storage) == checkpoint_names(1, 2)


def test_best_weights_that_were_never_saved_are_told(storage: MemoryStorage) -> None:
    """Without a checkpoint of the best evaluation a warning says with which weights the run ends."""
    store = make_store(storage)
    store.load_best_at_end = True
    state = RunState(run="mine")
    with pytest.warns(UserWarning, match="ends with its last weights"):
        store.load_best(state)
    state.best_step = 1
    save_at(store, state, 1)
    save_at(store, state, 2)
    state.best_step = 3
    with pytest.warns(UserWarning, match="weights of checkpoint-1: the best evaluation was at step 3"):
        store.load_best(state)
    assert weights_of(store) == weights_at("mine", 1)


def test_damaged_best_weights_are_set_aside(storage: MemoryStorage) -> None:
    """A run that is to end with the best weights never ends with damaged ones, or with others in silence."""
    store = make_store(storage)
    store.load_best_at_end = True
    state = RunState(run="mine", best_step=1)
    save_at(store, state, 1)
    save_at(store, state, 2)
    storage.damage("checkpoint-1/weights/all.bin", b"other")
    with pytest.warns(UserWarning, match=r"last weights: its best .* is damaged.* set aside as .*damaged-1-"):
        store.load_best(state)
    assert weights_of(store) == weights_at("mine", 2)
    assert [path for path in tree(storage) if path.endswith("damaged.txt")]
    with pytest.warns(UserWarning, match="its last weights: its best .*: checkpoint-1 .* cannot be used"):
        store.load_best(state)


def test_best_weights_that_cannot_be_read_now_are_an_error(storage: MemoryStorage) -> None:
    """The run is not over with the wrong weights: it can go on to its end once they can be read."""
    store, state = make_store(storage), RunState(run="mine", best_step=1)
    store.load_best_at_end = True
    save_at(store, state, 1)
    save_at(store, state, 2)
    store.storage = FaultyStorage(storage, [Fault(1, Effect.FAIL, "digest", times=99)])
    with pytest.raises(
        CheckpointError, match=r"weights of the best checkpoint could not be loaded.*load_best_model_at_end"
    ):
        store.load_best(state)
    assert names(storage) == checkpoint_names(1, 2)


def test_best_weights_whose_save_failed_are_kept_where_they_are_the_last(storage: MemoryStorage) -> None:
    """Those of an earlier checkpoint, which are not as good, do not take their place."""
    store = make_store(storage)
    store.load_best_at_end = True
    state = RunState(run="mine", best_step=1)
    save_at(store, state, 1)
    store.storage = FaultyStorage(storage, [Fault(1, Effect.FAIL, "write")])
    state.best_step = 2
    with pytest.warns(UserWarning, match="checkpoint-2 was not saved"):
        save_at(store, state, 2)
    assert state.best_checkpoint == "checkpoint-1"
    store.load_best(state)
    assert weights_of(store) == weights_at("mine", 2)


def test_a_checkpoint_that_does_not_fit_changes_nothing(storage: MemoryStorage) -> None:
    """Where the contents refuse a good checkpoint, that is the error, and the store stands as before."""
    storage.write("elsewhere/other.bin", [b"x"])
    save_all(storage, "mine", [1])

    class Refusing(SmallContents):
        def restore(self, *_: object) -> RunState:
            raise CheckpointError("It is of another model.")

    store = CheckpointStore(storage, Refusing())
    with pytest.raises(CheckpointError, match="another model"):
        store.resume()
    assert store.latest is None


def test_what_is_protected_stays(storage: MemoryStorage) -> None:
    """A checkpoint that the policy names is never removed."""
    store = make_store(storage)
    store.policy = CheckpointPolicy(1, protected=frozenset({"checkpoint-1"}))
    state = RunState(run="mine")
    for step in (1, 2, 3):
        save_at(store, state, step)
    assert names(storage) == checkpoint_names(1, 3)


@pytest.mark.parametrize("in_background", [False, True])
def test_whoever_puts_a_file_into_a_checkpoint_keeps_it(storage: MemoryStorage, in_background: bool) -> None:
    """Also while the run goes on, by a process that knows nothing of it; without the file it goes with a later save."""
    store = make_store(storage, 2, in_background=in_background)
    state = RunState(run="mine")
    for step in (1, 2, 3, 4):
        save_at(store, state, step)
        if step == 1:
            list(store.finish())
            storage.write("checkpoint-1/protected", [])
    list(store.finish())
    assert names(storage) == checkpoint_names(1, 4)
    assert verify(storage, "checkpoint-1").manifest.step == 1
    storage.remove("checkpoint-1/protected")
    save_at(store, state, 5)
    list(store.finish())
    assert names(storage) == checkpoint_names(4, 5)


class Acknowledging(MemoryStorage):
    """Moves, and says once that it could not."""

    failed = False

    def move(self, source: str, destination: str) -> None:
        super().move(source, destination)
        if not self.failed:
            self.failed = True
            raise StorageError("The answer was lost; try again.")


def test_a_checkpoint_that_was_published_unheard_is_not_written_again() -> None:
    """Where the storage did what it reported as failed, the next save at that step finds it done."""
    storage = Acknowledging()
    store = make_store(storage)
    state = RunState(run="mine")
    with pytest.warns(UserWarning, match="checkpoint-1 was not saved"):
        assert isinstance(save_at(store, state, 1)[0], SaveFailed)
    before = tree(storage)
    assert save_at(store, state, 1) == [Saved(1, "checkpoint-1"), CheckpointPublished(1, "checkpoint-1")]
    assert tree(storage) == before


def test_a_storage_that_cannot_be_looked_at_is_told(storage: MemoryStorage) -> None:
    """Where nobody can say whether a step has its checkpoint still, the save fails, and the run goes on."""
    store = save_all(storage, "mine", [5])
    store.storage = FaultyStorage(storage, [Fault(1, Effect.FAIL, "list")])
    with pytest.warns(UserWarning, match="checkpoint-5 was not saved"):
        (event,) = save_at(store, RunState(run="mine"), 5)
    assert isinstance(event, SaveFailed)
    assert names(storage) == ["checkpoint-5"]


def test_a_folder_that_can_never_be_removed_ends_no_run(storage: MemoryStorage) -> None:
    """What somebody else keeps open, or owns, is complained of at each save, and every save counts."""
    store = make_store(storage, limit=1)
    state = RunState(run="mine")
    save_at(store, state, 1)
    store.storage = FaultyStorage(storage, [Fault(1, Effect.FAIL, "remove", times=99)])
    for step in range(2, 7):
        with pytest.warns(UserWarning, match="could not be removed: Planned fault"):
            assert save_at(store, state, step)[-1] == CheckpointPublished(step, f"checkpoint-{step}")
    store.storage = storage
    save_at(store, state, 7)
    assert names(storage) == ["checkpoint-7"]


def died_in_its_last_save(publication: Publication, number: int) -> MemoryStorage | None:
    """What a run that keeps two left after the operation `number` of its third save; None where the save ended."""
    storage = MemoryStorage(publication)
    store, state = make_store(storage, 2), RunState(run="mine")
    for step in (1, 2):
        save_at(store, state, step)
    store.storage = FaultyStorage(storage, [Fault(number, Effect.DIE, done=1)])
    try:
        save_at(store, state, 3)
    except Died:
        return storage
    return None


@pytest.mark.filterwarnings("ignore:A checkpoint is skipped")
@pytest.mark.parametrize("publication", Publication)
def test_a_resumed_run_that_has_nothing_to_save_does_the_rest_of_the_last_save(publication: Publication) -> None:
    """Wherever in its last save a run died, the next leaves nothing unfinished, and no more than is to be kept."""
    resumed_at: list[int] = []
    while (storage := died_in_its_last_save(publication, len(resumed_at) + 1)) is not None:
        store = make_store(storage, 2)
        state = store.resume()
        assert state is not None
        assert list(store.finish()) == []
        assert names(storage) == checkpoint_names(state.step - 1, state.step)
        resumed_at.append(state.step)
    assert set(resumed_at) == {2, 3}


@pytest.mark.parametrize(
    ("number", "failing", "said"),
    [
        (3, "remove", "The unfinished files of an earlier save"),
        (4, "remove", "Checkpoints beyond save_total_limit"),
        (3, "list", "The unfinished files of a save that was cut short"),
    ],
)
def test_a_resumed_run_ends_well_where_what_is_left_cannot_be_removed(number: int, failing: str, said: str) -> None:
    """It says so, once."""
    storage = died_in_its_last_save(Publication.RENAME, number)
    assert storage is not None
    store = make_store(storage, 2)
    assert store.resume() is not None
    store.storage = FaultyStorage(storage, [Fault(1, Effect.FAIL, failing, times=9)])
    with pytest.warns(UserWarning, match=f"{said} could not be removed: "):
        assert list(store.finish()) == []
    assert list(store.finish()) == []
