"""NEFTune: noise on the input embeddings during training only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback
from transformers import Trainer as ReferenceTrainer
from transformers import TrainingArguments as ReferenceArguments

from hexloop.domain.errors import ConfigurationError
from tests.end_to_end.small.trainers import DEFAULTS, history, same_weights, small_trainer, weights

ALPHA = 5.0


class Seeding(TrainerCallback):
    """Reseeds torch at each step, so that both libraries draw the same numbers."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        torch.manual_seed(state.global_step)


def gpt() -> GPT2LMHeadModel:
    torch.manual_seed(3)
    config = GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2, resid_pdrop=0, embd_pdrop=0)
    return GPT2LMHeadModel(config)


def sentences(count: int = 8) -> list[dict[str, Any]]:
    source = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 11, (count, 6), generator=source)
    return [{"input_ids": one, "labels": one} for one in tokens]


def noisy(folder: Path, alpha: float | None = ALPHA, **given: Any) -> Any:
    parts = {"model": gpt(), "train_dataset": sentences(), "eval_dataset": sentences(4)}
    return small_trainer(folder, parts=parts, neftune_noise_alpha=alpha, **given)


def test_noise_changes_the_training(tmp_path: Path) -> None:
    """The embeddings differ from those without noise."""
    with_noise, without = noisy(tmp_path), noisy(tmp_path, None)
    with_noise.train()
    without.train()

    assert not same_weights(weights(with_noise), weights(without))


def test_noise_is_within_its_bound(tmp_path: Path) -> None:
    """The noise is uniform within alpha / sqrt(length * size)."""
    trainer, seen = noisy(tmp_path), []
    embeddings = trainer.model.get_input_embeddings()

    class Seeing(type(trainer.model.transformer.drop)):  # type: ignore[misc]
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            seen.append(hidden.detach().clone())
            return hidden

    clean: list[torch.Tensor] = []
    embeddings.register_forward_hook(lambda _module, _inputs, output: clean.append(output.detach().clone()))
    trainer.model.transformer.drop = Seeing()
    trainer.model.transformer.wpe.weight.data.zero_()
    trainer.model.transformer.wpe.weight.requires_grad_(False)
    trainer.train()

    noise = torch.stack(seen) - torch.stack(clean)
    bound = ALPHA / (6 * 8) ** 0.5
    assert noise.abs().max() <= bound * 1.001
    assert noise.abs().max() > 0.95 * bound
    assert len(set(noise.flatten().tolist())) > 0.9 * noise.numel()


def test_noise_matches_transformers(tmp_path: Path) -> None:
    """With the same random numbers the losses are equal."""
    common: dict[str, Any] = {"max_grad_norm": 0.0, "train_sampling_strategy": "sequential"}
    ours = noisy(tmp_path, loss_weighting="reference", **common)
    args = ReferenceArguments(str(tmp_path), neftune_noise_alpha=ALPHA, **common, **DEFAULTS)
    theirs = ReferenceTrainer(model=gpt(), args=args, train_dataset=sentences())
    for trainer in (ours, theirs):
        trainer.add_callback(Seeding())
        trainer.train()

    told, expected = ([entry["loss"] for entry in each.state.log_history if "loss" in entry] for each in (ours, theirs))
    assert told == pytest.approx(expected, rel=1e-5)


def test_evaluation_has_no_noise(tmp_path: Path) -> None:
    """Neither during training nor afterwards."""
    within = noisy(tmp_path, eval_strategy="epoch")
    within.train()
    logged = next(entry["eval_loss"] for entry in within.state.log_history if "eval_loss" in entry)

    assert within.evaluate()["eval_loss"] == logged


def test_noise_ends_with_the_run(tmp_path: Path) -> None:
    """However the run ends, the model's forward is restored, and nothing else has changed."""
    finished, cut_short = noisy(tmp_path), noisy(tmp_path)
    finished.train()
    events = cut_short.stream()
    next(events)
    events.close()

    for trainer in (finished, cut_short):
        embeddings, tokens = trainer.model.get_input_embeddings().train(), torch.arange(6)[None]
        assert torch.equal(embeddings(tokens), embeddings.weight[tokens])
        assert vars(embeddings).keys() == vars(gpt().get_input_embeddings()).keys()


def test_saved_models_do_not_contain_the_noise(tmp_path: Path) -> None:
    """A saved model contains only the weights."""
    trainer = noisy(tmp_path)
    trainer.train()
    trainer.save_model(str(tmp_path / "model"))
    plain = {name for name, _ in gpt().named_parameters()}

    assert set(load_file(tmp_path / "model" / "model.safetensors")) <= plain
    reloaded = GPT2LMHeadModel.from_pretrained(tmp_path / "model")
    assert torch.equal(reloaded.transformer.wte.weight, trainer.model.transformer.wte.weight)


def test_a_resumed_run_draws_the_same_noise(tmp_path: Path) -> None:
    """Weights and logs are bitwise equal to those of an uninterrupted run."""
    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1, "num_train_epochs": 2}
    whole = noisy(tmp_path, **saving)
    whole.train()
    again = noisy(tmp_path, **saving)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))

    assert same_weights(weights(again), weights(whole))
    assert history(again) == history(whole)


def test_a_model_without_input_embeddings_is_refused(tmp_path: Path) -> None:
    """The error names the method that it must define."""
    with pytest.raises(ConfigurationError, match="get_input_embeddings"):
        small_trainer(tmp_path, neftune_noise_alpha=ALPHA).train()
