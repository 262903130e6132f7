"""Trains a sparse encoder with SparseEncoderTrainer, as sentence-transformers documents it; --variant selects how."""

from __future__ import annotations

import tiny_sentences as tiny
from sentence_transformers import SparseEncoder, SparseEncoderTrainer, SparseEncoderTrainingArguments
from sentence_transformers.models import Pooling, Transformer
from sentence_transformers.sparse_encoder import losses
from sentence_transformers.sparse_encoder.callbacks import SpladeRegularizerWeightSchedulerCallback
from sentence_transformers.sparse_encoder.evaluation import SparseEmbeddingSimilarityEvaluator
from sentence_transformers.sparse_encoder.models import MLMTransformer, SparseAutoEncoder, SpladePooling

parser = tiny.parser("splade")
options = parser.parse_args()
variant = options.variant

callbacks = []
settings = dict(tiny.SETTINGS)
train, evaluation = tiny.triplets(64), tiny.triplets(16, seed=1)
if variant == "csr":
    words = Transformer(tiny.saved_bert(), max_seq_length=24)
    width = words.get_word_embedding_dimension()
    model = SparseEncoder(modules=[words, Pooling(width), SparseAutoEncoder(width, 64, k=8, k_aux=16)], device="cpu")
    loss = losses.CSRLoss(model, losses.SparseMultipleNegativesRankingLoss(model))
else:
    words = MLMTransformer(tiny.saved_bert(masked_words=True), max_seq_length=24)
    model = SparseEncoder(modules=[words, SpladePooling()], device="cpu")
    ranking = losses.SparseMultipleNegativesRankingLoss(model)
    loss = losses.SpladeLoss(model, ranking, document_regularizer_weight=3e-3, query_regularizer_weight=5e-3)
    if variant == "scheduled":
        callbacks = [SpladeRegularizerWeightSchedulerCallback(loss, scheduler_type="linear", warmup_ratio=0.5)]
        settings |= {"gradient_accumulation_steps": 2}
    elif variant == "best":
        settings |= {"load_best_model_at_end": True, "metric_for_best_model": "eval_dev_spearman_dot"}
    elif variant != "splade":
        parser.error(f"unknown variant {variant}")

rows = tiny.scored_pairs(24, seed=9)
trainer = SparseEncoderTrainer(
    model=model,
    args=SparseEncoderTrainingArguments(output_dir=options.output_dir, **settings),
    train_dataset=train,
    eval_dataset=evaluation,
    loss=loss,
    evaluator=SparseEmbeddingSimilarityEvaluator(rows["sentence1"], rows["sentence2"], rows["score"], name="dev"),
    callbacks=callbacks,
)
trainer.train()
trainer.evaluate()
trainer.save_model(f"{trainer.args.output_dir}/final")

again = SparseEncoder(f"{trainer.args.output_dir}/final", device="cpu")
texts = rows["sentence1"][:4]
difference = again.encode(texts).to_dense() - trainer.model.encode(texts).to_dense()
assert difference.abs().max() < 1e-5
