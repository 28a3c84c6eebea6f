"""Grids: combinations, TOML, wrong keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gapscope.base.errors import InvalidInput, UnreadableFile
from gapscope.base.specs import RunSpec
from gapscope.pools import Grid

TOML = """
measures = ["accuracy"]

[base.data]
name = "mnist"
train_size = 3000

[base.training]
penalties = [{ name = "weight", options = { strength = 0.001 } }]

[[cases]]
"network.name" = "lenet5"

[[cases]]
"network.name" = "fully_connected"
"network.options.width" = 32

[axes]
"data.label_noise" = [0.0, 0.3]
"seed" = [0, 1]
"""


def test_a_grid_is_cases_times_axes(tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(TOML)
    grid = Grid.from_toml(path)
    specs = list(grid)
    assert len(grid) == len(specs) == len({spec.id for spec in specs}) == 8
    assert {(s.network.name, s.data.label_noise, s.seed) for s in specs} == {
        (name, noise, seed) for name in ("lenet5", "fully_connected") for noise in (0.0, 0.3) for seed in (0, 1)
    }
    assert specs[4].network.options == {"width": 32} and specs[0].training.penalties[0].name == "weight"
    assert grid.measures == ("accuracy",) and all(spec.data.train_size == 3000 for spec in specs)


def test_equal_specs_come_once() -> None:
    assert len(Grid(cases=[{"seed": 1}, {"seed": 1}, {}])) == 2
    assert list(Grid()) == [RunSpec()]
    assert len(Grid(axes={"seed": range(3)})) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"axis": {}}, "has no table 'axis'.*Did you mean 'axes'"),
        ({"axes": {"data.lable_noise": [0]}}, "axes must name settings.*Did you mean 'data.label_noise'"),
        ({"axes": {"seed": []}}, "at least one value"),
        ({"cases": [{"sed": 1}]}, r"cases\[0\] must name settings.*Did you mean 'seed'"),
        ({"base": {"data": {"nam": "mnist"}}}, "no setting 'nam'.*Did you mean 'name'"),
        ({"cases": [1]}, r"cases must be tables of settings; got \[1\]"),
        ({"axes": [1]}, r"axes must be a table of lists; got \[1\]"),
        ({"measures": 5}, "measures must be a list of names; got 5"),
    ],
)
def test_wrong_keys_are_named_with_the_nearest(content: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Grid.from_dict(content)


def test_wrong_files_get_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match="there is no such file"):
        Grid.from_toml(tmp_path / "absent.toml")
    (tmp_path / "bad.toml").write_text("a = [1")
    with pytest.raises(UnreadableFile, match="must be a TOML file with a grid; reading it failed"):
        Grid.from_toml(tmp_path / "bad.toml")


def test_a_grid_is_counted_before_it_is_built() -> None:
    axes = {name: range(1000) for name in ("seed", "data.seed", "training.epochs")}
    with pytest.raises(InvalidInput, match=r"at most 100,000 combinations; this one has 1,000,000,000.*max_networks"):
        Grid(axes=axes)
    assert Grid(axes=axes, max_networks=10**9).axes == axes
    assert len(Grid.from_dict({"axes": {"seed": [1, 2]}, "max_networks": 2})) == 2


def test_a_byte_order_mark_is_no_part_of_a_grid(tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_bytes(b"\xef\xbb\xbf" + b'[base.network]\nname = "lenet5"\n')
    assert next(iter(Grid.from_toml(path))).network.name == "lenet5"
