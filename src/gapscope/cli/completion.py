"""Completion of names in the shell (`gapscope --install-completion`)."""

from __future__ import annotations


def complete_datasets(incomplete: str) -> list[str]:
    """Return the data sets whose names start so."""
    from gapscope.data import dataset_names

    return [name for name in dataset_names() if name.startswith(incomplete)]


def complete_measures(incomplete: str) -> list[str]:
    """Return the measures whose names start so."""
    from gapscope.measures.registry import list_measures

    return [name for name in list_measures() if name.startswith(incomplete)]
