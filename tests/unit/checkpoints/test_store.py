"""The checkpoint store of one process: save, resume, rotate, fail."""

from __future__ import annotations

import warnings

import pytest

from hexloop.adapters.storage.faults import Died, Effect, Fault, FaultyStorage
from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.domain.checkpoints.commit import CheckpointPolicy, publisher_for
from hexloop.domain.checkpoints.manifest import Owner
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
    """Return an empty storage of either kind."""
    return MemoryStorage(request.param)


def weights_of(store: CheckpointStore) -> bytes:
    assert isinstance(store.contents, SmallContents)
    return store.contents.weights


def test_a_save_is_published_before_it_is_reported(storage: MemoryStorage) -> None:
    """At the first event of a save, the checkpoint is complete under its name."""
    store: Checkpoints = make_store(storage)
    events = store.save(RunState(run="mine", step=5))
    assert next(events) == Saved(5, "checkpoint-5")
    assert names(storage) == ["checkpoint-5"]
    assert verify(storage, "checkpoint-5").manifest.step == 5
    assert list(events) == [CheckpointPublished(5, "checkpoint-5")]
    assert list(store.finish()) == []
    store.close()


@pytest.mark.parametrize("alone", [False, True])
def test_leftovers_of_other_runs_are_removed_only_if_the_run_is_alone(storage: MemoryStorage, alone: bool) -> None:
    """A run that dies before its first checkpoint leaves no name by which it could be resumed."""
    publisher = publisher_for(storage, Owner("another", next_session()))
    storage.write(f"{publisher.begin('checkpoint-3')}/weights", [b"half"])
    list(make_store(storage, exclusive=alone).save(RunState(run="mine", step=5)))
    assert (names(storage) == ["checkpoint-5"]) == alone
    assert len(names(storage)) == 2 - alone


def test_a_checkpoint_records_its_origin(storage: MemoryStorage) -> None:
    """The manifest has run, step, parent, processes and environment, and the saved state its parent and its best."""
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


def test_a_run_resumes_from_the_newest_checkpoint(storage: MemoryStorage) -> None:
    """State and weights are those of the newest good checkpoint, which is the parent of the next save."""
    save_all(storage, "mine", [5, 10])
    store = make_store(storage)
    state = store.resume()
    assert state is not None
    assert (state.step, weights_of(store), store.latest) == (10, weights_at("mine", 10), "checkpoint-10")
    save_at(store, state, 15)
    assert read_manifest(storage, "checkpoint-15").parent == "checkpoint-10"
    assert list(read_manifest(storage, "checkpoint-15").ancestors.values()) == [10]


def test_an_empty_storage_has_nothing_to_resume(storage: MemoryStorage) -> None:
    """There is no state to resume from, and an error if a checkpoint is named."""
    assert make_store(storage).resume() is None
    with pytest.raises(CheckpointError, match="checkpoint-5 in memory"):
        make_store(storage).resume("checkpoint-5")


def test_a_damaged_checkpoint_is_skipped(storage: MemoryStorage) -> None:
    """A run resumes from the newest good checkpoint, and a warning names the damaged one with the reason."""
    save_all(storage, "mine", [5, 10])
    storage.damage("checkpoint-10/state.json", b"{}")
    with pytest.warns(UserWarning, match=r"is skipped: checkpoint-10 in memory is damaged: state.json has 2 bytes"):
        state = make_store(storage).resume()
    assert state is not None
    assert state.step == 5
    with pytest.raises(CheckpointError, match="good checkpoints: checkpoint-5"):
        make_store(storage).resume("checkpoint-10")


def test_a_different_environment_is_reported(storage: MemoryStorage) -> None:
    """A warning names the facts that differ from those at the save; the run continues."""
    first = CheckpointStore(storage, SmallContents(), environment={"python": "3.11", "torch": "2.9"})
    list(first.save(RunState(run="mine", step=5)))
    then = CheckpointStore(storage, SmallContents(), environment={"python": "3.12", "threads": "1"})
    differences = "python was 3.11 and is 3.12; threads was unknown and is 1; torch was 2.9 and is unknown"
    with pytest.warns(UserWarning, match=differences):
        assert then.resume() is not None


