"""Fine-tunes a sequence-to-sequence model for translation, and evaluates generated translations."""

import logging
import math
import os
import sys
from collections import Counter
from dataclasses import dataclass, field

import datasets
import numpy as np
import transformers
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
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

logger = logging.getLogger(__name__)


@dataclass
class ModelArguments:
    model_name_or_path: str = field(metadata={"help": "A folder or the name of a pretrained model."})


@dataclass
class DataTrainingArguments:
    source_lang: str = field(default=None, metadata={"help": "The language to translate from."})
    target_lang: str = field(default=None, metadata={"help": "The language to translate to."})
    train_file: str = field(default=None, metadata={"help": "A json file with the training data."})
    validation_file: str = field(default=None, metadata={"help": "A json file with the validation data."})
    test_file: str | None = field(default=None, metadata={"help": "A json file with the test data."})
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
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, Seq2SeqTrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()

    logging.basicConfig(level=logging.INFO, handlers=[logging.StreamHandler(sys.stdout)])
    log_level = training_args.get_process_log_level()
    logger.setLevel(log_level)
    datasets.utils.logging.set_verbosity(log_level)
    transformers.utils.logging.set_verbosity(log_level)

    last_checkpoint = None
    if os.path.isdir(training_args.output_dir) and training_args.do_train:
        last_checkpoint = get_last_checkpoint(training_args.output_dir)
    set_seed(training_args.seed)

    files = {"train": data_args.train_file, "validation": data_args.validation_file, "test": data_args.test_file}
    raw_datasets = load_dataset("json", data_files={split: file for split, file in files.items() if file is not None})
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
        rows = []
        for tokens in (preds, labels):
            known = np.where(tokens != -100, tokens, tokenizer.pad_token_id)
            rows.append([text.split() for text in tokenizer.batch_decode(known, skip_special_tokens=True)])
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
        checkpoint = training_args.resume_from_checkpoint or last_checkpoint
        train_result = trainer.train(resume_from_checkpoint=checkpoint)
        trainer.save_model()
        metrics = train_result.metrics
        metrics["train_samples"] = len(prepared["train"])
        trainer.log_metrics("train", metrics)
        trainer.save_metrics("train", metrics)
        trainer.save_state()

    results = {}
    max_length = training_args.generation_max_length or data_args.max_target_length
    if training_args.do_eval:
        logger.info("*** Evaluate ***")
        metrics = trainer.evaluate(max_length=max_length, num_beams=data_args.num_beams, metric_key_prefix="eval")
        metrics["eval_samples"] = len(prepared["validation"])
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)

    if training_args.do_predict:
        logger.info("*** Predict ***")
        predict_results = trainer.predict(
            prepared["test"], metric_key_prefix="predict", max_length=max_length, num_beams=data_args.num_beams
        )
        metrics = predict_results.metrics
        metrics["predict_samples"] = len(prepared["test"])
        trainer.log_metrics("predict", metrics)
        trainer.save_metrics("predict", metrics)
        if trainer.is_world_process_zero() and training_args.predict_with_generate:
            predictions = predict_results.predictions
            predictions = np.where(predictions != -100, predictions, tokenizer.pad_token_id)
            texts = tokenizer.batch_decode(predictions, skip_special_tokens=True)
            with open(os.path.join(training_args.output_dir, "generated_predictions.txt"), "w") as writer:
                writer.write("\n".join(text.strip() for text in texts))

    kwargs = {"finetuned_from": model_args.model_name_or_path, "tasks": "translation"}
    languages = [each for each in (data_args.source_lang, data_args.target_lang) if each is not None]
    if languages:
        kwargs["language"] = languages
    if training_args.push_to_hub:
        trainer.push_to_hub(**kwargs)
    else:
        trainer.create_model_card(**kwargs)
    return results


if __name__ == "__main__":
    main()
