"""Checkpoint files: what external tools read in them, and what loading restores."""

from __future__ import annotations

import json
import math
import shutil
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

from hexloop.adapters.contents.checkpoint import AnySetup, CheckpointContents
from hexloop.adapters.contents.documents import MIGRATIONS
from hexloop.adapters.contents.file_names import RankFiles
from hexloop.adapters.snapshots import InMemorySnapshots
from hexloop.adapters.storage.local import LocalStorage
from hexloop.domain.checkpoints.store import CheckpointStore
from hexloop.domain.errors import CheckpointError
from hexloop.domain.state import RunState
from hexloop.ports.mesh import flat_mesh
from hexloop.ports.state import Part
from hexloop.ports.storage import File
from tests.contracts.keepers import Keeper, assert_equal, blank, weights


def written(contents: CheckpointContents, folder: Path, state: RunState | None = None) -> list[str]:
    """Write every file of a checkpoint and return their names."""
    storage, paths = LocalStorage(folder), []
    for file in contents.files(state or RunState()):
        storage.write(file.path, file.chunks)
        paths.append(file.path)
    return paths


def read_back(contents: CheckpointContents, folder: Path) -> RunState:
    """Load every file of a folder."""
    return contents.restore([path.name for path in folder.iterdir()], LocalStorage(folder).read)


def all_kept() -> dict[str, Keeper]:
    return {
        "model": Keeper(weights()),
        "optimizer": Keeper({"embedding.weight.exp_avg": np.ones((7, 5), "<f4")}, {"groups": [{"lr": 1e-3}]}),
        "scaler": Keeper(),
        "scheduler": Keeper(values={"best": math.inf, "rates": [0.1, 1 / 3]}),
        "random": Keeper({"cpu": np.arange(200, dtype="u1")}, {"python": [3, [2**31, 5], None]}),
    }


def test_safetensors_reads_the_weights(tmp_path: Path) -> None:
    """The safetensors library reads the same tensors from model.safetensors, for torch and for numpy."""
    written(CheckpointContents({"model": Keeper(weights())}), tmp_path)
    assert_equal(safetensors.numpy.load_file(tmp_path / "model.safetensors"), weights())
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert_equal({name: tensor.numpy() for name, tensor in tensors.items()}, weights())
    with safetensors.safe_open(tmp_path / "model.safetensors", "pt") as opened:
        assert opened.metadata() == {"format": "pt"}


def stored(folder: Path, path: str = "run_state.json") -> dict[str, Any]:
    """Return the documents in a file."""
    documents: dict[str, Any] = json.loads(folder.joinpath(path).read_text())
    return documents


def test_tensors_have_a_file_for_each_object_and_documents_have_one_in_all(tmp_path: Path) -> None:
    """Both are stored under the name of their object; an object without state has neither."""
    kept, state = all_kept(), RunState(run="mine")
    assert sorted(written(CheckpointContents(kept, setup=AnySetup({"a": 1})), tmp_path, state)) == [
        "model.safetensors",
        "optimizer.safetensors",
        "random.safetensors",
        "run_state.json",
    ]
    documents = stored(tmp_path)
    assert list(documents) == ["schema_version", "run_state", "run_setup", "optimizer", "scheduler", "random"]
    assert documents["schema_version"] == 2
    assert documents["optimizer"] == {"schema_version": 1, "groups": [{"lr": 1e-3}]}
    assert documents["scheduler"] == {"schema_version": 1, "best": {"$number": "inf"}, "rates": [0.1, 1 / 3]}
    assert documents["run_state"]["run"] == "mine"
    assert documents["run_setup"] == {"schema_version": 1, "a": 1}


def in_separate_files(folder: Path) -> None:
    """Replace the documents in one file by a file for each, as hexloop 0.1 wrote them."""
    for name, document in stored(folder).items():
        if name != "schema_version":
            folder.joinpath(f"{name}.json").write_text(json.dumps(document))


