"""Overrides of transformers' internal methods are called, or refused with the alternative."""

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
    """Records the calls of its methods."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.calls: list[str] = []
        super().__init__(*args, **kwargs)


class OverridingEveryMethod(Calling):
    """Overrides each method and calls the standard one."""


def _noting(name: str) -> Any:
    def call(self: Calling, *args: Any, **kwargs: Any) -> Any:
        self.calls.append(name)
        return getattr(super(OverridingEveryMethod, self), name)(*args, **kwargs)

    return call


for seam in INTERNAL_HOOKS:
    setattr(OverridingEveryMethod, seam, _noting(seam))


# Which methods exist


def test_every_internal_method_of_transformers_is_covered() -> None:
    """Each can be overridden, or has a public alternative; none is both."""
    theirs = {
        name
        for name, value in vars(transformers.Trainer).items()
        if name.startswith("_") and not name.startswith("__") and callable(value)
    }

    assert theirs <= INTERNAL_HOOKS | INSTEAD.keys() | {"_build_accelerator_args"}
    assert not INTERNAL_HOOKS & INSTEAD.keys()
    assert all(hasattr(Trainer, name) for name in INTERNAL_HOOKS)


@pytest.mark.parametrize("name", sorted(INSTEAD))
def test_an_ineffective_override_is_refused(tmp_path: Path, name: str) -> None:
    """At construction, by name and with the alternative, also if it is inherited from a base class."""
    between = type("Between", (Trainer,), {name: lambda self: None})
    with pytest.raises(ConfigurationError) as raised:
        small_trainer(tmp_path, type("Last", (between,), {}))

    assert f"Between overrides {name}, " in str(raised.value)
    assert INSTEAD[name] in str(raised.value)


def test_all_ineffective_overrides_are_reported_at_once(tmp_path: Path) -> None:
    """Together with every other problem of the configuration."""

    class Several(Trainer):
        def _wrap_model(self) -> None: ...
        def _run_epoch(self) -> None: ...

    with pytest.raises(ConfigurationError) as raised:
        small_trainer(tmp_path, Several, {"model": None})

    assert len(raised.value.problems) == 3


def test_reading_a_missing_method_names_the_alternative(tmp_path: Path) -> None:
    """It is an AttributeError, so that hasattr still works."""
    trainer = small_trainer(tmp_path)

    with pytest.raises(AttributeError, match="has no attribute '_wrap_model': pass parallelism"):
        trainer._wrap_model(trainer.model)
    with pytest.raises(AttributeError, match=r"has no attribute '_nothing'$"):
        _ = trainer._nothing
    assert not hasattr(trainer, "_get_output_dir")


# Overrides


def test_overrides_that_call_the_standard_methods_change_nothing(tmp_path: Path) -> None:
    """All together: weights and history are equal, and each override was called."""
    parts = {"eval_dataset": rows(6)}
    given: dict[str, Any] = {
        **SAVING,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "load_best_model_at_end": True,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 2,
    }
    trainer = trained(tmp_path / "all", OverridingEveryMethod, parts, **given)
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
def test_an_overridden_sampler_sets_the_order(tmp_path: Path, kind: type[Trainer]) -> None:
    """Whether or not the method takes the dataset as an argument."""
    own = trained(tmp_path, kind)
    expected = trained(tmp_path, parts={"train_dataset": rows(16)[::-1]}, train_sampling_strategy="sequential")

    assert same_weights(weights(own), weights(expected))


def test_a_sampler_may_wrap_the_standard_one(tmp_path: Path) -> None:
    """The standard sampler yields the indices of the run's own order of each epoch."""

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


def test_returning_no_sampler_keeps_the_order(tmp_path: Path) -> None:
    """None keeps the standard order."""

    class NoSampler(Trainer):
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return None

    assert same_weights(weights(trained(tmp_path, NoSampler)), weights(trained(tmp_path)))


def test_an_overridden_evaluation_sampler_sets_the_order(tmp_path: Path) -> None:
    """It applies to evaluations and predictions."""

    class Half(Trainer):
        def _get_eval_sampler(self, eval_dataset: Any) -> Any:
            return list(SequentialSampler(eval_dataset))[::-2]

    trainer = small_trainer(tmp_path, Half)

    labels = trainer.predict(rows(6)).label_ids
    assert labels.ravel().tolist() == [float(row["labels"]) for row in rows(6)[::-2]]


class Halving(Trainer):
    def _prepare_inputs(self, inputs: Any) -> Any:
        return {**super()._prepare_inputs(inputs), "x": inputs["x"] / 2}


def test_overridden_prepare_inputs_is_used(tmp_path: Path) -> None:
    """The model receives the result of `_prepare_inputs`, in steps and in predictions."""
    halved = [{**row, "x": row["x"] / 2} for row in rows(16)]
    own, expected = trained(tmp_path, Halving), trained(tmp_path, parts={"train_dataset": halved})

    assert same_weights(weights(own), weights(expected))
    assert (own.predict(rows(4)).predictions == expected.predict(halved[:4]).predictions).all()


def test_overridden_save_is_used(tmp_path: Path) -> None:
    """`_save` may pass on other weights, and write further files, which checkpoints contain, too."""

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


def test_overridden_save_checkpoint_is_used(tmp_path: Path) -> None:
    """Callbacks are notified all the same; the method does not have to call the standard one."""

    class Noting(Trainer):
        def _save_checkpoint(self, model: Any, trial: Any) -> None:  # type: ignore[override]
            Path(str(self.args.output_dir), f"note-{self.state.global_step}").touch()

    heard = Heard()
    trained(tmp_path, Noting, {"callbacks": [heard]}, **SAVING)

    assert sorted(path.name for path in tmp_path.glob("*-*")) == ["note-2", "note-4"]
    assert heard.steps == [2, 4]


def test_a_checkpoint_is_published_before_its_own_method_continues(tmp_path: Path) -> None:
    """Files that it writes next to the checkpoint afterwards stay there."""

    class Adding(Trainer):
        def _save_checkpoint(self, model: Any, trial: Any) -> None:  # type: ignore[override]
            super()._save_checkpoint(model, trial)
            Path(str(self.args.output_dir), f"checkpoint-{self.state.global_step}", "beside").touch()

    whole = trained(tmp_path, Adding, num_train_epochs=2, **SAVING)
    again = small_trainer(tmp_path, Adding, num_train_epochs=2, **SAVING)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))

    assert (tmp_path / "checkpoint-4" / "beside").exists()
    assert same_weights(weights(again), weights(whole))


def test_overridden_load_best_model_is_used(tmp_path: Path) -> None:
    """Without calling the standard method, the run ends with its last weights."""

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


def test_overridden_maybe_log_save_evaluate_is_used(tmp_path: Path) -> None:
    """An override can log before and after; if it does not call the standard method, nothing is logged or saved."""

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
def test_methods_of_a_run_are_refused_without_one(tmp_path: Path, name: str) -> None:
    """The error names what to call instead."""
    given: list[Any] = [None] * {"_save_checkpoint": 2, "_load_best_model": 0, "_maybe_log_save_evaluate": 6}[name]
    with pytest.raises(RunStateError, match="train"):
        getattr(small_trainer(tmp_path), name)(*given)
