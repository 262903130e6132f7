"""A tiny language model, and each kind of adapters of PEFT that is trained on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from attrs import frozen

VOCABULARY = 32


def tiny_llama(folder: Path | None = None, **given: Any) -> Any:
    """Return a language model of two layers, always with the same weights; loaded from `folder` if it is given."""
    from transformers import LlamaConfig, LlamaForCausalLM

    if folder is not None:
        return LlamaForCausalLM.from_pretrained(folder)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64}
    state = torch.random.get_rng_state()
    torch.manual_seed(0)
    made = LlamaForCausalLM(LlamaConfig(**{**sizes, **heads, "pad_token_id": 0, "attention_bias": True, **given}))
    torch.random.set_rng_state(state)
    return made


def token_rows(count: int, length: int = 8, seed: int = 1) -> list[dict[str, Any]]:
    """Return rows of random tokens, which are their own labels."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, VOCABULARY, (count, length), generator=generator)
    return [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row} for row in tokens]


def logits_of(model: Any) -> torch.Tensor:
    """Return the logits of a few rows in evaluation."""
    model.eval()
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=torch.stack([each["input_ids"] for each in token_rows(3)])).logits
    return found


@frozen
class Kind:
    """A kind of adapters.

    name: of the class of its configuration. options: of it. merges: whether it can be merged into the base.
    beside: whether the checkpoint keeps something of the model that PEFT's file does not have.
    """

    name: str
    options: dict[str, Any]
    merges: bool = True
    beside: bool = False


LINEAR = ["q_proj", "v_proj"]
PROMPT: dict[str, Any] = {"task_type": "CAUSAL_LM", "num_virtual_tokens": 4}


def _of(name: str, merges: bool = True, beside: bool = False, **options: Any) -> Kind:
    return Kind(name, {"target_modules": LINEAR, **options}, merges, beside)


KINDS: dict[str, Kind] = {
    "LoRA": _of("LoraConfig", r=2, lora_dropout=0.1),
    "LoRA of all linear layers, with modules_to_save": _of(
        "LoraConfig", r=2, target_modules="all-linear", modules_to_save=["lm_head"]
    ),
    "LoRA with trained biases": _of("LoraConfig", r=2, bias="all"),
    "LoRA with trainable tokens": _of("LoraConfig", r=2, trainable_token_indices={"embed_tokens": [1, 2]}),
    "DoRA": _of("LoraConfig", r=2, use_dora=True),
    "rsLoRA": _of("LoraConfig", r=4, use_rslora=True),
    "PiSSA": _of("LoraConfig", r=2, init_lora_weights="pissa"),
    "OLoRA": _of("LoraConfig", r=2, init_lora_weights="olora"),
    "AdaLoRA": _of("AdaLoraConfig", init_r=4, target_r=2, tinit=1, tfinal=1, deltaT=1, total_step=6, beside=True),
    "IA3": _of("IA3Config", target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"]),
    "LoHa": _of("LoHaConfig", r=2),
    "LoKr": _of("LoKrConfig", r=2),
    "OFT": _of("OFTConfig", oft_block_size=4),
    "BOFT": _of("BOFTConfig", boft_block_size=4),
    "VeRA": _of("VeraConfig", r=4),
    "VeRA without its projections": _of("VeraConfig", r=4, save_projection=False),
    "RandLoRA": _of("RandLoraConfig", r=4),
    "VB-LoRA": _of("VBLoRAConfig", r=2, num_vectors=8, vector_length=4, topk=2),
    "FourierFT": _of("FourierFTConfig", n_frequency=8),
    "LN tuning": _of("LNTuningConfig", target_modules=["input_layernorm", "norm"]),
    "trainable tokens": _of("TrainableTokensConfig", target_modules=["embed_tokens"], token_indices=[1, 2]),
    "prompt tuning": Kind("PromptTuningConfig", PROMPT, merges=False, beside=True),
    "prefix tuning": Kind("PrefixTuningConfig", PROMPT, merges=False, beside=True),
    "p-tuning": Kind("PromptEncoderConfig", {**PROMPT, "encoder_hidden_size": 8}, merges=False, beside=True),
}
"""Each kind of adapters by the name that the documentation uses."""


SAVING: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "max_steps": 6, "learning_rate": 0.05}
"""A run of six steps that saves three times; AdaLoRA has decided on ranks by then."""


def adapted(kind: Kind, base: Any) -> Any:
    """Return a base with adapters of a kind, always with the same weights."""
    import peft

    state = torch.random.get_rng_state()
    torch.manual_seed(5)
    model = peft.get_peft_model(base, getattr(peft, kind.name)(**kind.options))
    torch.random.set_rng_state(state)
    return model
