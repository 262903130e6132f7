"""torch_xla computes on the CPU, and starts before the first backward pass."""

from __future__ import annotations

import os

os.environ.setdefault("PJRT_DEVICE", "CPU")

import torch_xla

torch_xla.device()
