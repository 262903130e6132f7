"""`TrainingArguments`: all groups of arguments in one class, with what follows from them."""

from __future__ import annotations

from hexloop.app.arguments.declare import arguments_class
from hexloop.app.arguments.derived import DerivedValues
from hexloop.app.arguments.setters.learning import LearningSetters
from hexloop.app.arguments.setters.results import ResultSetters


@arguments_class
class TrainingArguments(LearningSetters, ResultSetters, DerivedValues):
    """Everything that a run can be told, with the names and defaults of the reference library.

    The arguments stand where they are declared, grouped by what they are about; `hexloop train --help` lists them. The
    first, `output_dir`, may be given by position, the others are given by name.

    It is an attrs class, and a dataclass to the outside: derive from it with `@dataclass` or with `@attrs.define(slots=
    False)`, and call `super().__post_init__()` from a `__post_init__` of your own. Values may be assigned at any time.

    Raises:
        ConfigurationError: on construction with every problem there is; on assignment with what is wrong with the value
            by itself. Values that are wrong only together are found by `check`, which comes again before training.
    """
