"""Fine-tunes a model for sequence classification of sentences, or pairs of sentences, from local files."""

import logging
import os
import sys
from dataclasses import dataclass, field

import numpy as np
import official
import transformers
from datasets import load_dataset
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    EvalPrediction,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

logger = logging.getLogger(__name__)


@dataclass
class DataTrainingArguments(official.FileArguments):
    max_seq_length: int = field(default=32, metadata={"help": "Longer inputs are truncated to this many tokens."})
    pad_to_max_length: bool = field(default=True, metadata={"help": "Whether to pad to `max_seq_length` always."})
    max_train_samples: int | None = field(default=None, metadata={"help": "How many training samples to use."})
    overwrite_cache: bool = field(default=False, metadata={"help": "Whether to preprocess again."})

    def __post_init__(self):
        extension = self.train_file.split(".")[-1]
        if extension not in ("csv", "json"):
            raise ValueError("`train_file` should be a csv or json file.")
        if self.validation_file.split(".")[-1] != extension:
            raise ValueError("`validation_file` should have the extension of `train_file`.")


@dataclass
class ModelArguments(official.ModelArguments):
    cache_dir: str | None = field(default=None, metadata={"help": "Where to keep downloaded models."})
    model_revision: str = field(default="main", metadata={"help": "A branch, tag or commit."})
    ignore_mismatched_sizes: bool = field(default=False, metadata={"help": "Whether a head of another size may load."})


def main():
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, TrainingArguments))
    if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
        model_args, data_args, training_args = parser.parse_json_file(json_file=os.path.abspath(sys.argv[1]))
    else:
        model_args, data_args, training_args = parser.parse_args_into_dataclasses()

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", handlers=[logging.StreamHandler()])
    if training_args.should_log:
        transformers.utils.logging.set_verbosity_info()
    official.set_log_levels(training_args, logger)
    transformers.utils.logging.enable_default_handler()
    transformers.utils.logging.enable_explicit_format()
    logger.warning(
        f"rank {training_args.local_process_index}, device {training_args.device}, n_gpu {training_args.n_gpu}, "
        f"distributed {training_args.parallel_mode.value == 'distributed'}, fp16 {training_args.fp16}"
    )
    logger.info(f"arguments: {training_args}")

    last_checkpoint = official.last_checkpoint(training_args)
    if last_checkpoint is not None and training_args.resume_from_checkpoint is None:
        logger.info(f"The training resumes from {last_checkpoint}.")
    set_seed(training_args.seed)

    files = {"train": data_args.train_file, "validation": data_args.validation_file}
    if training_args.do_predict:
        files["test"] = data_args.test_file
    raw_datasets = load_dataset(
        "csv" if data_args.train_file.endswith(".csv") else "json", data_files=files, cache_dir=model_args.cache_dir
    )
    is_regression = raw_datasets["train"].features["label"].dtype in ("float32", "float64")
    label_list = [] if is_regression else sorted(raw_datasets["train"].unique("label"))
    num_labels = 1 if is_regression else len(label_list)

    config = AutoConfig.from_pretrained(
        model_args.model_name_or_path,
        num_labels=num_labels,
        finetuning_task="glue",
        cache_dir=model_args.cache_dir,
        revision=model_args.model_revision,
    )
    tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path, cache_dir=model_args.cache_dir)
    model = AutoModelForSequenceClassification.from_pretrained(
        model_args.model_name_or_path,
        config=config,
        cache_dir=model_args.cache_dir,
        revision=model_args.model_revision,
        ignore_mismatched_sizes=model_args.ignore_mismatched_sizes,
    )

    columns = [name for name in raw_datasets["train"].column_names if name != "label"]
    first, second = (columns[0], columns[1] if len(columns) > 1 else None)
    padding = "max_length" if data_args.pad_to_max_length else False
    label_to_id = None if is_regression else {label: i for i, label in enumerate(label_list)}
    if label_to_id is not None:
        model.config.label2id = {str(label): i for label, i in label_to_id.items()}
        model.config.id2label = {i: str(label) for label, i in label_to_id.items()}
    max_seq_length = min(data_args.max_seq_length, tokenizer.model_max_length)

    def preprocess_function(examples):
        texts = (examples[first],) if second is None else (examples[first], examples[second])
        result = tokenizer(*texts, padding=padding, max_length=max_seq_length, truncation=True)
        if label_to_id is not None and "label" in examples:
            result["label"] = [label_to_id.get(label, -1) for label in examples["label"]]
        return result

    with training_args.main_process_first(desc="dataset map pre-processing"):
        raw_datasets = raw_datasets.map(
            preprocess_function,
            batched=True,
            load_from_cache_file=not data_args.overwrite_cache,
            desc="Running tokenizer on dataset",
        )
    train_dataset, eval_dataset = raw_datasets["train"], raw_datasets["validation"]
    if training_args.do_train and data_args.max_train_samples is not None:
        train_dataset = train_dataset.select(range(min(len(train_dataset), data_args.max_train_samples)))

    def compute_metrics(p: EvalPrediction):
        preds = p.predictions[0] if isinstance(p.predictions, tuple) else p.predictions
        preds = np.squeeze(preds) if is_regression else np.argmax(preds, axis=1)
        if is_regression:
            return {"mse": ((preds - p.label_ids) ** 2).mean().item()}
        result = {"accuracy": (preds == p.label_ids).astype(np.float32).mean().item()}
        true = float(((preds == 1) & (p.label_ids == 1)).sum())
        wrong = float((preds != p.label_ids).sum())
        result["f1"] = 2 * true / (2 * true + wrong) if true else 0.0
        result["combined_score"] = np.mean(list(result.values())).item()
        return result

    if data_args.pad_to_max_length:
        data_collator = default_data_collator
    elif training_args.fp16:
        data_collator = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8)
    else:
        data_collator = None

    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=train_dataset if training_args.do_train else None,
        eval_dataset=eval_dataset if training_args.do_eval else None,
        compute_metrics=compute_metrics,
        processing_class=tokenizer,
        data_collator=data_collator,
    )

    if training_args.do_train:
        official.train(trainer, last_checkpoint, len(train_dataset))

    if training_args.do_eval:
        logger.info("*** Evaluate ***")
        official.report(trainer, "eval", trainer.evaluate(eval_dataset=eval_dataset), len(eval_dataset))

    if training_args.do_predict:
        logger.info("*** Predict ***")
        predict_dataset = raw_datasets["test"].remove_columns("label")
        predictions = trainer.predict(predict_dataset, metric_key_prefix="predict").predictions
        predictions = np.squeeze(predictions) if is_regression else np.argmax(predictions, axis=1)
        output_predict_file = os.path.join(training_args.output_dir, "predict_results.txt")
        if trainer.is_world_process_zero():
            with open(output_predict_file, "w") as writer:
                writer.write("index\tprediction\n")
                for index, item in enumerate(predictions):
                    writer.write(f"{index}\t{item:3.3f}\n" if is_regression else f"{index}\t{label_list[item]}\n")

    official.publish(trainer, finetuned_from=model_args.model_name_or_path, tasks="text-classification", language="en")


def _mp_fn(index):
    main()


if __name__ == "__main__":
    main()
