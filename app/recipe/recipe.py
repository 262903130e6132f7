"""A recipe: what a Trainer is made of, and how it is made."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from attrs import frozen

from hexloop.app.arguments import Document, TrainingArguments
from hexloop.app.recipe.part_reading import Sort
from hexloop.app.recipe.parts import Part
from hexloop.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from hexloop.app.trainer import Trainer

ARGUMENTS = "arguments"
TRAINER = "trainer"

PARTS = {
    "model": Sort.OBJECT,
    "model_init": Sort.CALLABLE,
    "processing_class": Sort.OBJECT,
    "train_dataset": Sort.OBJECT,
    "eval_dataset": Sort.OBJECT,
    "test_dataset": Sort.OBJECT,
    "data_collator": Sort.FUNCTION,
    "compute_loss_func": Sort.FUNCTION,
    "compute_metrics": Sort.FUNCTION,
    "preprocess_logits_for_metrics": Sort.FUNCTION,
    "optimizer_cls_and_kwargs": Sort.OBJECT,
    "callbacks": Sort.EITHER,
}
"""The keys of a recipe that are parameters of a Trainer of the same name (test_dataset: of `Trainer.predict`)."""

DATASETS = ("train_dataset", "eval_dataset", "test_dataset")


@frozen
class Recipe:
    """What a recipe names, resolved and checked, and not made yet.

    source: the file, as messages call it. document: its values with their lines. parts: what is made, by the names of
    `PARTS`. trainer_class: Trainer, or the subclass that the recipe names.
    """

    source: str
    document: Document
    parts: Mapping[str, Part]
    arguments: TrainingArguments
    trainer_class: type[Trainer]

    def make_trainer(self, datasets: Collection[str]) -> Trainer:
        """A Trainer with the data sets named, out of "train_dataset" and "eval_dataset", and all other parts.

        Raises ConfigurationError where a part turns out to be none, and whatever the recipe's own code raises, with a
        note that says which part was being made.
        """
        names = [name for name in PARTS if name not in DATASETS or name in datasets]
        made = {name: self.make(name) for name in names if name in self.parts}
        return self.trainer_class(args=self.arguments, **made)

    def make(self, name: str) -> Any:
        """The part `name`, with the random generators seeded first, so that no part changes what another one draws."""
        from hexloop.app.wiring.adapters import choose_device

        choose_device(self.arguments).seed(self.arguments.seed)
        try:
            made = self.parts[name].make()
        except Exception as error:
            error.add_note(self.document.located([(name,)], f"this was raised while {name} was made."))
            raise
        if made is None:
            self._refuse(name, "it turned out to be None", "let what is called return the object")
        if PARTS[name] in (Sort.FUNCTION, Sort.CALLABLE) and not callable(made):
            self._refuse(
                name, f"what was called gave a {type(made).__name__}, which is no function", "let it return a function"
            )
        return made

    def _refuse(self, name: str, because: str, remedy: str) -> None:
        sentence = f"You chose {name}, but {because}; {remedy}."
        raise ConfigurationError([self.document.located([(name,)], sentence)])


def is_trainer(candidate: object) -> bool:
    """Whether `candidate` is Trainer or a subclass of it."""
    from hexloop.app.trainer import Trainer

    return inspect.isclass(candidate) and issubclass(candidate, Trainer)
