"""Each kind of adapters of PEFT: trained, saved alone, resumed exactly, loaded by PEFT, and merged."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import hexloop
from hexloop.domain.errors import CheckpointError
from tests.end_to_end.small.adapters import KINDS, logits_of, tiny_llama
from tests.end_to_end.small.resuming import digest_of, losses_of, trainer_of

pytest.importorskip("peft")

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning",
    "ignore::DeprecationWarning",
    "ignore::UserWarning",
    "ignore:The following rank_pattern keys:RuntimeWarning",  # PEFT's, of AdaLoRA's own patterns
)

PAGE = Path(__file__).parents[2] / "docs" / "peft.md"

Ask = Callable[[dict[str, str]], dict[str, Any]]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a base."""
    folder = tmp_path_factory.mktemp("base")
    tiny_llama().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def another_process() -> Iterator[Ask]:
    """Return what resumes runs in another process."""
    command = [sys.executable, "-m", "tests.end_to_end.small.resuming"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(document: dict[str, str]) -> dict[str, Any]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(document) + "\n")
            process.stdin.flush()
            answer: dict[str, Any] = json.loads(process.stdout.readline())
            return answer

        yield ask
        process.stdin.close()
        process.wait(timeout=60)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", KINDS)
def test_a_kind_of_adapters(name: str, base: Path, tmp_path: Path, another_process: Ask) -> None:
    """A checkpoint has the adapters alone, and everything that continues from it continues bit-identically."""
    from peft import PeftModel

    kind = KINDS[name]
    trainer = trainer_of(name, base, tmp_path / "run")
    before = {each: tensor.clone() for each, tensor in trainer.model.state_dict().items()}
    trainer.train()
    trained = [each for each, tensor in trainer.model.state_dict().items() if not torch.equal(before[each], tensor)]
    assert trained, "no weight was trained"

    checkpoint = tmp_path / "run" / "checkpoint-2"
    _assert_adapters_alone(checkpoint, trainer.model, kind.beside)
    resumed = another_process({"kind": name, "base": str(base), "checkpoint": str(checkpoint)})
    assert resumed == {"digest": digest_of(trainer.model), "losses": losses_of(trainer)}

    logits = logits_of(trainer.model)
    loaded = PeftModel.from_pretrained(tiny_llama(base), tmp_path / "run" / "checkpoint-6")
    assert torch.equal(logits_of(loaded), logits)

    if not kind.merges:
        with pytest.raises(CheckpointError, match="cannot be merged: they are no change of the weights"):
            hexloop.merge_adapters(tmp_path / "run" / "checkpoint-6", tmp_path / "merged")
        return
    merged = hexloop.merge_adapters(tmp_path / "run" / "checkpoint-6", tmp_path / "merged")
    assert torch.allclose(logits_of(tiny_llama(Path(merged))), logits, rtol=0, atol=1e-5)


def _assert_adapters_alone(checkpoint: Path, model: Any, beside: bool) -> None:
    """Assert which files a checkpoint has, and that they hold hardly more than PEFT's own."""
    from peft import get_peft_model_state_dict

    saved = {path.name: path for path in checkpoint.iterdir() if path.suffix == ".safetensors"}
    assert set(saved) - {"optimizer.safetensors"} == {"adapter_model.safetensors"} | (
        {"adapter_state.safetensors"} if beside else set()
    )
    own = get_peft_model_state_dict(model, save_embedding_layers=False)
    assert load_file(saved["adapter_model.safetensors"]).keys() == own.keys()
    most = sum(parameter.numel() * 4 for parameter in model.parameters() if parameter.requires_grad)
    frozen = sum(each.numel() * each.itemsize for each in own.values())
    header = 400 * (len(own) + 2) + 4096
    assert saved["adapter_model.safetensors"].stat().st_size <= frozen + header
    if beside:  # AdaLoRA has three measurements of each weight
        assert saved["adapter_state.safetensors"].stat().st_size <= 5 * most + 4 * header


def test_the_table_of_kinds_has_what_is_tested() -> None:
    """docs/peft.md lists each kind that is tested above, and whether it can be merged."""
    rows = [line.strip("|").split("|") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    table = {row[0].strip(): row[2].strip() for row in rows if len(row) == 3}
    assert {name: table.get(name) for name in KINDS} == {
        name: "yes" if kind.merges else "no" for name, kind in KINDS.items()
    }
