"""Trains a tiny Llama model with the commands of ms-swift; --variant selects how."""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from pathlib import Path

import tiny
from swift.pipelines import pretrain_main, rlhf_main, sft_main

parser = argparse.ArgumentParser()
parser.add_argument("--variant", default="sft")
parser.add_argument("--output_dir", required=True)
options = parser.parse_args()

EVALUATION = {"split_dataset_ratio": 0.2, "eval_steps": 4}
LORA = {"tuner_type": "lora", "lora_rank": 4, "target_modules": "all-linear"}
VARIANTS = {
    "sft": (sft_main, EVALUATION),
    "sft_lora": (sft_main, {**EVALUATION, **LORA, "gradient_accumulation_steps": 2}),
    "sft_best": (
        sft_main,
        {**EVALUATION, "load_best_model_at_end": True, "acc_strategy": "seq", "save_total_limit": 1},
    ),
    "sft_dft": (sft_main, {"enable_dft_loss": True, "group_by_length": True, "neftune_noise_alpha": 5.0}),
    "seq_cls": (sft_main, {**EVALUATION, "task_type": "seq_cls", "num_labels": 2}),
    "pt": (pretrain_main, EVALUATION),
    "dpo": (rlhf_main, {**EVALUATION, "rlhf_type": "dpo"}),
    "dpo_lora": (rlhf_main, {**EVALUATION, **LORA, "rlhf_type": "dpo", "rpo_alpha": 0.1}),
    "orpo": (rlhf_main, {**EVALUATION, "rlhf_type": "orpo"}),
    "kto": (rlhf_main, {**EVALUATION, "rlhf_type": "kto", "gradient_accumulation_steps": 2}),
    "rm": (rlhf_main, {**EVALUATION, "rlhf_type": "rm"}),
}


def rows(variant: str) -> list[dict[str, object]]:
    """Return conversations, with what the kind of training reads besides."""
    draw, found = random.Random(0), []
    for number in range(40):
        good, bad = tiny.sentence(draw, tiny.GOOD), tiny.sentence(draw, tiny.BAD)
        messages = [{"role": "user", "content": tiny.sentence(draw)}, {"role": "assistant", "content": good}]
        if variant == "seq_cls":
            found.append({"messages": messages[:1], "label": number % 2})
        elif variant == "kto":
            found.append({"messages": messages, "label": number % 3 != 0})
        else:
            found.append({"messages": messages, "rejected_response": bad})
    return found


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    lines = [json.dumps(row) for row in rows(options.variant)]
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")
    train, more = VARIANTS[options.variant]
    settings = {
        "model": tiny.write_model("llama", folder / "model", attention_dropout=0.1),
        "model_type": "llama",
        "template": "dummy",
        "dataset": folder / "rows.jsonl",
        "output_dir": options.output_dir,
        "add_version": False,
        "tuner_type": "full",
        "torch_dtype": "float32",
        "check_model": False,
        "learning_rate": 1e-3,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "max_steps": 12,
        "logging_steps": 4,
        "save_steps": 4,
        "max_length": 64,
        "report_to": "none",
        "use_cpu": True,
        **more,
    }
    train([word for key, value in settings.items() for word in (f"--{key}", str(value))])
