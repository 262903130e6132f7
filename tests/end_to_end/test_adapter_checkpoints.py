"""Checkpoints of adapters: their base, several adapters, other forms, and what else of the model is kept."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import nn

import hexloop
from hexloop import Trainer, TrainerCallback
from hexloop.adapters.hub import MemoryHub
from hexloop.app.assembly.torch.saved_weights import AdaptersAlone
from hexloop.app.command_line import main
from hexloop.domain.errors import CheckpointError, ConfigurationError
from hexloop.domain.json_documents import json_part, json_value
from tests.end_to_end.parity.runs import BOTH
from tests.end_to_end.small.adapters import KINDS, SAVING, adapted, logits_of, tiny_llama, token_rows
from tests.end_to_end.small.models import Net, net, rows
from tests.end_to_end.small.resuming import trainer_of
from tests.end_to_end.small.trainers import same_weights, small_trainer, weights
from tests.resealing import reseal

peft = pytest.importorskip("peft")

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning", "ignore:The following:RuntimeWarning"
)

TWO: dict[str, Any] = {**SAVING, "max_steps": 4}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a base."""
    folder = tmp_path_factory.mktemp("base")
    tiny_llama().save_pretrained(folder)
    return folder


def lora(**given: Any) -> Any:
    return peft.LoraConfig(**{"r": 2, "target_modules": ["q_proj", "v_proj"], "lora_dropout": 0.1, **given})


def run_of(model: Any, folder: Path, kind: type[Trainer] = Trainer, **given: Any) -> Any:
    """Return a Trainer of a model on tokens, which saves after steps 2 and 4."""
    parts = {"model": model, "train_dataset": token_rows(32), **given.pop("parts", {})}
    return small_trainer(folder, kind, parts, **{**TWO, **given})


def seeded(make: Callable[[], Any]) -> Any:
    """Return what a function makes, always with the same random draws."""
    state = torch.random.get_rng_state()
    torch.manual_seed(7)
    made = make()
    torch.random.set_rng_state(state)
    return made


def resumes_exactly(make: Callable[[], Any], folder: Path, **given: Any) -> tuple[Any, Any]:
    """Train, resume from the middle with a new model, and compare; return both Trainers."""
    first = run_of(seeded(make), folder, **given)
    first.train()
    again = run_of(seeded(make), folder, **given)
    again.train(resume_from_checkpoint=str(folder / "checkpoint-2"))
    assert same_weights(weights(again), weights(first))
    return first, again


# The base


def test_a_checkpoint_names_its_base(base: Path, tmp_path: Path) -> None:
    """By its folder and a digest of its weights, which does not depend on the adapters."""
    run_of(adapted(KINDS["LoRA"], tiny_llama(base)), tmp_path / "lora").train()
    run_of(adapted(KINDS["prompt tuning"], tiny_llama(base)), tmp_path / "prompts").train()
    setups = [
        json.loads((tmp_path / name / "checkpoint-2" / "run_state.json").read_text())["run_setup"]
        for name in ("lora", "prompts")
    ]
    assert setups[0]["weights"] == "adapters"
    assert setups[0]["base"]["name"] == str(base)
    assert setups[0]["base"]["class"] == "LlamaForCausalLM"
    assert setups[0]["base"]["digest"] == setups[1]["base"]["digest"]


def test_another_base_is_refused(base: Path, tmp_path: Path) -> None:
    """The message has both names, both digests and the way out, which continues on the other base."""
    trainer_of("LoRA", base, tmp_path / "run").train()
    other = tiny_llama(base)
    with torch.no_grad():
        other.model.layers[0].mlp.up_proj.weight[0, 0] += 1e-3
    other.save_pretrained(tmp_path / "other")
    checkpoint = str(tmp_path / "run" / "checkpoint-2")
    again = trainer_of("LoRA", tmp_path / "other", tmp_path / "run")
    with pytest.raises(CheckpointError, match="its adapters were trained on the base") as caught:
        again.train(resume_from_checkpoint=checkpoint)
    message = str(caught.value)
    assert str(base) in message
    assert str(tmp_path / "other") in message
    assert "resume_despite=['base']" in message
    despite = trainer_of("LoRA", tmp_path / "other", tmp_path / "run", resume_despite=["base"])
    assert despite.train(resume_from_checkpoint=checkpoint).global_step == 6


