"""Trains a SetFit model from few examples: the embedding phase, then the head; --variant selects how."""

from __future__ import annotations

from pathlib import Path

import tiny_sentences as tiny
import torch
from sentence_transformers import SentenceTransformer, losses, models
from setfit import DistillationTrainer, SetFitHead, SetFitModel, Trainer, TrainingArguments
from setfit.losses import SupConLoss
from sklearn.linear_model import LogisticRegression
from transformers import TrainerCallback

parser = tiny.parser("logistic")
options = parser.parse_args()
variant = options.variant


class Embeddings(TrainerCallback):
    """Keeps the mean of an embedding at each log, from the model that SetFit passes to its callbacks."""

    def __init__(self) -> None:
        self.means: list[float] = []

    def on_log(self, args, state, control, model, st_model, st_args, logs, **kwargs) -> None:
        """Record the mean, without a draw of random numbers."""
        assert isinstance(model, SetFitModel)
        assert isinstance(args, TrainingArguments)
        assert st_model is model.model_body
        assert st_args.output_dir == args.output_dir
        self.means.append(float(model.encode(["the cat is here"]).mean()))


def few_shot_model(seed: int = 0, differentiable: bool = False) -> SetFitModel:
    """Return a SetFit model with random weights."""
    words = models.Transformer(tiny.saved_bert(seed), max_seq_length=24)
    body = SentenceTransformer(modules=[words, models.Pooling(words.get_word_embedding_dimension())], device="cpu")
    torch.manual_seed(seed)
    head = SetFitHead(32, 3, device="cpu") if differentiable else LogisticRegression()
    return SetFitModel(body, head, labels=list(tiny.TOPICS))


def fresh_model() -> SetFitModel:
    """Return the model to start from."""
    return few_shot_model()


train = tiny.labelled(12, column="text")
evaluation = tiny.labelled(9, seed=1, column="text")
settings = {
    "output_dir": options.output_dir,
    "batch_size": 8,
    "num_epochs": 1,
    "num_iterations": 4,
    "body_learning_rate": 1e-3,
    "logging_steps": 1,
    "eval_strategy": "steps",
    "eval_steps": 4,
    "save_steps": 4,
    "show_progress_bar": False,
    "report_to": "none",
}
embeddings = Embeddings()
model = few_shot_model(differentiable=variant == "differentiable")
column_mapping, trainer_class, given = None, Trainer, {"model": model}

if variant == "differentiable":
    settings |= {"num_epochs": (1, 4), "end_to_end": True, "body_learning_rate": (1e-3, 1e-4), "l2_weight": 0.02}
elif variant == "best":
    settings |= {"load_best_model_at_end": True, "max_steps": 16, "metric_for_best_model": "embedding_loss"}
elif variant == "triplets":
    settings |= {"loss": losses.BatchSemiHardTripletLoss, "num_epochs": 4, "margin": 0.3}
elif variant == "contrastive":
    settings |= {"loss": SupConLoss, "num_epochs": 6, "batch_size": 12}
elif variant == "distillation":
    teacher = few_shot_model(seed=3)
    teacher.fit(train["text"], train["label"], num_epochs=1)
    trainer_class, given = DistillationTrainer, {"student_model": model, "teacher_model": teacher}
    train, evaluation = train.remove_columns("label"), None
    settings |= {"eval_strategy": "no", "eval_steps": None}
elif variant == "model_init":
    given = {"model_init": fresh_model}
    train, evaluation = train.rename_column("text", "words"), evaluation.rename_column("text", "words")
    column_mapping = {"words": "text", "label": "label"}
elif variant != "logistic":
    parser.error(f"unknown variant {variant}")


def accuracy(predicted, labels) -> dict[str, float]:
    """Return the share of correct predictions."""
    return {"accuracy": float((torch.as_tensor(predicted) == torch.as_tensor(labels)).float().mean())}


trainer = trainer_class(
    **given,
    args=TrainingArguments(**settings),
    train_dataset=train,
    eval_dataset=evaluation,
    metric=accuracy,
    column_mapping=column_mapping,
)
trainer.add_callback(embeddings)
trainer.train()
assert embeddings.means
texts = tiny.labelled(6, seed=5)
results = {"accuracy": 1.0} if evaluation is None else trainer.evaluate()
assert 0 <= results["accuracy"] <= 1
print("results", results, trainer.model.predict(texts["sentence"]), sum(embeddings.means))

folder = Path(options.output_dir, "final")
trainer.model.save_pretrained(str(folder))
again = SetFitModel.from_pretrained(str(folder))
assert list(again.predict(texts["sentence"])) == list(trainer.model.predict(texts["sentence"]))
