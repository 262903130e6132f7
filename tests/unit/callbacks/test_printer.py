"""PrinterCallback prints logs."""

from __future__ import annotations

import pytest

from hexloop.app.callbacks import PrinterCallback, TrainerControl, TrainerState

LOGS = {"loss": 0.693147, "learning_rate": 5e-05, "epoch": 1.0, "total_flos": 3.5e12, "note": "warm", "step": 3}


def test_log_is_one_line_with_rounded_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    """Floats have four significant digits, `total_flos` is omitted, and the logs are not modified."""
    logs = dict(LOGS)
    PrinterCallback().on_log(None, TrainerState(), TrainerControl(), logs=logs)
    expected = "{'loss': '0.6931', 'learning_rate': '5e-05', 'epoch': '1', 'note': 'warm', 'step': 3}\n"
    assert capsys.readouterr().out == expected
    assert logs == LOGS


def test_only_local_rank_0_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """Other processes print nothing, and neither does an event without logs."""
    PrinterCallback().on_log(None, TrainerState(is_local_process_zero=False), TrainerControl(), logs=dict(LOGS))
    PrinterCallback().on_log(None, TrainerState(), TrainerControl())
    assert capsys.readouterr().out == ""
