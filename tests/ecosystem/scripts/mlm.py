"""Trains a masked language model on local text, line by line or in blocks."""

import logging
import math
import os
import sys
from dataclasses import dataclass, field
from itertools import chain

import datasets
import transformers
from datasets import load_dataset
from transformers import (
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    AutoModelForMaskedLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

logger = logging.getLogger(__name__)
MODEL_CONFIG_CLASSES = list(MODEL_FOR_MASKED_LM_MAPPING.keys())
MODEL_TYPES = tuple(conf.model_type for conf in MODEL_CONFIG_CLASSES)


@dataclass
class ModelArguments:
    model_name_or_path: str | None = field(default=None, metadata={"help": "A pretrained model; else from scratch."})
    model_type: str | None = field(default=None, metadata={"help": "One of: " + ", ".join(MODEL_TYPES)})
    config_name: str | None = field(default=None, metadata={"help": "The configuration of a model from scratch."})
    tokenizer_name: str | None = field(default=None, metadata={"help": "A tokenizer, if it is not the model's."})


@dataclass
class DataTrainingArguments:
    train_file: str = field(default=None, metadata={"help": "A json or text file with the training data."})
    validation_file: str = field(default=None, metadata={"help": "A file with the validation data."})
    max_seq_length: int | None = field(default=None, metadata={"help": "The number of tokens of an input."})
    mlm_probability: float = field(default=0.15, metadata={"help": "The share of tokens to mask."})
    line_by_line: bool = field(default=False, metadata={"help": "Whether each line of a file is an input."})
    pad_to_max_length: bool = field(default=False, metadata={"help": "Whether to pad to `max_seq_length` always."})


def main():
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, TrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()

    logging.basicConfig(level=logging.INFO, handlers=[logging.StreamHandler(sys.stdout)])
    if training_args.should_log:
        transformers.utils.logging.set_verbosity_info()
    log_level = training_args.get_process_log_level()
    logger.setLevel(log_level)
    datasets.utils.logging.set_verbosity(log_level)
    transformers.utils.logging.set_verbosity(log_level)

    last_checkpoint = None
    if os.path.isdir(training_args.output_dir) and training_args.do_train:
        last_checkpoint = get_last_checkpoint(training_args.output_dir)
    set_seed(training_args.seed)

    raw_datasets = load_dataset(
        "json" if data_args.train_file.endswith(".json") else "text",
        data_files={"train": data_args.train_file, "validation": data_args.validation_file},
    )
    tokenizer = AutoTokenizer.from_pretrained(model_args.tokenizer_name or model_args.model_name_or_path)
    config = AutoConfig.from_pretrained(model_args.config_name or model_args.model_name_or_path)
    if model_args.model_name_or_path:
        model = AutoModelForMaskedLM.from_pretrained(model_args.model_name_or_path, config=config)
    else:
        model = AutoModelForMaskedLM.from_config(config)
    if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(len(tokenizer))

    column_names = list(raw_datasets["train"].features)
    text_column = "text" if "text" in column_names else column_names[0]
    max_seq_length = min(data_args.max_seq_length or 1024, tokenizer.model_max_length)

    def tokenize_lines(examples):
        lines = [line for line in examples[text_column] if len(line) > 0 and not line.isspace()]
        return tokenizer(
            lines,
            padding="max_length" if data_args.pad_to_max_length else False,
            truncation=True,
            max_length=max_seq_length,
            return_special_tokens_mask=True,  # so that the collator need not ask the tokenizer
        )

    def tokenize_all(examples):
        return tokenizer(examples[text_column], return_special_tokens_mask=True)

    def group_texts(examples):
        joined = {name: list(chain(*examples[name])) for name in examples}
        length = len(joined[next(iter(examples))]) // max_seq_length * max_seq_length
        return {
            name: [values[i : i + max_seq_length] for i in range(0, length, max_seq_length)]
            for name, values in joined.items()
        }

    with training_args.main_process_first(desc="dataset map tokenization"):
        tokenized = raw_datasets.map(
            tokenize_lines if data_args.line_by_line else tokenize_all, batched=True, remove_columns=column_names
        )
        if not data_args.line_by_line:
            tokenized = tokenized.map(group_texts, batched=True)

    def preprocess_logits_for_metrics(logits, labels):
        if isinstance(logits, tuple):
            logits = logits[0]
        return logits.argmax(dim=-1)

    def compute_metrics(eval_preds):
        preds, labels = eval_preds
        labels, preds = labels.reshape(-1), preds.reshape(-1)
        mask = labels != -100
        return {"accuracy": (preds[mask] == labels[mask]).mean().item()}

    fixed = data_args.line_by_line and training_args.fp16 and not data_args.pad_to_max_length
    data_collator = DataCollatorForLanguageModeling(
        tokenizer=tokenizer,
        mlm_probability=data_args.mlm_probability,
        pad_to_multiple_of=8 if fixed else None,
    )
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=tokenized["train"] if training_args.do_train else None,
        eval_dataset=tokenized["validation"] if training_args.do_eval else None,
        processing_class=tokenizer,
        data_collator=data_collator,
        compute_metrics=compute_metrics if training_args.do_eval else None,
        preprocess_logits_for_metrics=preprocess_logits_for_metrics if training_args.do_eval else None,
    )

    if training_args.do_train:
        checkpoint = training_args.resume_from_checkpoint or last_checkpoint
        train_result = trainer.train(resume_from_checkpoint=checkpoint)
        trainer.save_model()
        metrics = train_result.metrics
        metrics["train_samples"] = len(tokenized["train"])
        trainer.log_metrics("train", metrics)
        trainer.save_metrics("train", metrics)
        trainer.save_state()

    if training_args.do_eval:
        metrics = trainer.evaluate()
        metrics["eval_samples"] = len(tokenized["validation"])
        try:
            metrics["perplexity"] = math.exp(metrics["eval_loss"])
        except OverflowError:
            metrics["perplexity"] = float("inf")
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)

    kwargs = {"finetuned_from": model_args.model_name_or_path, "tasks": "fill-mask"}
    if training_args.push_to_hub:
        trainer.push_to_hub(**kwargs)
    else:
        trainer.create_model_card(**kwargs)


if __name__ == "__main__":
    main()
