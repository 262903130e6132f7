"""What every adapter of a port has to do, as tests: one suite a port.

An adapter's own test is a subclass whose fixture gives the adapter:

    class TestMyStorage(StorageContract):
        @pytest.fixture
        def storage(self) -> Storage:
            return MyStorage()

Only this package needs pytest and hypothesis (the extra `testing`).
"""

from __future__ import annotations

import pkgutil

import pytest

# Without this a failing assertion in a suite would not show its values.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))