def test_state_that_is_not_saved_is_loaded_from_full_checkpoints(tmp_path: Path) -> None:
    """A run that saves only the model resumes from a full checkpoint in full, and from one of its own."""
    written(CheckpointContents(all_kept()), tmp_path / "whole")
    kept = {name: blank(keeper) for name, keeper in all_kept().items()}
    alone = CheckpointContents(kept, written={"model"})
    read_back(alone, tmp_path / "whole")
    for name, keeper in all_kept().items():
        assert kept[name].loads == 1
        assert_equal(kept[name].arrays, keeper.arrays)
    taken = CheckpointContents(kept, written={"model"}, snapshots=InMemorySnapshots())
    taken.prepare()()
    files = [file.path for file in taken.snapshot(RunState())()]
    assert written(alone, tmp_path / "alone") == files == ["model.safetensors", "run_state.json"]
    read_back(alone, tmp_path / "alone")
    assert {name: keeper.loads for name, keeper in kept.items()} == {**dict.fromkeys(kept, 1), "model": 2}


def test_everything_is_restored(tmp_path: Path) -> None:
    """Each object's state is restored bitwise, and the run state equals the saved one."""
    kept, state = all_kept(), RunState(run="mine", step=7, history=[{"loss": math.nan}])
    written(CheckpointContents(kept), tmp_path, state)
    again = {name: blank(keeper) for name, keeper in kept.items()}
    assert repr(read_back(CheckpointContents(again), tmp_path)) == repr(state)
    for name, keeper in kept.items():
        assert_equal(again[name].arrays, keeper.arrays)
        assert again[name].values == keeper.values
        assert again[name].loads == 1


def test_documents_in_separate_files_are_restored(tmp_path: Path) -> None:
    """A checkpoint of hexloop 0.1 restores the same."""
    kept, state = all_kept(), RunState(run="mine", step=7, history=[{"loss": math.nan}])
    written(CheckpointContents(kept), tmp_path, state)
    in_separate_files(tmp_path)
    again = {name: blank(keeper) for name, keeper in kept.items()}
    assert repr(read_back(CheckpointContents(again), tmp_path)) == repr(state)
    for name, keeper in kept.items():
        assert_equal(again[name].arrays, keeper.arrays)
        assert again[name].values == keeper.values


@pytest.mark.parametrize("value", [[math.nan, 1.5], {"$items": 3}, {"text": "NaN"}, "€ and \\", {"deep": [{}, [[]]]}])
def test_values_that_json_lacks_are_restored(tmp_path: Path, value: Any) -> None:
    """Whatever a part contains, it is the same after a save, and the file is JSON in the strict sense."""
    kept = {"model": Keeper(), "mine": Keeper(values={"value": value})}
    written(CheckpointContents(kept), tmp_path)
    json.loads(tmp_path.joinpath("run_state.json").read_text(), parse_constant=pytest.fail)
    again = {name: blank(keeper) for name, keeper in kept.items()}
    read_back(CheckpointContents(again), tmp_path)
    assert repr(again["mine"].values) == repr(kept["mine"].values)


def test_files_of_others_with_the_name_of_a_document_are_not_read(tmp_path: Path) -> None:
    """A document that is in one file with others is read from there, or does not exist."""
    kept = all_kept()
    written(CheckpointContents(kept), tmp_path)
    for name in ("optimizer.json", "scaler.json", "run_setup.json"):
        tmp_path.joinpath(name).write_text("not even JSON")
    again = {name: blank(keeper) for name, keeper in kept.items()}
    read_back(CheckpointContents(again), tmp_path)
    assert again["optimizer"].values == kept["optimizer"].values


