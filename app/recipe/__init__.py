"""Recipes: YAML files that describe a training run by import paths, so that any project's code can be trained."""

from hexloop.app.recipe.recipe import PARTS, Recipe, read_recipe

__all__ = ["PARTS", "Recipe", "read_recipe"]
