"""Recipes: YAML files that describe a training run by import paths, so that any project's code can be trained."""

from hexloop.app.recipe.reading import read_recipe
from hexloop.app.recipe.recipe import PARTS, Recipe

__all__ = ["PARTS", "Recipe", "read_recipe"]
