"""The model card of a run: README.md in the output folder, with metadata, hyperparameters, results and versions."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.sharing import global_batch_size
from hexloop.app.run.run_information import reproduction_of
from hexloop.domain.evaluation import CLOCK_READINGS
from hexloop.domain.redaction import redact
from hexloop.domain.regular_files import write_atomically

CARD = "README.md"
GENERATED = "generated_from_trainer"
BADGE = "https://img.shields.io/badge/metrics-{}-orange"
TO_FILL_IN = "More information needed"

METRICS = (
    "accuracy",
    "bleu",
    "f1",
    "matthews_correlation",
    "pearsonr",
    "precision",
    "recall",
    "rouge",
    "sacrebleu",
    "spearmanr",
    "wer",
)
"""The metrics that the Hub knows; `rouge1` and the like count as rouge."""

FILE_BUILDERS = ("csv", "json", "pandas", "parquet", "text", "generator")
"""Builders of the package datasets that name a file format instead of a dataset."""

SPEED = (*CLOCK_READINGS, "model_preparation_time")
"""The ends of the names of metrics that describe the machine instead of the model."""

PACKAGES = {"hexloop": "hexloop", "Transformers": "transformers", "PyTorch": "torch", "Datasets": "datasets"}


@frozen
class CardFacts:
    """What the user states about a model; empty values are left out of the card, or found out where that is possible.

    dataset_tags, dataset, dataset_args: identifiers, readable names and configurations of the datasets, in one order.
    pages: where trackers show the run, by their names.
    """

    language: Sequence[str] = ()
    license: str | None = None
    tags: Sequence[str] = ()
    model_name: str | None = None
    finetuned_from: str | None = None
    tasks: Sequence[str] = ()
    dataset_tags: Sequence[str] = ()
    dataset: Sequence[str] = ()
    dataset_args: Sequence[str] = ()
    pages: Mapping[str, str] = field(factory=dict)


def as_list(value: str | Iterable[str] | None) -> list[str]:
    """Return one string, several, or none as a list."""
    return [value] if isinstance(value, str) else list(value or ())


def write_model_card(parts: TrainerParts, facts: CardFacts) -> None:
    """Write the card to the output folder. The tags of an earlier card there are kept."""
    folder = Path(parts.folder)
    path = folder / CARD
    facts = _completed(parts, facts)
    library = None
    if path.is_file():
        earlier = _loaded(path)
        library = earlier.get("library_name")
        facts = evolve(facts, tags=list(dict.fromkeys([*facts.tags, *as_list(earlier.get("tags"))])))
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, redact(_card(parts, facts)).encode())
    parts.adapters.framework.weights(parts.unwrapped_model).complete_card(str(folder), library)


def _loaded(path: Path) -> Mapping[str, Any]:
    from huggingface_hub import ModelCard

    loaded: Mapping[str, Any] = ModelCard.load(path, ignore_metadata_errors=True).data.to_dict()
    return loaded


def _completed(parts: TrainerParts, facts: CardFacts) -> CardFacts:
    """Return the facts with what the model and the data state themselves."""
    base = facts.finetuned_from
    if base is None:
        name = str(getattr(getattr(parts.unwrapped_model, "config", None), "_name_or_path", "") or "")
        base = name if name and not os.path.isdir(name) else None
    given = parts.hub_model_id or str(parts.args.output_dir).rstrip("/\\")
    name = facts.model_name or os.path.basename(given) or "model"
    data = parts.train_dataset if parts.train_dataset is not None else parts.eval_dataset
    builder = getattr(data, "builder_name", None)
    tags, arguments = list(facts.dataset_tags), list(facts.dataset_args)
    linked = [each for each in _loggers(parts) if getattr(each, "page", None)]
    if builder and builder not in FILE_BUILDERS and not tags:
        tags = [builder]
        arguments = arguments or as_list(getattr(data, "config_name", None))
    return evolve(
        facts,
        finetuned_from=base,
        model_name=name,
        tags=list(
            dict.fromkeys([*facts.tags, GENERATED, "hexloop", *(tag for each in linked for tag in each.card_tags)])
        ),
        pages={type(each).__name__.lower(): each.page for each in linked},
        tasks=facts.tasks or _tasks_of(parts.adapters.framework.own_class(parts.unwrapped_model)),
        dataset_tags=tags,
        dataset=facts.dataset or tags,
        dataset_args=arguments,
    )


def _loggers(parts: TrainerParts) -> list[Any]:
    """Return the loggers of the Trainer, those of its trackers' callbacks included."""
    found = [getattr(each, "logger", None) for each in parts.callback_handler.callbacks]
    return [each for each in [*found, *parts.adapters.loggers.values()] if each is not None]


