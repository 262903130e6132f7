"""Fine-tunes a model for extractive question answering, with a Trainer that turns logits into texts."""

import collections
import json
import logging
import os
from dataclasses import dataclass, field

import numpy as np
import official
from datasets import load_dataset
from transformers import (
    AutoConfig,
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    DataCollatorWithPadding,
    EvalPrediction,
    HfArgumentParser,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    default_data_collator,
)
from transformers.trainer_utils import PredictionOutput

logger = logging.getLogger(__name__)


@dataclass
class DataTrainingArguments(official.FileArguments):
    max_seq_length: int = field(default=24, metadata={"help": "Longer contexts become several inputs."})
    doc_stride: int = field(default=8, metadata={"help": "The tokens that the inputs of a context share."})
    pad_to_max_length: bool = field(default=True, metadata={"help": "Whether to pad to `max_seq_length` always."})
    n_best_size: int = field(default=5, metadata={"help": "How many starts and ends are looked at."})
    max_answer_length: int = field(default=5, metadata={"help": "The most tokens of an answer."})


class QuestionAnsweringTrainer(Trainer):
    """Evaluates the texts of answers: the loop runs without metrics, which need the examples."""

    def __init__(self, *args, eval_examples=None, post_process_function=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.eval_examples = eval_examples
        self.post_process_function = post_process_function

    def evaluate(self, eval_dataset=None, eval_examples=None, ignore_keys=None, metric_key_prefix="eval"):
        eval_dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        eval_examples = self.eval_examples if eval_examples is None else eval_examples
        loader = self.get_eval_dataloader(eval_dataset)
        output = official.loop_without_metrics(self, loader, "Evaluation", ignore_keys, metric_key_prefix)
        if self.post_process_function is not None and self.compute_metrics is not None and self.args.should_save:
            predictions = self.post_process_function(eval_examples, eval_dataset, output.predictions)
            metrics = self.compute_metrics(predictions)
            metrics = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
            metrics.update(output.metrics)
        else:
            metrics = output.metrics
        if self.args.should_log:
            self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def predict(self, predict_dataset, predict_examples, ignore_keys=None, metric_key_prefix="test"):
        loader = self.get_test_dataloader(predict_dataset)
        output = official.loop_without_metrics(self, loader, "Prediction", ignore_keys, metric_key_prefix)
        if self.post_process_function is None or self.compute_metrics is None:
            return output
        predictions = self.post_process_function(predict_examples, predict_dataset, output.predictions, "predict")
        metrics = self.compute_metrics(predictions)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        metrics.update(output.metrics)
        return PredictionOutput(predictions=predictions.predictions, label_ids=predictions.label_ids, metrics=metrics)


def best_answers(examples, features, logits, n_best_size, max_answer_length):
    """Return the text of the best answer for each example's id."""
    all_start, all_end = logits
    index_of = {name: i for i, name in enumerate(examples["id"])}
    features_of = collections.defaultdict(list)
    for i, feature in enumerate(features):
        features_of[index_of[feature["example_id"]]].append(i)
    answers = collections.OrderedDict()
    for number, example in enumerate(examples):
        candidates = []
        for i in features_of[number]:
            offsets = features[i]["offset_mapping"]
            starts = np.argsort(all_start[i])[-1 : -n_best_size - 1 : -1].tolist()
            ends = np.argsort(all_end[i])[-1 : -n_best_size - 1 : -1].tolist()
            for start in starts:
                for end in ends:
                    if start >= len(offsets) or end >= len(offsets) or not offsets[start] or not offsets[end]:
                        continue
                    if end < start or end - start + 1 > max_answer_length:
                        continue
                    score = float(all_start[i][start] + all_end[i][end])
                    candidates.append((score, example["context"][offsets[start][0] : offsets[end][1]]))
        answers[example["id"]] = max(candidates, default=(0.0, ""), key=lambda each: each[0])[1]
    return answers


def main():
    parser = HfArgumentParser((official.ModelArguments, DataTrainingArguments, TrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    last_checkpoint = official.set_up(training_args, logger)

    raw_datasets = load_dataset("json", data_files=data_args.files())
    config = AutoConfig.from_pretrained(model_args.model_name_or_path)
    tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path, use_fast=True)
    model = AutoModelForQuestionAnswering.from_pretrained(model_args.model_name_or_path, config=config)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ValueError("This script needs a fast tokenizer, which knows where in the text a token is.")
    column_names = raw_datasets["train"].column_names
    max_seq_length = min(data_args.max_seq_length, tokenizer.model_max_length)

    def tokenized(examples):
        examples["question"] = [question.lstrip() for question in examples["question"]]
        return tokenizer(
            examples["question"],
            examples["context"],
            truncation="only_second",
            max_length=max_seq_length,
            stride=data_args.doc_stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            padding="max_length" if data_args.pad_to_max_length else False,
        )

    def prepare_train_features(examples):
        inputs = tokenized(examples)
        sample_mapping, offset_mapping = inputs.pop("overflow_to_sample_mapping"), inputs.pop("offset_mapping")
        inputs["start_positions"], inputs["end_positions"] = [], []
        for i, offsets in enumerate(offset_mapping):
            cls_index = inputs["input_ids"][i].index(tokenizer.cls_token_id)
            answers, sequence_ids = examples["answers"][sample_mapping[i]], inputs.sequence_ids(i)
            start_char = answers["answer_start"][0] if answers["answer_start"] else -1
            end_char = start_char + len(answers["text"][0]) if answers["text"] else -1
            inside = [
                j
                for j, (begin, end) in enumerate(offsets)
                if sequence_ids[j] == 1 and begin >= start_char >= 0 and end <= end_char
            ]
            inputs["start_positions"].append(inside[0] if inside else cls_index)
            inputs["end_positions"].append(inside[-1] if inside else cls_index)
        return inputs

    def prepare_validation_features(examples):
        inputs = tokenized(examples)
        sample_mapping = inputs.pop("overflow_to_sample_mapping")
        inputs["example_id"] = [examples["id"][i] for i in sample_mapping]
        for i, offsets in enumerate(inputs["offset_mapping"]):
            sequence_ids = inputs.sequence_ids(i)
            inputs["offset_mapping"][i] = [o if sequence_ids[k] == 1 else None for k, o in enumerate(offsets)]
        return inputs

    features = {}
    for split, dataset in raw_datasets.items():
        prepare = prepare_train_features if split == "train" else prepare_validation_features
        with training_args.main_process_first(desc=f"{split} dataset map pre-processing"):
            features[split] = dataset.map(prepare, batched=True, remove_columns=column_names)

    if data_args.pad_to_max_length:
        data_collator = default_data_collator
    else:
        data_collator = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8 if training_args.fp16 else None)

    def post_processing_function(examples, features, predictions, stage="eval"):
        answers = best_answers(examples, features, predictions, data_args.n_best_size, data_args.max_answer_length)
        if training_args.should_save:
            with open(os.path.join(training_args.output_dir, f"{stage}_predictions.json"), "w") as writer:
                writer.write(json.dumps(answers, indent=4) + "\n")
        return EvalPrediction(
            predictions=[{"id": name, "prediction_text": text} for name, text in answers.items()],
            label_ids=[{"id": each["id"], "answers": each["answers"]} for each in examples],
        )

    def compute_metrics(p: EvalPrediction):
        exact, f1 = [], []
        for found, wanted in zip(p.predictions, p.label_ids, strict=True):
            one, other = found["prediction_text"].split(), wanted["answers"]["text"][0].split()
            common = sum((collections.Counter(one) & collections.Counter(other)).values())
            exact.append(one == other)
            f1.append(2 * common / (len(one) + len(other)))
        return {"exact_match": 100 * float(np.mean(exact)), "f1": 100 * float(np.mean(f1))}

    trainer = QuestionAnsweringTrainer(
        model=model,
        args=training_args,
        train_dataset=features["train"] if training_args.do_train else None,
        eval_dataset=features["validation"] if training_args.do_eval else None,
        eval_examples=raw_datasets["validation"] if training_args.do_eval else None,
        processing_class=tokenizer,
        data_collator=data_collator,
        post_process_function=post_processing_function,
        compute_metrics=compute_metrics,
    )

    if training_args.do_train:
        official.train(trainer, last_checkpoint, len(features["train"]))

    if training_args.do_eval:
        logger.info("*** Evaluate ***")
        official.report(trainer, "eval", trainer.evaluate(), len(features["validation"]))

    if training_args.do_predict:
        logger.info("*** Predict ***")
        results = trainer.predict(features["test"], raw_datasets["test"])
        official.report(trainer, "predict", results.metrics, len(features["test"]))

    official.publish(trainer, finetuned_from=model_args.model_name_or_path, tasks="question-answering")


if __name__ == "__main__":
    main()
