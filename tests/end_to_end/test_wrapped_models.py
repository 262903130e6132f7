"""A model that the user wrapped is saved under its own names, and weights with the names of a wrapped model load."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from hexloop import Trainer
from hexloop.adapters.trainable.torch.names import by_own_names, fitting_names, submodule
from hexloop.app.assembly.torch.transformers_checkpoints.exporting import export_checkpoint
from tests.contracts.test_model_states import Counting, through_files
from tests.end_to_end.small.models import Net, net
from tests.end_to_end.small.trainers import arguments, history, same_weights, small_trainer


def compiled(model: nn.Module) -> Any:
    """Return the module that torch.compile returns."""
    return torch.compile(model, backend="eager")


def in_place(model: nn.Module) -> Any:
    """Compile a module in place."""
    model.compile(backend="eager")
    return model


def with_compiled_layers(model: Any) -> Any:
    """Compile two layers of the model, the inner one twice, as recipes for regional compilation do."""
    model.layers[3] = compiled(model.layers[3])
    model.layers = compiled(model.layers)
    return model


@pytest.fixture(autouse=True)
def uncompiled() -> Iterator[None]:
    """Run compiled modules without compiling their code, which takes seconds, unless a test compiles."""
    with torch.compiler.set_stance("force_eager"):
        yield


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "compiled": compiled,
    "compiled in place": in_place,
    "compiled layers": with_compiled_layers,
    "data parallel": nn.DataParallel,
    "compiled data parallel": lambda model: compiled(nn.DataParallel(model)),
    "data parallel compiled": lambda model: nn.DataParallel(compiled(model)),
}
FURTHER = ("compiled in place", "compiled data parallel", "data parallel compiled")
KINDS = [pytest.param(kind, marks=pytest.mark.matrix if kind in FURTHER else ()) for kind in WRAPPERS]
SAVES: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}


@pytest.mark.parametrize("kind", KINDS)
def test_names_are_those_of_the_user_s_model(kind: str, tmp_path: Path) -> None:
    """In checkpoints, their optimizer, `save_model`, the best model and exports; with what is trained unchanged.

    A run of the plain model resumes from the checkpoint of the wrapped one, and the other way, bit-identically.
    """
    wrap = WRAPPERS[kind]
    best: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True}
    evaluated: dict[str, Any] = {"eval_dataset": small_trainer(tmp_path / "data").train_dataset}
    plain = small_trainer(tmp_path / "plain", parts=evaluated, **SAVES, **best)
    plain.train()
    trainer = small_trainer(tmp_path / "wrapped", parts={"model": wrap(net()), **evaluated}, **SAVES, **best)
    trainer.train()
    trainer.save_model(str(tmp_path / "final"))
    export_checkpoint(tmp_path / "wrapped" / "checkpoint-4", tmp_path / "exported")
    uncounted = [{**entry, "total_flos": 0.0} for entry in (*history(trainer), *history(plain))]
    assert uncounted[: len(uncounted) // 2] == uncounted[len(uncounted) // 2 :]  # a compiled model is not measured
    for folder in ("wrapped/checkpoint-2", "wrapped/checkpoint-4", "exported/checkpoint-4", "final"):
        saved = load_file(tmp_path / folder / "model.safetensors")
        if "checkpoint-2" not in folder:
            assert same_weights(saved, plain.model.state_dict()), folder
        net().load_state_dict(saved)
    for file in ("optimizer.safetensors", "run_state.json"):
        assert (tmp_path / "wrapped" / "checkpoint-2" / file).read_bytes().count(b"_orig_mod") == 0
    for first, model in (("wrapped", net()), ("plain", wrap(net()))):
        resumed = small_trainer(tmp_path / f"from {first}", parts={"model": model, **evaluated}, **SAVES, **best)
        resumed.train(resume_from_checkpoint=str(tmp_path / first / "checkpoint-2"))
        assert same_weights(by_own_names(resumed.model, resumed.model.state_dict()), plain.model.state_dict())


@pytest.mark.parametrize("kind", ["compiled", "compiled layers", "data parallel"])
def test_checkpoints_with_the_names_of_a_wrapped_model_resume(kind: str, tmp_path: Path, monkeypatch: Any) -> None:
    """As earlier versions wrote them; with and without the wrapper, bit-identically."""
    from hexloop.adapters.trainable.torch import layouts

    wrap = WRAPPERS[kind]
    plain = small_trainer(tmp_path / "plain", **SAVES)
    plain.train()
    with monkeypatch.context() as earlier:
        earlier.setattr(layouts, "by_own_names", lambda _model, values: dict(values))
        small_trainer(tmp_path / "earlier", parts={"model": wrap(net())}, **SAVES).train()
    names = load_file(tmp_path / "earlier" / "checkpoint-2" / "model.safetensors").keys()
    assert names != plain.model.state_dict().keys() or kind != "compiled layers"
    for number, model in enumerate((net(), wrap(net()))):
        resumed = small_trainer(tmp_path / f"resumed {number}", parts={"model": model}, **SAVES)
        resumed.train(resume_from_checkpoint=str(tmp_path / "earlier" / "checkpoint-2"))
        assert same_weights(by_own_names(model, model.state_dict()), plain.model.state_dict())


def test_a_compiled_model_trains_in_compiled_code(tmp_path: Path) -> None:
    """With the losses and weights of the plain model; its operations are not measured, which would call its hooks."""
    plain = small_trainer(tmp_path / "plain", **SAVES)
    plain.train()
    with torch.compiler.set_stance("default"):
        trainer = small_trainer(tmp_path / "compiled", parts={"model": compiled(net())}, **SAVES)
        trainer.train()
    net().load_state_dict(load_file(tmp_path / "compiled" / "checkpoint-4" / "model.safetensors"))
    assert same_weights(by_own_names(trainer.model, trainer.model.state_dict()), plain.model.state_dict())


def test_a_state_dict_that_the_user_passes_is_written_under_the_model_s_names(tmp_path: Path) -> None:
    """`_save(folder, state_dict)` with the state dict of the wrapped model."""
    trainer = small_trainer(tmp_path, parts={"model": compiled(net())})
    trainer._save(str(tmp_path / "saved"), state_dict=trainer.model.state_dict())
    net().load_state_dict(load_file(tmp_path / "saved" / "model.safetensors"))


def test_from_pretrained_finds_what_compiled_models_of_transformers_save(tmp_path: Path) -> None:
    """Whole or by layers, tied weights included; the configuration names the model's class, not the wrapper's."""
    from transformers import GPT2Config, GPT2LMHeadModel

    for number in range(3):
        small: dict[str, Any] = {"n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 16, "n_positions": 8}
        config = GPT2Config(**small, bos_token_id=0, eos_token_id=0)
        model: Any = GPT2LMHeadModel(config)
        if number == 1:
            model.transformer.h[0] = compiled(model.transformer.h[0])
        given = [compiled(model), model, nn.DataParallel(model)][number]
        data = [{"input_ids": torch.arange(6), "labels": torch.arange(6)}] * 4
        given_arguments = arguments(tmp_path / str(number), save_strategy="steps", save_steps=1, max_steps=1)
        trainer = Trainer(model=given, args=given_arguments, train_dataset=data, loggers=[])
        trainer.train()
        trainer.save_model(str(tmp_path / str(number) / "final"))
        for name in ("checkpoint-1", "final"):
            folder = tmp_path / str(number) / name
            read: Any = GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
            loaded, found = read
            assert not found["missing_keys"]
            assert not found["unexpected_keys"]
            assert same_weights(dict(loaded.state_dict()), by_own_names(model, model.state_dict()))
            assert json.loads((folder / "config.json").read_text())["architectures"] == ["GPT2LMHeadModel"]


def test_parametrizations_keep_their_names(tmp_path: Path) -> None:
    """They are tensors of the model: its state dict has these names, and so have checkpoints, which resume exactly."""

    def parametrized() -> Net:
        model = net()
        weight_norm(model.layers[0])
        return model

    whole = small_trainer(tmp_path / "whole", parts={"model": parametrized()}, **SAVES)
    whole.train()
    saved = load_file(tmp_path / "whole" / "checkpoint-2" / "model.safetensors")
    assert saved.keys() == parametrized().state_dict().keys()
    resumed = small_trainer(tmp_path / "resumed", parts={"model": compiled(parametrized())}, **SAVES)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert same_weights(dict(resumed.model._orig_mod.state_dict()), dict(whole.model.state_dict()))


def test_a_folder_of_weights_loads_under_either_names(tmp_path: Path) -> None:
    """`_load_from_checkpoint` of what another program saved of a compiled model, into a model that is not."""
    save_file(
        {f"_orig_mod.{name}": value + 1 for name, value in net().state_dict().items()}, tmp_path / "model.safetensors"
    )
    trainer = small_trainer(tmp_path / "run")
    trainer._load_from_checkpoint(str(tmp_path))
    assert all(torch.equal(value, net().state_dict()[name] + 1) for name, value in trainer.model.state_dict().items())


def test_an_extra_state_in_a_compiled_layer_is_restored(tmp_path: Path) -> None:
    """Under the names of the model, also by a model without the compiled layer."""
    saved = nn.Sequential(nn.Linear(1, 1), compiled(Counting(5)))
    loaded = nn.Sequential(nn.Linear(1, 1), Counting(0))
    through_files(tmp_path, saved, loaded)
    assert repr(loaded[1].kept) == repr(saved[1].kept)
    back = nn.Sequential(nn.Linear(1, 1), compiled(Counting(0)))
    (tmp_path / "back").mkdir()
    through_files(tmp_path / "back", loaded, back)
    assert repr(submodule(back, "1").kept) == repr(saved[1].kept)


def test_a_layer_of_that_name_is_not_a_wrapper() -> None:
    """A model's own attribute `module` is a part of its names; a saved name that fits is never changed."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(1, 1)

    names = by_own_names(Own(), Own().state_dict())
    assert names.keys() == {"module.weight", "module.bias"}
    assert fitting_names(["module.weight", "_orig_mod.module.bias", "module.module.bias", "other"], names) == {
        "module.weight": "module.weight",
        "_orig_mod.module.bias": "module.bias",
        "module.module.bias": "module.bias",
        "other": "other",
    }


