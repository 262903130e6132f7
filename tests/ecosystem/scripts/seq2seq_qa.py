"""Fine-tunes a sequence-to-sequence model for question answering, with a Trainer that evaluates generated answers."""

import logging
from dataclasses import dataclass, field

import numpy as np
import official
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
from transformers.trainer_utils import EvalLoopOutput, EvalPrediction

logger = logging.getLogger(__name__)


@dataclass
class DataTrainingArguments(official.FileArguments):
    context_column: str = field(default="context", metadata={"help": "The column with the contexts."})
    question_column: str = field(default="question", metadata={"help": "The column with the questions."})
    answer_column: str = field(default="answers", metadata={"help": "The column with the answers."})
    max_seq_length: int = field(default=24, metadata={"help": "Longer contexts become several inputs."})
    doc_stride: int = field(default=8, metadata={"help": "The tokens that the inputs of a context share."})
    max_answer_length: int = field(default=6, metadata={"help": "The most tokens of an answer."})
    val_max_answer_length: int | None = field(default=None, metadata={"help": "That of evaluation and prediction."})
    num_beams: int | None = field(default=None, metadata={"help": "The number of beams of generation."})
    ignore_pad_token_for_loss: bool = field(default=True, metadata={"help": "Whether padding has no loss."})

    def __post_init__(self):
        if self.val_max_answer_length is None:
            self.val_max_answer_length = self.max_answer_length


