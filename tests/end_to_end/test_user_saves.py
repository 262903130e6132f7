"""A checkpoint contains what an overridden `save_model`, `_save` or `_save_checkpoint` writes, and still resumes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import hexloop
from hexloop import Trainer, TrainerCallback
from hexloop.adapters.storage.local import LocalStorage
from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.app.command_line import main
from hexloop.domain.checkpoints.reading import verify
from hexloop.domain.errors import CheckpointError
from tests.end_to_end.small.models import net, rows
from tests.end_to_end.small.trainers import history, same_weights, small_trainer, weights

SAVING: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2}
OWN_MODEL = "hexloop-model.safetensors"


def tensors_of(trainer: Any) -> dict[str, Tensor]:
    return {name: each.detach().clone() for name, each in trainer.model.state_dict().items()}


def doubled(trainer: Any) -> dict[str, Tensor]:
    return {name: 2 * each for name, each in tensors_of(trainer).items()}


def write_shards(trainer: Any, folder: Path) -> None:
    """Write weights in shards with an index."""
    shards = {}
    for number, (name, tensor) in enumerate(doubled(trainer).items(), 1):
        shards[name] = f"model-{number:05}-of-00004.safetensors"
        save_file({name: tensor}, folder / shards[name])
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))


def write_everything(trainer: Any, folder: Path) -> None:
    """Write files of all names that components of a run use."""
    save_file(doubled(trainer), folder / "model.safetensors")
    for name in ("optimizer", "data", "losses", "random"):
        (folder / f"{name}.json").write_text(f'"mine: {name}"')
    (folder / "optimizer.safetensors").write_bytes(b"mine")
    (folder / "training_args.json").write_text('"mine"')
    (folder / "sub").mkdir()
    (folder / "sub" / "modules.json").write_text("[]")


WRITING: dict[str, Callable[[Any, Path], object]] = {
    "other weights": lambda trainer, folder: save_file(doubled(trainer), folder / "model.safetensors"),
    "weights of other names": lambda trainer, folder: save_file(
        {f"mine.{name}": each for name, each in tensors_of(trainer).items()}, folder / "model.safetensors"
    ),
    "shards": write_shards,
    "another format": lambda _, folder: (folder / "pytorch_model.bin").write_bytes(b"mine"),
    "what is not a safetensors file": lambda _, folder: (folder / "model.safetensors").write_bytes(b"mine"),
    "names of components": write_everything,
}


def writing(write: Callable[[Any, Path], object], method: str) -> type[Trainer]:
    """Return a Trainer whose `_save` or `save_model` is the given function."""

    class SavesItself(Trainer):
        def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
            Path(str(output_dir)).mkdir(exist_ok=True)
            write(self, Path(str(output_dir)))

    class SavesModelItself(Trainer):
        def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
            write(self, Path(str(output_dir)))

    return SavesItself if method == "_save" else SavesModelItself


def run(folder: Path, kind: type[Trainer], parts: dict[str, Any] | None = None, **given: Any) -> Any:
    chosen = {"model": net(0.3), **(parts or {})}
    trainer = small_trainer(folder, kind, chosen, **{**SAVING, **given})
    trainer.train(resume_from_checkpoint=given.pop("resume", None))
    return trainer


def resumed(folder: Path, kind: type[Trainer], checkpoint: Path) -> Any:
    trainer = small_trainer(folder, kind, {"model": net(0.3)}, **SAVING)
    trainer.train(resume_from_checkpoint=str(checkpoint))
    return trainer


def files_in(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("method", ["_save", "save_model"])
@pytest.mark.parametrize("name", WRITING)
def test_a_checkpoint_contains_what_the_method_wrote(tmp_path: Path, name: str, method: str) -> None:
    """The files are identical to those of `save_model`; the run resumes bitwise from hexloop's state next to them."""
    kind = writing(WRITING[name], method)
    whole = run(tmp_path / "whole", kind)
    (tmp_path / "model").mkdir()
    whole.save_model(str(tmp_path / "model"))
    checkpoint = tmp_path / "whole" / "checkpoint-4"
    found, expected = files_in(checkpoint), files_in(tmp_path / "model")

    assert {path: found[path] for path in expected} == expected
    assert same_weights(load_file(checkpoint / OWN_MODEL), weights(whole))
    assert (checkpoint / "model.safetensors").exists() == ("model.safetensors" in expected)
    assert set(json.loads((checkpoint / "manifest.json").read_text())["files"]) == found.keys() - {"manifest.json"}
    verify(LocalStorage(checkpoint.parent), checkpoint.name)
    again = resumed(tmp_path / "again", kind, tmp_path / "whole" / "checkpoint-2")
    assert same_weights(weights(again), weights(whole))
    assert history(again) == history(whole)
    assert {path: files_in(tmp_path / "again" / "checkpoint-4")[path] for path in expected} == expected


