"""Scripts of the structure of transformers' examples, one per task."""

from __future__ import annotations

from typing import Any

from tests.ecosystem.cases import Case

STEPS = (
    *("--max_steps", "20", "--per_device_train_batch_size", "4", "--learning_rate", "0.001", "--save_steps", "10"),
    *("--do_train", "--do_eval", "--eval_strategy", "steps", "--eval_steps", "10", "--use_cpu"),
    *("--per_device_eval_batch_size", "5"),  # the last batch is smaller
)


def files(data: str, *splits: str) -> tuple[str, ...]:
    """Return the options that name the files of splits."""
    return tuple(word for split in splits for word in (f"--{split}_file", f"{{inputs}}/{data}-{split}.json"))


def official(
    name: str, model: str, data: str, *arguments: str, script: str = "", predict: bool = True, **options: Any
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


GENERATE = ("--predict_with_generate",)
SCRATCH = (
    *("--model_type", "gpt2", "--tokenizer_name", "{inputs}/gpt2", "--block_size", "16"),
    *("--config_overrides", "n_embd=32,n_layer=2,n_head=2,n_positions=64,vocab_size=80"),
)
LANGUAGES = ("--source_lang", "en_XX", "--target_lang", "xx_XX")

CASES = [
    official("glue", "bert", "classification", smaller_set=True),
    official("glue-pairs", "bert", "pairs", "--pad_to_max_length", "false", script="glue.py"),
    official("glue-two-processes", "bert", "classification", script="glue.py", processes=2),
    official("ner", "bert", "tags", "--return_entity_level_metrics"),
    official("ner-smoothed", "bert", "tags", "--label_smoothing_factor", "0.1", "--lr_scheduler_type", "cosine",
             "--warmup_steps", "5", "--load_best_model_at_end", "--metric_for_best_model", "f1", script="ner.py"),
    official("clm", "gpt2", "text", "--block_size", "16", predict=False),
    Case(
        name="clm-from-scratch",
        environment="libraries",
        script="clm.py",
        arguments=(*SCRATCH, *files("text", "train", "validation"), *STEPS),
        inputs=("gpt2", "text"),
    ),
    official("clm-streaming", "llama", "text", "--block_size", "16", "--streaming", script="clm.py", predict=False,
             smaller_set=True),
    official("clm-accumulating", "llama", "text", "--block_size", "16", "--gradient_accumulation_steps", "3",
             "--dataloader_num_workers", "2", script="clm.py", predict=False),
    official("mlm", "bert", "text", "--max_seq_length", "24", predict=False),
    official("mlm-line-by-line", "bert", "text", "--max_seq_length", "48", "--line_by_line", "--gradient_checkpointing",
             "--max_grad_norm", "0.5", script="mlm.py", predict=False),
    official("qa", "bert", "questions"),
    official("qa-two-processes", "bert", "questions", "--pad_to_max_length", "false", script="qa.py", processes=2),
    official("seq2seq_qa", "t5", "questions", *GENERATE, smaller_set=True),
    official("summarization", "bart", "summaries", *GENERATE, "--label_smoothing_factor", "0.1"),
    official("summarization-beams", "t5", "summaries", *GENERATE, "--num_beams", "2", "--source_prefix",
             "summary : ", "--optim", "adafactor", script="summarization.py"),
    official("swag", "bert", "choices", predict=False),
    official("translation", "bart", "translations", *LANGUAGES, *GENERATE),
    official("translation-two-processes", "t5", "translations", *LANGUAGES, *GENERATE, "--num_beams", "2",
             "--pad_to_max_length", script="translation.py", processes=2),
]  # fmt: skip
