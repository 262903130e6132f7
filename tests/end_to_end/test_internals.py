"""A subclass's override of an internal method of transformers is called, or refused with what to use."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor
from torch.utils.data import SequentialSampler

from hexloop import Trainer, TrainerCallback
from hexloop.app.trainer.compatibility import INSTEAD
from hexloop.domain.errors import ConfigurationError, RunStateError
from tests.end_to_end.small.models import rows
from tests.end_to_end.small.trainers import history, same_weights, small_trainer, weights

SAVING: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2}

INTERNAL_HOOKS = frozenset(
    {
        "_get_eval_sampler",
        "_get_train_sampler",
        "_load_best_model",
        "_maybe_log_save_evaluate",
        "_prepare_inputs",
        "_save",
        "_save_checkpoint",
    }
)
"""The internal methods that hexloop calls if a subclass overrides them, as transformers does."""


def trained(folder: Path, kind: type[Trainer] = Trainer, parts: dict[str, Any] | None = None, **given: Any) -> Any:
    trainer = small_trainer(folder, kind, parts, **given)
    trainer.train()
    return trainer


class Calling(Trainer):
    """Notes the calls of its methods."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.calls: list[str] = []
        super().__init__(*args, **kwargs)


class InEverySeam(Calling):
    """Overrides each, and does what it overrides."""


def _noting(name: str) -> Any:
    def call(self: Calling, *args: Any, **kwargs: Any) -> Any:
        self.calls.append(name)
        return getattr(super(InEverySeam, self), name)(*args, **kwargs)

    return call


for seam in INTERNAL_HOOKS:
    setattr(InEverySeam, seam, _noting(seam))


# Which there are


def test_every_internal_method_of_transformers_is_known() -> None:
    """Each is a seam, or has a public way to the same end; nothing is both."""
    theirs = {
        name
        for name, value in vars(transformers.Trainer).items()
        if name.startswith("_") and not name.startswith("__") and callable(value)
    }

    assert theirs <= INTERNAL_HOOKS | INSTEAD.keys()
    assert not INTERNAL_HOOKS & INSTEAD.keys()
    assert all(hasattr(Trainer, name) for name in INTERNAL_HOOKS)


@pytest.mark.parametrize("name", sorted(INSTEAD))
def test_an_override_in_vain_is_refused(tmp_path: Path, name: str) -> None:
    """At construction, by name, with what to use; though it is inherited from a class between."""
    between = type("Between", (Trainer,), {name: lambda self: None})
    with pytest.raises(ConfigurationError) as raised:
        small_trainer(tmp_path, type("Last", (between,), {}))

    assert f"Between overrides {name}, " in str(raised.value)
    assert INSTEAD[name] in str(raised.value)


def test_all_ineffective_overrides_are_reported_at_once(tmp_path: Path) -> None:
    """Beside everything else that is wrong with the configuration."""

    class Several(Trainer):
        def _wrap_model(self) -> None: ...
        def _run_epoch(self) -> None: ...

    with pytest.raises(ConfigurationError) as raised:
        small_trainer(tmp_path, Several, {"model": None})

    assert len(raised.value.problems) == 3


def test_to_ask_for_one_that_is_not_there_says_what_to_use(tmp_path: Path) -> None:
    """As an AttributeError, so that asking whether it is there still works."""
    trainer = small_trainer(tmp_path)

    with pytest.raises(AttributeError, match="has no attribute '_wrap_model': pass parallelism"):
        trainer._wrap_model(trainer.model)
    with pytest.raises(AttributeError, match=r"has no attribute '_nothing'$"):
        _ = trainer._nothing
    assert not hasattr(trainer, "_get_output_dir")


# Seams


def test_overrides_that_do_the_same_train_the_same(tmp_path: Path) -> None:
    """All of them together: same weights, same history; and each was asked."""
    parts = {"eval_dataset": rows(6)}
    given: dict[str, Any] = {
        **SAVING,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "load_best_model_at_end": True,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 2,
    }
    trainer = trained(tmp_path / "all", InEverySeam, parts, **given)
    plain = trained(tmp_path / "none", parts=parts, **given)
    trainer.save_model(str(tmp_path / "model"))

    assert set(trainer.calls) == INTERNAL_HOOKS
    assert same_weights(weights(trainer), weights(plain))
    assert history(trainer) == history(plain)
    assert trainer.state.best_global_step == plain.state.best_global_step