def test_equal_weights_are_written_once(tmp_path: Path) -> None:
    """If a method calls the overridden one, weights are stored once, whatever the order of the files."""

    class Adding(Trainer):
        def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
            super()._save(output_dir, state_dict)
            Path(str(output_dir), "extra.json").write_text("{}")

    whole = run(tmp_path / "whole", Adding)
    found = files_in(tmp_path / "whole" / "checkpoint-4")

    assert OWN_MODEL not in found
    assert {"model.safetensors", "extra.json", "optimizer.safetensors"} <= found.keys()
    again = resumed(tmp_path / "again", Adding, tmp_path / "whole" / "checkpoint-2")
    assert same_weights(weights(again), weights(whole))


def test_a_method_that_writes_no_weights_leaves_them_to_hexloop(tmp_path: Path) -> None:
    """The only weights file is hexloop's."""
    whole = run(tmp_path, writing(lambda _, folder: (folder / "notes.txt").write_text("mine"), "_save"))
    found = files_in(tmp_path / "checkpoint-4")

    assert found["notes.txt"] == b"mine"
    assert OWN_MODEL not in found
    assert same_weights(load_file(tmp_path / "checkpoint-4" / "model.safetensors"), weights(whole))


@pytest.mark.parametrize("name", ["run_state.json", "run_setup.json", "manifest.json", OWN_MODEL])
def test_a_reserved_file_name_is_refused(tmp_path: Path, name: str) -> None:
    """Neither file silently replaces the other."""
    with pytest.raises(CheckpointError, match=f"{name}.*another name"):
        run(tmp_path, writing(lambda _, folder: (folder / name).write_text("{}"), "_save"))
    assert not list(tmp_path.glob("checkpoint-*"))


class Best(Trainer):
    """Saves doubled weights, and can load them again."""

    loaded: str | None = None

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        save_file(doubled(self), Path(str(output_dir), "model.safetensors"))


class LoadingBest(Best):
    """Loads its best weights from what it saved."""

    def _load_best_model(self) -> None:
        self.loaded = str(self.state.best_model_checkpoint)
        saved = load_file(Path(self.loaded, "model.safetensors"))
        self.model.load_state_dict({name: each / 2 for name, each in saved.items()})


@pytest.mark.parametrize("kind", [Best, LoadingBest])
def test_the_best_weights_are_loaded(tmp_path: Path, kind: type[Best]) -> None:
    """They are the run's own, whether hexloop loads its file or an overridden `_load_best_model` the saved one."""
    given = {
        "eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True, "learning_rate": 5.0,
        "num_train_epochs": 2, "metric_for_best_model": "eval_loss",
    }  # fmt: skip
    parts = {"eval_dataset": rows(6)}
    expected = run(tmp_path / "expected", Trainer, parts, **given)
    trainer = run(tmp_path / "own", kind, parts, **given)

    assert expected.state.best_global_step < expected.state.global_step
    assert trainer.state.best_global_step == expected.state.best_global_step
    assert (trainer.loaded is not None) == (kind is LoadingBest)
    assert same_weights(weights(trainer), weights(expected))