class QuestionAnsweringSeq2SeqTrainer(Seq2SeqTrainer):
    """Evaluates generated texts, which belong to examples and not to inputs."""

    def __init__(self, *args, eval_examples=None, post_process_function=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.eval_examples = eval_examples
        self.post_process_function = post_process_function

    def evaluate(self, eval_dataset=None, eval_examples=None, ignore_keys=None, metric_key_prefix="eval", **gen_kwargs):
        gen_kwargs = gen_kwargs.copy()
        if gen_kwargs.get("max_length") is None and self.args.generation_max_length is not None:
            gen_kwargs["max_length"] = self.args.generation_max_length
        if gen_kwargs.get("num_beams") is None and self.args.generation_num_beams is not None:
            gen_kwargs["num_beams"] = self.args.generation_num_beams
        self._gen_kwargs = gen_kwargs

        eval_dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        eval_examples = self.eval_examples if eval_examples is None else eval_examples
        loader = self.get_eval_dataloader(eval_dataset)
        output = official.loop_without_metrics(self, loader, "Evaluation", ignore_keys, metric_key_prefix)
        if self.post_process_function is not None and self.compute_metrics is not None and self.args.should_save:
            predictions = self.post_process_function(eval_examples, eval_dataset, output)
            metrics = self.compute_metrics(predictions)
            for key in list(metrics.keys()):
                if not key.startswith(f"{metric_key_prefix}_"):
                    metrics[f"{metric_key_prefix}_{key}"] = metrics.pop(key)
            metrics.update(output.metrics)
        else:
            metrics = output.metrics
        if self.args.should_log:
            self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def predict(
        self, predict_dataset, predict_examples, ignore_keys=None, metric_key_prefix="test", **gen_kwargs
    ) -> EvalLoopOutput:
        self._gen_kwargs = gen_kwargs.copy()
        loader = self.get_test_dataloader(predict_dataset)
        output = official.loop_without_metrics(self, loader, "Prediction", ignore_keys, metric_key_prefix)
        if self.post_process_function is None or self.compute_metrics is None:
            return output
        predictions = self.post_process_function(predict_examples, predict_dataset, output, "predict")
        metrics = {f"{metric_key_prefix}_{name}": v for name, v in self.compute_metrics(predictions).items()}
        return output._replace(predictions=predictions.predictions, metrics={**metrics, **output.metrics})


def main():
    parser = HfArgumentParser((official.ModelArguments, DataTrainingArguments, Seq2SeqTrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    last_checkpoint = official.set_up(training_args, logger)

    raw_datasets = load_dataset("json", data_files=data_args.files())
    config = AutoConfig.from_pretrained(model_args.model_name_or_path)
    tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(model_args.model_name_or_path, config=config)
    if model.config.decoder_start_token_id is None:
        raise ValueError("The configuration of the model has no decoder_start_token_id.")
    column_names = raw_datasets["train"].column_names
    max_seq_length = min(data_args.max_seq_length, tokenizer.model_max_length)

    def texts_of(examples):
        questions, contexts = examples[data_args.question_column], examples[data_args.context_column]
        inputs = [
            f"question : {question.lstrip()} context : {context.lstrip()}"
            for question, context in zip(questions, contexts, strict=True)
        ]
        targets = [each["text"][0] if len(each["text"]) > 0 else "" for each in examples[data_args.answer_column]]
        return inputs, targets

    def with_labels(model_inputs, targets):
        labels = tokenizer(text_target=targets, max_length=data_args.max_answer_length, truncation=True)["input_ids"]
        mapping = model_inputs.pop("overflow_to_sample_mapping", range(len(labels)))
        model_inputs["labels"] = [labels[i] for i in mapping]
        return model_inputs, mapping

    def preprocess_train(examples):
        inputs, targets = texts_of(examples)
        return with_labels(tokenizer(inputs, max_length=max_seq_length, truncation=True), targets)[0]

    def preprocess_validation(examples):
        inputs, targets = texts_of(examples)
        overflowing = tokenizer(
            inputs,
            max_length=max_seq_length,
            truncation=True,
            stride=data_args.doc_stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        model_inputs, mapping = with_labels(overflowing, targets)
        model_inputs["example_id"] = [examples["id"][i] for i in mapping]
        return model_inputs

    features = {}
    for split, dataset in raw_datasets.items():
        prepare = preprocess_train if split == "train" else preprocess_validation
        with training_args.main_process_first(desc=f"{split} dataset map pre-processing"):
            features[split] = dataset.map(prepare, batched=True, remove_columns=column_names)

    label_pad_token_id = -100 if data_args.ignore_pad_token_for_loss else tokenizer.pad_token_id
    data_collator = DataCollatorForSeq2Seq(
        tokenizer,
        model=model,
        label_pad_token_id=label_pad_token_id,
        pad_to_multiple_of=8 if training_args.fp16 else None,
    )

    def post_processing_function(examples, features, outputs: EvalLoopOutput, stage="eval"):
        preds = outputs.predictions[0] if isinstance(outputs.predictions, tuple) else outputs.predictions
        texts = official.decoded(tokenizer, preds)
        feature_of = {name: i for i, name in enumerate(features["example_id"])}
        return EvalPrediction(
            predictions=[{"id": each["id"], "prediction_text": texts[feature_of[each["id"]]]} for each in examples],
            label_ids=[{"id": each["id"], "answers": each[data_args.answer_column]} for each in examples],
        )

    def compute_metrics(p: EvalPrediction):
        exact = [
            found["prediction_text"].strip() == wanted["answers"]["text"][0]
            for found, wanted in zip(p.predictions, p.label_ids, strict=True)
        ]
        lengths = [len(found["prediction_text"].split()) for found in p.predictions]
        return {"exact_match": 100 * float(np.mean(exact)), "length": float(np.mean(lengths))}

    trainer = QuestionAnsweringSeq2SeqTrainer(
        model=model,
        args=training_args,
        train_dataset=features["train"] if training_args.do_train else None,
        eval_dataset=features["validation"] if training_args.do_eval else None,
        eval_examples=raw_datasets["validation"] if training_args.do_eval else None,
        processing_class=tokenizer,
        data_collator=data_collator,
        compute_metrics=compute_metrics if training_args.predict_with_generate else None,
        post_process_function=post_processing_function,
    )

    if training_args.do_train:
        official.train(trainer, last_checkpoint, len(features["train"]))

    max_length = training_args.generation_max_length or data_args.val_max_answer_length
    num_beams = data_args.num_beams if data_args.num_beams is not None else training_args.generation_num_beams
    if training_args.do_eval:
        logger.info("*** Evaluate ***")
        metrics = trainer.evaluate(max_length=max_length, num_beams=num_beams, metric_key_prefix="eval")
        official.report(trainer, "eval", metrics, len(features["validation"]))

    if training_args.do_predict:
        logger.info("*** Predict ***")
        results = trainer.predict(features["test"], raw_datasets["test"], max_length=max_length)
        official.report(trainer, "predict", results.metrics, len(features["test"]))

    official.publish(trainer, tasks="question-answering")


if __name__ == "__main__":
    main()
