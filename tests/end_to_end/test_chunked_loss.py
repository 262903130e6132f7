"""Runs with a loss in chunks train as without, whatever the model, and are refused where they would not."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hexloop import Trainer
from hexloop.adapters.trainable.torch import chunked_loss
from hexloop.adapters.trainable.torch.pending_logits import PendingLogits
from hexloop.domain.errors import ConfigurationError
from tests.end_to_end.small.decoders import WORDS, llama, sentences
from tests.end_to_end.small.models import net
from tests.end_to_end.small.trainers import small_trainer, weights

SIZES: dict[str, Any] = {
    "vocab_size": WORDS, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
}  # fmt: skip


def seeded(kind: Any, config: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return kind(config)


def gpt2() -> Any:
    config = transformers.GPT2Config(
        vocab_size=WORDS,
        n_positions=64,
        n_embd=16,
        n_layer=1,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return seeded(transformers.GPT2LMHeadModel, config)


def gemma() -> Any:
    config = transformers.Gemma2Config(**SIZES, num_key_value_heads=2, head_dim=8, final_logit_softcapping=2.0)
    return seeded(transformers.Gemma2ForCausalLM, config)


def cohere() -> Any:
    return seeded(
        transformers.CohereForCausalLM,
        transformers.CohereConfig(**SIZES, num_key_value_heads=2, logit_scale=0.3, eos_token_id=1),
    )


def mixtral() -> Any:
    config = transformers.MixtralConfig(
        **SIZES, num_key_value_heads=2, num_local_experts=2, num_experts_per_tok=1, output_router_logits=True
    )
    return seeded(transformers.MixtralForCausalLM, config)


def bert() -> Any:
    config = transformers.BertConfig(**SIZES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return seeded(transformers.BertForMaskedLM, config)


def t5() -> Any:
    config: Any = transformers.T5Config
    config = config(
        vocab_size=WORDS,
        d_model=16,
        d_kv=8,
        d_ff=16,
        num_layers=1,
        num_heads=2,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    return seeded(transformers.T5ForConditionalGeneration, config)


def tied() -> Any:
    return llama(tie_word_embeddings=True)


class Own(nn.Module):
    """A model of the user's, whose labels are one shorter than its tokens, with the classes as second dimension."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.words, self.lm_head = nn.Embedding(WORDS, 16), nn.Linear(16, WORDS)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Any]:
        logits = self.lm_head(torch.tanh(self.words(input_ids)))
        return {"loss": cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:]), "logits": logits}


MODELS = (llama, tied, gpt2, gemma, cohere, mixtral, bert, t5, Own)


def trained(folder: Path, model: Any, kind: type[Trainer] = Trainer, parts: Any = None, **given: Any) -> Any:
    """Return a Trainer after four steps of three accumulated batches of rows that have different numbers of labels."""
    usual = {"gradient_accumulation_steps": 3, "per_device_train_batch_size": 2, "max_steps": 4, "optim": "sgd"}
    chosen = {"model": model, "train_dataset": sentences(24), "eval_dataset": sentences(7), **(parts or {})}
    trainer = small_trainer(folder, kind, chosen, **{**usual, "learning_rate": 0.1, **given})
    trainer.train()
    return trainer


