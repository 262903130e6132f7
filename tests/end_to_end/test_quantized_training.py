"""Models that are quantized are trained: by bitsandbytes and torchao with adapters, and aware of their quantization."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import nn

from hexloop import Trainer, TrainingArguments
from hexloop.app.run.quantized_models import cannot_be_replicated
from hexloop.domain.errors import CheckpointError, ConfigurationError
from tests.end_to_end.small.adapters import SAVING, logits_of, tiny_llama, token_rows
from tests.end_to_end.small.models import Net, net
from tests.end_to_end.small.trainers import history, same_weights, small_trainer, weights

peft = pytest.importorskip("peft")

pytestmark = pytest.mark.filterwarnings("ignore")

TWO: dict[str, Any] = {**SAVING, "max_steps": 4}


BitsAndBytesConfig: Any = transformers.BitsAndBytesConfig


def four_bits() -> Any:
    pytest.importorskip("bitsandbytes")
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )


def eight_bits() -> Any:
    pytest.importorskip("bitsandbytes")
    return BitsAndBytesConfig(load_in_8bit=True)


def torchao_int8() -> Any:
    quantization = pytest.importorskip("torchao.quantization")
    return transformers.TorchAoConfig(quantization.Int8WeightOnlyConfig())


METHODS = {"bitsandbytes, 4 bits": four_bits, "bitsandbytes, 8 bits": eight_bits, "torchao, int8": torchao_int8}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a base whose matrices are large enough for every method."""
    folder = tmp_path_factory.mktemp("base")
    tiny_llama(hidden_size=64, intermediate_size=128).save_pretrained(folder)
    return folder


def loaded(base: Path, method: str, **given: Any) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(
        base, quantization_config=METHODS[method](), device_map="cpu", **given
    )


def quantized(base: Path, method: str, **given: Any) -> Any:
    """Return a quantized base with adapters of LoRA, always with the same weights."""
    state = torch.random.get_rng_state()
    torch.manual_seed(7)
    model = peft.prepare_model_for_kbit_training(loaded(base, method), use_gradient_checkpointing=False)
    options = {"r": 2, "target_modules": ["q_proj", "v_proj"], "lora_dropout": 0.1, **given}
    model = peft.get_peft_model(model, peft.LoraConfig(**options))
    torch.random.set_rng_state(state)
    return model


def trainer_of(model: Any, folder: Path, **given: Any) -> Any:
    return small_trainer(folder, parts={"model": model, "train_dataset": token_rows(32)}, **{**TWO, **given})


@pytest.mark.parametrize("method", METHODS)
def test_a_quantized_base_is_trained_with_adapters(method: str, base: Path, tmp_path: Path) -> None:
    """A checkpoint has the adapters alone, and the run resumes from it bit-identically."""
    first = trainer_of(quantized(base, method), tmp_path)
    before = {name: each.clone() for name, each in trained(first).items()}
    assert all("lora_" in name for name in before)
    first.train()
    assert any(not torch.equal(before[name], each) for name, each in trained(first).items())

    checkpoint = tmp_path / "checkpoint-2"
    assert not (checkpoint / "model.safetensors").exists()
    assert all("lora_" in name for name in load_file(checkpoint / "adapter_model.safetensors"))
    setup = json.loads((checkpoint / "run_state.json").read_text())["run_setup"]
    assert setup["base"]["quantization"] == method.partition(",")[0]

    again = trainer_of(quantized(base, method), tmp_path)
    again.train(resume_from_checkpoint=str(checkpoint))
    assert same_weights(trained(again), trained(first))
    assert history(again)[-2] == history(first)[-2]
    alone = peft.PeftModel.from_pretrained(
        peft.prepare_model_for_kbit_training(loaded(base, method), use_gradient_checkpointing=False),
        tmp_path / "checkpoint-4",
    )
    assert torch.equal(logits_of(alone), logits_of(again.model))


def trained(trainer: Any) -> dict[str, Any]:
    return {name: each.detach() for name, each in trainer.model.named_parameters() if each.requires_grad}


