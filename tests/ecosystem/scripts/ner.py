"""Fine-tunes a model for token classification, such as the recognition of names, from local files."""

import logging
import os
import sys
from dataclasses import dataclass, field

import numpy as np
import official
from datasets import ClassLabel, load_dataset
from transformers import (
    AutoConfig,
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    HfArgumentParser,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

logger = logging.getLogger(__name__)


@dataclass
class ModelArguments(official.ModelArguments):
    config_name: str | None = field(default=None, metadata={"help": "A configuration, if it is not the model's."})
    tokenizer_name: str | None = field(default=None, metadata={"help": "A tokenizer, if it is not the model's."})


@dataclass
class DataTrainingArguments(official.FileArguments):
    text_column_name: str | None = field(default=None, metadata={"help": "The column with the words."})
    label_column_name: str | None = field(default=None, metadata={"help": "The column with a label for each word."})
    preprocessing_num_workers: int | None = field(default=None, metadata={"help": "Processes for preprocessing."})
    max_seq_length: int | None = field(default=None, metadata={"help": "Longer inputs are truncated."})
    pad_to_max_length: bool = field(default=False, metadata={"help": "Whether to pad to `max_seq_length` always."})
    label_all_tokens: bool = field(default=False, metadata={"help": "Whether all tokens of a word have its label."})
    return_entity_level_metrics: bool = field(default=False, metadata={"help": "Whether to report each kind."})


def scores(predicted, expected):
    """Return precision, recall and F1 of the positions that are not "O"."""
    pairs = [each for one, other in zip(predicted, expected, strict=True) for each in zip(one, other, strict=True)]
    right = sum(one == other != "O" for one, other in pairs)
    precision = right / max(1, sum(one != "O" for one, _ in pairs))
    recall = right / max(1, sum(other != "O" for _, other in pairs))
    accuracy = sum(one == other for one, other in pairs) / len(pairs)
    f1 = 2 * precision * recall / (precision + recall) if right else 0.0
    return {"precision": precision, "recall": recall, "f1": f1, "accuracy": accuracy}


def main():
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, TrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()

    logging.basicConfig(level=logging.INFO, handlers=[logging.StreamHandler(sys.stdout)])
    official.set_log_levels(training_args, logger)
    logger.info(f"arguments: {training_args}")

    last_checkpoint = get_last_checkpoint(training_args.output_dir) if os.path.isdir(training_args.output_dir) else None
    set_seed(training_args.seed)

    raw_datasets = load_dataset("json", data_files=data_args.files())
    column_names, features = raw_datasets["train"].column_names, raw_datasets["train"].features
    text_column = data_args.text_column_name or ("tokens" if "tokens" in column_names else column_names[0])
    label_column = data_args.label_column_name or ("ner_tags" if "ner_tags" in column_names else column_names[1])
    if isinstance(features[label_column].feature, ClassLabel):
        label_list = features[label_column].feature.names
    else:
        label_list = sorted({label for labels in raw_datasets["train"][label_column] for label in labels})
    label_to_id = {label: i for i, label in enumerate(label_list)}

    config = AutoConfig.from_pretrained(
        model_args.config_name or model_args.model_name_or_path, num_labels=len(label_list), finetuning_task="ner"
    )
    tokenizer = AutoTokenizer.from_pretrained(model_args.tokenizer_name or model_args.model_name_or_path, use_fast=True)
    model = AutoModelForTokenClassification.from_pretrained(model_args.model_name_or_path, config=config)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ValueError("This script needs a fast tokenizer, which knows to which word a token belongs.")
    model.config.label2id = label_to_id
    model.config.id2label = dict(enumerate(label_list))
    # The inner part of an entity has the label of its beginning, if there is no other.
    inner = [label_to_id.get(label.replace("B-", "I-"), i) for i, label in enumerate(label_list)]
    padding = "max_length" if data_args.pad_to_max_length else False

    def tokenize_and_align_labels(examples):
        tokenized = tokenizer(
            examples[text_column],
            padding=padding,
            truncation=True,
            max_length=data_args.max_seq_length,
            is_split_into_words=True,
        )
        labels = []
        for i, words in enumerate(examples[label_column]):
            previous, label_ids = None, []
            for word in tokenized.word_ids(batch_index=i):
                if word is None:
                    label_ids.append(-100)
                elif word != previous:
                    label_ids.append(label_to_id[words[word]])
                else:
                    label_ids.append(inner[label_to_id[words[word]]] if data_args.label_all_tokens else -100)
                previous = word
            labels.append(label_ids)
        tokenized["labels"] = labels
        return tokenized

    prepared = {}
    for split, dataset in raw_datasets.items():
        with training_args.main_process_first(desc=f"{split} dataset map pre-processing"):
            prepared[split] = dataset.map(
                tokenize_and_align_labels,
                batched=True,
                num_proc=data_args.preprocessing_num_workers,
                desc=f"Running tokenizer on {split} dataset",
            )

    data_collator = DataCollatorForTokenClassification(
        tokenizer, pad_to_multiple_of=8 if training_args.fp16 or training_args.bf16 else None
    )

    def compute_metrics(p):
        predictions, labels = p
        predictions = np.argmax(predictions, axis=2)
        rows = [(row, wanted, wanted != -100) for row, wanted in zip(predictions, labels, strict=True)]
        predicted = [[label_list[i] for i in row[kept]] for row, _, kept in rows]
        expected = [[label_list[i] for i in wanted[kept]] for _, wanted, kept in rows]
        results = scores(predicted, expected)
        if data_args.return_entity_level_metrics:
            for kind in label_list[:-1]:
                only = [
                    [[each if each == kind else "O" for each in row] for row in rows] for rows in (predicted, expected)
                ]
                results |= {f"{kind}_{name}": value for name, value in scores(*only).items()}
        return results

    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=prepared["train"] if training_args.do_train else None,
        eval_dataset=prepared["validation"] if training_args.do_eval else None,
        processing_class=tokenizer,
        data_collator=data_collator,
        compute_metrics=compute_metrics,
    )

    if training_args.do_train:
        official.train(trainer, last_checkpoint, len(prepared["train"]))

    if training_args.do_eval:
        official.report(trainer, "eval", trainer.evaluate(), len(prepared["validation"]))

    if training_args.do_predict:
        predictions, labels, metrics = trainer.predict(prepared["test"], metric_key_prefix="predict")
        predictions = np.argmax(predictions, axis=2)
        official.report(trainer, "predict", metrics)
        if trainer.is_world_process_zero():
            with open(os.path.join(training_args.output_dir, "predictions.txt"), "w") as writer:
                for row, wanted in zip(predictions, labels, strict=True):
                    writer.write(" ".join(label_list[i] for i in row[wanted != -100]) + "\n")

    official.publish(trainer, finetuned_from=model_args.model_name_or_path, tasks="token-classification")


if __name__ == "__main__":
    main()