def test_save_only_model_and_storages_without_folders(tmp_path: Path) -> None:
    """With save_only_model, and with a storage that has no local folder."""
    kind, storage = writing(WRITING["other weights"], "_save"), MemoryStorage()
    trainer = run(tmp_path, kind, {"storage": storage}, save_only_model=True)
    (tmp_path / "saved").mkdir()
    for path in ("model.safetensors", OWN_MODEL):
        (tmp_path / "saved" / path).write_bytes(b"".join(storage.read(f"checkpoint-4/{path}")))
    names = {entry.name for entry in storage.list("checkpoint-4")}

    assert "optimizer.safetensors" not in names
    assert same_weights(load_file(tmp_path / "saved" / "model.safetensors"), doubled(trainer))
    assert same_weights(load_file(tmp_path / "saved" / OWN_MODEL), weights(trainer))


def test_commands_handle_both_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """verify, show and diff cover hexloop's file; consolidate and export copy what the user's method wrote."""
    trainer = run(tmp_path / "whole", writing(WRITING["other weights"], "_save"))
    checkpoint, other = (str(tmp_path / "whole" / f"checkpoint-{step}") for step in (4, 2))
    assert main(["checkpoints", "verify", checkpoint]) == 0
    assert main(["checkpoints", "show", checkpoint]) == 0
    main(["checkpoints", "diff", checkpoint, other])
    assert OWN_MODEL.removesuffix(".safetensors") in capsys.readouterr().out
    assert main(["checkpoints", "consolidate", checkpoint, "--output", str(tmp_path / "model")]) == 0
    exported = Path(hexloop.export_checkpoint(checkpoint, tmp_path / "exported"))

    for folder in (tmp_path / "model", exported):
        assert same_weights(load_file(folder / "model.safetensors"), doubled(trainer))
        assert not list(folder.glob("hexloop-*"))


# An overridden _save_checkpoint


class WritingBefore(Trainer):
    """Writes to the checkpoint's folder before the checkpoint is saved, as libraries do."""

    def _save_checkpoint(self, model: Any, trial: Any) -> None:  # type: ignore[override]
        folder = Path(str(self.args.output_dir), f"checkpoint-{self.state.global_step}")
        (folder / "heads").mkdir(parents=True, exist_ok=True)
        (folder / "heads" / "head.bin").write_bytes(b"head")
        (folder / "data.json").write_text('"mine"')
        (folder / "model.safetensors").write_bytes(b"replaced, as in transformers")
        super()._save_checkpoint(model, trial)
        (folder / "after.txt").write_text("after")


def test_files_written_before_the_checkpoint_become_part_of_it(tmp_path: Path) -> None:
    """It is verified with the checkpoint, and no folder is left over; files written afterwards stay next to it."""
    whole = run(tmp_path / "whole", WritingBefore)
    again = resumed(tmp_path / "again", WritingBefore, tmp_path / "whole" / "checkpoint-2")

    for folder in (tmp_path / "whole", tmp_path / "again"):
        checkpoint = folder / "checkpoint-4"
        found = files_in(checkpoint)
        assert (found["heads/head.bin"], found["data.json"], found["after.txt"]) == (b"head", b'"mine"', b"after")
        assert {"heads/head.bin", "data.json"} <= json.loads(found["manifest.json"])["files"].keys()
        assert same_weights(load_file(checkpoint / "model.safetensors"), weights(whole))
        assert not list(folder.glob(".hexloop/replaced-*"))
    assert same_weights(weights(again), weights(whole))
    assert history(again) == history(whole)


def test_an_earlier_checkpoint_of_the_same_name_is_not_reused(tmp_path: Path) -> None:
    """It is kept whole under another name, as without an override; the method's files are in the new one."""
    run(tmp_path, Trainer)
    (tmp_path / "checkpoint-4" / "old.txt").write_text("old")
    run(tmp_path, WritingBefore)

    assert "old.txt" not in files_in(tmp_path / "checkpoint-4")
    assert (tmp_path / "checkpoint-4" / "heads" / "head.bin").exists()
    assert (tmp_path / ".hexloop/replaced-1-checkpoint-4" / "old.txt").exists()


class WithAnotherProcess(WritingBefore):
    """Writes to the checkpoint's folder at the moments at which another process may: while files are collected."""

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        super().save_model(output_dir, _internal_call)
        Path(str(self.args.output_dir), f"checkpoint-{self.state.global_step}", "late.txt").write_text("late")


