"""What stands behind a part of this study: its scale in rows, its seeds, and the data that samples were drawn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gapscope.base.errors import DataNotFound
from gapscope.data import load_dataset
from gapscope_studies.expected_accuracy.runs import QUARTILES
from gapscope_studies.kit.pool import digest, in_words
from gapscope_studies.kit.study import RunSettings


def behind(setting: RunSettings, networks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The fields of an outcome that say at what scale it was run.

    Args:
        setting: Where the data lie.
        networks: Facts of every network: data, samples, noise, training configuration and seed.

    Returns:
        Its stands_in_for, seeds and data, see `hash_of`.
    """
    columns = {name: [network[name] for network in networks] for name in ("data", "samples", "noise", "recipe", "seed")}
    here = {
        "data": ", ".join(sorted(set(columns["data"]))),
        "training samples": in_words(columns["samples"]),
        "share of wrong labels": in_words(columns["noise"]),
        "network": "; ".join(sorted(set(columns["recipe"]))),
        "networks": str(len(networks)),
        "seeds": str(len(set(columns["seed"]))),
    }
    names = sorted({str(QUARTILES.get(name, name)) for name in columns["data"]})
    return {
        "stands_in_for": [{"what": what, "paper": "", "here": value} for what, value in here.items()],
        "seeds": sorted(set(columns["seed"])),
        "data": {name: hash_of(name, setting) for name in names},
    }


def hash_of(name: str, setting: RunSettings) -> str:
    """The hash of a whole data set, of which every network has samples of its own.

    A part that judges networks that are kept looks at no sample: it continues where the data are not, and says so.
    """
    try:
        return digest(load_dataset(name, root=setting.data_root))
    except DataNotFound:
        return "not on this machine"
