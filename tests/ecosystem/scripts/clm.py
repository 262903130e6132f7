"""Trains a causal language model, pretrained or from scratch, on local text."""

import logging
from dataclasses import dataclass, field

import official
import torch
import transformers
from datasets import IterableDatasetDict, load_dataset
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    default_data_collator,
)
from transformers.utils.versions import require_version

require_version("datasets>=2.14.0", "pip install 'datasets>=2.14.0'")

logger = logging.getLogger(__name__)


@dataclass
class ModelArguments:
    model_name_or_path: str | None = field(default=None, metadata={"help": "A pretrained model; else from scratch."})
    model_type: str | None = field(default=None, metadata={"help": "The architecture of a model from scratch."})
    config_overrides: str | None = field(default=None, metadata={"help": "Values such as n_embd=10,scale=false."})
    tokenizer_name: str | None = field(default=None, metadata={"help": "A tokenizer, if it is not the model's."})
    dtype: str | None = field(
        default=None,
        metadata={"help": "The type of the weights.", "choices": ["auto", "bfloat16", "float16", "float32"]},
    )

    def __post_init__(self):
        if self.config_overrides is not None and self.model_name_or_path is not None:
            raise ValueError("--config_overrides is for a model from scratch")


@dataclass
class DataTrainingArguments:
    train_file: str = field(default=None, metadata={"help": "A json or text file with the training data."})
    validation_file: str = field(default=None, metadata={"help": "A file with the validation data."})
    max_train_samples: int | None = field(default=None, metadata={"help": "How many training samples to use."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "How many validation samples to use."})
    streaming: bool = field(default=False, metadata={"help": "Whether to read the data while training."})
    block_size: int | None = field(default=None, metadata={"help": "The number of tokens of an input."})
    preprocessing_num_workers: int | None = field(default=None, metadata={"help": "Processes for preprocessing."})


def main():
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, TrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    last_checkpoint = official.set_up(training_args, logger)
    transformers.utils.logging.enable_default_handler()
    transformers.utils.logging.enable_explicit_format()

    raw_datasets = load_dataset(
        "json" if data_args.train_file.endswith(".json") else "text",
        data_files={"train": data_args.train_file, "validation": data_args.validation_file},
        streaming=data_args.streaming,
    )

    tokenizer = AutoTokenizer.from_pretrained(model_args.tokenizer_name or model_args.model_name_or_path)
    if model_args.model_name_or_path:
        config = AutoConfig.from_pretrained(model_args.model_name_or_path)
        dtype = model_args.dtype if model_args.dtype in ("auto", None) else getattr(torch, model_args.dtype)
        model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path, config=config, dtype=dtype)
    else:
        config = CONFIG_MAPPING[model_args.model_type]()
        if model_args.config_overrides is not None:
            config.update_from_string(model_args.config_overrides)
        model = AutoModelForCausalLM.from_config(config)
        logger.info(f"A new model has {sum(p.numel() for p in model.parameters()):,} parameters.")
    if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(len(tokenizer))

    column_names = list(raw_datasets["train"].features or next(iter(raw_datasets["train"])))
    text_column = "text" if "text" in column_names else column_names[0]

    def tokenize_function(examples):
        return tokenizer(examples[text_column])

    block_size = min(data_args.block_size or 1024, tokenizer.model_max_length)

    def group_texts(examples):
        result = official.in_blocks(examples, block_size)
        result["labels"] = result["input_ids"].copy()
        return result

    with training_args.main_process_first(desc="preprocessing"):
        if isinstance(raw_datasets, IterableDatasetDict):
            lm_datasets = raw_datasets.map(tokenize_function, batched=True, remove_columns=column_names)
            lm_datasets = lm_datasets.map(group_texts, batched=True)
        else:
            workers = data_args.preprocessing_num_workers
            lm_datasets = raw_datasets.map(
                tokenize_function, batched=True, num_proc=workers, remove_columns=column_names, desc="Tokenizing"
            )
            lm_datasets = lm_datasets.map(
                group_texts, batched=True, num_proc=workers, desc=f"Grouping texts in chunks of {block_size}"
            )

    def limited(dataset, count):
        if count is None:
            return dataset
        return dataset.take(count) if data_args.streaming else dataset.select(range(min(len(dataset), count)))

    train_dataset = limited(lm_datasets["train"], data_args.max_train_samples) if training_args.do_train else None
    eval_dataset = limited(lm_datasets["validation"], data_args.max_eval_samples) if training_args.do_eval else None

    def compute_metrics(eval_preds):
        preds, labels = eval_preds
        labels, preds = labels[:, 1:].reshape(-1), preds[:, :-1].reshape(-1)
        return {"accuracy": (labels == preds).mean().item()}

    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        processing_class=tokenizer,
        data_collator=default_data_collator,
        compute_metrics=compute_metrics if training_args.do_eval else None,
        preprocess_logits_for_metrics=official.most_likely if training_args.do_eval else None,
    )

    if training_args.do_train:
        official.train(trainer, last_checkpoint, None if data_args.streaming else len(train_dataset))

    if training_args.do_eval:
        logger.info("*** Evaluate ***")
        metrics = trainer.evaluate()
        metrics["perplexity"] = official.perplexity(metrics["eval_loss"])
        official.report(trainer, "eval", metrics, None if data_args.streaming else len(eval_dataset))

    kwargs = {"finetuned_from": model_args.model_name_or_path, "tasks": "text-generation"}
    kwargs |= {"dataset_tags": "sentences", "dataset_args": "plain", "dataset": "sentences plain"}
    official.publish(trainer, **kwargs)


def _mp_fn(index):
    main()


if __name__ == "__main__":
    main()
