"""Scripts of the structure of transformers' examples, one per task."""

from __future__ import annotations

from tests.ecosystem.cases import Case

STEPS = (
    *("--max_steps", "20", "--per_device_train_batch_size", "4", "--learning_rate", "0.001", "--save_steps", "10"),
    *("--do_train", "--do_eval", "--eval_strategy", "steps", "--eval_steps", "10", "--use_cpu"),
)


def files(data: str, *splits: str) -> tuple[str, ...]:
    """Return the options that name the files of splits."""
    return tuple(word for split in splits for word in (f"--{split}_file", f"{{inputs}}/{data}-{split}.json"))


def official(
    name: str, model: str, data: str, *arguments: str, script: str = "", predict: bool = True, **options: bool | int
) -> Case:
    """Return the case of a script with the usual options."""
    splits = ("train", "validation", "test") if predict else ("train", "validation")
    return Case(
        name=name,
        environment="libraries",
        script=script or f"{name}.py",
        arguments=(
            *("--model_name_or_path", f"{{inputs}}/{model}"),
            *files(data, *splits),
            *STEPS,
            *(("--do_predict",) if predict else ()),
            *arguments,
        ),
        inputs=(model, data),
        **options,
    )


CASES = [
    official("glue", "bert", "classification", smaller_set=True),
    official("glue-pairs", "bert", "pairs", "--pad_to_max_length", "false", script="glue.py"),
]
