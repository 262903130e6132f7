"""Fine-tunes a model for multiple choice: which of four endings continues a text."""

import logging
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import official
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
)

logger = logging.getLogger(__name__)


@dataclass
class ModelArguments(official.ModelArguments):
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
    last_checkpoint = official.set_up(training_args, logger)

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
        official.train(trainer, last_checkpoint, len(train_dataset))

    if training_args.do_eval:
        logger.info("*** Evaluate ***")
        official.report(trainer, "eval", trainer.evaluate(), len(eval_dataset))

    kwargs = {
        "finetuned_from": model_args.model_name_or_path,
        "tasks": "multiple-choice",
        "dataset_tags": "swag",
        "dataset_args": "regular",
        "dataset": "SWAG",
        "language": "en",
    }
    official.publish(trainer, **kwargs)


if __name__ == "__main__":
    main()
