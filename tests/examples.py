"""How many examples a property is tried with: few by `make test`, many by `make test-all`."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# No test fails for being slow on a busy machine; pytest-timeout ends a test that hangs.
settings.register_profile("many", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("few", settings.get_profile("many"), max_examples=20)


def choose_profile(mark_expression: str) -> None:
    """Try few examples if the tests that `make test` skips are skipped."""
    settings.load_profile("few" if mark_expression == "not matrix" else "many")


def examples(many: int) -> int:
    """Return how many examples to try where `make test-all` tries `many`."""
    return many if settings.get_current_profile_name() == "many" else max(3, many // 5)
