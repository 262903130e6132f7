"""Scripts like transformers' examples give the same numbers and files with both libraries."""

from __future__ import annotations

from pathlib import Path

import pytest

import hexloop
from tests.end_to_end.parity.scripts.comparing import assert_same_script
from tests.end_to_end.parity.scripts.observing import observe, observe_both

SCRIPTS = (
    "classification",
    "token_classification",
    "question_answering",
    "causal_language_model",
    "masked_language_model",
    "regression",
    "image_classification",
    "several_evaluation_sets",
    "own_loss",
    "own_optimizer",
    "own_loader",
    "iterable_data",
    "summarisation",
    "written_in_2022",
)
QUICK = ("classification", "question_answering")


@pytest.mark.filterwarnings("ignore:The run ends with the weights of checkpoint-")
@pytest.mark.parametrize(
    "script", [pytest.param(each, marks=() if each in QUICK else pytest.mark.matrix) for each in SCRIPTS]
)
def test_script(script: str, tmp_path: Path) -> None:
    """Metrics, predictions, logs, callback traces, states, weights and checkpoint folders are equal."""
    ours, reference = observe_both(script, tmp_path)
    assert_same_script(ours, reference, length_known=script != "iterable_data")


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The run ends with the weights of checkpoint-")
def test_a_script_of_release_4_24(tmp_path: Path) -> None:
    """With only its import changed it matches the current version of the script; warnings name current arguments."""
    new = observe("written_in_2022", hexloop, tmp_path / "new")
    with pytest.warns(FutureWarning) as told:
        old = observe("written_in_2022", hexloop, tmp_path / "old", main="main_of_2022")
    said = " ".join(str(each.message) for each in told)
    for word in ("eval_strategy", "per_device_train_batch_size", "use_cpu", "warmup_steps", "processing_class"):
        assert word in said
    assert_same_script(old, new)
