"""Fine-tunes a model for multiple choice: which of four endings continues a text."""

import logging
import os
import sys
from dataclasses import dataclass, field
from itertools import chain

import datasets
import numpy as np
import transformers
from datasets import load_dataset
from transformers import (
    AutoConfig,
    AutoModelForMultipleChoice,
    AutoTokenizer,
    DataCollatorForMultipleChoice,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

logger = logging.getLogger(__name__)


@dataclass
class ModelArguments:
    model_name_or_path: str = field(metadata={"help": "A folder or the name of a pretrained model."})
    use_fast_tokenizer: bool = field(default=True, metadata={"help": "Whether to use a tokenizer of `tokenizers`."})


@dataclass
class DataTrainingArguments:
    train_file: str = field(default=None, metadata={"help": "A json or csv file with the training data."})
    validation_file: str = field(default=None, metadata={"help": "A file with the validation data."})
    max_seq_length: int | None = field(default=None, metadata={"help": "Longer inputs are truncated."})
    pad_to_max_length: bool = field(default=False, metadata={"help": "Whether to pad to `max_seq_length` always."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "How many validation samples to use."})


def main():
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, TrainingArguments))
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

    raw_datasets = load_dataset(
        data_args.train_file.split(".")[-1],
        data_files={"train": data_args.train_file, "validation": data_args.validation_file},
    )
    config = AutoConfig.from_pretrained(model_args.model_name_or_path)
    tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path, use_fast=model_args.use_fast_tokenizer)
    model = AutoModelForMultipleChoice.from_pretrained(model_args.model_name_or_path, config=config)
    ending_names = [f"ending{i}" for i in range(4)]
    max_seq_length = min(data_args.max_seq_length or 1024, tokenizer.model_max_length)

    def preprocess_function(examples):
        first = list(chain(*[[context] * 4 for context in examples["sent1"]]))
        second = [f"{start} {examples[end][i]}" for i, start in enumerate(examples["sent2"]) for end in ending_names]
        tokenized = tokenizer(
            first,
            second,
            truncation=True,
            max_length=max_seq_length,
            padding="max_length" if data_args.pad_to_max_length else False,
        )
        return {name: [v[i : i + 4] for i in range(0, len(v), 4)] for name, v in tokenized.items()}

    with training_args.main_process_first(desc="dataset map pre-processing"):
        prepared = raw_datasets.map(preprocess_function, batched=True)
    train_dataset, eval_dataset = prepared["train"], prepared["validation"]
    if data_args.max_eval_samples is not None:
        eval_dataset = eval_dataset.select(range(min(len(eval_dataset), data_args.max_eval_samples)))

    data_collator = (
        default_data_collator
        if data_args.pad_to_max_length
        else DataCollatorForMultipleChoice(tokenizer=tokenizer, pad_to_multiple_of=8 if training_args.fp16 else None)
    )

    def compute_metrics(eval_predictions):
        predictions, label_ids = eval_predictions
        return {"accuracy": (np.argmax(predictions, axis=1) == label_ids).astype(np.float32).mean().item()}

    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=train_dataset if training_args.do_train else None,
        eval_dataset=eval_dataset if training_args.do_eval else None,
        processing_class=tokenizer,
        data_collator=data_collator,
        compute_metrics=compute_metrics,
    )

    if training_args.do_train:
        checkpoint = training_args.resume_from_checkpoint or last_checkpoint
        train_result = trainer.train(resume_from_checkpoint=checkpoint)
        trainer.save_model()
        metrics = train_result.metrics
        metrics["train_samples"] = len(train_dataset)
        trainer.log_metrics("train", metrics)
        trainer.save_metrics("train", metrics)
        trainer.save_state()

    if training_args.do_eval:
        logger.info("*** Evaluate ***")
        metrics = trainer.evaluate()
        metrics["eval_samples"] = len(eval_dataset)
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)

    kwargs = {
        "finetuned_from": model_args.model_name_or_path,
        "tasks": "multiple-choice",
        "dataset_tags": "swag",
        "dataset_args": "regular",
        "dataset": "SWAG",
        "language": "en",
    }
    if training_args.push_to_hub:
        trainer.push_to_hub(**kwargs)
    else:
        trainer.create_model_card(**kwargs)


if __name__ == "__main__":
    main()
