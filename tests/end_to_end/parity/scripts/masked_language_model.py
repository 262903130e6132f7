"""Masked language modeling with a small RoBERTa-like model, with new masks in every epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import DataCollatorForLanguageModeling, RobertaConfig, RobertaForMaskedLM

from tests.end_to_end.parity.scripts.results import Results, train_evaluate_predict
from tests.end_to_end.parity.scripts.texts import VOCABULARY, make_tokenizer, sentences
from tests.end_to_end.small.encoders import LAYER


def main(library: Any, folder: Path, callbacks: list[Any], **options: Any) -> Results:
    tokenizer = make_tokenizer()

    def encoded(count: int, seed: int) -> Dataset:
        data = Dataset.from_dict({"text": [" ".join(text) for text in sentences(count, seed)]})
        return data.map(
            lambda rows: tokenizer(rows["text"], truncation=True, return_special_tokens_mask=True),
            batched=True,
            remove_columns=["text"],
        )

    library.set_seed(7)
    config = RobertaConfig(
        vocab_size=len(VOCABULARY),
        max_position_embeddings=40,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=3,
        **LAYER,
    )
    arguments = library.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=3,
        per_device_train_batch_size=8,
        learning_rate=1e-2,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=2,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_only_model=True,
        logging_strategy="epoch",
        prediction_loss_only=True,
        **options,
    )
    trainer = library.Trainer(
        model=RobertaForMaskedLM(config),
        args=arguments,
        train_dataset=encoded(40, seed=1),
        eval_dataset=encoded(20, seed=2),
        processing_class=tokenizer,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.3, seed=11),
        callbacks=callbacks,
    )
    return train_evaluate_predict(trainer)
