"""Trains a masked language model on local text, line by line or in blocks."""

import logging
from dataclasses import dataclass, field

import official
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
)

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

    if training_args.should_log:
        transformers.utils.logging.set_verbosity_info()
    last_checkpoint = official.set_up(training_args, logger)

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
        return official.in_blocks(examples, max_seq_length)

    with training_args.main_process_first(desc="dataset map tokenization"):
        tokenized = raw_datasets.map(
            tokenize_lines if data_args.line_by_line else tokenize_all, batched=True, remove_columns=column_names
        )
        if not data_args.line_by_line:
            tokenized = tokenized.map(group_texts, batched=True)

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
        preprocess_logits_for_metrics=official.most_likely if training_args.do_eval else None,
    )

    if training_args.do_train:
        official.train(trainer, last_checkpoint, len(tokenized["train"]))

    if training_args.do_eval:
        metrics = trainer.evaluate()
        metrics["perplexity"] = official.perplexity(metrics["eval_loss"])
        official.report(trainer, "eval", metrics, len(tokenized["validation"]))

    official.publish(trainer, finetuned_from=model_args.model_name_or_path, tasks="fill-mask")


if __name__ == "__main__":
    main()
