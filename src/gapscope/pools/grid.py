"""Grids of specs: every combination of some settings, read from Python or TOML (never torch)."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gapscope.base.errors import InvalidInput, UnreadableFile, nearest
from gapscope.base.specs import Spec, setting_paths

_TABLES = ("base", "cases", "axes", "measures")


def _check_path(path: str, where: str) -> None:
    known = setting_paths()
    stem = ".".join(path.split(".")[:2])
    if path in known or (stem in ("data.options", "network.options") and path.count(".") == 2):
        return
    raise InvalidInput(f"{where} must name settings by their path, such as 'data.label_noise'; got {path!r}."
                       f"{nearest(path, known)}")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Grid:
    """All combinations of cases and axes over a base spec; iterating yields each spec once.

    Attributes:
        base: What all specs share.
        cases: Alternatives of several settings changed together, each a mapping from setting path to value.
        axes: Setting path -> list of values; all combinations are taken.
        measures: Names of the measures to take of every trained network; None takes all that apply.

    >>> grid = Grid(axes={"data.label_noise": [0.0, 0.5], "seed": [0, 1, 2]})
    >>> len(list(grid))
    6
    """

    base: Spec = field(default_factory=Spec)
    cases: Sequence[Mapping[str, Any]] = ()
    axes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    measures: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for number, case in enumerate(self.cases):
            for path in case:
                _check_path(path, f"cases[{number}]")
        for path, values in self.axes.items():
            _check_path(path, "axes")
            if isinstance(values, str) or not isinstance(values, Sequence | range) or not len(values):
                raise InvalidInput(
                    f"axes['{path}'] must be a list with at least one value; got {values!r}. Use square brackets."
                )

    def __iter__(self) -> Iterator[Spec]:
        """Yield each spec once, in the order of cases and axes."""
        seen = set()
        for case in self.cases or ({},):
            for values in itertools.product(*self.axes.values()):
                spec = self.base.replace({**case, **dict(zip(self.axes, values, strict=True))})
                if spec.id not in seen:
                    seen.add(spec.id)
                    yield spec

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], where: str = "grid") -> Grid:
        """Build a grid from plain values.

        Args:
            content: Tables "base" (a spec), "cases" (a list of changes), "axes", and a list "measures".
            where: What to call it in messages.

        Returns:
            The grid.

        Raises:
            InvalidInput: A key or a value is wrong; the nearest right key is named.
        """
        for key in content:
            if key not in _TABLES:
                raise InvalidInput(
                    f"{where} has no table {key!r}; it knows {', '.join(_TABLES)}.{nearest(key, _TABLES)}"
                )
        measures = content.get("measures")
        return cls(
            base=Spec.from_dict(content.get("base", {})),
            cases=tuple(content.get("cases", ())),
            axes=dict(content.get("axes", {})),
            measures=None if measures is None else tuple(measures),
        )

    @classmethod
    def from_toml(cls, path: Path | str) -> Grid:
        """Read a grid from a TOML file with tables `base`, `[[cases]]` and `axes`, and a list `measures`.

        Args:
            path: The file.

        Returns:
            The grid.

        Raises:
            UnreadableFile: The file is missing or is no TOML.
        """
        path = Path(path)
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UnreadableFile(f"{path} must be a TOML file with a grid; there is no such file.") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, IsADirectoryError) as error:
            raise UnreadableFile(f"{path} must be a TOML file with a grid; reading it failed: {error}.") from None
        return cls.from_dict(content, str(path))
