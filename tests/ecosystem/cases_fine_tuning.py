"""Programs for fine-tuning: LLaMA-Factory, ms-swift, and the kernels of liger-kernel. Each has its own environment."""

from __future__ import annotations

from tests.ecosystem.cases import Case

LLAMA_FACTORY = ("sft", "sft_lora", "sft_best", "sft_dft", "pt", "rm", "rm_lora", "dpo", "dpo_lora", "kto")
MS_SWIFT = ("sft", "sft_lora", "sft_best", "sft_dft", "seq_cls", "pt", "dpo", "dpo_lora", "orpo", "kto", "rm")
LIGER = ("fused_linear_cross_entropy", "rope", "unknown_model")


def variants(environment: str, names: tuple[str, ...]) -> list[Case]:
    """Return the cases of the script that is named like its environment."""
    return [Case(f"{environment}-{name}", environment, f"{environment}.py", ("--variant", name)) for name in names]


CASES = [*variants("llama_factory", LLAMA_FACTORY), *variants("ms_swift", MS_SWIFT), *variants("liger", LIGER)]
