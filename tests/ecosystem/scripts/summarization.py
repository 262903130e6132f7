"""Fine-tunes a sequence-to-sequence model for summarization, and evaluates generated summaries."""

import logging
import os
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import official
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
)

logger = logging.getLogger(__name__)


@dataclass
class ModelArguments(official.ModelArguments):
    resize_position_embeddings: bool | None = field(default=None, metadata={"help": "Whether to resize if needed."})


@dataclass
class DataTrainingArguments(official.FileArguments):
    text_column: str | None = field(default=None, metadata={"help": "The column with the texts."})
    summary_column: str | None = field(default=None, metadata={"help": "The column with the summaries."})
    max_source_length: int = field(default=40, metadata={"help": "Longer texts are truncated."})
    max_target_length: int = field(default=16, metadata={"help": "Longer summaries are truncated."})
    val_max_target_length: int | None = field(default=None, metadata={"help": "That of evaluation and prediction."})
    pad_to_max_length: bool = field(default=False, metadata={"help": "Whether to pad to the maxima always."})
    num_beams: int | None = field(default=None, metadata={"help": "The number of beams of generation."})
    source_prefix: str = field(default="", metadata={"help": "What each text starts with."})
    ignore_pad_token_for_loss: bool = field(default=True, metadata={"help": "Whether padding has no loss."})

    def __post_init__(self):
        if self.val_max_target_length is None:
            self.val_max_target_length = self.max_target_length


def overlap(found, wanted):
    """Return the F1 score of common words."""
    common = sum((Counter(found) & Counter(wanted)).values())
    return 2 * common / max(1, len(found) + len(wanted))


def main():
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, Seq2SeqTrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    last_checkpoint = official.set_up(training_args, logger)
    transformers.utils.logging.enable_default_handler()
    transformers.utils.logging.enable_explicit_format()
    logger.info(f"arguments: {training_args}")

    raw_datasets = load_dataset(data_args.train_file.split(".")[-1], data_files=data_args.files())
    config = AutoConfig.from_pretrained(model_args.model_name_or_path)
    tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(model_args.model_name_or_path, config=config)
    if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(len(tokenizer))
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is not None and positions < data_args.max_source_length:
        if model_args.resize_position_embeddings is False:
            raise ValueError(f"`max_source_length` is {data_args.max_source_length}, the model has {positions}.")
        model.resize_position_embeddings(data_args.max_source_length)
    if training_args.label_smoothing_factor > 0 and not hasattr(model, "prepare_decoder_input_ids_from_labels"):
        logger.warning("Label smoothing is on, but the model has no prepare_decoder_input_ids_from_labels.")

    column_names = raw_datasets["train"].column_names
    text_column = data_args.text_column or column_names[0]
    summary_column = data_args.summary_column or column_names[1]
    padding = "max_length" if data_args.pad_to_max_length else False

    def preprocess(examples, max_target_length):
        inputs, targets = [], []
        for text, summary in zip(examples[text_column], examples[summary_column], strict=True):
            if text and summary:
                inputs.append(data_args.source_prefix + text)
                targets.append(summary)
        model_inputs = tokenizer(inputs, max_length=data_args.max_source_length, padding=padding, truncation=True)
        labels = tokenizer(text_target=targets, max_length=max_target_length, padding=padding, truncation=True)
        if padding == "max_length" and data_args.ignore_pad_token_for_loss:
            pad = tokenizer.pad_token_id
            labels["input_ids"] = [[-100 if token == pad else token for token in row] for row in labels["input_ids"]]
        model_inputs["labels"] = labels["input_ids"]
        return model_inputs

    prepared = {}
    for split, dataset in raw_datasets.items():
        length = data_args.max_target_length if split == "train" else data_args.val_max_target_length
        with training_args.main_process_first(desc=f"{split} dataset map pre-processing"):
            prepared[split] = dataset.map(
                preprocess, batched=True, remove_columns=column_names, fn_kwargs={"max_target_length": length}
            )

    data_collator = DataCollatorForSeq2Seq(
        tokenizer,
        model=model,
        label_pad_token_id=-100 if data_args.ignore_pad_token_for_loss else tokenizer.pad_token_id,
        pad_to_multiple_of=8 if training_args.fp16 else None,
    )

    def compute_metrics(eval_preds):
        preds, labels = eval_preds
        preds = preds[0] if isinstance(preds, tuple) else preds
        rows = [[text.strip().split() for text in official.decoded(tokenizer, each)] for each in (preds, labels)]
        result = {"rouge1": round(100 * float(np.mean([overlap(*pair) for pair in zip(*rows, strict=True)])), 4)}
        result["gen_len"] = float(np.mean([np.count_nonzero(pred != tokenizer.pad_token_id) for pred in preds]))
        return result

    # The options of generation that evaluation during training uses.
    training_args.generation_max_length = (
        training_args.generation_max_length
        if training_args.generation_max_length is not None
        else data_args.val_max_target_length
    )
    training_args.generation_num_beams = (
        data_args.num_beams if data_args.num_beams is not None else training_args.generation_num_beams
    )
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

    if training_args.do_eval:
        logger.info("*** Evaluate ***")
        if isinstance(prepared["validation"], dict):
            metrics = {}
            for name, dataset in prepared["validation"].items():
                metrics.update(trainer.evaluate(eval_dataset=dataset, metric_key_prefix=f"eval_{name}"))
        else:
            metrics = trainer.evaluate(metric_key_prefix="eval")
        official.report(trainer, "eval", metrics, len(prepared["validation"]))

    if training_args.do_predict:
        logger.info("*** Predict ***")
        predict_results = trainer.predict(prepared["test"], metric_key_prefix="predict")
        metrics = predict_results.metrics
        official.report(trainer, "predict", metrics, len(prepared["test"]))
        if trainer.is_world_process_zero() and training_args.predict_with_generate:
            texts = official.decoded(tokenizer, predict_results.predictions, clean_up_tokenization_spaces=True)
            with open(os.path.join(training_args.output_dir, "generated_predictions.txt"), "w") as writer:
                writer.write("\n".join(text.strip() for text in texts))

    official.publish(
        trainer, finetuned_from=model_args.model_name_or_path, tasks="summarization", dataset_tags="sentences"
    )
    return metrics


if __name__ == "__main__":
    main()