class Backwards(Trainer):
    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return list(range(len(self.train_dataset)))[::-1]


class OfFour(Trainer):
    def _get_train_sampler(self) -> Any:  # type: ignore[override]
        return list(range(len(self.train_dataset)))[::-1]


@pytest.mark.parametrize("kind", [Backwards, OfFour])
def test_a_sampler_of_ones_own_decides_the_order(tmp_path: Path, kind: type[Trainer]) -> None:
    """Whether the method takes the data set or not."""
    own = trained(tmp_path, kind)
    expected = trained(tmp_path, parts={"train_dataset": rows(16)[::-1]}, train_sampling_strategy="sequential")

    assert same_weights(weights(own), weights(expected))


def test_a_sampler_may_be_made_from_the_standard_one(tmp_path: Path) -> None:
    """It gives the indices of the run's own order, each epoch's."""

    class Wrapping(Trainer):
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return Same(super()._get_train_sampler(train_dataset))

    class Same(torch.utils.data.Sampler[int]):
        def __init__(self, sampler: Any) -> None:
            self.sampler = sampler

        def set_epoch(self, epoch: int) -> None:
            self.sampler.set_epoch(epoch)

        def __len__(self) -> int:
            return len(self.sampler)

        def __iter__(self) -> Iterator[int]:
            return iter(self.sampler)

    own, plain = trained(tmp_path, Wrapping, num_train_epochs=2), trained(tmp_path, num_train_epochs=2)

    assert same_weights(weights(own), weights(plain))


def test_no_sampler_leaves_the_order_as_it_is(tmp_path: Path) -> None:
    """None says that there is nothing to say."""

    class NoSampler(Trainer):
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return None

    assert same_weights(weights(trained(tmp_path, NoSampler)), weights(trained(tmp_path)))


def test_an_evaluation_sampler_of_ones_own_decides_the_order(tmp_path: Path) -> None:
    """Of evaluations and predictions."""

    class Half(Trainer):
        def _get_eval_sampler(self, eval_dataset: Any) -> Any:
            return list(SequentialSampler(eval_dataset))[::-2]

    trainer = small_trainer(tmp_path, Half)

    labels = trainer.predict(rows(6)).label_ids
    assert labels.ravel().tolist() == [float(row["labels"]) for row in rows(6)[::-2]]


class Halving(Trainer):
    def _prepare_inputs(self, inputs: Any) -> Any:
        return {**super()._prepare_inputs(inputs), "x": inputs["x"] / 2}


def test_inputs_of_ones_own_are_trained_and_evaluated_on(tmp_path: Path) -> None:
    """What `_prepare_inputs` makes of a batch is what the model sees, in steps and in predictions."""
    halved = [{**row, "x": row["x"] / 2} for row in rows(16)]
    own, expected = trained(tmp_path, Halving), trained(tmp_path, parts={"train_dataset": halved})

    assert same_weights(weights(own), weights(expected))
    assert (own.predict(rows(4)).predictions == expected.predict(halved[:4]).predictions).all()


def test_weights_of_ones_own_are_saved(tmp_path: Path) -> None:
    """`_save` may hand on other weights, and write files beside them, which a checkpoint holds too."""

    class Scaling(Trainer):
        def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
            assert output_dir is not None
            super()._save(output_dir, {name: 2 * each for name, each in self.model.state_dict().items()})
            Path(output_dir, "extra.json").write_text(json.dumps({"step": self.state.global_step}))

    trainer = trained(tmp_path, Scaling, **SAVING)
    trainer.save_model(str(tmp_path / "model"))

    saved = load_file(tmp_path / "model" / "model.safetensors")
    assert all(torch.equal(saved[name], 2 * each) for name, each in trainer.model.state_dict().items())
    assert json.loads((tmp_path / "checkpoint-4" / "extra.json").read_text()) == {"step": 4}


