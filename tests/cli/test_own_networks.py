"""Networks that were trained elsewhere: on the command line by a function, and in a pool up to the estimate."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.cli.factories import _is_state
from support.commands import gapscope
from support.door_networks import bert, resnet18

MODULE = """
import torch
from torch import nn

X = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))


class MyNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        torch.manual_seed(width)
        self.layers = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, x):
        return self.layers(x)


def load(path):
    checkpoint = torch.load(path, weights_only=True)
    network = MyNet(20)
    network.load_state_dict(checkpoint["state"])
    return network, (X, checkpoint["labels"])


def test_data():
    return X.flip(1), (X.flip(1)[:, 0] > 0).long()


def training_data():
    return small()[1]


def small():
    return MyNet(10), (X, (X[:, 0] > 0).long())


def large():
    return MyNet(30), small()[1]


def nothing():
    return None


def swapped():
    return X, (X[:, 0] > 0).long()


def tuned():
    return MyNet(14), small()[1], {"width": 14, "rate": 0.5}


def started():
    network = MyNet(10)
    first = {name: 0.5 * tensor for name, tensor in network.state_dict().items()}
    return network, small()[1], first


def named():
    network, data, first = started()
    return {"network": network, "data": data, "initial_state": first, "settings": {"width": 10}}


def misnamed():
    return {"network": MyNet(10), "data": small()[1], "state": 1}


def four():
    return 1, 2, 3, 4
