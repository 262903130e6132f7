"""All targets, and the modules that they need, imported before any process is forked."""

from __future__ import annotations

import torch

from tests.fuzz.doors import DOORS
from tests.fuzz.queues import QUEUES
from tests.fuzz.targets import PARSERS, Target

torch.set_num_threads(1)

TARGETS: dict[str, Target] = {target.name: target for target in (*PARSERS, *QUEUES, *DOORS)}
"""Every target by name."""