class Heard(TrainerCallback):
    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.steps.append(state.global_step)


def test_checkpoints_of_ones_own_take_the_place_of_hexloop_s(tmp_path: Path) -> None:
    """Callbacks hear of them all the same; the method may do without what it overrides."""

    class Noting(Trainer):
        def _save_checkpoint(self, model: Any, trial: Any) -> None:  # type: ignore[override]
            Path(str(self.args.output_dir), f"note-{self.state.global_step}").touch()

    heard = Heard()
    trained(tmp_path, Noting, {"callbacks": [heard]}, **SAVING)

    assert sorted(path.name for path in tmp_path.glob("*-*")) == ["note-2", "note-4"]
    assert heard.steps == [2, 4]


def test_a_checkpoint_is_published_before_its_own_method_continues(tmp_path: Path) -> None:
    """What is written beside it then stays there."""

    class Adding(Trainer):
        def _save_checkpoint(self, model: Any, trial: Any) -> None:  # type: ignore[override]
            super()._save_checkpoint(model, trial)
            Path(str(self.args.output_dir), f"checkpoint-{self.state.global_step}", "beside").touch()

    whole = trained(tmp_path, Adding, num_train_epochs=2, **SAVING)
    again = small_trainer(tmp_path, Adding, num_train_epochs=2, **SAVING)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))

    assert (tmp_path / "checkpoint-4" / "beside").exists()
    assert same_weights(weights(again), weights(whole))


def test_the_best_model_may_be_loaded_otherwise(tmp_path: Path) -> None:
    """Without what it overrides, the run ends with its last weights."""

    class KeepingLast(Trainer):
        asked = 0

        def _load_best_model(self) -> None:
            self.asked += 1

    given = {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True, "learning_rate": 5.0, **SAVING}
    parts = {"eval_dataset": rows(6)}
    own = trained(tmp_path / "own", KeepingLast, parts, **given)
    last = trained(tmp_path / "last", parts=parts, **{**given, "load_best_model_at_end": False})

    assert own.asked == 1
    assert same_weights(weights(own), weights(last))


def test_what_is_due_is_done_where_the_method_does_it(tmp_path: Path) -> None:
    """An override logs before and after; where it does not call what it overrides, nothing is logged or saved."""

    class Around(Trainer):
        def _maybe_log_save_evaluate(self, tr_loss: Tensor, grad_norm: Any, model: Any, trial: Any, *rest: Any) -> None:
            before = len(self.state.log_history)
            super()._maybe_log_save_evaluate(tr_loss, grad_norm, model, trial, *rest)
            if len(self.state.log_history) > before:
                self.log({"loss_again": float(tr_loss)})

    class Silent(Trainer):
        def _maybe_log_save_evaluate(  # type: ignore[override]
            self, tr_loss: Any, grad_norm: Any, model: Any, trial: Any, epoch: Any, ignore_keys_for_eval: Any
        ) -> None:
            assert model is self.model_wrapped
            assert epoch == self.state.epoch

    around, silent = trained(tmp_path / "around", Around), trained(tmp_path / "silent", Silent, **SAVING)

    logged = around.state.log_history
    assert [entry["loss"] for entry in logged[:-1:2]] == [entry["loss_again"] for entry in logged[1:-1:2]]
    assert len(logged) == 9
    assert len(silent.state.log_history) == 1
    assert not list((tmp_path / "silent").glob("checkpoint-*"))


@pytest.mark.parametrize("name", ["_save_checkpoint", "_load_best_model", "_maybe_log_save_evaluate"])
def test_what_belongs_to_a_run_is_refused_without_one(tmp_path: Path, name: str) -> None:
    """The error says what to call instead."""
    given: list[Any] = [None] * {"_save_checkpoint": 2, "_load_best_model": 0, "_maybe_log_save_evaluate": 6}[name]
    with pytest.raises(RunStateError, match="train"):
        getattr(small_trainer(tmp_path), name)(*given)