def test_a_base_of_another_type_is_refused(base: Path, tmp_path: Path) -> None:
    """Its numbers are other numbers; the message names both types."""
    trainer_of("LoRA", base, tmp_path).train()
    model = adapted(KINDS["LoRA"], tiny_llama(base).to(torch.bfloat16))
    with pytest.raises(CheckpointError, match=r"float32.*bfloat16"):
        run_of(model, tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


# Other forms


def test_whole_models_are_saved_if_asked(base: Path, tmp_path: Path) -> None:
    """`save_full_model` writes the form of earlier releases, and both forms resume runs of either."""
    whole = trainer_of("LoRA", base, tmp_path / "whole", save_full_model=True)
    whole.train()
    alone = trainer_of("LoRA", base, tmp_path / "alone")
    alone.train()
    assert same_weights(weights(whole), weights(alone))
    files = {path.name for path in (tmp_path / "whole" / "checkpoint-2").iterdir()}
    assert {"model.safetensors", "adapter_model.safetensors", "adapter_config.json"} <= files
    for form, other in (("whole", "alone"), ("alone", "whole")):
        again = trainer_of("LoRA", base, tmp_path / form, save_full_model=form == "alone")
        again.train(resume_from_checkpoint=str(tmp_path / form / "checkpoint-2"))
        assert same_weights(weights(again), weights(whole)), other


def test_a_checkpoint_of_other_adapters_is_refused(base: Path, tmp_path: Path) -> None:
    """The message names a tensor and both shapes, or one that is missing."""
    run_of(peft.get_peft_model(tiny_llama(base), lora()), tmp_path).train()
    checkpoint = str(tmp_path / "checkpoint-2")
    with pytest.raises(CheckpointError, match=r"lora_A.* has shape \(2, 16\) in the checkpoint and \(4, 16\)"):
        run_of(peft.get_peft_model(tiny_llama(base), lora(r=4)), tmp_path).train(resume_from_checkpoint=checkpoint)
    more = peft.get_peft_model(tiny_llama(base), lora(target_modules=["q_proj", "v_proj", "o_proj"]))
    with pytest.raises(CheckpointError, match=r"o_proj\.lora_A.*is not in the checkpoint"):
        run_of(more, tmp_path).train(resume_from_checkpoint=checkpoint)
    fewer = peft.get_peft_model(tiny_llama(base), lora(target_modules=["q_proj"]))
    with pytest.raises(CheckpointError, match=r"v_proj\.lora_A.* is not in the model"):
        run_of(fewer, tmp_path).train(resume_from_checkpoint=checkpoint)


def test_the_best_adapters_are_loaded_at_the_end(base: Path, tmp_path: Path) -> None:
    """The run ends with those of the best checkpoint."""
    given: dict[str, Any] = {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "load_best_model_at_end": True,
        "learning_rate": 5.0,
    }
    trainer = run_of(
        adapted(KINDS["LoRA"], tiny_llama(base)), tmp_path, parts={"eval_dataset": token_rows(8, seed=3)}, **given
    )
    trainer.train()
    best = Path(trainer.state.best_model_checkpoint)
    loaded = peft.PeftModel.from_pretrained(tiny_llama(base), best)
    assert torch.equal(logits_of(loaded), logits_of(trainer.model))
    assert (
        load_file(best / "adapter_model.safetensors").keys()
        == load_file(tmp_path / "checkpoint-4" / "adapter_model.safetensors").keys()
    )


def test_saved_models_are_adapters(base: Path, tmp_path: Path) -> None:
    """`save_model` writes what PEFT loads, and the Trainer loads it as well."""
    trainer = trainer_of("LoRA", base, tmp_path / "run", save_strategy="no")
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    assert not (tmp_path / "saved" / "model.safetensors").exists()
    other = trainer_of("LoRA", base, tmp_path / "other", save_strategy="no")
    other._load_from_checkpoint(str(tmp_path / "saved"))
    assert same_weights(weights(other), weights(trainer))


def test_overridden_saves_write_no_adapters_twice(base: Path, tmp_path: Path) -> None:
    """A `_save` of the user's that calls the standard one leaves its files, and the run resumes from them."""

    class Saving(Trainer):
        def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
            super()._save(output_dir, state_dict)
            Path(str(output_dir), "note.txt").write_text("saved")

    class Changing(Trainer):
        def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
            super()._save(output_dir, {name: 2 * each for name, each in self.model.state_dict().items()})

    def make() -> Any:
        return peft.get_peft_model(tiny_llama(base), lora())

    resumes_exactly(make, tmp_path / "saving", kind=Saving)
    files = {path.name for path in (tmp_path / "saving" / "checkpoint-2").iterdir()}
    assert "note.txt" in files
    assert not any(name.startswith("hexloop-") for name in files)
    resumes_exactly(make, tmp_path / "changing", kind=Changing)
    changed = load_file(tmp_path / "changing" / "checkpoint-2" / "adapter_model.safetensors")
    own = load_file(tmp_path / "saving" / "checkpoint-2" / "adapter_model.safetensors")
    assert all(torch.equal(changed[name], 2 * own[name]) for name in own)


def test_adapters_are_published(base: Path, tmp_path: Path) -> None:
    """Without the base, the state of the run, and what only a run needs of the model."""
    hub = MemoryHub()
    saving: dict[str, Any] = {"push_to_hub": True, "hub_model_id": "me/adapters", "max_steps": 2, "save_steps": 1}
    trainer = run_of(
        adapted(KINDS["p-tuning"], tiny_llama(base)), tmp_path, parts={"hub": hub}, **saving, hub_always_push=True
    )
    trainer.train()
    assert (tmp_path / "checkpoint-2" / "adapter_state.safetensors").exists()
    published = hub.versions["me/adapters"][-1].files
    assert published.keys() == {"adapter_model.safetensors", "adapter_config.json", "training_args.json", "README.md"}
    trainer.push_to_hub()
    assert "model.safetensors" not in hub.versions["me/adapters"][-1].files


# Several adapters


def two_adapters(base: Path) -> Any:
    model = peft.get_peft_model(tiny_llama(base), lora())
    model.add_adapter("other", lora(r=3, init_lora_weights=False))
    return model


def test_each_adapter_has_a_folder(base: Path, tmp_path: Path) -> None:
    """As PEFT lays them out; the one that is not active stays as it is."""
    first, _ = resumes_exactly(lambda: two_adapters(base), tmp_path)
    checkpoint = tmp_path / "checkpoint-4"
    for name, folder in (("default", checkpoint), ("other", checkpoint / "other")):
        saved = load_file(folder / "adapter_model.safetensors")
        own = peft.get_peft_model_state_dict(first.model, adapter_name=name)
        assert same_weights(saved, own)
        assert (folder / "adapter_config.json").exists()
    assert not (checkpoint / "adapter_state.safetensors").exists()


def test_several_active_adapters_are_trained(base: Path, tmp_path: Path) -> None:
    """Both change, and both resume."""

    def make() -> Any:
        model = two_adapters(base)
        model.base_model.set_adapter(["default", "other"])
        return model

    first, _ = resumes_exactly(make, tmp_path)
    untrained = seeded(make).state_dict()
    for name in ("default", "other"):
        changed = [
            key
            for key, value in weights(first).items()
            if f".{name}." in key and not torch.equal(value, untrained[key])
        ]
        assert changed, name


def test_adapters_that_the_model_lacks_are_added_frozen(base: Path, tmp_path: Path) -> None:
    """As in transformers: a model with the active adapter alone gets the others of the checkpoint."""
    first = run_of(seeded(lambda: two_adapters(base)), tmp_path)
    first.train()
    again = run_of(seeded(lambda: peft.get_peft_model(tiny_llama(base), lora())), tmp_path)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert same_weights(weights(again), weights(first))
    assert again.model.active_adapter == "default"
    frozen = [each.requires_grad for name, each in again.model.named_parameters() if ".other." in name]
    assert frozen
    assert not any(frozen)


def test_patterns_of_a_checkpoint_are_not_run(base: Path, tmp_path: Path) -> None:
    """An adapter that would be added by a regular expression has to be in the model."""
    model = peft.get_peft_model(tiny_llama(base), lora())
    model.add_adapter("other", lora(target_modules=".*q_proj"))
    run_of(model, tmp_path).train()
    with pytest.raises(CheckpointError, match=r"has target_modules='\.\*q_proj', and patterns and names of a file"):
        run_of(peft.get_peft_model(tiny_llama(base), lora()), tmp_path).train(
            resume_from_checkpoint=str(tmp_path / "checkpoint-2")
        )


HARMFUL: dict[str, tuple[str, dict[str, Any]]] = {
    "a pattern of ranks": ("other", {"rank_pattern": {"(a+)+$": 3}}),
    "a module to import": ("other", {"megatron_config": {"a": 1}}),
    "another kind": ("other", {"peft_type": "XLORA"}),
    "layers by a text": ("other", {"exclude_modules": ".*"}),
    "a path": ("../other", {}),
    "a hidden folder": (".other", {}),
}


@pytest.mark.parametrize("name", HARMFUL)
def test_configurations_of_others_do_nothing(name: str, base: Path) -> None:
    """What an adapter that would be added has beside its sizes is refused before anything is loaded."""
    adapter, entries = HARMFUL[name]
    model = peft.get_peft_model(tiny_llama(base), lora())
    state = AdaptersAlone(model).own_state()
    parts = list(state.export())
    document = json_value(next(part for part in parts if part.name == "adapters"))
    document["configurations"][adapter] = {**document["configurations"]["default"], **entries}
    changed = [part for part in parts if part.name != "adapters"] + [json_part("adapters", document)]
    try:
        problems = state.differences(changed)
    except CheckpointError as error:
        problems = [str(error)]
    assert len(problems) == 1
    assert adapter in problems[0]
    with pytest.raises((CheckpointError, ValueError), match="other"):
        state.load(changed)
    assert list(model.peft_config) == ["default"]


def test_mixed_models_resume(base: Path, tmp_path: Path) -> None:
    """LoRA and LoHa in one model, both active; PEFT loads each, and they are merged together."""

    def make() -> Any:
        model = peft.get_peft_model(tiny_llama(base), lora(), mixed=True)
        model.add_adapter("other", peft.LoHaConfig(r=2, target_modules=["k_proj"]))
        model.set_adapter(["default", "other"])
        return model

    first, _ = resumes_exactly(make, tmp_path / "run")
    first.save_model(str(tmp_path / "saved"))
    merged = hexloop.merge_adapters(
        tmp_path / "run" / "checkpoint-4", tmp_path / "merged", adapters=["default", "other"]
    )
    assert torch.allclose(logits_of(tiny_llama(Path(merged))), logits_of(first.model), rtol=0, atol=1e-5)
    for folder in (tmp_path / "saved", tmp_path / "run" / "checkpoint-4"):
        loaded = peft.PeftMixedModel.from_pretrained(tiny_llama(base), folder)
        loaded.load_adapter(folder / "other", "other")
        loaded.set_adapter(["default", "other"])
        assert torch.equal(logits_of(loaded), logits_of(first.model))


def test_adapters_of_a_plain_model_resume(base: Path, tmp_path: Path) -> None:
    """`model.add_adapter` of transformers: `from_pretrained` loads the checkpoint, base and adapter."""

    def make() -> Any:
        model = tiny_llama(base)
        model.add_adapter(lora(), adapter_name="mine")
        return model

    first, _ = resumes_exactly(make, tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-4")
    assert torch.equal(logits_of(loaded), logits_of(first.model))
    assert not (tmp_path / "checkpoint-4" / "model.safetensors").exists()


# What else of the model is kept


class Normalized(Net):
    """A model with running statistics."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__(dropout)
        first: Any = self.layers[0]
        width = first.out_features
        self.layers.insert(1, nn.BatchNorm1d(width))


def test_running_statistics_are_kept(tmp_path: Path) -> None:
    """They change though the base is frozen, so a run that resumes needs them."""

    def make() -> Any:
        return peft.get_peft_model(net(kind=Normalized), peft.LoraConfig(r=2, target_modules=["layers.0"]))

    given: dict[str, Any] = {"parts": {"train_dataset": rows(32)}}
    resumes_exactly(make, tmp_path, **given)
    saved = load_file(tmp_path / "checkpoint-2" / "adapter_state.safetensors")
    assert any(name.endswith("running_mean") for name in saved)


def test_trained_parameters_of_the_base_are_kept(base: Path, tmp_path: Path) -> None:
    """A parameter that the program has unfrozen is saved beside the adapters, and merged with them."""

    def make() -> Any:
        model = peft.get_peft_model(tiny_llama(base), lora())
        model.get_base_model().model.norm.weight.requires_grad_(True)
        return model

    first, _ = resumes_exactly(make, tmp_path / "run")
    saved = load_file(tmp_path / "run" / "checkpoint-2" / "adapter_state.safetensors")
    assert list(saved) == ["base_model.model.model.norm.weight"]
    merged = hexloop.merge_adapters(tmp_path / "run" / "checkpoint-4", tmp_path / "merged")
    assert torch.allclose(logits_of(tiny_llama(Path(merged))), logits_of(first.model), rtol=0, atol=1e-5)


class Allocating(TrainerCallback):
    """What programs for transformers do for AdaLoRA."""

    def on_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        model.base_model.update_and_allocate(state.global_step)


@pytest.mark.parametrize("own", [False, True], ids=["alone", "with a callback"])
def test_adalora_changes_ranks_as_in_transformers(own: bool, base: Path, tmp_path: Path) -> None:
    """Hexloop updates the ranks, unless the program does: the weights are those of transformers with the callback."""
    ours = trainer_of("AdaLoRA", base, tmp_path / "ours", reproduce="transformers", max_grad_norm=0.0)
    if own:
        ours.add_callback(Allocating())
    ours.train()
    model = adapted(KINDS["AdaLoRA"], tiny_llama(base))
    args = transformers.TrainingArguments(
        output_dir=str(tmp_path / "theirs"), max_steps=6, learning_rate=0.05, per_device_train_batch_size=4,
        use_cpu=True, report_to="none", disable_tqdm=True, save_strategy="no", max_grad_norm=0.0, num_train_epochs=1,
    )  # fmt: skip

    class Theirs(transformers.TrainerCallback):
        on_optimizer_step = Allocating.on_optimizer_step

    theirs = transformers.Trainer(model=model, args=args, train_dataset=token_rows(32), callbacks=[Theirs()])
    theirs.remove_callback(transformers.PrinterCallback)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs.train()
    trained: Any = theirs.model
    assert same_weights(weights(ours), dict(trained.state_dict()))
    assert ours.model.peft_config["default"].rank_pattern == trained.peft_config["default"].rank_pattern


# transformers' checkpoints


def theirs(model: Any, folder: Path, resume: str | None = None, **given: Any) -> Any:
    """Return transformers' Trainer after a run that saves at step 2."""
    args = transformers.TrainingArguments(
        output_dir=str(folder), learning_rate=0.05, per_device_train_batch_size=4, use_cpu=True, report_to="none",
        disable_tqdm=True, train_sampling_strategy="sequential", seed=0,
        **{"max_steps": 4, "save_steps": 2, "save_strategy": "steps", **given},
    )  # fmt: skip
    trainer = transformers.Trainer(model=model, args=args, train_dataset=token_rows(32))
    trainer.remove_callback(transformers.PrinterCallback)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train(resume_from_checkpoint=resume)
    return trainer


def undropped(base: Path) -> Any:
    return peft.get_peft_model(tiny_llama(base), lora(lora_dropout=0.0))


def test_checkpoints_of_transformers_are_imported(base: Path, tmp_path: Path) -> None:
    """With adapters alone, as transformers writes them; the run finishes like transformers' own."""
    other = theirs(seeded(lambda: undropped(base)), tmp_path / "theirs")
    checkpoint = hexloop.import_checkpoint(tmp_path / "theirs" / "checkpoint-2", tmp_path / "imported")
    ours = run_of(undropped(base), tmp_path / "imported", **{**BOTH, **TWO}, loss_weighting="reference")
    ours.train(resume_from_checkpoint=checkpoint)
    for name, tensor in weights(ours).items():
        assert torch.allclose(tensor, other.model.state_dict()[name], atol=1e-6), name


def test_adapters_of_plain_models_are_imported(base: Path, tmp_path: Path) -> None:
    """Whatever the adapter is called: transformers writes it into the checkpoint itself."""

    def plain() -> Any:
        model = tiny_llama(base)
        model.add_adapter(lora(), adapter_name="mine")
        return model

    other = theirs(seeded(plain), tmp_path / "theirs")
    checkpoint = hexloop.import_checkpoint(tmp_path / "theirs" / "checkpoint-4", tmp_path / "imported")
    ours = run_of(plain(), tmp_path / "imported")
    ours.train(resume_from_checkpoint=checkpoint)
    assert same_weights(weights(ours), dict(other.model.state_dict()))


def test_several_adapters_are_imported(base: Path, tmp_path: Path) -> None:
    """Those in folders of their own are added to the model, frozen."""
    other = theirs(seeded(lambda: two_adapters(base)), tmp_path / "theirs")
    checkpoint = hexloop.import_checkpoint(tmp_path / "theirs" / "checkpoint-4", tmp_path / "imported")
    ours = run_of(peft.get_peft_model(tiny_llama(base), lora()), tmp_path / "imported", max_steps=4)
    ours.train(resume_from_checkpoint=checkpoint)
    own = weights(ours)
    assert all(torch.equal(own[name], each) for name, each in other.model.state_dict().items() if ".other." in name)


def test_imported_prompts_resume(base: Path, tmp_path: Path) -> None:
    """A file has the prompts alone: enough for prompt tuning, and refused for a kind that computes them."""
    theirs(adapted(KINDS["prompt tuning"], tiny_llama(base)), tmp_path / "prompts")
    checkpoint = hexloop.import_checkpoint(tmp_path / "prompts" / "checkpoint-2", tmp_path / "imported")
    trainer = trainer_of("prompt tuning", base, tmp_path / "imported", max_steps=2)
    trainer.train(resume_from_checkpoint=checkpoint)
    saved = load_file(tmp_path / "prompts" / "checkpoint-2" / "adapter_model.safetensors")["prompt_embeddings"]
    assert torch.equal(trainer.model.prompt_encoder["default"].embedding.weight, saved)

    prefix = adapted(KINDS["prefix tuning"], tiny_llama(base))
    prefix = peft.get_peft_model(
        tiny_llama(base),
        peft.PrefixTuningConfig(
            task_type="CAUSAL_LM", num_virtual_tokens=4, prefix_projection=True, encoder_hidden_size=8
        ),
    )
    theirs(prefix, tmp_path / "projected")
    checkpoint = hexloop.import_checkpoint(tmp_path / "projected" / "checkpoint-2", tmp_path / "imported-projected")
    with pytest.raises(CheckpointError, match="from whose result no training can resume"):
        run_of(prefix, tmp_path / "imported-projected").train(resume_from_checkpoint=checkpoint)


def test_exported_adapters_resume_in_transformers(base: Path, tmp_path: Path) -> None:
    """Transformers' Trainer finishes the run like hexloop."""
    ours = run_of(undropped(base), tmp_path / "ours", **{**BOTH, **TWO}, loss_weighting="reference")
    untrained = {name: each.clone() for name, each in ours.model.state_dict().items()}
    ours.train()
    exported = hexloop.export_checkpoint(tmp_path / "ours" / "checkpoint-2", tmp_path / "exported")
    files = {path.name for path in Path(exported).iterdir()}
    assert "adapter_model.safetensors" in files
    assert "model.safetensors" not in files
    model = undropped(base)
    model.load_state_dict(untrained)
    other = theirs(model, tmp_path / "theirs", resume=exported)
    for name, tensor in weights(ours).items():
        assert torch.allclose(tensor, other.model.state_dict()[name], atol=1e-6), name


# Merging


def test_the_command_merges(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It writes a whole model that is loaded without PEFT, and no folder that exists."""
    trainer = trainer_of("LoRA", base, tmp_path / "run")
    trainer.train()
    checkpoint, target = str(tmp_path / "run" / "checkpoint-6"), tmp_path / "merged"
    assert main(["checkpoints", "merge", checkpoint, "--to", str(target)]) == 0
    assert f"Written: {target}" in capsys.readouterr().out
    assert not (target / "adapter_config.json").exists()
    assert torch.allclose(logits_of(tiny_llama(target)), logits_of(trainer.model), rtol=0, atol=1e-5)
    with pytest.raises(CheckpointError, match="exists already"):
        hexloop.merge_adapters(checkpoint, target)


def test_merging_refuses_what_cannot_be_right(base: Path, tmp_path: Path) -> None:
    """Another base, an adapter that is not there, a base without a name, and a checkpoint without adapters."""
    trainer_of("LoRA", base, tmp_path / "run").train()
    checkpoint = tmp_path / "run" / "checkpoint-6"
    other = tiny_llama(base)
    with torch.no_grad():
        other.lm_head.weight[0, 0] += 1.0
    other.save_pretrained(tmp_path / "other")
    with pytest.raises(CheckpointError, match="has other weights"):
        hexloop.merge_adapters(checkpoint, tmp_path / "merged", base=tmp_path / "other")
    assert hexloop.merge_adapters(checkpoint, tmp_path / "merged", base=tmp_path / "other", despite_digest=True)
    with pytest.raises(CheckpointError, match="You chose the adapters mine, but"):
        hexloop.merge_adapters(checkpoint, tmp_path / "more", adapters=["mine"])
    run_of(peft.get_peft_model(tiny_llama(), lora()), tmp_path / "nameless").train()
    with pytest.raises(CheckpointError, match="does not name the base"):
        hexloop.merge_adapters(tmp_path / "nameless" / "checkpoint-4", tmp_path / "more")
    assert hexloop.merge_adapters(tmp_path / "nameless" / "checkpoint-4", tmp_path / "more", base=base)
    run_of(tiny_llama(base), tmp_path / "plain", save_steps=4).train()
    with pytest.raises(CheckpointError, match="has no adapters of PEFT"):
        hexloop.merge_adapters(tmp_path / "plain" / "checkpoint-4", tmp_path / "never")


def test_the_model_of_a_checkpoint_is_written_as_adapters(base: Path, tmp_path: Path) -> None:
    """`hexloop checkpoints consolidate` writes what PEFT loads."""
    trainer = run_of(seeded(lambda: two_adapters(base)), tmp_path / "run")
    trainer.train()
    target = tmp_path / "model"
    assert main(["checkpoints", "consolidate", str(tmp_path / "run" / "checkpoint-4"), "--output", str(target)]) == 0
    assert torch.equal(logits_of(peft.PeftModel.from_pretrained(tiny_llama(base), target)), logits_of(trainer.model))
    assert (target / "other" / "adapter_model.safetensors").exists()


def test_a_run_that_skips_steps_returns_to_its_adapters(base: Path, tmp_path: Path) -> None:
    """A step whose loss is not finite is left out, as if the data lacked it."""

    class Failing(Trainer):
        calls = 0

        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            loss = super().compute_loss(model, inputs, *args, **kwargs)
            return loss * float("nan") if self.calls == 2 else loss

    model = peft.get_peft_model(tiny_llama(base), lora())
    trainer = run_of(model, tmp_path, Failing, on_nonfinite="skip")
    trainer.train()
    assert all(bool(torch.isfinite(each).all()) for each in weights(trainer).values())


def test_adalora_needs_its_gradients(base: Path, tmp_path: Path) -> None:
    """A step that is recorded would not update the ranks."""
    with pytest.raises(ConfigurationError, match="AdaLoRA cannot be trained with capture_step"):
        trainer_of("AdaLoRA", base, tmp_path, capture_step=True, torch_compile=True).train()


def change(checkpoint: Path, entries: dict[str, Any]) -> None:
    """Change the adapters' configuration, and the manifest with it."""
    file = checkpoint / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **entries}))
    reseal(checkpoint)


