"""What transformers does with a warning: whether hexloop refuses it, and where the warning goes.

`TOPICS` lists both for each case, and a `Notices` value says whether hexloop's behaviour or transformers' applies.
`hexloop.takeover` and `hexloop run` choose transformers'; whatever is created meanwhile keeps it.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from attrs import frozen

OWN = "hexloop"
"""The logger of hexloop's own messages."""

TRAINER, CALLBACKS = "transformers.trainer", "transformers.trainer_callback"
"""The loggers that transformers warns through, which programs filter and tests watch."""


@frozen
class Topic:
    """A case that transformers accepts with a warning.

    logger: what transformers warns through; None for the module `warnings`. own: what hexloop warns through outside a
    takeover; None for the module `warnings`. refused: whether hexloop refuses it outside a takeover.
    """

    logger: str | None
    own: str | None = None
    refused: bool = False


TOPICS: Mapping[str, Topic] = MappingProxyType(
    {
        # A resumed run
        "batch_size": Topic(TRAINER, refused=True),
        "data_length": Topic(TRAINER, refused=True),
        "intervals": Topic(TRAINER, OWN),
        "missing callback": Topic(TRAINER),
        "other keys": Topic(TRAINER, OWN),
        # A run
        "label smoothing": Topic(None),
        "no batches": Topic(TRAINER),
        # Callbacks
        "repeated callback": Topic(CALLBACKS),
        "no default flow": Topic(CALLBACKS, OWN),
        "early stopping without the best model": Topic(CALLBACKS),
        "early stopping without its metric": Topic(CALLBACKS),
    }
)
"""The cases by name. The names of refused ones are those that `resume_despite` accepts."""


@frozen
class Notices:
    """How the cases of `TOPICS` are handled: as in hexloop, or as in transformers."""

    as_transformers: bool = False

    def refuses(self, topic: str) -> bool:
        """Return whether a case is refused, and not only warned of."""
        return TOPICS[topic].refused and not self.as_transformers

    def warn(self, topic: str, message: str, stacklevel: int = 2) -> None:
        """Warn of a case, by a logger or by `warnings`; stacklevel: as in `warnings.warn`, from the caller on."""
        logger = TOPICS[topic].logger if self.as_transformers else TOPICS[topic].own
        if logger is None:
            warnings.warn(message, UserWarning, stacklevel=stacklevel + 1)
        else:
            logging.getLogger(logger).warning(message)

    @property
    def logger(self) -> logging.Logger:
        """The logger of what both libraries report about a run, such as its header."""
        return logging.getLogger(TRAINER if self.as_transformers else OWN)


HEXLOOPS, TRANSFORMERS = Notices(), Notices(as_transformers=True)

_in_force = [HEXLOOPS]


def notices_in_force() -> Notices:
    """Return the behaviour for what is created now."""
    return _in_force[-1]


def put_in_force(notices: Notices) -> Callable[[], None]:
    """Let `notices_in_force` return `notices`; return what undoes it."""
    _in_force.append(notices)
    return partial(_in_force.remove, notices)
