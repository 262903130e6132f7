"""Settings of every test process, made before torch is imported, and the hypothesis profile."""

from __future__ import annotations

import os

from hypothesis import settings

# One thread per process: tests run in parallel on few cores, and float sums keep their order.
# No xet: the loopback hub of the tests speaks the hub's plain protocol.
for name in ("OMP_NUM_THREADS", "HF_HUB_DISABLE_XET"):
    os.environ.setdefault(name, "1")

# No test fails for being slow on a busy machine; pytest-timeout ends a test that hangs.
settings.register_profile("hexloop", deadline=None)
settings.load_profile("hexloop")