def test_merging_runs_no_pattern_of_a_checkpoint(base: Path, tmp_path: Path) -> None:
    """Modules that a pattern named are found by the adapter's tensors; other patterns of the file are refused."""
    pattern = r".*layers\.(0|1)\..*(q_proj|down_proj)"
    trainer = run_of(peft.get_peft_model(tiny_llama(base), peft.LoraConfig(target_modules=pattern)), tmp_path / "run")
    trainer.train()
    checkpoint = tmp_path / "run" / "checkpoint-4"
    hostile = tmp_path / "hostile" / "checkpoint-4"
    shutil.copytree(tmp_path / "run", hostile.parent)
    merged = hexloop.merge_adapters(checkpoint, tmp_path / "merged")
    assert torch.allclose(logits_of(tiny_llama(Path(merged))), logits_of(trainer.model), rtol=0, atol=1e-5)

    slow = "(.+)+(.+)+(.+)+(.+)+x"
    change(hostile, {"target_modules": slow})
    again = hexloop.merge_adapters(hostile, tmp_path / "again")
    assert torch.equal(logits_of(tiny_llama(Path(again))), logits_of(tiny_llama(Path(merged))))
    for entry in ({"modules_to_save": [slow]}, {"rank_pattern": {slow: 4}}, {"exclude_modules": slow}):
        change(hostile, {"target_modules": ["q_proj", "down_proj"], **entry})
        with pytest.raises(CheckpointError, match="patterns of a file are not run"):
            hexloop.merge_adapters(hostile, tmp_path / "never")
        change(hostile, dict.fromkeys(entry))
    assert not (tmp_path / "never").exists()
