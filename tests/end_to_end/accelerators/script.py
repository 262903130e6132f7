"""Looks at `trainer.accelerator` with either library: `python -m tests.end_to_end.accelerators.script REQUEST`.

REQUEST is a JSON document: the library, the names of the cases in `cases.py`, and a folder for each. Each case
runs in a process of its own, forked after the imports; with several ranks in as many.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

PATIENCE = 60
"""Seconds after which a stuck process is ended."""


def in_child(library: str, name: str, folder: Path, rank: int) -> None:
    """Run a case in this process, which was forked for it, and exit."""
    import torch

    from tests.end_to_end.accelerators.cases import CASES

    code = 1
    signal.alarm(PATIENCE)
    try:
        torch.set_num_threads(1)
        seen = CASES[name].run(importlib.import_module(library), folder / "output")
        (folder / f"seen-{rank}.json").write_text(json.dumps(seen))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main(request: dict[str, Any]) -> int:
    """Run the cases one after another; return how many failed."""
    module = importlib.import_module(request["library"])
    _ = module.Trainer, module.TrainingArguments
    own = ("torch._dynamo", "hexloop.app.assembly.torch.framework") if request["library"] == "hexloop" else ()
    for package in ("accelerate", *own):
        importlib.import_module(package)
    from tests.end_to_end.accelerators.cases import CASES
    from tests.engines.processes import free_port

    failed = 0
    for name, place in request["cases"].items():
        folder, ranks, children = Path(place), CASES[name].ranks, list[int]()
        port = str(free_port())
        folder.mkdir(parents=True, exist_ok=True)
        for rank in range(ranks):
            child = os.fork()
            if child == 0:
                os.environ.update(CASES[name].environment)
                if ranks > 1:
                    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
                    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "LOCAL_WORLD_SIZE": str(ranks)}
                    os.environ |= {"OMP_NUM_THREADS": "1"}
                in_child(request["library"], name, folder, rank)
            children.append(child)
        codes = [os.waitpid(child, 0)[1] for child in children]
        failed += any(codes)
    return failed


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text())))
