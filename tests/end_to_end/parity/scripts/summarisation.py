"""Extracts the positive words of a sentence with an encoder-decoder, evaluated on generated text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import DataCollatorForSeq2Seq, T5Config, T5ForConditionalGeneration

from tests.end_to_end.parity.scripts.results import Results, train_evaluate_predict
from tests.end_to_end.parity.scripts.texts import BAD, GOOD, OTHER, VOCABULARY, make_tokenizer, sentences

IGNORED = -100


def main(library: Any, folder: Path, callbacks: list[Any], **options: Any) -> Results:
    tokenizer = make_tokenizer()

    def encoded(count: int, seed: int) -> Dataset:
        texts = sentences(count, seed, (*GOOD, *BAD, *OTHER[:4]))
        praise = [" ".join(word for word in text if word in GOOD) for text in texts]

        def tokens(rows: dict[str, Any]) -> Any:
            inputs = tokenizer(rows["document"], max_length=16, truncation=True)
            inputs["labels"] = tokenizer(text_target=rows["summary"], max_length=8, truncation=True)["input_ids"]
            return inputs

        data = Dataset.from_dict({"document": [" ".join(text) for text in texts], "summary": praise})
        return data.map(tokens, batched=True, remove_columns=["document", "summary"])

    def compute_metrics(prediction: Any) -> dict[str, float]:
        generated, labels = (
            tokenizer.batch_decode(np.where(ids == IGNORED, 0, ids), skip_special_tokens=True)
            for ids in (prediction.predictions, prediction.label_ids)
        )
        common = [len(set(one.split()) & set(other.split())) for one, other in zip(generated, labels, strict=True)]
        wanted = [max(1, len(set(text.split()))) for text in labels]
        return {
            "overlap": float(np.mean([found / of for found, of in zip(common, wanted, strict=True)])),
            "gen_len": float(np.mean([np.count_nonzero(ids != 0) for ids in prediction.predictions])),
        }

    library.set_seed(7)
    config = T5Config(
        vocab_size=len(VOCABULARY),
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_heads=2,
        dropout_rate=0.0,
        pad_token_id=0,
        eos_token_id=3,
        decoder_start_token_id=0,  # type: ignore[call-arg]  # accepted, but not declared
    )
    model = T5ForConditionalGeneration(config)
    arguments = library.Seq2SeqTrainingArguments(
        output_dir=str(folder),
        num_train_epochs=3,
        per_device_train_batch_size=6,
        per_device_eval_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=2e-2,
        label_smoothing_factor=0.1,
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_steps=2,
        predict_with_generate=True,
        generation_max_length=8,
        generation_num_beams=2,
        **options,
    )
    trainer = library.Seq2SeqTrainer(
        model=model,
        args=arguments,
        train_dataset=encoded(36, seed=1),
        eval_dataset=encoded(12, seed=2),  # full batches: transformers weights a smaller last one as if it were full
        processing_class=tokenizer,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model, label_pad_token_id=IGNORED, pad_to_multiple_of=4),
        compute_metrics=compute_metrics,
        callbacks=callbacks,
    )
    return train_evaluate_predict(trainer, encoded(8, seed=3))
