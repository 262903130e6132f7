"""torch_xla computes on the CPU."""

from __future__ import annotations

import os

os.environ.setdefault("PJRT_DEVICE", "CPU")
