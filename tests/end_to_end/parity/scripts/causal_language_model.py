"""A small GPT-2 on blocks of text, with next-token accuracy and perplexity."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, default_data_collator

from tests.end_to_end.parity.scripts.results import Results, train_evaluate_predict
from tests.end_to_end.parity.scripts.texts import VOCABULARY, make_tokenizer, sentences

BLOCK = 16


def main(library: Any, folder: Path, callbacks: list[Any], **options: Any) -> Results:
    tokenizer = make_tokenizer()

    def blocks(count: int, seed: int) -> Dataset:
        ids = [token for text in sentences(count, seed) for token in tokenizer(" ".join(text))["input_ids"]]
        rows = [ids[start : start + BLOCK] for start in range(0, len(ids) - BLOCK, BLOCK)]
        return Dataset.from_dict({"input_ids": rows, "labels": rows, "attention_mask": [[1] * BLOCK] * len(rows)})

    def compute_metrics(prediction: Any) -> dict[str, float]:
        labels, chosen = prediction.label_ids[:, 1:].reshape(-1), prediction.predictions[:, :-1].reshape(-1)
        return {"accuracy": float((chosen == labels).mean())}

    library.set_seed(7)
    config = GPT2Config(
        vocab_size=len(VOCABULARY),
        n_positions=BLOCK,
        n_embd=16,
        n_layer=1,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=2,
        eos_token_id=3,
    )
    arguments = library.TrainingArguments(
        output_dir=str(folder),
        max_steps=14,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=8,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        lr_scheduler_type="cosine",
        warmup_steps=0.2,
        max_grad_norm=0.5,
        eval_strategy="steps",
        eval_steps=5,
        save_steps=5,
        logging_steps=1,
        include_num_input_tokens_seen="all",
        **options,
    )
    trainer = library.Trainer(
        model=GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=blocks(70, seed=1),
        eval_dataset=blocks(30, seed=2),
        processing_class=tokenizer,
        data_collator=default_data_collator,
        compute_metrics=compute_metrics,
        preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(dim=-1),
        callbacks=callbacks,
    )
    results = train_evaluate_predict(trainer)
    results.measured["eval"]["perplexity"] = math.exp(results.measured["eval"]["eval_loss"])
    trainer.save_metrics("eval", results.measured["eval"])
    return results
