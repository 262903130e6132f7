"""Trains with `use_liger_kernel`; --variant selects which kernels. Without a GPU, TRITON_INTERPRET is set."""

from __future__ import annotations

import argparse
import types

import tiny
from transformers import GPT2LMHeadModel, LlamaForCausalLM, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--variant", default="fused_linear_cross_entropy")
parser.add_argument("--output_dir", required=True)
options = parser.parse_args()

KERNELS = {
    "fused_linear_cross_entropy": {"rope": True, "fused_linear_cross_entropy": True},
    "rope": {"rope": True, "fused_linear_cross_entropy": False},
    "unknown_model": {},
}
OTHERS = {"rms_norm": False, "swiglu": False}  # triton's interpreter does not run these kernels of liger-kernel
words = tiny.tokenizer("causal")
is_known = options.variant != "unknown_model"
if is_known:
    model = tiny.seeded(LlamaForCausalLM, tiny.llama_config(words))
else:
    model = tiny.seeded(GPT2LMHeadModel, tiny.gpt2_config(words))
encoded = [words(row["text"], truncation=True, max_length=12, padding="max_length") for row in tiny.rows("text")]
rows = [{**row, "labels": row["input_ids"]} for row in encoded]
arguments = TrainingArguments(
    output_dir=options.output_dir,
    use_liger_kernel=True,
    liger_kernel_config={**KERNELS[options.variant], **OTHERS} if is_known else None,
    max_steps=3,
    per_device_train_batch_size=2,
    logging_steps=1,
    learning_rate=1e-3,
    save_strategy="no",
    report_to="none",
    use_cpu=True,
)


def is_patched() -> bool:
    """Return whether the model has liger-kernel's forward of its own."""
    forward = vars(model).get("forward")
    return isinstance(forward, types.MethodType) and forward.__func__.__module__.startswith("liger_kernel")


assert not is_patched()
trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:4])
trainer.train()
trainer.evaluate()
assert is_patched() == (options.variant == "fused_linear_cross_entropy")
