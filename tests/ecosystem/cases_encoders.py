"""Encoders: sentence-transformers, its release 5.2, setfit and gliner."""

from __future__ import annotations

from tests.ecosystem.cases import Case

SMALLER_SET = {
    "sentence_transformer-best",
    "sentence_transformer-datasets",
    "cross_encoder-ranking",
    "sparse_encoder-scheduled",
    "few_shot-best",
}
OLDER, NEWER = "sentence_transformers_5_2", "libraries"


def variants(script: str, *names: str, environment: str = NEWER, processes: int = 1) -> list[Case]:
    """Return a case for each variant of a script."""
    cases = []
    for variant in names:
        name = f"{script}-{variant}" if environment != OLDER else f"{script}-5.2-{variant}"
        name += "-two-processes" if processes == 2 else ""
        arguments, smaller = ("--variant", variant), name in SMALLER_SET
        cases.append(Case(name, environment, f"{script}.py", arguments, processes=processes, smaller_set=smaller))
    return cases


CASES = [
    *variants("sentence_transformer", "pairs", "cosine", "best", "evaluators", "datasets", "proportional", "labels"),
    *variants("sentence_transformer", "softmax", "cached", "matryoshka", "lora", "model_init", "iterable", "workers"),
    *variants("sentence_transformer", "resumed", "router"),
    *variants("sentence_transformer", "datasets", processes=2),
    *variants("cross_encoder", "binary", "classes", "ranking", "lists"),
    *variants("sparse_encoder", "splade", "scheduled", "best", "csr"),
    *variants(
        "few_shot", "logistic", "differentiable", "best", "triplets", "contrastive", "distillation", "model_init"
    ),
    *variants(
        "sentence_transformer", "pairs", "best", "evaluators", "datasets", "softmax", "iterable", environment=OLDER
    ),
    *variants("sentence_transformer", "resumed", environment=OLDER),
    *variants("cross_encoder", "binary", environment=OLDER),
    *variants("sparse_encoder", "best", environment=OLDER),
    *variants("entities", "spans", "tokens", "focal", "best", "workers", "train_model", environment="gliner"),
]
