"""`hexloop train` with `push_to_hub`, on a hub on loopback."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.end_to_end.console import ENVIRONMENT, script
from tests.end_to_end.publishing.publishing_run import TOKEN
from tests.engines.publishing_hub import publishing_hub
from tests.unit.recipe.small_project import Project

RECIPE = """\
model: {call: project.Line}
train_dataset: {call: project.points, count: 16, noise: 0.0}
arguments:
  output_dir: out
  max_steps: 4
  save_steps: 2
  use_cpu: true
  push_to_hub: true
  hub_model_id: line
"""


@pytest.mark.parametrize("strategy", ["end", pytest.param("every_save", marks=pytest.mark.matrix)])
def test_a_trained_model_is_published_with_its_card(strategy: str, tmp_path: Path) -> None:
    """The last commit has the final model, whatever was published during the run."""
    Project(tmp_path).recipe(RECIPE)
    with publishing_hub() as hub:
        ended = subprocess.run(
            [script(), "train", "recipe.yaml", "--hub_strategy", strategy, "--save_steps", "2"],
            cwd=tmp_path,
            env={**ENVIRONMENT, "HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        assert "outbox" not in ended.stderr
        (repository,) = hub.repositories.values()
        messages = [commit.message for commit in repository.branches["main"]]
        assert messages[-1] == "End of training"
        assert (len(messages) == 2) == (strategy == "end")
        files = repository.branches["main"][-1].files
        assert {"README.md", "model.safetensors"} <= files.keys()
        assert not any("checkpoint-" in path for path in files)