def test_another_quantization_is_another_base(base: Path, tmp_path: Path) -> None:
    """The message names both methods."""
    trainer_of(quantized(base, "torchao, int8"), tmp_path).train()
    with pytest.raises(CheckpointError, match=r"float32, torchao\).*float32, bitsandbytes\)"):
        trainer_of(quantized(base, "bitsandbytes, 4 bits"), tmp_path).train(
            resume_from_checkpoint=str(tmp_path / "checkpoint-2")
        )


def test_quantized_models_without_adapters_are_refused(base: Path, tmp_path: Path) -> None:
    """Real ones, of each method."""
    for method in METHODS:
        with pytest.raises(ConfigurationError, match="has no trainable adapters"):
            trainer_of(loaded(base, method), tmp_path)


def test_compiled_layers_of_bitsandbytes_are_refused(base: Path, tmp_path: Path) -> None:
    """The message names the argument."""
    with pytest.raises(ConfigurationError, match=r"\(bitsandbytes\) and torch_compile=True"):
        trainer_of(quantized(base, "bitsandbytes, 4 bits"), tmp_path, torch_compile=True)


def test_quantized_models_are_neither_moved_nor_replicated(base: Path, tmp_path: Path) -> None:
    """Whatever the arguments say."""

    class Placing(TrainingArguments):
        @property
        def place_model_on_device(self) -> bool:
            return True

    args = Placing(str(tmp_path), use_cpu=True, report_to="none", save_strategy="no", max_steps=1)
    for method in ("bitsandbytes, 4 bits", "bitsandbytes, 8 bits"):
        model = quantized(base, method)
        assert cannot_be_replicated(model)
        assert not Trainer(model, args, train_dataset=token_rows(8)).place_model_on_device
    assert Trainer(tiny_llama(base), args, train_dataset=token_rows(8)).place_model_on_device


def test_quantization_aware_training_resumes(tmp_path: Path) -> None:
    """Torchao's fake quantization: the weights stay plain ones, are trained, and resume bit-identically."""
    quantization = pytest.importorskip("torchao.quantization")
    qat = pytest.importorskip("torchao.quantization.qat")

    class Wide(Net):
        """A model whose linear layer has whole groups."""

        def __init__(self, dropout: float = 0.0) -> None:
            super().__init__(dropout)
            first: Any = self.layers[0]
            width = first.in_features
            self.layers.insert(0, nn.Linear(width, width))

    def make() -> Any:
        model = net(kind=Wide)
        config = quantization.Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int4,  # type: ignore[attr-defined]
            weight_granularity=quantization.PerGroup(2),
        )
        quantization.quantize_(model, qat.QATConfig(config, step="prepare"))
        return model

    first = small_trainer(tmp_path, parts={"model": make()}, **{**TWO, "learning_rate": 0.01})
    assert any("FakeQuantized" in type(each).__name__ for each in first.model.modules())
    first.train()
    again = small_trainer(tmp_path, parts={"model": make()}, **{**TWO, "learning_rate": 0.01})
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert same_weights(weights(again), weights(first))
    assert not same_weights(weights(again), dict(make().state_dict()))


@pytest.mark.matrix
def test_a_checkpoint_of_four_bits_is_small(tmp_path: Path) -> None:
    """Of 20 million parameters: less than a twentieth of a checkpoint of the whole model."""
    sizes: dict[str, Any] = {
        "hidden_size": 256,
        "intermediate_size": 1024,
        "num_hidden_layers": 16,
        "num_attention_heads": 4,
    }
    whole = tiny_llama(**sizes, num_key_value_heads=4, vocab_size=4000)
    assert sum(each.numel() for each in whole.parameters()) > 18_000_000
    whole.save_pretrained(tmp_path / "base")
    saved = {}
    for form in (False, True):
        model = quantized(tmp_path / "base", "bitsandbytes, 4 bits", r=4)
        folder = tmp_path / str(form)
        trainer_of(model, folder, max_steps=1, save_steps=1, save_full_model=form).train()
        saved[form] = sum(path.stat().st_size for path in (folder / "checkpoint-1").rglob("*") if path.is_file())
    assert saved[False] * 20 < saved[True]
