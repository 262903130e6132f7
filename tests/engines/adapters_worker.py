"""One process of several that train adapters together: runs the phases of a job, and reports each.

`python -m tests.engines.adapters_worker JOB`; the launcher's variables are set. A phase names the kind of adapters, the
folder of the base, the output folder, further arguments, and perhaps the checkpoint that the run resumes from.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from hexloop.domain.errors import HexloopError
from tests.end_to_end.small.adapters import KINDS, SAVING, adapted, tiny_llama, token_rows
from tests.end_to_end.small.trainers import small_trainer


def quantized(base: Path) -> Any:
    """Return a base in 4 bits with adapters of LoRA."""
    import peft
    import transformers

    make: Any = transformers.BitsAndBytesConfig
    config = make(load_in_4bit=True, bnb_4bit_compute_dtype=torch.float32)
    model = transformers.AutoModelForCausalLM.from_pretrained(base, quantization_config=config, device_map="cpu")
    torch.manual_seed(5)
    return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))


def run(phase: dict[str, Any]) -> dict[str, Any]:
    """Run a phase; return its losses, or the error that refused it."""
    base, output = Path(phase["base"]), Path(phase["output"])
    kind = phase["kind"]
    try:
        model = quantized(base) if kind == "4 bits" else adapted(KINDS[kind], tiny_llama(base))
        parts = {"model": model, "train_dataset": token_rows(64)}
        trainer = small_trainer(output, parts=parts, **{**SAVING, **phase["arguments"]})
        trainer.train(resume_from_checkpoint=phase.get("resume"))
        trainer.save_model(str(output / "final"))
    except HexloopError as error:
        return {"error": str(error)}
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {
        "losses": losses,
        "world": trainer.args.world_size,
        "engine": trainer.adapters.parallelism.capabilities.name,
    }


def main() -> None:
    """Run all phases. The first process writes the reports."""
    warnings.simplefilter("ignore")
    for phase in json.loads(sys.argv[1]):
        report = run(phase)
        if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
            Path(phase["output"]).mkdir(parents=True, exist_ok=True)
            Path(phase["output"], "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