def test_each_process_has_a_file_of_its_own_documents(tmp_path: Path) -> None:
    """The other ranks write what they have for themselves, and read it, or that of rank 0 if they had none."""
    for rank in range(3):
        kept = {
            "model": Keeper(weights()),
            "random": Keeper(values={"seed": rank}),
            "losses": Keeper(values={"sum": 10 * rank}),
            "data": Keeper(values={"at": 5} if rank == 0 else {}),
        }
        paths = written(CheckpointContents(kept, ranks=RankFiles(flat_mesh(rank, 3))), tmp_path)
        own = "run_state.json" if rank == 0 else f"run_state-rank-{rank:05}.json"
        assert paths == (["model.safetensors", own] if rank == 0 else [own])
        assert list(stored(tmp_path, own))[-3:] == (["random", "losses", "data"] if rank == 0 else [
            "schema_version", "random", "losses",
        ])  # fmt: skip
    loaded = {}
    for rank in range(3):
        again = {name: Keeper(values=dict.fromkeys(names)) for name, names in EACH_HAS.items()}
        again["model"] = blank(Keeper(weights()))
        read_back(CheckpointContents(again, ranks=RankFiles(flat_mesh(rank, 3))), tmp_path)
        loaded[rank] = {name: again[name].values for name in EACH_HAS}
    assert loaded == {
        rank: {"random": {"seed": rank}, "losses": {"sum": 10 * rank}, "data": {"at": 5}} for rank in range(3)
    }


EACH_HAS = {"random": ["seed"], "losses": ["sum"], "data": ["at"]}


def test_weights_only_loading_restores_the_weights(tmp_path: Path) -> None:
    """Loading only the weights changes nothing but the model."""
    written(CheckpointContents(all_kept()), tmp_path)
    again = {name: blank(keeper) for name, keeper in all_kept().items()}
    names = [path.name for path in tmp_path.iterdir()]
    CheckpointContents(again).restore_weights(names, LocalStorage(tmp_path).read)
    assert_equal(again["model"].arrays, weights())
    assert [keeper.loads for keeper in again.values()] == [1, 0, 0, 0, 0]