"""
NAMES = ["input_jacobian_norm", "ntk_trace", "loss", "accuracy", "parameter_norm"]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "own_networks.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("own_networks", None)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> gs.Pool:
    result = gs.Pool(tmp_path_factory.mktemp("own") / "pool")
    x = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
    for i in range(12):
        torch.manual_seed(i)
        y = torch.where(torch.rand(60) < 0.03 * i, torch.randint(0, 2, (60,)), (x[:, 0] > 0).long())
        network = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 2))
        gs.train(
            network, gs.Samples(x, y), gs.TrainingSpec(epochs=20, batch_size=20, learning_rate=0.1)
        )
        test = (x.flip(1), (x.flip(1)[:, 0] > 0).long())
        result.add(
            network,
            (x, y),
            test=test,
            name=f"net {i}",
            family="mlp",
            measures=NAMES,
            settings={"noise": i},
        )
    return result


@pytest.mark.thorough
def test_a_pool_of_own_networks_is_read_reported_and_estimated_from(
    pool: gs.Pool, own: Path
) -> None:
    table = pool.to_pandas()
    assert (
        len(table) == 12
        and set(table["network.name"]) == {"mlp"}
        and all(table["gap"] == table["gap"])
    )
    assert sorted(table["hp.noise"]) == list(range(12))
    done = gapscope("report", pool.folder, "--output", own / "report.html")
    assert done.returncode == 0 and "net 0" in (own / "report.html").read_text()
    done = gapscope("gap", "fit", pool.folder)
    assert done.returncode == 0 and "fitted on 12 networks; gap of accuracy" in done.stdout, (
        done.stderr
    )
    done = gapscope("gap", "predict", pool.folder, "own_networks:small", "own_networks:large")
    assert done.returncode in (0, 3) and done.stdout.count("in domain: ") == 2, done.stderr
    estimator = gs.GapEstimator.load(pool.folder / "estimator.json")
    record = pool.records()[0]
    answer = estimator.assess(gs.pools.records_to_pandas([record]))
    assert answer["verdict"].tolist() == ["inside"]


def test_adding_the_same_network_again_takes_its_place(pool: gs.Pool) -> None:
    record = pool.records()[0]
    assert pool.add(record) == record and len(pool.records()) == 12


def test_eleven_networks_are_too_few_for_an_estimator(pool: gs.Pool, tmp_path: Path) -> None:
    few = gs.Pool(tmp_path / "few")
    for record in pool.records()[:11]:
        few.add(record)
    done = gapscope("gap", "fit", few.folder)
    assert done.returncode == 1 and "needs 12 finished networks or more" in done.stderr
    assert gapscope("report", few.folder).returncode == 0


@pytest.mark.thorough
def test_an_estimator_worse_than_the_mean_gap_is_not_written(pool: gs.Pool, tmp_path: Path) -> None:
    noise = gs.Pool(tmp_path / "noise")
    for number, record in enumerate(pool.records()):
        scores = {
            **record.scores,
            "test_accuracy": record.scores["train_accuracy"] - 0.1 * (number % 2),
        }
        noise.add(dataclasses.replace(record, scores=scores))
    done = gapscope("gap", "fit", noise.folder)
    assert done.returncode == 3 and "no estimator" in done.stdout and "next:" not in done.stdout
    quality = json.loads(gapscope("gap", "fit", noise.folder, "--json").stdout)
    assert quality["written"] is None and not (noise.folder / "estimator.json").exists()


def test_own_networks_are_measured_and_compared_by_name_of_a_function(own: Path) -> None:
    done = gapscope("measure", "own_networks:small", "--measure", "parameter_count", "--json")
    assert json.loads(done.stdout)["readings"]["rows"][0]["value"] == 92, done.stderr
    done = gapscope(
        "compare", "own_networks:small", "own_networks:large", "--measure", "input_jacobian_norm"
    )
    assert done.returncode == 0 and "By size alone it would be small." in done.stdout, done.stderr
    table = done.stdout.split("training samples")[1]
    heads, *rows = [line.split() for line in table.splitlines() if line.strip() and "─" not in line]
    sizes = next(row for row in rows if row[0] == "parameter_count")
    assert sorted(heads) == ["large", "small"] and sizes[1 + heads.index("small")] == "92"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("no_such_module:small", "there is no 'no_such_module'"),
        ("own_networks:smal", "it has no 'smal'. Did you mean 'small'?"),
        ("own_networks:nothing", "it returned NoneType"),
        ("own_networks:swapped", "the first of its values is a Tensor"),
        ("own_networks:four", "a tuple of 4"),
        ("absent/own_networks.py:small", "there is no absent/own_networks.py"),
        ("own_networks.py:smal", "Did you mean 'small'?"),
        ("broken.py:small", "broken.py, line 1"),
        ("broken:small", "ZeroDivisionError"),
    ],
)
def test_a_wrong_function_gets_one_sentence(own: Path, source: str, message: str) -> None:
    (own / "broken.py").write_text("1 / 0")
    done = gapscope("measure", source)
    assert done.returncode == 1 and message in done.stderr


WRONG = """
import sys
import torch

