"""Grids of specs: all combinations of settings, from Python or TOML (without torch)."""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from gapscope.base.errors import InvalidInput, UnreadableFile, check_range, did_you_mean
from gapscope.base.files import check_file
from gapscope.base.options import as_python, check_known
from gapscope.base.specs import RunSpec, setting_paths
from gapscope.base.type_guards import is_list_or_tuple


def _check_path(path: str, where: str) -> None:
    known = setting_paths()
    stem = ".".join(path.split(".")[:2])
    if path in known or (stem in ("data.options", "network.options") and path.count(".") == 2):
        return
    raise InvalidInput(
        f"{where} must name settings by their path, such as 'data.label_noise'; got {path!r}."
        f"{did_you_mean(path, known)}"
    )


@dataclass(frozen=True, kw_only=True)
class Grid:
    """All combinations of cases and axes over a base spec, each spec once.

    Attributes:
        base: Settings that all specs share.
        cases: Alternatives that change several settings at once, each a mapping from setting path to value.
        axes: Setting path -> list of values; the grid has all combinations.
        measures: Measures to run on every trained network; None runs the default measures.
        max_networks: Maximum number of combinations, a guard against an axis too many.

    >>> grid = Grid(axes={"data.label_noise": [0.0, 0.5], "seed": [0, 1, 2]})
    >>> len(list(grid))
    6
    """

    base: RunSpec = field(default_factory=RunSpec)
    cases: Sequence[Mapping[str, Any]] = ()
    axes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    measures: tuple[str, ...] | None = None
    max_networks: int = 100_000

    def __post_init__(self) -> None:
        cases = self.cases
        measures = self.measures
        if (
            isinstance(cases, str)
            or not isinstance(cases, Sequence)
            or not all(isinstance(c, Mapping) for c in cases)
        ):
            raise InvalidInput(
                f"cases must be tables of settings; got {cases!r}. Write each below a line [[cases]]."
            )
        if not isinstance(self.axes, Mapping):
            raise InvalidInput(
                f"axes must be a table of lists; got {self.axes!r}. Write them below a line [axes]."
            )
        if measures is not None:
            if not is_list_or_tuple(measures) or not all(
                isinstance(name, str) for name in measures
            ):
                raise InvalidInput(
                    f'measures must be a list of names; got {measures!r}. Write measures = ["accuracy"].'
                )
            object.__setattr__(self, "measures", tuple(measures))
        check_range("max_networks", self.max_networks, 1)
        for number, case in enumerate(cases):
            for path in case:
                _check_path(path, f"cases[{number}]")
        axes = {path: as_python(values) for path, values in self.axes.items()}
        object.__setattr__(self, "axes", axes)
        for path, values in axes.items():
            _check_path(path, "axes")
            if (
                isinstance(values, str)
                or not isinstance(values, Sequence | range)
                or not len(values)
            ):
                raise InvalidInput(
                    f"axes['{path}'] must be a list with at least one value; got {values!r}. Use square brackets."
                )
        combinations = max(1, len(cases)) * math.prod(map(len, axes.values()))
        if combinations > self.max_networks:
            raise InvalidInput(
                f"A grid must have at most {self.max_networks:,} combinations; this one has {combinations:,}. "
                f"Shorten its axes, or set max_networks = {combinations}."
            )

    def __iter__(self) -> Iterator[RunSpec]:
        """Yield each spec once, in the order of cases and axes."""
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)

    @cached_property
    def _specs(self) -> tuple[RunSpec, ...]:
        tables: dict[Any, Any] = {}
        specs = (
            self.base.replace({**case, **dict(zip(self.axes, values, strict=True))}, made=tables)
            for case in self.cases or ({},)
            for values in itertools.product(*self.axes.values())
        )
        return tuple({spec.id: spec for spec in specs}.values())

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], where: str = "grid") -> Grid:
        """Build a grid from JSON-serializable values.

        Args:
            content: The attributes by name, `base` as a table (see `RunSpec.from_dict`).
            where: Name of the grid in messages.
        """
        check_known(where, content, [item.name for item in fields(cls)], noun="table")
        return cls(**{**content, "base": RunSpec.from_dict(content.get("base", {}))})

    @classmethod
    def from_toml(cls, path: Path | str) -> Grid:
        """Read a grid from a TOML file (`base`, `[[cases]]`, `axes`, `measures`).

        Args:
            path: TOML file (`base`, `[[cases]]`, `axes`, `measures`).

        Raises:
            UnreadableFile: The file does not exist, is no TOML, or holds no grid.
        """
        path = Path(path)
        check_file(path)
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        except FileNotFoundError:
            raise UnreadableFile(
                f"{path} must be a TOML file with a grid; there is no such file."
            ) from None
        except (ValueError, OSError, RecursionError) as error:
            raise UnreadableFile(
                f"{path} must be a TOML file with a grid; reading it failed: {error}."
            ) from None
        return cls.from_dict(content, str(path))
