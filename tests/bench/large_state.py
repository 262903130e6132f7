"""Cost of saving, verifying and loading 1.5 GB of state. Run as `python -m tests.bench.large_state [--other SRC]`.

A model of 125 million parameters under AdamW. A resume is measured from the call to the first batch, a save with
`save_async=False` from the end of the step to the end of the save, each time in a new process. `--other` names the
`src` folder of another version of hexloop, whose rounds are interleaved with those of this one; the medians are printed
with their ratio. A bare loop that reads the files with safetensors is measured beside the resumes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys, time, warnings
from contextlib import closing
import torch
from torch import nn
warnings.simplefilter("ignore")

class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2500, 2500, bias=False) for _ in range(20))
    def forward(self, x, labels):
        unused = sum(layer.weight[0, 0] for layer in self.layers)
        return {"loss": (self.layers[0](x) - labels).square().mean() + 0 * unused}

folder, act = sys.argv[1:3]
rows = [{"x": torch.ones(2500), "labels": torch.ones(2500)}] * 8
if act == "bare":
    from safetensors.torch import load_file
    model = Wide()
    optimizer = torch.optim.AdamW(model.parameters())
    began = time.perf_counter()
    model.load_state_dict(load_file(folder + "/checkpoint-1/model.safetensors"))
    state = load_file(folder + "/checkpoint-1/optimizer.safetensors")
    for name, parameter in model.named_parameters():
        optimizer.state[parameter] = {key: state[f"{name}.{key}"] for key in ("step", "exp_avg", "exp_avg_sq")}
    print(time.perf_counter() - began)
else:
    from hexloop import Trainer, TrainingArguments
    from hexloop.domain.events import Saved, StepBegan, StepEnded
    args = TrainingArguments(output_dir=folder, max_steps=1 if act == "save" else 2, use_cpu=True, disable_tqdm=True,
        per_device_train_batch_size=4, report_to="none", save_strategy="steps", save_steps=1, save_async=False)
    trainer = Trainer(Wide(), args, train_dataset=rows, loggers=[])
    if act == "save":
        for event in trainer.stream():
            if type(event) is StepEnded:
                began = time.perf_counter()
            elif type(event) is Saved:
                print(time.perf_counter() - began)
    else:
        began = time.perf_counter()
        with closing(trainer.stream(resume_from_checkpoint=folder + "/checkpoint-1")) as events:
            next(event for event in events if type(event) is StepBegan)
            print(time.perf_counter() - began)
            trainer.request_stop()
"""


def seconds(source: Path, folder: str, act: str) -> float:
    """Return the seconds that an action takes with the version of hexloop in `source`."""
    environment = {**os.environ, "PYTHONPATH": str(source)}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, folder, act], env=environment, capture_output=True, text=True, check=True
    )
    return float(ended.stdout)


def main() -> None:
    """Print the medians, and the ratio to the other version."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--other", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    sources = {"this": ROOT / "src", **({"other": options.other} if options.other else {})}
    loads: dict[str, list[float]] = {"bare": [], **{name: [] for name in sources}}
    saves: dict[str, list[float]] = {name: [] for name in sources}
    for _ in range(options.rounds):
        for name, source in sources.items():
            with tempfile.TemporaryDirectory(dir=ROOT) as folder:
                saves[name].append(seconds(source, folder, "save"))
                loads[name].append(seconds(source, folder, "resume"))
                if name == "this":
                    loads["bare"].append(seconds(source, folder, "bare"))
    for act, times in (("save", saves), ("resume", loads)):
        for name, found in times.items():
            of = next(each for each in ("other", "bare", "this") if each in times)
            ratio = median(found) / median(times[of])
            print(f"{act:6} {name:5} {median(found):.2f} s ({min(found):.2f} to {max(found):.2f}), {ratio:.3f} of {of}")


if __name__ == "__main__":
    main()
