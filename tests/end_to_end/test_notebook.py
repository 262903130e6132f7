"""A run in a notebook displays a bar and a table."""

from __future__ import annotations

import queue
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import start_new_kernel

CELL = """
    import torch
    from hexloop import Trainer, TrainingArguments
    from hexloop.app.callbacks.notebook import NotebookProgressCallback

    class Line(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(1, 1)

        def forward(self, x, labels):
            out = self.linear(x)
            return {"loss": ((out - labels) ** 2).mean(), "logits": out}

    rows = [{"x": torch.tensor([float(i)]), "labels": torch.tensor([2.0 * i])} for i in range(8)]
    arguments = TrainingArguments(
        FOLDER, per_device_train_batch_size=2, num_train_epochs=2, logging_steps=1, eval_strategy="epoch",
        save_strategy="no", use_cpu=True,
    )
    trainer = Trainer(Line(), arguments, train_dataset=rows, eval_dataset=rows)
    assert any(isinstance(each, NotebookProgressCallback) for each in trainer.callback_handler.callbacks)
    trainer.train()
"""


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Any]:
    """A client of a kernel of this interpreter, in a process of its own."""
    manager, client = start_new_kernel(cwd=str(tmp_path))
    yield client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def shown(client: Any, code: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Return what a cell finally displays, and the names of the errors that it raised."""
    request = client.execute(code)
    pages: dict[str, dict[str, Any]] = {}
    errors: list[str] = []
    while True:
        try:
            message = client.get_iopub_msg(timeout=240)
        except queue.Empty:
            raise AssertionError("the kernel does not answer") from None
        if message["parent_header"].get("msg_id") != request:
            continue
        kind, content = message["msg_type"], message["content"]
        if kind in ("display_data", "update_display_data"):
            pages[content["transient"]["display_id"]] = content["data"]
        elif kind == "error":
            errors.append(f"{content['ename']}: {content['evalue']}")
        elif kind == "status" and content["execution_state"] == "idle":
            return list(pages.values()), errors


def test_a_run_in_a_kernel(kernel: Any, tmp_path: Path) -> None:
    """The cell shows one page: the finished bar, a row for each epoch, and curves."""
    code = f"import sys; sys.path[:0] = {sys.path!r}\nFOLDER = {str(tmp_path / 'run')!r}\n" + textwrap.dedent(CELL)
    pages, errors = shown(kernel, code)
    assert errors == []
    [page] = [page["text/html"] for page in pages if "text/html" in page]
    assert "value='8' max='8'" in page
    assert "Epoch 2/2" in page
    assert page.count("<tr") == 3
    assert "Validation Loss" in page
    assert page.count("<polyline") >= 4  # losses of training and validation, gradient norm and learning rate
    assert "http" not in page