def test_files_that_are_written_too_late_are_kept(tmp_path: Path) -> None:
    """The folder with a file that is not part of the checkpoint is set aside, not removed."""
    run(tmp_path, WithAnotherProcess)
    assert "late.txt" not in files_in(tmp_path / "checkpoint-4")
    assert (tmp_path / ".hexloop/replaced-1-checkpoint-4" / "late.txt").read_text() == "late"


class WrittenTo(LocalStorage):
    """Another process adds a file to a checkpoint as soon as it is published."""

    def move(self, source: str, destination: str) -> None:
        super().move(source, destination)
        if destination.startswith("checkpoint-"):
            Path(str(self.capabilities.local_folder), destination, "after.txt").write_text("by another process")


def test_files_beside_a_published_checkpoint_may_change(tmp_path: Path) -> None:
    """Whenever they appeared: a process may write them before another one looks at the folder."""
    run(tmp_path, WritingBefore, {"storage": WrittenTo(tmp_path)})
    assert files_in(tmp_path / "checkpoint-4")["after.txt"] == b"after"
    verify(LocalStorage(tmp_path), "checkpoint-4")


@pytest.mark.parametrize("change", ["replaces", "removes"])
def test_a_published_checkpoint_may_not_be_changed(tmp_path: Path, change: str) -> None:
    """It could no longer be verified; the error says where to write instead."""

    class Changing(Trainer):
        def _save_checkpoint(self, model: Any, trial: Any) -> None:  # type: ignore[override]
            super()._save_checkpoint(model, trial)
            file = Path(str(self.args.output_dir), f"checkpoint-{self.state.global_step}", "model.safetensors")
            if change == "replaces":
                file.write_bytes(b"mine")
            else:
                file.unlink()

    with pytest.raises(CheckpointError, match=r"changed model\.safetensors of checkpoint-2.*_save"):
        run(tmp_path, Changing)


def test_a_checkpoint_may_be_removed(tmp_path: Path) -> None:
    """For example by a method that uploads it and keeps nothing locally."""

    class Moving(Trainer):
        def _save_checkpoint(self, model: Any, trial: Any) -> None:  # type: ignore[override]
            super()._save_checkpoint(model, trial)
            folder = Path(str(self.args.output_dir), f"checkpoint-{self.state.global_step}")
            folder.rename(folder.with_name(f"moved-{self.state.global_step}"))

    with pytest.warns(UserWarning, match="checkpoint-4 .* cannot be used"):
        run(tmp_path, Moving)
    assert sorted(path.name for path in tmp_path.glob("*-*")) == ["moved-2", "moved-4"]


def test_files_written_without_a_checkpoint_are_kept(tmp_path: Path) -> None:
    """A method that never calls the standard one."""

    class Alone(Trainer):
        def _save_checkpoint(self, model: Any, trial: Any) -> None:  # type: ignore[override]
            folder = Path(str(self.args.output_dir), f"checkpoint-{self.state.global_step}")
            folder.mkdir(parents=True)
            torch.save({}, folder / "mine.pt")  # noqa: TID251 - the user's own format

    run(tmp_path, Alone, save_total_limit=1)
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*.pt"))] == [
        "checkpoint-2/mine.pt",
        "checkpoint-4/mine.pt",
    ]


class SlowStorage(LocalStorage):
    """Publishes a checkpoint a moment later than training continues."""

    def move(self, source: str, destination: str) -> None:
        time.sleep(0.2)
        super().move(source, destination)


def test_a_checkpoint_that_a_callback_takes_is_published_when_the_call_returns(tmp_path: Path) -> None:
    """Although saves are written in the background; a request whose save was in flight is completed."""
    published: list[bool] = []

    class Taking(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 1:
                requests.append(trainer.request_save())
            if state.global_step == 2:
                trainer._save_checkpoint(trainer.model)
                published.append((tmp_path / "checkpoint-2" / "manifest.json").exists())

    requests: list[Any] = []
    trainer = small_trainer(tmp_path, parts={"callbacks": [Taking()], "storage": SlowStorage(tmp_path)})
    trainer.train()
    assert published == [True]
    assert requests[0].wait(0) == "checkpoint-1"