def _tasks_of(kind: type[Any]) -> list[str]:
    """Return the Hub's tag of the task of a transformers model, by the tables of transformers if it is loaded."""
    name = kind.__name__
    pipelines = sys.modules.get("transformers.pipelines")
    supported: Mapping[str, Any] = getattr(pipelines, "SUPPORTED_TASKS", None) or {}
    found = [task for task, row in supported.items() if name in {each.__name__ for each in row.get("pt", ())}]
    return found[:1]


# The text


def _card(parts: TrainerParts, facts: CardFacts) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    evaluations = [entry for entry in parts.state.log_history if "eval_loss" in entry]
    results = _results(evaluations[-1]) if evaluations else {}
    is_transformers = hasattr(parts.unwrapped_model, "save_pretrained")
    metadata = ModelCardData(
        library_name="transformers" if is_transformers else "hexloop",
        language=list(facts.language) or None,
        license=facts.license,
        base_model=facts.finetuned_from,
        tags=list(facts.tags),
        datasets=list(facts.dataset_tags) or None,
        metrics=[name for name in METRICS if any(_metric(each) == name for each in results)] or None,
        model_name=facts.model_name,
        eval_results=[
            EvalResult(
                task_type=facts.tasks[0],
                dataset_type=tag,
                dataset_name=title,
                dataset_args=arguments,
                metric_type=str(_metric(name)),
                metric_value=value,
                metric_name=_title(name),
            )
            for tag, title, arguments in _datasets(facts)
            for name, value in results.items()
            if facts.tasks and _metric(name)
        ]
        or None,
    )
    origin = "was trained from scratch"
    if facts.finetuned_from is not None:
        origin = f"is a fine-tuned version of [{facts.finetuned_from}](https://huggingface.co/{facts.finetuned_from})"
    data = ", ".join(facts.dataset)
    lines = [
        "---",
        metadata.to_yaml().rstrip(),
        "---",
        "",
        "<!-- Written by hexloop at the end of a run. Complete it, then remove this comment. -->",
        "",
        f"# {facts.model_name}",
        "",
        f"This model {origin} on {f'the {data} dataset' if data else 'an unknown dataset'}.",
        *(line for name, page in facts.pages.items() for line in ("", f"[![{name}]({BADGE.format(name)})]({page})")),
        *_last_evaluation(results),
        *(line for title in ("Model description", "Intended uses & limitations", "Training and evaluation data")
          for line in ("", f"## {title}", "", TO_FILL_IN)),
        "",
        "## Training procedure",
        "",
        "### Training hyperparameters",
        "",
        *(f"- {name}: {value}" for name, value in _hyperparameters(parts).items()),
        "",
        "### How to repeat the run",
        "",
        *(f"- {fact}" for fact in reproduction_of(parts)),
        "",
        "### Training results",
        "",
        *_table(parts.state.log_history),
        "",
        "### Framework versions",
        "",
        *(f"- {title} {version}" for title, version in _versions().items()),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _last_evaluation(results: Mapping[str, float]) -> list[str]:
    lines = [f"- {_title(name)}: {_number(value)}" for name, value in results.items()]
    return ["", "Results of the last evaluation:", "", *lines] if lines else []


def _datasets(facts: CardFacts) -> Iterable[tuple[str, str, Any]]:
    for index, tag in enumerate(facts.dataset_tags):
        title = facts.dataset[index] if index < len(facts.dataset) else tag
        yield tag, title, {"args": facts.dataset_args[index]} if index < len(facts.dataset_args) else None


def _hyperparameters(parts: TrainerParts) -> dict[str, Any]:
    args, state = parts.args, parts.state
    found: dict[str, Any] = {
        "learning_rate": args.learning_rate,
        "train_batch_size": parts.train_batch_size,
        "eval_batch_size": args.eval_batch_size,
        "seed": args.seed,
    }
    total = global_batch_size(args, parts.adapters.mesh.data, parts.train_batch_size) * args.gradient_accumulation_steps
    if args.world_size > 1:
        found["num_devices"] = args.world_size
    if args.gradient_accumulation_steps > 1:
        found["gradient_accumulation_steps"] = args.gradient_accumulation_steps
    if total != parts.train_batch_size:
        found["total_train_batch_size"] = total
    if args.world_size > 1:
        found["total_eval_batch_size"] = global_batch_size(args, parts.adapters.mesh.data, args.eval_batch_size)
    found["optimizer"] = _optimizer(parts)
    found["lr_scheduler_type"] = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    if warmup := args.get_warmup_steps(state.max_steps):
        found["lr_scheduler_warmup_steps"] = warmup
    if args.max_steps > 0:
        found["training_steps"] = args.max_steps
    else:
        found["num_epochs"] = args.num_train_epochs
    if parts.adapters.precision.name != "fp32":
        found["mixed_precision_training"] = parts.adapters.precision.name
    if args.label_smoothing_factor:
        found["label_smoothing_factor"] = args.label_smoothing_factor
    return found


def _optimizer(parts: TrainerParts) -> str:
    args = parts.args
    if parts.optimizer is not None and not parts.makes_optimizer:
        return type(parts.optimizer).__name__
    name = str(getattr(args.optim, "value", args.optim))
    options = f" and {args.optim_args}" if args.optim_args else ""
    return f"{name} with betas=({args.adam_beta1}, {args.adam_beta2}), epsilon={args.adam_epsilon}{options}"


def _results(entry: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of an evaluation without the prefix, the loss first."""
    named = {name.removeprefix("eval_"): value for name, value in entry.items() if name.startswith("eval_")}
    kept = {name: value for name, value in named.items() if not name.endswith(SPEED) and isinstance(value, int | float)}
    return {name: kept[name] for name in sorted(kept, key=lambda name: name != "loss")}


def _table(history: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a Markdown table with a row for each evaluation of the run."""
    rows, loss = list[dict[str, str]](), "No log"
    for entry in history:
        loss = _number(entry["loss"]) if "loss" in entry else loss
        if "eval_loss" in entry:
            results = {_title(name, "Validation "): _number(value) for name, value in _results(entry).items()}
            epoch = f"{float(entry.get('epoch') or 0):.4g}"
            rows.append({"Training Loss": loss, "Epoch": epoch, "Step": str(entry.get("step", "")), **results})
    if not rows:
        return ["No evaluation was made."]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [columns, [":" + "-" * max(1, len(name) - 2) + ":" for name in columns]]
    lines += [[row.get(name, "") for name in columns] for row in rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _metric(name: str) -> str | None:
    """Return the Hub's name of a metric; None if it has none."""
    return "rouge" if name.startswith("rouge") else name if name in METRICS else None


def _title(name: str, of_loss: str = "") -> str:
    return (of_loss if name == "loss" else "") + " ".join(part.capitalize() for part in name.split("_"))


def _number(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _versions() -> dict[str, str]:
    versions = {title: getattr(sys.modules.get(name), "__version__", None) for title, name in PACKAGES.items()}
    return {title: version for title, version in versions.items() if version is not None}