def assert_alike(one: Any, other: Any) -> None:
    """Assert that two runs logged the same and ended with the same weights, but for rounding."""
    for name in ("loss", "grad_norm"):
        found, expected = (
            [entry[name] for entry in each.state.log_history if "loss" in entry] for each in (one, other)
        )
        assert len(found) == 4
        assert found == pytest.approx(expected, rel=2e-6)
    mine, theirs = weights(one), weights(other)
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(mine[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", MODELS)
def test_every_kind_of_model_trains_as_without(make: Any, tmp_path: Path) -> None:
    """Loss, gradients and weights are the same, also those of rows without labels that count, and of evaluations."""
    plain, chunked = trained(tmp_path / "a", make()), trained(tmp_path / "b", make(), chunked_loss=True)
    assert_alike(chunked, plain)
    assert chunked.evaluate()["eval_loss"] == pytest.approx(plain.evaluate()["eval_loss"], rel=1e-6)


@pytest.mark.parametrize(
    "given",
    [
        {"label_smoothing_factor": 0.1},
        {"loss_type": "nll"},
        {"gradient_checkpointing": True},
        {"loss_weighting": "reference"},
        {"neftune_noise_alpha": 5.0},
    ],
    ids=lambda given: next(iter(given)),
)
def test_with_other_arguments(given: dict[str, Any], tmp_path: Path) -> None:
    """What changes the loss or the forward pass does so in chunks as well."""
    assert_alike(
        trained(tmp_path / "b", llama(), chunked_loss=True, **given), trained(tmp_path / "a", llama(), **given)
    )


def test_chunked_nll_is_the_same_argument(tmp_path: Path) -> None:
    """`loss_type="chunked_nll"` is `chunked_loss=True`, bit by bit."""
    one, other = (
        trained(tmp_path / "a", llama(), chunked_loss=True),
        trained(tmp_path / "b", llama(), loss_type="chunked_nll"),
    )
    assert all(bool((weights(one)[name] == value).all()) for name, value in weights(other).items())


def packed(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return one row of all documents, with positions that start again, and labels that count within documents."""
    documents = [
        (row["input_ids"][row["attention_mask"] == 1], row["labels"][row["attention_mask"] == 1]) for row in rows
    ]
    labels = [torch.where(torch.arange(len(each)) == 0, -100, each) for _, each in documents]
    return {
        "input_ids": torch.cat([tokens for tokens, _ in documents])[None],
        "labels": torch.cat(labels)[None],
        "position_ids": torch.cat([torch.arange(len(tokens)) for tokens, _ in documents])[None],
    }


def test_packed_documents(tmp_path: Path) -> None:
    """Positions are passed on, and the labels at seams do not count."""
    parts = {"data_collator": packed}
    plain = trained(tmp_path / "a", llama(), parts=parts)
    assert_alike(trained(tmp_path / "b", llama(), parts=parts, chunked_loss=True), plain)


@pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is not installed")
@pytest.mark.parametrize(
    "given",
    [
        {"target_modules": ["q_proj"]},
        {"target_modules": ["lm_head"]},
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    ],
    ids=["base", "adapted output layer", "trained output layer"],
)
def test_adapters(given: dict[str, Any], tmp_path: Path) -> None:
    """Whether adapters are elsewhere, on the output layer, or that layer is trained as a whole."""
    import peft

    def made() -> Any:
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by an earlier name
            torch.manual_seed(5)
            return peft.get_peft_model(llama(), peft.LoraConfig(r=2, init_lora_weights=False, **given))

    assert_alike(trained(tmp_path / "b", made(), chunked_loss=True), trained(tmp_path / "a", made()))


class Watching(Trainer):
    """Notes whether logits were there, and calls the model itself."""

    pending: list[bool]

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs = model(**inputs, num_items_in_batch=num_items_in_batch)
        vars(self).setdefault("pending", []).append(isinstance(outputs.logits, PendingLogits))
        return (outputs.loss, outputs) if return_outputs else outputs.loss


def test_an_overridden_loss(tmp_path: Path) -> None:
    """A method that calls the model itself trains in chunks as well, and so does a function of outputs and labels."""
    plain = trained(tmp_path / "a", llama())
    watched = trained(tmp_path / "b", llama(), Watching, chunked_loss=True)
    assert_alike(watched, plain)
    assert all(watched.pending)

    def function(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        logits = outputs.logits[:, :-1].flatten(0, 1)
        total: Tensor = cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum")
        return Tensor.div(total, num_items_in_batch)

    parts = {"compute_loss_func": function}
    assert_alike(trained(tmp_path / "c", llama(), parts=parts, chunked_loss=True), plain)


def test_predictions_are_whole(tmp_path: Path) -> None:
    """An evaluation that needs the logits has them, and one of the loss alone never makes all of them."""
    trainer = trained(tmp_path, llama(), chunked_loss=True)
    rows = sentences(5)
    batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    with torch.no_grad():
        expected = trainer.model(**batch)
    predicted = trainer.predict(rows)
    torch.testing.assert_close(torch.tensor(predicted.predictions), expected.logits)
    loss, logits, _ = trainer.prediction_step(trainer.model, batch, prediction_loss_only=True)
    assert logits is None
    torch.testing.assert_close(loss, expected.loss)


def test_dynamic_fine_tuning(tmp_path: Path) -> None:
    """The loss that is logged is the mean of -p log p over labels, and a step follows the gradient of -sg(p) log p."""
    rows = sentences(6)
    batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    model = llama()
    labels = batch.pop("labels")[:, 1:]
    each = cross_entropy(model(**batch).logits[:, :-1].transpose(1, 2), labels, reduction="none")
    loss = (each * torch.exp(-each.detach())).sum() / (labels != -100).sum()
    torch.autograd.backward(loss)
    parts = {"train_dataset": rows}
    trainer = trained(tmp_path, llama(), parts=parts, loss_type="dft", max_steps=1, max_grad_norm=0.0)
    assert trainer.state.log_history[0]["loss"] == pytest.approx(loss.item(), rel=1e-6)
    for name, parameter in model.named_parameters():
        expected = (parameter - 0.1 * parameter.grad).detach()
        torch.testing.assert_close(weights(trainer)[name], expected, rtol=1e-5, atol=1e-6)


def test_all_logits_never_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The output layer computes no more than a chunk of positions at a time."""
    sizes: list[int] = []
    linear = torch.nn.functional.linear

    def noting(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if weight.shape[0] == WORDS:
            sizes.append(len(hidden))
        found: Tensor = linear(hidden, weight, bias)
        return found

    monkeypatch.setattr(chunked_loss, "LEAST_ROWS", 4)
    monkeypatch.setattr(chunked_loss, "LOGITS_AT_ONCE", 4 * WORDS)
    monkeypatch.setattr(torch.nn.functional, "linear", noting)
    trained(tmp_path, llama(), chunked_loss=True)
    assert sizes
    assert max(sizes) <= 24


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"chunked_loss": True, "torch_compile": True}, "the compiler cannot follow logits that are pending"),
    ({"loss_type": "chunked_nll", "use_liger_kernel": True}, "computes the loss of the models that it knows without"),
    ({"loss_type": "dft", "label_smoothing_factor": 0.1}, "each of them changes the loss of a label"),
    ({"chunked_loss": True, "reproduce": "transformers"}, "transformers computes the loss of the model"),
]


@pytest.mark.parametrize(("given", "reason"), REFUSED)
def test_combinations_that_are_refused(given: dict[str, Any], reason: str, tmp_path: Path) -> None:
    """Each message says why, and what to do."""
    with pytest.raises(ConfigurationError, match=reason):
        trained(tmp_path, llama(), **given)


def test_what_is_not_a_language_model_is_refused(tmp_path: Path) -> None:
    """So is a function that computes another loss in the place of one that is to be changed."""
    with pytest.raises(ConfigurationError, match="Net has neither get_output_embeddings"):
        small_trainer(tmp_path, parts={"model": net()}, chunked_loss=True).train()
    parts = {"compute_loss_func": lambda outputs, labels, num_items_in_batch=None: outputs.logits.sum()}
    with pytest.raises(ConfigurationError, match="compute_loss_func computes another one"):
        trained(tmp_path, llama(), parts=parts, loss_type="dft")