def needs(width): pass
def raises(): return torch.nn.Linear(4, 2)(torch.zeros(3, 5))
def nothing(): pass
def ends(): sys.exit(0)
network = torch.nn.Linear(4, 2)
class Network(torch.nn.Linear): pass
"""


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("needs", ["must take no arguments", "needs(width)", "def build()"]),
        ("raises", ["RuntimeError", "wrong_functions.py, line 6"]),
        ("nothing", ["it returned NoneType", "return network, (inputs, targets)"]),
        ("ends", ["SystemExit: 0", "wrong_functions.py, line 8"]),
        ("network", ["must name a function; got a Linear"]),
        ("Network", ["got the class Network"]),
    ],
)
def test_what_is_wrong_with_a_function_is_named_by_its_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, facts: list[str]
) -> None:
    (tmp_path / "wrong_functions.py").write_text(WRONG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "wrong_functions", raising=False)
    done = gapscope("check", f"wrong_functions:{name}")
    assert done.returncode == 1 and "factories.py" not in done.stderr
    assert all(fact in done.stderr for fact in facts), done.stderr


def test_a_file_here_comes_before_an_installed_module_of_its_name(own: Path) -> None:
    import tabnanny

    (own / "tabnanny.py").write_text(MODULE)
    done = gapscope("measure", "tabnanny:small", "--measure", "parameter_count")
    assert done.returncode == 0, done.stderr
    assert sys.modules["tabnanny"] is tabnanny


@pytest.mark.thorough
def test_a_resnet_and_a_bert_make_records() -> None:
    for make in (resnet18, bert):
        network, data = make()
        record = gs.record_network(
            network, data, test=data, name="mine", measures=["ntk_trace", "unit_sparsity", "loss"]
        )
        assert (
            record.gap == 0
            and record.readings["ntk_trace"].value > 0
            and record.measured_samples == 24
        )
        assert record.spec["network"]["name"] == type(network).__name__
    assert not record.unmeasured
    # NaN: no test data
    assert gs.record_network(network, data, name="mine", measures=["loss"]).gap != record.gap


def test_a_record_needs_targets() -> None:
    with pytest.raises(InvalidInput, match="train score"):
        gs.record_network(nn.Linear(3, 2), torch.ones(4, 3), name="mine")


@pytest.mark.parametrize(
    "source", ["code/my-models.py:small", "./code/my-models.py:small", "code/my-models:small"]
)
def test_a_function_may_be_named_by_its_file(own: Path, source: str) -> None:
    (own / "code").mkdir()
    (own / "code" / "my-models.py").write_text(MODULE)
    done = gapscope("measure", source, "--measure", "parameter_count", "--json")
    assert json.loads(done.stdout)["readings"]["rows"][0]["value"] == 92, done.stderr
    sys.modules.pop("my-models", None)


def test_files_of_one_name_are_different_modules_and_different_networks(own: Path) -> None:
    for width in (10, 30):
        (own / f"run{width}").mkdir()
        (own / f"run{width}" / "same_name.py").write_text(
            MODULE.replace("MyNet(10)", f"MyNet({width})")
        )
    sources = [f"run{width}/same_name.py:small" for width in (10, 30)]
    done = gapscope("pool", "add", "pool", *sources, "--measure", "parameter_count")
    sizes = {
        record.spec["name"]: record.readings["parameter_count"].value for record in gs.Pool("pool")
    }
    assert sizes == {"run10/same_name.py:small": 92, "run30/same_name.py:small": 272}, done.stderr
    compared = gapscope("compare", *sources, "--measure", "input_jacobian_norm", "--json")
    assert (
        "run10/same_name.py:small" in compared.stdout
        and "run30/same_name.py:small" in compared.stdout
    )


def test_checkpoints_of_one_name_are_all_kept(own: Path) -> None:
    import own_networks  # pyright: ignore[reportMissingImports]

    labels = own_networks.small()[1][1]
    paths = [Path("run1/best.pt"), Path("run2/best.pt"), Path("run2/last.pt")]
    for seed, path in enumerate(paths):
        path.parent.mkdir(exist_ok=True)
        network = own_networks.MyNet(20)
        torch.manual_seed(seed)
        nn.init.normal_(network.layers[0].weight)
        torch.save({"labels": labels, "state": network.state_dict()}, path)
    options = ("--load", "own_networks:load", "--measure", "loss")
    done = gapscope(
        "pool",
        "add",
        "pool",
        *paths,
        "./run1/best.pt",
        *options,
        "--set",
        "width=20",
        "--set",
        "kind=a=b",
    )
    assert "3 networks added to pool, 3 in total" in done.stdout, done.stderr
    records = {record.spec["name"]: record for record in gs.Pool("pool")}
    assert set(records) == {"run1/best", "run2/best", "last"}
    assert records["last"].spec["hp"] == {"width": 20, "kind": "a=b"}
    gapscope("pool", "add", "other", "run1/best.pt", *options)
    again = gapscope("pool", "add", "other", "run2/best.pt", *options)
    assert (
        again.returncode == 1 and "another network" in again.stderr and len(gs.Pool("other")) == 1
    )
    gapscope("pool", "add", "other", "run2/best.pt", *options, "--name", "second")
    assert len(gs.Pool("other")) == 2


def test_settings_are_the_third_value_of_a_function(own: Path) -> None:
    add = ("pool", "add", "pool", "own_networks:tuned", "--measure", "loss", "--set", "a=1")
    done = gapscope(*add, "--set", "rate=0.5")
    (record,) = gs.Pool("pool")
    assert record.spec["hp"] == {"width": 14, "rate": 0.5, "a": 1}, done.stderr
    assert gapscope("measure", "own_networks:tuned", "--measure", "loss").returncode == 0
    again = gapscope(*add, "--set", "rate=0.5")
    assert "0 networks added to pool, 1 updated, 1 in total" in again.stdout
    refused = gapscope(*add, "--set", "rate=1")
    assert refused.returncode == 1 and "rate = 0.5 from its function" in refused.stderr


@pytest.mark.parametrize("function", ["started", "named"])
def test_tensors_as_a_third_value_are_the_initial_state(own: Path, function: str) -> None:
    source = f"own_networks:{function}"
    distance = ("--measure", "distance_from_initialization")
    done = gapscope("measure", source, *distance, "--json")
    assert json.loads(done.stdout)["readings"]["rows"][0]["value"] > 0, done.stderr
    done = gapscope("pool", "add", "pool", source, *distance)
    (record,) = gs.Pool("pool")
    assert record.readings["distance_from_initialization"].value > 0, done.stderr
    assert record.spec.get("hp") == ({"width": 10} if function == "named" else None)
    answer = json.loads(gapscope("estimate", source, "--json").stdout)
    assert "resampled" not in str(answer["networks"][0]["notes"])


def test_settings_may_hold_a_tensor() -> None:
    tensor = torch.zeros(3)
    for settings in ({"means": tensor, "rate": 0.1}, {"rate": np.float64(0.1)}, {}):
        assert not _is_state(settings)
    assert _is_state({"weight": tensor, "n": torch.tensor(0), "norm._extra_state": "a"})


def test_commands_take_mappings_as_check_does(own: Path) -> None:
    for command in ("forecast", "labels", "check"):
        assert gapscope(command, "own_networks:named").returncode in (0, 3), command
        done = gapscope(command, "own_networks:misnamed")
        assert done.returncode == 1 and "returned state; known are" in done.stderr
    done = gapscope("measure", "own_networks:named", "--measure", "loss")
    assert done.returncode == 0


def test_a_pool_without_networks_is_named(own: Path) -> None:
    gs.Pool("empty").folder.joinpath("runs").mkdir(parents=True)
    for options in ((), ("--json",)):
        done = gapscope("pool", "show", "empty", *options)
        assert done.returncode == 1 and "empty" in done.stderr and "KeyError" not in done.stderr


def test_copies_of_training_samples_are_noted(own: Path) -> None:
    options = ("own_networks:small", "--measure", "loss", "--test")
    done = gapscope("pool", "add", "copies", *options, "own_networks:training_data")
    assert "test samples repeat a training sample: the gap is too small" in done.stdout, done.stderr
    assert "repeat" not in gapscope("pool", "add", "new", *options, "own_networks:test_data").stdout


@pytest.fixture
def checkpoints(own: Path) -> list[str]:
    """Files of torch.save, as own training runs leave them."""
    import own_networks  # pyright: ignore[reportMissingImports]

    for i in range(12):
        network, (x, truth) = own_networks.MyNet(20), own_networks.small()[1]
        torch.manual_seed(i)
        labels = torch.where(torch.rand(60) < 0.04 * i, torch.randint(0, 2, (60,)), truth)
        gs.train(network, (x, labels), gs.TrainingSpec(epochs=20, batch_size=20, learning_rate=0.1))
        torch.save({"labels": labels, "state": network.state_dict()}, f"net_{i}.pt")
    return [f"net_{i}.pt" for i in range(12)]


@pytest.mark.thorough
def test_checkpoints_of_own_classes_become_a_pool_a_leaderboard_and_a_gap(
    checkpoints: list[str],
) -> None:
    loading = ("--load", "own_networks:load", "--test", "own_networks:test_data")
    named = [part for name in NAMES for part in ("--measure", name)]
    done = gapscope("pool", "add", "pool", *checkpoints, *loading, *named)
    assert done.returncode == 0 and "12 networks added to pool, 12 in total" in done.stdout, (
        done.stderr
    )
    pool = gs.Pool("pool")
    assert {record.spec["name"] for record in pool.records()} == {
        Path(name).stem for name in checkpoints
    }
    assert {record.spec["network"]["name"] for record in pool.records()} == {"MyNet"}
    shown = gapscope("pool", "show", "pool")
    assert (
        shown.returncode == 0
        and "net_3" in shown.stdout
        and "gap" in shown.stdout
        and "…" not in shown.stdout
    )
    rows = json.loads(gapscope("pool", "show", "pool", "--json").stdout)["networks"]
    assert len(rows) == 12 and all(abs(row["gap"]) <= 1 for row in rows)
    assert [row["test_accuracy"] for row in rows] == sorted(
        (row["test_accuracy"] for row in rows), reverse=True
    )
    # a pool, its folder and its table are the same to a leaderboard
    boards = [
        gs.rank_measures(source, n_permutations=20) for source in (pool, "pool", pool.to_pandas())
    ]
    assert [row.measure for row in boards[0]] == [row.measure for row in boards[1]]
    assert {row.measure for row in boards[0]} == {row.measure for row in boards[2]}
    assert gapscope("gap", "fit", "pool").returncode == 0
    # the family is that of the pool, whose networks have one in common
    answer = json.loads(gapscope("gap", "predict", "pool", "own_networks:small", "--json").stdout)[
        "answers"
    ][0]
    assert "network.name" not in str(answer["reason"])
    loaded = gapscope(
        "gap", "predict", "pool", checkpoints[0], "--load", "own_networks:load", "--json"
    )
    assert len(json.loads(loaded.stdout)["answers"]) == 1, loaded.stderr
    pool_for_network = gapscope("gap", "predict", "pool", "pool")
    assert pool_for_network.returncode == 1 and "Remove" not in pool_for_network.stderr
    foreign = gapscope("gap", "predict", "pool", "own_networks:small", "--family", "elsewhere")
    assert foreign.returncode == 3 and "--family NAME" in foreign.stdout
    abstained = gapscope(
        "gap", "predict", "pool", "own_networks:small", "--family", "elsewhere", "--json"
    )
    (row,) = json.loads(abstained.stdout)["answers"]
    assert row["prediction"] is None or isinstance(row["prediction"], float)
    assert "NaN" not in abstained.stdout


def test_a_file_of_torch_save_is_never_read(own: Path) -> None:
    network = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 2))
    torch.save({"state": network.state_dict()}, "net_0.pt")
    for command in (("estimate",), ("measure",), ("pool", "add", "pool")):
        done = gapscope(*command, "net_0.pt")
        assert (
            done.returncode == 1 and "my_models:load" in done.stderr and "unpickle" in done.stderr
        ), command
    done = gapscope("check", "net_0.pt")
    assert "gapscope check net_0.pt --load my_models:load" in done.stderr
    with pytest.raises(InvalidInput, match=r"got the path 'net_0\.pt'"):
        gs.Pool("pool").add("net_0.pt", (torch.eye(4), torch.arange(4)), name="a")  # type: ignore[arg-type]
    state = torch.load("net_0.pt", weights_only=True)["state"]
    with pytest.raises(InvalidInput, match="mapping of 4 entries"):
        gs.estimate_accuracy(state, (torch.randn(30, 6), torch.arange(30) % 2))
    absent = gapscope("pool", "add", "pool", "absent.pt", "--load", "own_networks:load")
    assert absent.returncode == 1 and "absent.pt must be a file" in absent.stderr
