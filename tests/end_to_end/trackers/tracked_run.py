"""A program that trains the small model and logs to the stand-in, or to nothing; it may be killed.

Its arguments: the output folder, what `train` resumes from, and further arguments of the run as JSON.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path

from tests.end_to_end.small.trainers import history, small_trainer, weights

if __name__ == "__main__":
    folder, resume_from, further = sys.argv[1:]
    trainer = small_trainer(Path(folder), parts={"loggers": None}, **json.loads(further))
    first = last = 0.0
    for event in trainer.stream(resume_from if resume_from == "auto" else None):
        kind = type(event).__name__
        first = time.monotonic() if kind == "TrainBegan" else first
        last = time.monotonic() if kind == "StepEnded" else last
    digest = hashlib.sha256(b"".join(each.numpy().tobytes() for each in weights(trainer).values())).hexdigest()
    result = {"weights": digest, "history": history(trainer), "seconds": last - first, "ended": time.monotonic() - last}
    print(json.dumps(result), flush=True)
