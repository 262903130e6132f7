"""The environments of these tests, and the smaller set that `make test-all` runs."""

from __future__ import annotations

import pytest

from tests.trackers import (
    test_clear,
    test_comet,
    test_dagshub,
    test_dvc,
    test_mlflow,
    test_nep,
    test_swanlab,
    test_trackio,
    test_wandb,
)
from tests.trackers.contract import TrackerContract
from tests.trackers.running import ENVIRONMENTS, ROOT, pinned

CONTRACTS: tuple[type[TrackerContract], ...] = (
    test_clear.TestClearML,
    test_comet.TestComet,
    test_dagshub.TestDagsHub,
    test_dvc.TestDVCLive,
    test_mlflow.TestMLflow,
    test_nep.TestNeptune,
    test_swanlab.TestSwanLab,
    test_trackio.TestTrackio,
    test_wandb.TestWandb,
)


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.package)
def test_the_library_of_a_contract_is_pinned(contract: type[TrackerContract]) -> None:
    """Its environment pins the library, so that the version under test is known."""
    assert pinned(contract.environment, contract.package)


def test_environments_have_the_torch_of_the_other_tests() -> None:
    """It is installed first, without the packages for GPUs that other releases would bring."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    [torch] = [line.partition("==")[2] for line in lines if line.startswith("torch==")]
    for path in ENVIRONMENTS.glob("*.txt"):
        assert pinned(path.stem, "torch") == torch, path
        assert "nvidia-c" not in path.read_text(encoding="utf-8"), path
