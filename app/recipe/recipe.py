"""A recipe: the parts of a Trainer, and how to make it from them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from attrs import frozen

from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.documents import Document
from hexloop.app.recipe.parts import PartKind, RecipePart
from hexloop.domain.errors import ConfigurationError

if TYPE_CHECKING:
    import hexloop

PARTS = {
    "model": PartKind.OBJECT,
    "model_init": PartKind.CALLABLE,
    "processing_class": PartKind.OBJECT,
    "train_dataset": PartKind.OBJECT,
    "eval_dataset": PartKind.OBJECT,
    "test_dataset": PartKind.OBJECT,
    "data_collator": PartKind.FUNCTION,
    "compute_loss_func": PartKind.FUNCTION,
    "compute_metrics": PartKind.FUNCTION,
    "preprocess_logits_for_metrics": PartKind.FUNCTION,
    "optimizer_cls_and_kwargs": PartKind.OBJECT,
    "callbacks": PartKind.EITHER,
}
"""The keys of a recipe that are parameters of Trainer with the same name (test_dataset: of `Trainer.predict`)."""

DATASETS = ("train_dataset", "eval_dataset", "test_dataset")


@frozen
class Recipe:
    """The contents of a recipe, resolved and checked, from which a Trainer can be made.

    source: the name of the file in messages. document: its values with their lines. parts: the parts to make, by the
    names in `PARTS`. trainer_class: Trainer, or the subclass that the recipe names.
    """

    source: str
    document: Document
    parts: Mapping[str, RecipePart]
    arguments: TrainingArguments
    trainer_class: type[hexloop.Trainer]

    def make_trainer(self, datasets: Collection[str]) -> hexloop.Trainer:
        """Return a Trainer with the given datasets ("train_dataset", "eval_dataset") and all other parts.

        Raises ConfigurationError if a part is unusable, and whatever the recipe's code raises, with a note that says
        which part was being made.
        """
        names = [name for name in PARTS if name not in DATASETS or name in datasets]
        made = {name: self.make(name) for name in names if name in self.parts}
        return self.trainer_class(args=self.arguments, **made)

    def make(self, name: str) -> Any:
        """Make the part `name`. The random generators are seeded first, so that parts do not affect each other."""
        from hexloop.app.wiring.adapters import choose_device

        choose_device(self.arguments).seed(self.arguments.seed)
        try:
            made = self.parts[name].make()
        except Exception as error:
            error.add_note(self.document.located([(name,)], f"This was raised while {name} was being made."))
            raise
        if made is None:
            self._refuse(name, "the result is None", "let what is called return the object")
        if PARTS[name] in (PartKind.FUNCTION, PartKind.CALLABLE) and not callable(made):
            self._refuse(
                name, f"the result of the call is a {type(made).__name__}, not a function", "let it return a function"
            )
        return made

    def _refuse(self, name: str, because: str, remedy: str) -> None:
        sentence = f"You chose {name}, but {because}; {remedy}."
        raise ConfigurationError(self.document.located([(name,)], sentence))
