"""Trains a tiny Llama model with LLaMA-Factory's command `llamafactory-cli train`; --variant selects how."""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path

import tiny
from llamafactory.cli import main
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--variant", default="sft")
parser.add_argument("--output_dir", required=True)
options = parser.parse_args()

LORA = {"finetuning_type": "lora", "lora_rank": 4, "lora_target": "all"}
EVALUATION = {"val_size": 10, "eval_strategy": "steps", "eval_steps": 4}
VARIANTS = {
    "sft": {"stage": "sft", **EVALUATION, "compute_accuracy": True},
    "sft_lora": {"stage": "sft", **EVALUATION, **LORA, "gradient_accumulation_steps": 2, "loraplus_lr_ratio": 4.0},
    "sft_best": {"stage": "sft", **EVALUATION, "load_best_model_at_end": True, "packing": True},
    "sft_dft": {"stage": "sft", "use_dft_loss": True, "neftune_noise_alpha": 5.0, "disable_shuffling": True},
    "pt": {"stage": "pt", **EVALUATION},
    "rm": {"stage": "rm", **EVALUATION, "do_eval": True},
    "rm_lora": {"stage": "rm", **EVALUATION, **LORA},
    "dpo": {"stage": "dpo", **EVALUATION},
    "dpo_lora": {"stage": "dpo", **EVALUATION, **LORA, "pref_loss": "orpo"},
    "kto": {"stage": "kto", **EVALUATION},
}
COLUMNS = {
    "sft": {"prompt": "instruction", "response": "chosen"},
    "pt": {"prompt": "instruction"},
    "kto": {"prompt": "instruction", "response": "chosen", "kto_tag": "liked"},
}
RANKED = {"prompt": "instruction", "chosen": "chosen", "rejected": "rejected"}


def write_rows(folder: Path, stage: str) -> None:
    """Write a data set and its description, which LLaMA-Factory reads."""
    draw, rows = random.Random(0), []
    for number in range(48):
        good, bad = tiny.sentence(draw, tiny.GOOD), tiny.sentence(draw, tiny.BAD)
        rows.append({"instruction": tiny.sentence(draw), "chosen": good, "rejected": bad, "liked": number % 3 != 0})
    (folder / "rows.json").write_text(json.dumps(rows))
    ranking = stage in ("rm", "dpo")
    described = {"file_name": "rows.json", "ranking": ranking, "columns": COLUMNS.get(stage, RANKED)}
    (folder / "dataset_info.json").write_text(json.dumps({"rows": described}))


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    settings = {
        "model_name_or_path": tiny.write_model("llama", folder / "model", attention_dropout=0.1),
        "output_dir": options.output_dir,
        "dataset_dir": name,
        "dataset": "rows",
        "template": "default",
        "cutoff_len": 64,
        "finetuning_type": "full",
        "do_train": True,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 2,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "max_steps": 12,
        "logging_steps": 4,
        "save_steps": 4,
        "plot_loss": True,
        "preprocessing_num_workers": 1,
        "report_to": "none",
        "use_cpu": True,
        **VARIANTS[options.variant],
    }
    write_rows(folder, settings["stage"])
    (folder / "settings.yaml").write_text(json.dumps(settings))
    sys.argv = ["llamafactory-cli", "train", str(folder / "settings.yaml")]
    main()

if options.variant == "rm":  # LLaMA-Factory takes the head out of the model's file, which it expects to be whole
    for folder in (Path(options.output_dir), Path(options.output_dir, "checkpoint-12")):
        assert set(load_file(folder / "value_head.safetensors")) == {"v_head.summary.weight", "v_head.summary.bias"}
        assert set(load_file(folder / "model.safetensors")) == set(
            LlamaForCausalLM.from_pretrained(folder).state_dict()
        )
