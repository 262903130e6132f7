"""Programs written for transformers, run in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ENVIRONMENT: Mapping[str, str] = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
SCRIPTS = Path(__file__).parent / "scripts"
RUN = ("-m", "hexloop", "run")


def python(*words: str | Path, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python with `words` in `folder`, and wait for its end."""
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=folder,
        env={**ENVIRONMENT, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
