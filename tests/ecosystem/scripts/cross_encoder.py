"""Trains a cross-encoder with CrossEncoderTrainer, as sentence-transformers documents it; --variant selects how."""

from __future__ import annotations

import tempfile
from pathlib import Path

import tiny_sentences as tiny
import torch
from sentence_transformers.cross_encoder import (
    CrossEncoder,
    CrossEncoderTrainer,
    CrossEncoderTrainingArguments,
    losses,
)
from sentence_transformers.cross_encoder.evaluation import (
    CrossEncoderClassificationEvaluator,
    CrossEncoderRerankingEvaluator,
)
from transformers import BertForSequenceClassification

parser = tiny.parser("binary")
options = parser.parse_args()
variant = options.variant


def encoder(labels: int = 1) -> CrossEncoder:
    """Return a cross-encoder with random weights."""
    torch.manual_seed(0)
    folder = Path(tempfile.mkdtemp()) / "tiny-cross-encoder"
    BertForSequenceClassification(tiny.configuration(num_labels=labels)).save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return CrossEncoder(str(folder), num_labels=labels, max_length=32, device="cpu")


model = encoder(3 if variant == "classes" else 1)
train = tiny.scored_pairs(64).rename_column("score", "label")
evaluation = tiny.scored_pairs(16, seed=1).rename_column("score", "label")
settings = dict(tiny.SETTINGS)
rows = tiny.labelled(30, seed=3)
topics = list(zip(rows["sentence"], rows["label"], strict=True))
samples = [
    {
        "query": query,
        "positive": [text for text, topic in topics if topic == wanted][:4],
        "negative": [text for text, topic in topics if topic != wanted][:6],
    }
    for query, wanted in topics[:6]
]
evaluator = CrossEncoderRerankingEvaluator(samples, name="rerank", show_progress_bar=False)

if variant == "binary":
    loss = losses.BinaryCrossEntropyLoss(model, pos_weight=torch.tensor(2.0))
    settings |= {"load_best_model_at_end": True, "metric_for_best_model": "eval_rerank_ndcg@10", "save_total_limit": 1}
elif variant == "classes":
    train = train.remove_columns("label").add_column("label", [number % 3 for number in range(64)])
    evaluation = evaluation.remove_columns("label").add_column("label", [number % 3 for number in range(16)])
    pairs = list(zip(evaluation["sentence1"], evaluation["sentence2"], strict=True))
    evaluator = CrossEncoderClassificationEvaluator(pairs, evaluation["label"], name="classes")
    loss = losses.CrossEntropyLoss(model)
    settings |= {"gradient_accumulation_steps": 2}
elif variant == "ranking":
    train, evaluation = tiny.triplets(48), None
    loss = losses.MultipleNegativesRankingLoss(model, num_negatives=2)
elif variant == "lists":
    lists = [
        {"query": one["query"], "docs": one["positive"] + one["negative"], "labels": [1] * 4 + [0] * 6}
        for one in samples
    ]
    from datasets import Dataset

    train, evaluation = Dataset.from_list(lists * 4), Dataset.from_list(lists)
    loss = losses.LambdaLoss(model, mini_batch_size=8)
else:
    parser.error(f"unknown variant {variant}")

trainer = CrossEncoderTrainer(
    model=model,
    args=CrossEncoderTrainingArguments(output_dir=options.output_dir, **settings),
    train_dataset=train,
    eval_dataset=evaluation,
    loss=loss,
    evaluator=evaluator,
)
trainer.train()
trainer.evaluate()
trainer.save_model(f"{trainer.args.output_dir}/final")

again = CrossEncoder(f"{trainer.args.output_dir}/final", device="cpu")
texts = [(topics[0][0], text) for text, _ in topics[:4]]
assert abs(again.predict(texts) - trainer.model.predict(texts)).max() < 1e-5
