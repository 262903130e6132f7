"""Checkpoints and the history of values for a task of Flyte."""

from __future__ import annotations

import contextvars
import html
import logging
from importlib.util import find_spec
from typing import Any

from hexloop.adapters.logger.tracker import Models, Tracker
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.installation import how_to_install
from hexloop.ports.logger import Outcome, Record, RunInformation, SavedModel

DECK = "Log History"

_logger = logging.getLogger("hexloop.loggers")


class Flyte(Tracker):
    """Logger adapter for a run in a task of flytekit, with the arguments of transformers' callback.

    save_log_history: whether a deck, "Log History", shows the values that this process logged; it requires pandas and
    flytekitplugins-deck-standard, and a task with `enable_deck=True`. sync_checkpoints: whether each checkpoint is
    stored in the task's checkpoint, which `current_context().checkpoint.restore()` returns when the task runs again.

    Construct it in the function of the task: Flyte's context belongs to that thread, and is kept for later calls from
    another one. Raises ConfigurationError if flytekit is missing or too old, or there is no such context.
    """

    package = ("flytekit", "flytekit", "flyte", "1.13")

    def __init__(self, save_log_history: bool = True, sync_checkpoints: bool = True) -> None:
        super().__init__()
        if save_log_history and not _has_decks():
            _logger.warning(
                "The history of values in a deck of Flyte requires pandas and flytekitplugins-deck-standard; %s.",
                how_to_install("flyte", "pandas", "flytekitplugins-deck-standard"),
            )
            save_log_history = False
        self.models: Models = "checkpoints" if sync_checkpoints else "none"
        self._saves_history = save_log_history
        self._checkpoint = _checkpoint_of_task()
        self._context = contextvars.copy_context()

    def _open(self, run: RunInformation) -> tuple[Any, bool]:
        """Begin the history; what Flyte stores belongs to the task, and has no other identity."""
        return [], True

    def write(self, record: Record) -> None:
        """Add values to the history."""
        if self._run is not None:
            self._run.append({**record.values, "step": record.step})

    def save(self, model: SavedModel) -> None:
        """Store a checkpoint; the final model alone is none, and would be mixed with it."""
        if not model.final:
            self._context.run(self._checkpoint.save, model.folder)

    def _close(self, run: Any, outcome: Outcome) -> None:
        """Make the deck, which begins with how the run ended."""
        if self._saves_history:
            self._context.run(_make_deck, run, outcome)


def _has_decks() -> bool:
    try:
        return bool(find_spec("pandas") and find_spec("flytekitplugins.deck"))
    except ModuleNotFoundError:  # of the parent
        return False


def _checkpoint_of_task() -> Any:
    from flytekit import current_context

    try:
        return current_context().checkpoint
    except (AttributeError, NotImplementedError):
        raise ConfigurationError(
            "Logging to flyte works only within a task of flytekit, which has a checkpoint; leave 'flyte' out of "
            "report_to elsewhere."
        ) from None


def _make_deck(history: list[dict[str, object]], outcome: Outcome) -> None:
    import pandas
    from flytekit import Deck
    from flytekitplugins.deck.renderer import TableRenderer

    ended = html.escape(f"{outcome.kind}: {outcome.problem}" if outcome.problem else outcome.kind)
    table = TableRenderer().to_html(pandas.DataFrame(history))
    Deck(DECK, f"<p>hexloop/outcome: {ended}</p>\n{table}")