@pytest.mark.parametrize("largest", [1, 100, 200])
def test_large_weights_are_sharded(tmp_path: Path, largest: int) -> None:
    """Weights above the maximum file size are split into numbered files with an index, in order, and load from them."""
    kept = Keeper(weights())
    paths = written(CheckpointContents({"model": kept}, max_shard_size=largest), tmp_path)
    shards = [path for path in paths if path.endswith(".safetensors")]
    assert shards == [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    assert len(shards) > 1
    index = json.loads(tmp_path.joinpath("model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in kept.arrays.values())
    held = {shard: safetensors.numpy.load_file(tmp_path / shard) for shard in shards}
    assert {name: shard for shard, tensors in held.items() for name in tensors} == index["weight_map"]
    for tensors in held.values():
        assert len(tensors) == 1 or sum(array.nbytes for array in tensors.values()) <= largest
    again = blank(kept)
    read_back(CheckpointContents({"model": again}), tmp_path)
    assert_equal(again.arrays, kept.arrays)


@pytest.mark.parametrize("largest", [5_000_000_000, 20_000])
def test_transformers_loads_the_folder(tmp_path: Path, largest: int) -> None:
    """A checkpoint of a transformers model, sharded or not, loads with `from_pretrained`, tied weights included."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from hexloop.adapters.trainable.torch.model_state import ModelState

    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2))
    config = [File("config.json", [model.config.to_json_string().encode()])]
    written(CheckpointContents({"model": ModelState(model)}, lambda: config, largest), tmp_path)
    assert tmp_path.joinpath("model.safetensors").exists() == (largest > 20_000)
    loaded = GPT2LMHeadModel.from_pretrained(tmp_path)
    assert loaded.lm_head.weight is loaded.transformer.wte.weight
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)


def test_extra_files_never_replace_hexloops_own(tmp_path: Path) -> None:
    """Extra files come first and are stored beside the others; those with the name of a hexloop file are left out."""
    own = ["model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json", "run_state.json"]
    extra = [File(path, [b"extra"]) for path in ("config.json", *own, "optimizer.json", "tokenizer/vocabulary.txt")]
    contents = CheckpointContents({"model": Keeper(weights()), "optimizer": Keeper()}, lambda: extra)
    assert written(contents, tmp_path) == [
        "config.json",
        "tokenizer/vocabulary.txt",
        "model.safetensors",
        "run_state.json",
    ]


def test_documents_of_earlier_versions_are_migrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file has its own migrations, one per version, and is written in the version after the last migration."""

    def with_groups(document: dict[str, Any]) -> dict[str, Any]:
        return {"schema_version": 2, "options": [document["options"]]}

    def renamed(document: dict[str, Any]) -> dict[str, Any]:
        return {"schema_version": 3, "groups": document["options"]}

    kept = all_kept()
    monkeypatch.setitem(MIGRATIONS, "optimizer", {1: with_groups, 2: renamed})
    written(CheckpointContents(kept), tmp_path)
    documents = stored(tmp_path)
    assert {name: documents[name]["schema_version"] for name in ("optimizer", *SMALL)} == {
        "optimizer": 3, **dict.fromkeys(SMALL, 1)
    }  # fmt: skip

    documents["optimizer"] = {"schema_version": 1, "options": {"lr": 0.5}}
    tmp_path.joinpath("run_state.json").write_text(json.dumps(documents))
    again = {name: blank(keeper) for name, keeper in kept.items()}
    again["optimizer"].values = {"groups": None}
    read_back(CheckpointContents(again), tmp_path)
    assert again["optimizer"].values == {"groups": [{"lr": 0.5}]}


SMALL = ("run_state", "scheduler", "random")


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("version", [2, "1", None])
def test_documents_of_unknown_versions_are_refused(tmp_path: Path, name: str, version: object, apart: bool) -> None:
    """A newer or missing version is refused with the name of the document, and nothing is loaded."""
    kept = refusing(tmp_path)
    documents = stored(tmp_path)
    documents[name]["schema_version"] = version
    tmp_path.joinpath("run_state.json").write_text(json.dumps(documents))
    if apart:
        in_separate_files(tmp_path)
    present = 2 if apart and name == "run_state" else 1  # a file with the run state alone is of version 1
    message = f"schema version {version!r}, and this hexloop reads versions up to {present}"
    if not (apart and name == "run_state" and version == 2):
        with pytest.raises(CheckpointError, match=message):
            read_back(CheckpointContents(kept), tmp_path)
    assert {keeper.loads for keeper in kept.values()} == {0}


@pytest.mark.parametrize("version", [0, 3, "2", None])
def test_files_of_unknown_versions_are_refused(tmp_path: Path, version: object) -> None:
    """A file of a newer hexloop is refused, with the advice to resume with that one."""
    kept = refusing(tmp_path)
    tmp_path.joinpath("run_state.json").write_text(json.dumps({**stored(tmp_path), "schema_version": version}))
    with pytest.raises(CheckpointError, match=f"schema version {version!r}.*reads versions up to 2.*that wrote it"):
        read_back(CheckpointContents(kept), tmp_path)
    assert {keeper.loads for keeper in kept.values()} == {0}


def refusing(tmp_path: Path, **changes: Any) -> dict[str, Keeper]:
    """Return objects that are to load a saved folder, with changes by name."""
    written(CheckpointContents(all_kept()), tmp_path)
    return {name: blank(keeper) for name, keeper in all_kept().items()} | changes


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    """All tensors of other shapes are named, and nothing has changed."""
    other = Keeper({**weights(), "embedding.weight": np.zeros((8, 5), "<f4"), "half": np.zeros(4, "<f2")})
    kept = refusing(tmp_path, model=other)
    with pytest.raises(
        CheckpointError,
        match=r"embedding.weight has shape \(7, 5\) in the checkpoint and \(8, 5\) in this run; half has",
    ):
        read_back(CheckpointContents(kept), tmp_path)
    assert {keeper.loads for keeper in kept.values()} == {0}


def test_a_refused_load_names_the_object(tmp_path: Path) -> None:
    """A refusal by one object becomes a CheckpointError that names the object."""
    kept = refusing(tmp_path, optimizer=Keeper({"another.exp_avg": np.zeros(1)}))
    with pytest.raises(CheckpointError, match="The checkpoint's optimizer does not fit this run: There are"):
        read_back(CheckpointContents(kept), tmp_path)


@pytest.mark.parametrize(
    ("path", "data", "message"),
    [
        ("run_state.json", None, "no run_state.json"),
        ("run_state.json", b"5", "not a JSON object"),
        ("run_state.json", b"{", "not a JSON document"),
        (
            "run_state.json",
            b'{"schema_version": 2, "run_state": 5}',
            "run_state in run_state.json is not a JSON object",
        ),
        ("run_state.json", b'{"schema_version": 2}', "lacks batches"),
        ("model.safetensors", None, "has no weights"),
        ("model.safetensors", b"x", "ends after 1 bytes"),
        ("random.safetensors", struct.pack("<Q", 2) + b"[]", "random.safetensors is not a safetensors file"),
    ],
)
def test_invalid_files_change_nothing(tmp_path: Path, path: str, data: bytes | None, message: str) -> None:
    """Every file is opened before anything is loaded."""
    kept = refusing(tmp_path)
    tmp_path.joinpath(path).unlink()
    if data is not None:
        tmp_path.joinpath(path).write_bytes(data)
    with pytest.raises(CheckpointError, match=message):
        read_back(CheckpointContents(kept), tmp_path)
    assert {keeper.loads for keeper in kept.values()} == {0}


@pytest.mark.parametrize("index", [[], {}, {"weight_map": 5}, {"weight_map": {"a": {}}}, {"weight_map": {"a": "../b"}}])
def test_an_invalid_index_is_refused(tmp_path: Path, index: Any) -> None:
    """An index that does not name shards of this checkpoint is refused."""
    kept = Keeper(weights())
    written(CheckpointContents({"model": kept}, max_shard_size=100), tmp_path)
    tmp_path.joinpath("model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json"):
        read_back(CheckpointContents({"model": blank(kept)}), tmp_path)


def test_a_complete_run_is_restored_from_a_store(tmp_path: Path) -> None:
    """State saved to a disk through a store is restored unchanged."""
    kept, state = all_kept(), RunState(run="mine", step=3, best_step=3, best_metric=math.nan)
    list(CheckpointStore(LocalStorage(tmp_path), CheckpointContents(kept)).save(state))
    again = {name: blank(keeper) for name, keeper in kept.items()}
    resumed = CheckpointStore(LocalStorage(tmp_path), CheckpointContents(again)).resume()
    assert repr(resumed) == repr(state)
    assert_equal(again["model"].arrays, weights())


class Searched(dict[str, None]):
    """Names of files; counts how many are looked at in searches through all of them."""

    looked_at = 0

    def __iter__(self) -> Iterator[str]:
        for name in super().__iter__():
            Searched.looked_at += 1
            yield name


@pytest.mark.parametrize("together", [True, False], ids=["0.2", "0.1"])
def test_the_files_of_many_processes_are_found_in_one_search(tmp_path: Path, together: bool) -> None:
    """Not in one for each of them, whatever the layout of the documents."""
    looked_at = []
    for ranks in (50, 100):
        folder = tmp_path / str(ranks)
        written(CheckpointContents({"model": Keeper(weights()), "losses": Keeper(values={"sum": 1})}), folder)
        documents = json.loads((folder / "run_state.json").read_text())
        if not together:
            (folder / "run_state.json").write_text(json.dumps(documents["run_state"]))
            (folder / "losses.json").write_text(json.dumps(documents["losses"]))
        for rank in range(1, ranks):
            suffix = f"rank-{rank:05}"
            (folder / f"losses-{suffix}.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
            if together:
                own = {"schema_version": 2, "losses": documents["losses"]}
                (folder / f"run_state-{suffix}.json").write_text(json.dumps(own))
            else:
                shutil.copy(folder / "losses.json", folder / f"losses-{suffix}.json")
        names = Searched.fromkeys(sorted(path.name for path in folder.iterdir()))
        Searched.looked_at = 0
        loaded = Summing()
        contents = CheckpointContents({"model": blank(Keeper(weights())), "losses": loaded})
        contents.restore(names, LocalStorage(folder).read)
        assert loaded.found == ranks
        looked_at.append(Searched.looked_at / len(names))
    assert looked_at[1] == pytest.approx(looked_at[0], rel=0.01)
    assert looked_at[0] < 40


class Summing(Keeper):
    """Counts the documents that it is given."""

    found = 0

    def load(self, parts: Iterable[Part]) -> None:
        self.found = len(list(parts))
