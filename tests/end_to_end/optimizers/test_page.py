"""The table of optimizers in the docs is what the rows say, and what is observed in the optimizers made from them."""

from __future__ import annotations

import re

from tests.end_to_end.optimizers.page import PAGE, page, reaching

VERSION = re.compile(r"^(\| [\w-]+ \|) [^|]+ \|", re.MULTILINE)


def test_the_table_is_up_to_date() -> None:
    """But for the versions of packages; `python -m tests.end_to_end.optimizers.page` regenerates it."""
    assert VERSION.sub(r"\1", PAGE.read_text(encoding="utf-8")) == VERSION.sub(r"\1", page())


def test_adams_arguments_reach_what_has_them() -> None:
    """Also where transformers does not pass them."""
    assert {"adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay"} <= set(reaching("grokadamw"))
    assert reaching("sgd") == ["learning_rate", "weight_decay"]
