"""What every test process sets before torch is imported, and how hypothesis looks for counterexamples."""

from __future__ import annotations

import os

from hypothesis import settings

# One thread a process: tests run side by side on few cores, and sums of floats keep their order.
# Lazy pair connections and a store of its own: without them a restarted gloo process can hang at the rendezvous.
# No xet: the hub's plain protocol is what the loopback hub of the tests speaks.
for name in ("OMP_NUM_THREADS", "TORCH_GLOO_LAZY_INIT", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "HF_HUB_DISABLE_XET"):
    os.environ.setdefault(name, "1")

# No test fails for being slow on a busy machine; pytest-timeout ends one that hangs.
settings.register_profile("hexloop", deadline=None)
settings.load_profile("hexloop")
