"""Fine-tunes a sequence-to-sequence model for translation, and evaluates generated translations."""

import logging
import math
import os
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import official
from datasets import load_dataset
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    HfArgumentParser,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    default_data_collator,
)

logger = logging.getLogger(__name__)


@dataclass
class DataTrainingArguments(official.FileArguments):
    source_lang: str = field(default=None, metadata={"help": "The language to translate from."})
    target_lang: str = field(default=None, metadata={"help": "The language to translate to."})
    max_source_length: int = field(default=24, metadata={"help": "Longer texts are truncated."})
    max_target_length: int = field(default=24, metadata={"help": "Longer translations are truncated."})
    pad_to_max_length: bool = field(default=False, metadata={"help": "Whether to pad to the maxima always."})
    num_beams: int = field(default=1, metadata={"help": "The number of beams of generation."})
    ignore_pad_token_for_loss: bool = field(default=True, metadata={"help": "Whether padding has no loss."})

    def __post_init__(self):
        if self.source_lang is None or self.target_lang is None:
            raise ValueError("Need to specify the source language and the target language.")


def bleu(found, wanted, most=2):
    """Return BLEU of texts, of n-grams up to `most` words."""
    logs = []
    for n in range(1, most + 1):
        common = total = 0
        for one, other in zip(found, wanted, strict=True):
            grams = [Counter(zip(*(text[i:] for i in range(n)), strict=False)) for text in (one, other)]
            common += sum((grams[0] & grams[1]).values())
            total += sum(grams[0].values())
        if common == 0:
            return 0.0
        logs.append(math.log(common / total))
    lengths = sum(map(len, found)), sum(map(len, wanted))
    brevity = min(0.0, 1 - lengths[1] / lengths[0])
    return 100 * math.exp(brevity + sum(logs) / most)


def main():
    parser = HfArgumentParser((official.ModelArguments, DataTrainingArguments, Seq2SeqTrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    last_checkpoint = official.set_up(training_args, logger)

    raw_datasets = load_dataset("json", data_files=data_args.files())
    config = AutoConfig.from_pretrained(model_args.model_name_or_path)
    tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(model_args.model_name_or_path, config=config)
    source_lang, target_lang = data_args.source_lang.split("_")[0], data_args.target_lang.split("_")[0]
    padding = "max_length" if data_args.pad_to_max_length else False

    def preprocess_function(examples):
        inputs = [each[source_lang] for each in examples["translation"]]
        targets = [each[target_lang] for each in examples["translation"]]
        model_inputs = tokenizer(inputs, max_length=data_args.max_source_length, padding=padding, truncation=True)
        labels = tokenizer(
            text_target=targets, max_length=data_args.max_target_length, padding=padding, truncation=True
        )
        if padding == "max_length" and data_args.ignore_pad_token_for_loss:
            pad = tokenizer.pad_token_id
            labels["input_ids"] = [[-100 if token == pad else token for token in row] for row in labels["input_ids"]]
        model_inputs["labels"] = labels["input_ids"]
        return model_inputs

    with training_args.main_process_first(desc="dataset map pre-processing"):
        prepared = raw_datasets.map(
            preprocess_function, batched=True, remove_columns=raw_datasets["train"].column_names
        )

    label_pad_token_id = -100 if data_args.ignore_pad_token_for_loss else tokenizer.pad_token_id
    if data_args.pad_to_max_length:
        data_collator = default_data_collator
    else:
        data_collator = DataCollatorForSeq2Seq(
            tokenizer,
            model=model,
            label_pad_token_id=label_pad_token_id,
            pad_to_multiple_of=8 if training_args.fp16 else None,
        )

    def compute_metrics(eval_preds):
        preds, labels = eval_preds
        if isinstance(preds, tuple):
            preds = preds[0]
        rows = [[text.split() for text in official.decoded(tokenizer, each)] for each in (preds, labels)]
        prediction_lens = [np.count_nonzero(pred != tokenizer.pad_token_id) for pred in preds]
        return {"bleu": round(bleu(*rows), 4), "gen_len": round(float(np.mean(prediction_lens)), 4)}

    trainer = Seq2SeqTrainer(
        model=model,
        args=training_args,
        train_dataset=prepared["train"] if training_args.do_train else None,
        eval_dataset=prepared["validation"] if training_args.do_eval else None,
        processing_class=tokenizer,
        data_collator=data_collator,
        compute_metrics=compute_metrics if training_args.predict_with_generate else None,
    )

    if training_args.do_train:
        official.train(trainer, last_checkpoint, len(prepared["train"]))

    results = {}
    max_length = training_args.generation_max_length or data_args.max_target_length
    if training_args.do_eval:
        logger.info("*** Evaluate ***")
        metrics = trainer.evaluate(max_length=max_length, num_beams=data_args.num_beams, metric_key_prefix="eval")
        official.report(trainer, "eval", metrics, len(prepared["validation"]))

    if training_args.do_predict:
        logger.info("*** Predict ***")
        predict_results = trainer.predict(
            prepared["test"], metric_key_prefix="predict", max_length=max_length, num_beams=data_args.num_beams
        )
        metrics = predict_results.metrics
        official.report(trainer, "predict", metrics, len(prepared["test"]))
        if trainer.is_world_process_zero() and training_args.predict_with_generate:
            texts = official.decoded(tokenizer, predict_results.predictions)
            with open(os.path.join(training_args.output_dir, "generated_predictions.txt"), "w") as writer:
                writer.write("\n".join(text.strip() for text in texts))

    kwargs = {"finetuned_from": model_args.model_name_or_path, "tasks": "translation"}
    languages = [each for each in (data_args.source_lang, data_args.target_lang) if each is not None]
    if languages:
        kwargs["language"] = languages
    official.publish(trainer, **kwargs)
    return results


if __name__ == "__main__":
    main()