class Sharing(Net):
    """Has a buffer that is a view of a weight, a part of another tensor, and one tensor under two names."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__(dropout)
        whole = torch.arange(8.0)
        first: Any = self.layers[0]
        self.register_buffer("view", first.weight.detach()[:2])
        self.register_buffer("part", whole[2:4])
        self.register_buffer("once", whole)
        self.register_buffer("twice", whole)


def test_save_model_writes_tensors_that_share_memory(tmp_path: Path) -> None:
    """Views, shared buffers and tensors with two names, of plain models and of transformers', as checkpoints do."""
    trainer = small_trainer(tmp_path / "run", parts={"model": Sharing()}, **SAVES)
    trainer.train()
    trainer.save_model(str(tmp_path / "final"))
    trainer._save(str(tmp_path / "given"), state_dict=trainer.model.state_dict())
    for folder in ("final", "given", "run/checkpoint-4"):
        saved = load_file(tmp_path / folder / "model.safetensors")
        found: Any = Sharing()
        found.load_state_dict(saved, strict=folder == "given")  # one name of a tensor with two is enough
        assert torch.equal(found.view, trainer.model.view)
        assert torch.equal(found.part, trainer.model.part)


def test_save_model_writes_shared_buffers_of_a_model_of_transformers(tmp_path: Path) -> None:
    """With its tied weights written once, which from_pretrained ties again."""
    from transformers import GPT2Config, GPT2LMHeadModel

    small: dict[str, Any] = {"n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 16, "n_positions": 8}
    model: Any = GPT2LMHeadModel(GPT2Config(**small, bos_token_id=0, eos_token_id=0))
    model.transformer.register_buffer("halves", model.transformer.wpe.weight.detach()[:4])
    model.transformer.register_buffer("other", model.transformer.halves)
    trainer = Trainer(model=model, args=arguments(tmp_path), loggers=[])
    trainer.save_model(str(tmp_path / "final"))
    saved = load_file(tmp_path / "final" / "model.safetensors")
    assert {"transformer.halves", "transformer.other", "transformer.wte.weight"} <= saved.keys()
    assert "lm_head.weight" not in saved
    assert torch.equal(saved["transformer.halves"], model.transformer.wpe.weight[:4])
