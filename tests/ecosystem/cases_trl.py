"""trl: its trainers, with their usual settings, and adapters of peft."""

from __future__ import annotations

from tests.ecosystem.cases import Case

SMALLER = (
    *("sft-plain", "sft-lora-defaults", "dpo-lora", "dpo-two-processes", "reward-best", "grpo-plain", "rloo-eval"),
    *("kto-bf16", "trl-ppo", "peft-best"),
)
"""The cases of the smaller set."""

SFT = (
    *("plain", "text", "packing", "packing-wrapped", "unpacked-evaluation", "completion", "assistant", "callable"),
    *("padding-free", "nll", "dft", "neftune", "metrics", "batch-metrics", "columns", "path", "callbacks", "iterable"),
    *("lora", "lora-defaults", "defaults", "best", "only-model", "dict", "workers", "epochs", "epoch-logs", "scaled"),
    *("tokens-seen", "group-by-length", "sequential"),
)
DPO = (
    *("plain", "lora", "reference", "sync", "precomputed", "losses", "ipo", "padding-free", "best", "dict", "iterable"),
    *("bf16", "epochs"),
)
REWARD = ("plain", "lora", "best", "dict", "iterable", "bf16", "centered")
KTO = ("plain", "lora", "reference", "precomputed", "best", "dict", "bf16", "apo")
GRPO = (
    *("plain", "lora", "sync", "several-rewards", "reward-model", "iterations", "steps-per-generation", "off-policy"),
    *("eval", "iterable", "bf16", "completions", "dr-grpo", "dapo", "unshuffled", "best"),
)
RLOO = ("plain", "lora", "several-rewards", "iterations", "steps-per-generation", "eval", "bf16", "best")
EXPERIMENTAL = (
    *("a2po", "bco", "cpo", "distillation", "gkd", "gmpo", "gspo-token", "iw-opd", "minillm", "nash-md", "online-dpo"),
    *("orpo", "ppo", "prm", "sdft", "sdpo", "ssd", "tpo", "xpo"),
)
PEFT = ("plain", "dora", "modules-to-save", "prompt", "best", "checkpointing", "frozen-groups")


def case(name: str, script: str, *arguments: str, processes: int = 1) -> Case:
    """Return the case of a script."""
    return Case(name, "libraries", script, arguments, processes=processes, smaller_set=name in SMALLER)


def variants(subject: str, names: tuple[str, ...], script: str, *arguments: str) -> list[Case]:
    """Return the cases of the variants of a script."""
    spelled = {name: name.replace("-", "_") for name in names}
    return [case(f"{subject}-{name}", script, *arguments, "--variant", each) for name, each in spelled.items()]


PREFERENCES = "trl_preferences.py"
ONLINE = "trl_online.py"

CASES = [
    *variants("sft", SFT, "trl_sft.py"),
    *variants("dpo", DPO, PREFERENCES, "--trainer", "dpo"),
    *variants("reward", REWARD, PREFERENCES, "--trainer", "reward"),
    *variants("kto", KTO, PREFERENCES, "--trainer", "kto"),
    *variants("grpo", GRPO, ONLINE, "--trainer", "grpo"),
    *variants("rloo", RLOO, ONLINE, "--trainer", "rloo"),
    *variants("peft", PEFT, "peft_lora.py"),
    *(case(f"trl-{name}", "trl_experimental.py", "--trainer", name.replace("-", "_")) for name in EXPERIMENTAL),
    case("sft-two-processes", "trl_sft.py", "--variant", "plain", processes=2),
    case("dpo-two-processes", PREFERENCES, "--trainer", "dpo", processes=2),
    case("grpo-two-processes", ONLINE, "--trainer", "grpo", "--variant", "eval", processes=2),
]

RESUMED = [
    *variants("sft", ("resume", "resume-lora"), "trl_sft.py"),
    *variants("dpo", ("resume", "resume-lora"), PREFERENCES, "--trainer", "dpo"),
    *variants("reward", ("resume",), PREFERENCES, "--trainer", "reward"),
    *variants("kto", ("resume",), PREFERENCES, "--trainer", "kto"),
    *variants("grpo", ("resume",), ONLINE, "--trainer", "grpo"),
    *variants("rloo", ("resume",), ONLINE, "--trainer", "rloo"),
    *variants("peft", ("resume", "several"), "peft_lora.py"),
]
"""Scripts that train, and again from a checkpoint. `train_loss` then differs: see docs/differences.md."""
