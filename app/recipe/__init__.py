"""Recipes: YAML files that name what a Trainer is made of, so that any project's own code can be trained."""

from hexloop.app.recipe.reading import read_recipe
from hexloop.app.recipe.recipe import PARTS, Recipe

__all__ = ["PARTS", "Recipe", "read_recipe"]
