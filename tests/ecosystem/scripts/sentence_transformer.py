"""Trains a bi-encoder with SentenceTransformerTrainer, as sentence-transformers documents it; --variant selects how."""

from __future__ import annotations

import tiny_sentences as tiny
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
    models,
)
from sentence_transformers.evaluation import (
    EmbeddingSimilarityEvaluator,
    InformationRetrievalEvaluator,
    SequentialEvaluator,
    TripletEvaluator,
)
from sentence_transformers.training_args import BatchSamplers, MultiDatasetBatchSamplers
from transformers import EarlyStoppingCallback

parser = tiny.parser("pairs")
options = parser.parse_args()
variant = options.variant


def encoder(seed: int | None = 0) -> SentenceTransformer:
    """Return a bi-encoder: BERT and the mean over its words."""
    words = models.Transformer(tiny.saved_bert(seed or 0), max_seq_length=24)
    return SentenceTransformer(modules=[words, models.Pooling(words.get_word_embedding_dimension())], device="cpu")


def similarity(name: str = "dev") -> EmbeddingSimilarityEvaluator:
    """Return an evaluator of the similarity of sentences."""
    rows = tiny.scored_pairs(24, seed=9)
    return EmbeddingSimilarityEvaluator(rows["sentence1"], rows["sentence2"], rows["score"], name=name)


model = encoder()
train, evaluation, loss, evaluator, callbacks = tiny.pairs(64), tiny.pairs(16, seed=1), None, None, []
settings = dict(tiny.SETTINGS)

if variant == "pairs":
    loss = losses.MultipleNegativesRankingLoss(model)
    settings |= {"batch_sampler": BatchSamplers.NO_DUPLICATES, "warmup_steps": 0.1}
elif variant == "cosine":
    train, evaluation = tiny.scored_pairs(64), tiny.scored_pairs(16, seed=1)
    loss = losses.CosineSimilarityLoss(model)
    settings |= {"max_steps": -1, "num_train_epochs": 2, "eval_strategy": "epoch", "save_strategy": "epoch"}
    settings |= {"gradient_accumulation_steps": 2, "lr_scheduler_type": "cosine"}
elif variant == "best":
    loss, evaluator = losses.MultipleNegativesRankingLoss(model), similarity()
    settings |= {"load_best_model_at_end": True, "metric_for_best_model": "eval_dev_spearman_cosine", "eval_steps": 2}
    settings |= {"save_steps": 2, "save_total_limit": 2, "prompts": "text: "}
    callbacks = [EarlyStoppingCallback(early_stopping_patience=4)]
elif variant == "evaluators":
    evaluation, loss = None, losses.MultipleNegativesRankingLoss(model)
    texts, queries = tiny.labelled(30, seed=3), tiny.labelled(6, seed=4)
    documents = {str(number): text for number, text in enumerate(texts["sentence"])}
    relevant = {
        str(number): {str(other) for other, topic in enumerate(texts["label"]) if topic == label}
        for number, label in enumerate(queries["label"])
    }
    wanted = {str(number): text for number, text in enumerate(queries["sentence"])}
    rows = tiny.triplets(20, seed=5)
    triplets = TripletEvaluator(rows["anchor"], rows["positive"], rows["negative"], name="triplets")
    retrieval = InformationRetrievalEvaluator(wanted, documents, relevant, name="retrieval", batch_size=8)
    evaluator = SequentialEvaluator([similarity("similar"), triplets, retrieval])
elif variant == "datasets":
    train = {"pairs": tiny.pairs(40), "scores": tiny.scored_pairs(24, seed=2), "triplets": tiny.triplets(32, seed=3)}
    evaluation = {"pairs": tiny.pairs(12, seed=4), "scores": tiny.scored_pairs(12, seed=5)}
    ranking = losses.MultipleNegativesRankingLoss(model)
    loss = {"pairs": ranking, "scores": losses.CoSENTLoss(model), "triplets": ranking}
    evaluator = similarity()
    settings |= {"multi_dataset_batch_sampler": MultiDatasetBatchSamplers.ROUND_ROBIN}
    settings |= {"prompts": {"pairs": "search: ", "triplets": {"anchor": "search: ", "positive": "text: "}}}
    settings |= {"load_best_model_at_end": True, "metric_for_best_model": "eval_pairs_loss"}
