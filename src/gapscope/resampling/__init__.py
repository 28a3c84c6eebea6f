"""Judging a recipe by training it again on parts of the data and scoring it on the rest."""
