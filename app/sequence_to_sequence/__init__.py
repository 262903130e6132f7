"""Training models that turn one sequence into another, and measuring them by what they generate."""

from __future__ import annotations

from hexloop.app.sequence_to_sequence.arguments import Seq2SeqTrainingArguments
from hexloop.app.sequence_to_sequence.trainer import Seq2SeqTrainer

__all__ = ["Seq2SeqTrainer", "Seq2SeqTrainingArguments"]