def test_a_checkpoint_without_an_environment_does_not_warn(storage: MemoryStorage) -> None:
    """Without a recorded environment there is nothing to compare."""
    list(CheckpointStore(storage, SmallContents()).save(RunState(run="mine", step=5)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert CheckpointStore(storage, SmallContents(), environment={"python": "3.12"}).resume() is not None


def test_a_second_save_at_a_step_changes_nothing(storage: MemoryStorage) -> None:
    """A step with a checkpoint is not saved again, in the same session or the next, but reported as published."""
    store = save_all(storage, "mine", [5])
    before = tree(storage)
    state = RunState(run="mine", best_step=5)
    assert save_at(store, state, 5) == [CheckpointPublished(5, "checkpoint-5")]
    assert state.best_checkpoint == "checkpoint-5"
    resumed = make_store(storage)
    assert resumed.resume() is not None
    assert save_at(resumed, state, 5) == [CheckpointPublished(5, "checkpoint-5")]
    assert tree(storage) == before


def test_a_removed_checkpoint_is_saved_again(storage: MemoryStorage) -> None:
    """The contents of the storage decide whether a step has a checkpoint."""
    store = save_all(storage, "mine", [5])
    storage.remove("checkpoint-5")
    assert save_at(store, RunState(run="mine"), 5)[0] == Saved(5, "checkpoint-5")
    assert names(storage) == ["checkpoint-5"]


@pytest.mark.parametrize("run", ["mine", "another"])
def test_a_folder_in_the_way_is_kept_under_another_name(storage: MemoryStorage, run: str) -> None:
    """A checkpoint of another run, or of an abandoned branch of this one, is renamed with all its files."""
    save_all(storage, run, [5, 10])
    storage.write("checkpoint-10/notes/mine.txt", [b"mine"])
    before = tree(storage, "checkpoint-10")
    store = make_store(storage)
    assert store.resume("checkpoint-5") is not None
    save_at(store, RunState(run="mine"), 10)
    assert names(storage) == [".hexloop/replaced-1-checkpoint-10", "checkpoint-10", "checkpoint-5"]
    assert tree(storage, ".hexloop/replaced-1-checkpoint-10") == {
        f".hexloop/replaced-1-{path}": data for path, data in before.items()
    }
    assert verify(storage, ".hexloop/replaced-1-checkpoint-10").manifest.run == run
    assert verify(storage, "checkpoint-10").manifest.run == "mine"


def test_a_folder_without_a_manifest_in_the_way_is_kept(storage: MemoryStorage) -> None:
    """A checkpoint that another program wrote, or that is damaged, is renamed like any other."""
    storage.write("checkpoint-5/model.bin", [b"foreign"])
    for run in ("first", "second"):
        save_all(storage, run, [5])
    aside = [".hexloop/replaced-1-checkpoint-5", ".hexloop/replaced-2-checkpoint-5"]
    assert names(storage) == [*aside, "checkpoint-5"]
    assert tree(storage, ".hexloop/replaced-1-checkpoint-5") == {
        ".hexloop/replaced-1-checkpoint-5/model.bin": b"foreign"
    }
    assert verify(storage, ".hexloop/replaced-2-checkpoint-5").manifest.run == "first"
    assert verify(storage, "checkpoint-5").manifest.run == "second"


def test_the_limit_is_enforced(storage: MemoryStorage) -> None:
    """Once a checkpoint is published, the oldest beyond the limit are removed, except the best."""
    store = make_store(storage, limit=2)
    state = RunState(run="mine")
    for step in (8, 9, 10, 11):
        state.best_step = 9
        save_at(store, state, step)
    assert names(storage) == checkpoint_names(9, 11)
    assert state.best_checkpoint == "checkpoint-9"


def test_rotation_continues_after_a_resume(storage: MemoryStorage) -> None:
    """A resumed run counts its ancestors' checkpoints, and removes those beyond the limit."""
    save_all(storage, "mine", [1, 2, 3])
    store = make_store(storage, limit=2)
    assert store.resume() is not None
    save_at(store, RunState(run="mine"), 4)
    assert names(storage) == checkpoint_names(3, 4)


def test_rotation_is_limited_to_the_lineage(storage: MemoryStorage) -> None:
    """Other runs' checkpoints, abandoned branches and damaged checkpoints are neither counted nor removed."""
    save_all(storage, "another", [1])
    save_all(storage, "mine", [2, 3, 4, 5, 6])
    storage.damage("checkpoint-3/manifest.json", b"")
    store = make_store(storage, limit=1)
    assert store.resume("checkpoint-4") is not None
    save_at(store, RunState(run="mine"), 7)
    assert names(storage) == checkpoint_names(1, 3, 5, 6, 7)


def test_rotation_checks_again_before_it_removes(storage: MemoryStorage) -> None:
    """A checkpoint that another run has put under the name of one of this run's is not removed."""
    store = save_all(storage, "mine", [1], limit=1)
    save_all(storage, "another", [1])
    save_at(store, RunState(run="mine"), 2)
    assert "checkpoint-1" in names(storage)
    assert verify(storage, "checkpoint-1").manifest.run == "another"


@pytest.mark.parametrize("back_to", [None, "checkpoint-2"])
def test_a_clock_that_is_behind_does_no_harm(storage: MemoryStorage, back_to: str | None) -> None:
    """A run that resumes with an earlier clock is found with all its checkpoints."""
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


def test_nothing_is_rotated_out_for_an_unreadable_checkpoint(storage: MemoryStorage) -> None:
    """If the disk lost a manifest that it acknowledged, the older checkpoints stay."""
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


def test_a_failed_rotation_does_not_fail_the_save(storage: MemoryStorage) -> None:
    """If an old checkpoint cannot be removed, the save succeeds with a warning, and the next save tries again."""
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


def test_leftovers_of_a_failed_rotation_are_removed(storage: MemoryStorage) -> None:
    """Whichever removal of a rotation fails, the next save of the same session removes what it left."""
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


def test_only_a_saved_step_can_be_the_best(storage: MemoryStorage) -> None:
    """Without a best evaluation there is no best checkpoint; if its step was never saved, the former best is kept."""
    store = make_store(storage)
    state = RunState(run="mine")
    best = []
    for step, best_step in ((1, None), (2, 2), (4, 3), (5, 2), (6, 6)):
        state.best_step = best_step
        save_at(store, state, step)
        best.append(state.best_checkpoint)
    assert best == [None, "checkpoint-2", "checkpoint-2", "checkpoint-2", "checkpoint-6"]


def test_a_failed_save_is_reported_and_the_run_continues(storage: MemoryStorage) -> None:
    """A failure is an event and a warning; checkpoints and state are unchanged, and no files are left over."""
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
    """Each failure is reported, and the third is raised; a successful save resets the count."""
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


def test_an_error_in_the_contents_leaves_no_files(storage: MemoryStorage) -> None:
    """An error raised by the contents is propagated, and no trace of the save is left."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    store = CheckpointStore(storage, SmallContents(b"weights", interrupt))
    with pytest.raises(KeyboardInterrupt):
        list(store.save(RunState(run="mine", step=1)))
    assert names(storage) == []


def test_the_run_ends_with_its_best_weights(storage: MemoryStorage) -> None:
    """If requested, the weights of the best checkpoint are loaded at the end, and only then."""
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
    """If the best evaluation follows the save of its step, the next save records that checkpoint as the best."""
    store = make_store(storage, limit=1)
    state = RunState(run="mine")
    save_at(store, state, 1)
    state.best_step = 1
    save_at(store, state, 2)
    assert state.best_checkpoint == "checkpoint-1"
    assert names(storage) == checkpoint_names(1, 2)


def test_best_weights_that_were_never_saved_are_reported(storage: MemoryStorage) -> None:
    """Without a checkpoint of the best evaluation, a warning names the weights that the run ends with."""
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


def test_damaged_best_weights_are_quarantined(storage: MemoryStorage) -> None:
    """A run that is to end with the best weights never ends with damaged ones, or silently with others."""
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


def test_unreadable_best_weights_are_an_error(storage: MemoryStorage) -> None:
    """The run does not end with the wrong weights: it can be resumed to its end once the best can be read."""
    store, state = make_store(storage), RunState(run="mine", best_step=1)
    store.load_best_at_end = True
    save_at(store, state, 1)
    save_at(store, state, 2)
    store.storage = FaultyStorage(storage, [Fault(1, Effect.FAIL, "read", times=99, within="state.json")])
    with pytest.raises(
        CheckpointError, match=r"weights of the best checkpoint could not be loaded.*load_best_model_at_end"
    ):
        store.load_best(state)
    assert names(storage) == checkpoint_names(1, 2)


def test_best_weights_whose_save_failed_are_kept_if_they_are_the_last(storage: MemoryStorage) -> None:
    """Worse weights of an earlier checkpoint do not replace them."""
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


def test_an_incompatible_checkpoint_changes_nothing(storage: MemoryStorage) -> None:
    """If the contents refuse a good checkpoint, their error is raised, and the store is unchanged."""
    storage.write("elsewhere/other.bin", [b"x"])
    save_all(storage, "mine", [1])

    class RefusingRestore(SmallContents):
        def restore(self, *_: object) -> RunState:
            raise CheckpointError("It is of another model.")

    store = CheckpointStore(storage, RefusingRestore())
    with pytest.raises(CheckpointError, match="another model"):
        store.resume()
    assert store.latest is None


def test_a_protected_checkpoint_stays(storage: MemoryStorage) -> None:
    """A checkpoint that the policy protects is never removed."""
    store = make_store(storage)
    store.policy = CheckpointPolicy(1, protected=frozenset({"checkpoint-1"}))
    state = RunState(run="mine")
    for step in (1, 2, 3):
        save_at(store, state, step)
    assert names(storage) == checkpoint_names(1, 3)


@pytest.mark.parametrize("in_background", [False, True])
def test_a_protection_file_keeps_a_checkpoint(storage: MemoryStorage, in_background: bool) -> None:
    """Any process can add the file during the run; once it is removed, a later save removes the checkpoint."""
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


class FailingAfterTheMove(MemoryStorage):
    """Moves once and then reports a failure."""

    failed = False

    def move(self, source: str, destination: str) -> None:
        super().move(source, destination)
        if not self.failed:
            self.failed = True
            raise StorageError("The answer was lost; try again.")


def test_a_published_checkpoint_with_a_reported_failure_is_not_written_again() -> None:
    """If the storage completed what it reported as failed, the next save at that step finds the checkpoint."""
    storage = FailingAfterTheMove()
    store = make_store(storage)
    state = RunState(run="mine")
    with pytest.warns(UserWarning, match="checkpoint-1 was not saved"):
        assert isinstance(save_at(store, state, 1)[0], SaveFailed)
    before = tree(storage)
    assert save_at(store, state, 1) == [Saved(1, "checkpoint-1"), CheckpointPublished(1, "checkpoint-1")]
    assert tree(storage) == before


def test_an_unavailable_storage_fails_the_save(storage: MemoryStorage) -> None:
    """If the existing checkpoints cannot be listed, the save fails, and the run continues."""
    store = save_all(storage, "mine", [5])
    store.storage = FaultyStorage(storage, [Fault(1, Effect.FAIL, "list")])
    with pytest.warns(UserWarning, match="checkpoint-5 was not saved"):
        (event,) = save_at(store, RunState(run="mine"), 5)
    assert isinstance(event, SaveFailed)
    assert names(storage) == ["checkpoint-5"]


def test_a_folder_that_cannot_be_removed_does_not_end_the_run(storage: MemoryStorage) -> None:
    """A folder that is open or owned elsewhere causes a warning at each save, and every save succeeds."""
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
    """Return what a run with a limit of two left when its third save died, or None if the save completed."""
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
def test_a_resumed_run_completes_the_last_save(publication: Publication) -> None:
    """Wherever in its last save a run died, the resumed run leaves nothing unfinished, and no more than the limit."""
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
    ("number", "failing", "named"),
    [
        (3, "remove", "The unfinished files of an earlier save"),
        (4, "remove", "Checkpoints beyond save_total_limit"),
        (3, "list", "The unfinished files of a save that was cut short"),
    ],
)
def test_a_resumed_run_ends_if_leftovers_cannot_be_removed(number: int, failing: str, named: str) -> None:
    """It warns once."""
    storage = died_in_its_last_save(Publication.RENAME, number)
    assert storage is not None
    store = make_store(storage, 2)
    assert store.resume() is not None
    store.storage = FaultyStorage(storage, [Fault(1, Effect.FAIL, failing, times=9)])
    with pytest.warns(UserWarning, match=f"{named} could not be removed: "):
        assert list(store.finish()) == []
    assert list(store.finish()) == []