elif variant == "proportional":
    train = {"pairs": tiny.pairs(40), "triplets": tiny.triplets(32, seed=3)}
    evaluation = {"pairs": tiny.pairs(12, seed=4), "triplets": tiny.triplets(12, seed=5)}
    loss = losses.MultipleNegativesRankingLoss(model)
    settings |= {"batch_sampler": "no_duplicates", "multi_dataset_batch_sampler": "proportional", "max_steps": 20}
elif variant == "labels":
    train, evaluation = tiny.labelled(60), tiny.labelled(18, seed=1)
    loss = losses.BatchAllTripletLoss(model)
    settings |= {"batch_sampler": BatchSamplers.GROUP_BY_LABEL}
elif variant == "softmax":
    train, evaluation = tiny.triplets(48).select_columns(["anchor", "negative"]), None
    train = train.add_column("label", [number % 3 for number in range(48)])
    loss = losses.SoftmaxLoss(model, model.get_sentence_embedding_dimension(), num_labels=3)
    settings |= {"eval_strategy": "no", "learning_rate_mapping": {r"classifier\..*": 5e-3}, "max_grad_norm": 0.5}
elif variant == "cached":
    train, evaluation = tiny.triplets(48), tiny.triplets(16, seed=1)
    loss = losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=2)
elif variant == "matryoshka":
    train, evaluation = tiny.triplets(48), tiny.triplets(16, seed=1)
    loss = losses.MatryoshkaLoss(model, losses.MultipleNegativesRankingLoss(model), [32, 16, 8])
elif variant == "lora":
    from peft import LoraConfig, TaskType

    model.add_adapter(LoraConfig(task_type=TaskType.FEATURE_EXTRACTION, r=4, lora_alpha=8, lora_dropout=0.1))
    loss, evaluator = losses.MultipleNegativesRankingLoss(model), similarity()
    settings |= {"save_steps": 6, "eval_steps": 6}
elif variant == "model_init":
    loss = losses.MultipleNegativesRankingLoss
    settings |= {"save_strategy": "no"}
elif variant == "iterable":
    train = train.to_iterable_dataset()
    loss = losses.MultipleNegativesRankingLoss(model)
elif variant == "workers":
    loss = losses.MultipleNegativesRankingLoss(model)
    settings |= {"dataloader_num_workers": 2, "max_steps": -1, "num_train_epochs": 2, "dataloader_drop_last": True}
elif variant == "resumed":
    loss = losses.MultipleNegativesRankingLoss(model)
    settings |= {"save_total_limit": 3}
elif variant == "router":
    from sentence_transformers.models import Router

    words = models.Transformer(tiny.saved_bert(1), max_seq_length=24)
    shared = models.Pooling(words.get_word_embedding_dimension())
    other = models.Transformer(tiny.saved_bert(2), max_seq_length=24)
    router = Router.for_query_document(query_modules=[words, shared], document_modules=[other, shared])
    model = SentenceTransformer(modules=[router], device="cpu")
    loss = losses.MultipleNegativesRankingLoss(model)
    settings |= {"router_mapping": {"anchor": "query", "positive": "document"}}
    settings |= {"learning_rate_mapping": {r"sub_modules\.query\..*": 5e-4}}
else:
    parser.error(f"unknown variant {variant}")

trainer = SentenceTransformerTrainer(
    model=None if variant == "model_init" else model,
    model_init=encoder if variant == "model_init" else None,
    args=SentenceTransformerTrainingArguments(output_dir=options.output_dir, **settings),
    train_dataset=train,
    eval_dataset=evaluation,
    loss=loss,
    evaluator=evaluator,
    callbacks=callbacks,
)
trainer.train()
if variant == "resumed":
    again = encoder(seed=5)
    trainer = SentenceTransformerTrainer(
        model=again,
        args=SentenceTransformerTrainingArguments(output_dir=options.output_dir, **settings),
        train_dataset=train,
        eval_dataset=evaluation,
        loss=losses.MultipleNegativesRankingLoss(again),
    )
    trainer.train(resume_from_checkpoint=f"{trainer.args.output_dir}/checkpoint-4")
if trainer.eval_dataset is not None or trainer.evaluator is not None:
    trainer.evaluate()
trainer.save_model()
trainer.model.save_pretrained(f"{trainer.args.output_dir}/final")

reloaded = SentenceTransformer(f"{trainer.args.output_dir}/final", device="cpu")
texts = tiny.labelled(4, seed=7)["sentence"]
arguments = {"task": "query"} if variant == "router" else {}
assert abs(reloaded.encode(texts, **arguments) - trainer.model.encode(texts, **arguments)).max() < 1e-5
