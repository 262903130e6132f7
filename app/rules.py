"""What differs between hexloop's own behaviour and that of `reproduce="transformers"`, in one table."""

from __future__ import annotations

from types import MappingProxyType
from typing import Protocol

from attrs import frozen


@frozen(kw_only=True)
class Rules:
    """How a run behaves where hexloop and transformers differ. docs/differences.md has the reasons.

    name: the value of `reproduce`.
    own_order: samples come in an order that is a function of seed, epoch and position, each row is read once, and an
        evaluation draws from random streams of its own. Otherwise loaders and samplers draw and share as in
        transformers, and the random numbers of an evaluation and of imports are those of the run.
    own_losses: losses are weighted, counted, summed and shared over processes by hexloop. Otherwise the loss is chosen
        and scaled as by transformers, and logs average over processes.
    own_precision: the whole step computes in half precision, loss included. Otherwise the model's forward does alone,
        and a CPU computes in fp32.
    run_sets_training_mode: a run puts the model into training mode before its first step. Otherwise the standard
        `training_step` does.
    new_optimizer: each run makes a new optimizer. Otherwise the next one continues with the optimizer of the last.
    keeps_fresh_model: a model that was not trained is kept by a run, also if there is a `model_init`.
    measures_operations: operations of a model that has no figure of its own are measured.
    generation_config_stays: `generate` leaves the generation config of the model as it is.
    own_search: a trial of a search counts with its best evaluation, and one that raises counts as failed. Otherwise the
        last evaluation counts, and an error ends the search.
    """

    name: str | None
    own_order: bool
    own_losses: bool
    own_precision: bool
    run_sets_training_mode: bool
    new_optimizer: bool
    keeps_fresh_model: bool
    measures_operations: bool
    generation_config_stays: bool
    own_search: bool


OWN = Rules(
    name=None,
    own_order=True,
    own_losses=True,
    own_precision=True,
    run_sets_training_mode=True,
    new_optimizer=True,
    keeps_fresh_model=True,
    measures_operations=True,
    generation_config_stays=True,
    own_search=True,
)

TRANSFORMERS = Rules(
    name="transformers",
    own_order=False,
    own_losses=False,
    own_precision=False,
    run_sets_training_mode=False,
    new_optimizer=False,
    keeps_fresh_model=False,
    measures_operations=False,
    generation_config_stays=False,
    own_search=False,
)

RULES = MappingProxyType({each.name: each for each in (OWN, TRANSFORMERS)})
"""The rules by the value of `reproduce`."""


class Reproducing(Protocol):
    """Arguments that choose the rules."""

    @property
    def reproduce(self) -> str | None:
        """What a run reproduces; None for hexloop's own behaviour."""


def rules_of(args: Reproducing) -> Rules:
    """Return the rules that the arguments choose."""
    return RULES[args.reproduce]
