"""Contract suites: tests that every adapter of a port must pass, one class per port.

To test an adapter, subclass its suite and provide the adapter in a fixture:

    class TestMyStorage(StorageContract):
        @pytest.fixture
        def storage(self) -> Storage:
            return MyStorage()

Only this package needs pytest and hypothesis (the extra `testing`).
"""

from __future__ import annotations

import pkgutil

import pytest

# Without this, a failing assertion in a suite would not show its values.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))
