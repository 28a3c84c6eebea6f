"""The leaderboard on the competition's networks, on tables of the user's own, and its verdicts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
from scipy.stats import kendalltau

import gapscope as gs
from gapscope.base.errors import DataNotFound, InvalidInput, UnreadableFile
from gapscope.gap.columns import training_configurations
from gapscope.leaderboard.leaderboard_result import Score, shorten_names, verdict_of
from gapscope.leaderboard.paired_scores import sign_errors
from gapscope.leaderboard.ranking import RANDOM, explain_by_settings, verdicts
from support.tables import rows_of

# the spec's own computation: tau, granulated tau, score of the competition
REFERENCE = {
    "rbf": (0.809, 0.583, 28.661),
    "wcv": (0.786, 0.545, 27.745),
    "smoothness_gap": (0.607, 0.500, 10.909),
    "vc_dim": (0.151, 0.153, 0.039),
}


@pytest.fixture(scope="module")
def board(pgdl: pandas.DataFrame) -> gs.Leaderboard:
    return gs.rank_measures(
        pgdl, measures=[f"m.{name}" for name in REFERENCE], n_permutations=200, n_bootstrap=100
    )


@pytest.mark.thorough
def test_the_competition_has_the_reference_scores(board: gs.Leaderboard) -> None:
    for name, (tau, granulated, score) in REFERENCE.items():
        row = board.row(name)
        assert row.kendall.value == pytest.approx(tau, abs=6e-4)
        assert row.granulated.value == pytest.approx(granulated, abs=6e-4)
        assert row.competition == pytest.approx(score, abs=6e-4)


def test_columns_are_named_with_or_without_their_prefix(pgdl: pandas.DataFrame) -> None:
    boards = [
        gs.rank_measures(
            pgdl,
            measures=[f"{measure}rbf"],
            hyperparameters=[f"{setting}{name}" for name in ("convwidth", "bs")],
            n_permutations=20,
            n_bootstrap=20,
        )
        for measure, setting in (("m.", "hp."), ("", ""))
    ]
    assert boards[0].to_dict() == boards[1].to_dict()
    with pytest.raises(InvalidInput, match="breadth"):
        gs.rank_measures(pgdl, hyperparameters=["breadth"])


def test_only_the_best_measure_predicts_beyond_the_hyperparameters(board: gs.Leaderboard) -> None:
    assert [row.measure for row in board.trusted] == ["m.rbf"]
    assert board.verdict[0].startswith(
        "1 of 3 measures predicts the gap beyond the hyperparameters: rbf."
    )
    assert "wcv, smoothness_gap" in board.verdict[1]
    assert board.row("vc_dim").why.startswith(
        "it is fixed by the hyperparameters: it never changes with hp.dropout_p"
    )
    assert board.row(RANDOM).verdict == "no evidence" and board.row(RANDOM).role == "random"


def test_scores_equal_those_of_the_single_functions(
    board: gs.Leaderboard, pgdl: pandas.DataFrame
) -> None:
    settings = [str(name) for name in pgdl if str(name).startswith("hp.")]
    row, errors = board.row("wcv"), sign_errors(pgdl, "m.wcv", "gap", settings, 10_000)[:, 2]
    assert row.kendall.value == pytest.approx(kendalltau(pgdl["m.wcv"], pgdl["gap"])[0])
    assert row.sign_error.value == pytest.approx(errors.mean())
    assert (row.worst_sign_error, row.environments) == (errors.max(), len(errors))


def test_every_score_has_an_interval_and_what_decides_a_p_value(board: gs.Leaderboard) -> None:
    for row in board:
        for name in ("kendall", "granulated", "mutual_information", "r_squared", "partial"):
            score = getattr(row, name)
            if not math.isnan(score.value):
                assert score.low <= score.value <= score.high, (row.measure, name)
                assert 1 / 201 <= score.p <= 1
        assert row.mae.low <= row.mae.value <= row.mae.high
    assert (
        board.row("wcv").kendall.p == pytest.approx(1 / 201) and board.row(RANDOM).kendall.p > 0.05
    )


def test_it_prints_the_verdict_first_and_is_stored(board: gs.Leaderboard, tmp_path: Path) -> None:
    lines = repr(board).splitlines()
    assert len(lines) <= 15 and max(map(len, lines[2:])) <= 80 and lines[0] == board.verdict[0]
    assert [lines[3].split()[0], lines[4][:16]] == ["vc_dim", RANDOM]
    assert board.verdict[0] in board._repr_html_()
    board.save(tmp_path / "board.json")
    assert gs.Leaderboard.load(tmp_path / "board.json").to_json() == board.to_json()
    row = rows_of(board.to_pandas())["m.rbf"]
    assert row["partial_p"] <= 0.05 and row["verdict"] == "evidence"
    assert len(board.plot().get_yticks()) == 5
    with pytest.raises(UnreadableFile, match="must hold a leaderboard"):
        (tmp_path / "other.json").write_text("{}")
        gs.Leaderboard.load(tmp_path / "other.json")


def test_a_csv_table(tmp_path: Path, pgdl: pandas.DataFrame) -> None:
    path = tmp_path / "own.csv"
    pgdl.drop(columns="m.vc_dim").assign(**{"m.mine": pgdl["m.rbf"]}).to_csv(path, index=False)
    result = gs.rank_measures(path, measures=["m.mine"], n_permutations=50, n_bootstrap=20)
    assert (
        result.row("mine").verdict == "evidence"
        and result.networks == 96
        and result.source == str(path)
    )
    assert result.verdict[-1] == "The table has no size (parameter_count) to compare with."


def test_networks_without_a_number_are_excluded_and_measures_that_lack_many(
    pgdl: pandas.DataFrame,
) -> None:
    holes = pgdl.assign(
        **{
            "m.wcv": pgdl["m.wcv"].where(pgdl.index > 0),
            "m.vr": pgdl["m.vr"].where(pgdl.index > 40),
        }
    )
    result = gs.rank_measures(holes, measures=["m.wcv", "m.vr"], n_permutations=20, n_bootstrap=20)
    assert result.left_out == {"m.vr": "41 of 96 networks have no finite value"}
    assert result.networks == 95 and result.dropped == 1 and "1 skipped" in result.description
    (skipped,) = (line for line in result.verdict if line.startswith("Not ranked"))
    assert "1 of 3 numbers, of vr." in skipped and skipped in repr(result).splitlines()


def test_networks_without_a_gap_and_sizes_of_a_part_are_named(pgdl: pandas.DataFrame) -> None:
    part = pgdl.assign(
        gap=pgdl["gap"].where(pgdl.index != 5),
        **{"m.vc_dim": pgdl["m.vc_dim"].where(pgdl.index > 40)},
    )
    result = gs.rank_measures(part, measures=["m.wcv"], n_permutations=20, n_bootstrap=20)
    assert result.networks == 95 and result.dropped == 1
    text = " ".join(result.verdict)
    assert "The table has no size" not in text and "No size to compare with: of m.vc_dim" in text


def test_short_names_stay_distinct() -> None:
    edges = ("upper_fence", "lower_fence", "median")
    names = [f"margin_signature.h{layer}.{edge}" for layer in (1, 2, 13) for edge in edges]
    names += [f"m.{'a' * 30}{k}{'b' * 30}" for k in range(2)]
    short = shorten_names(names)
    assert len(set(short)) == len(names)
    assert all(len(text) <= 20 for text in short[:9])


def test_verdicts_alone_are_those_of_the_leaderboard(
    board: gs.Leaderboard, pgdl: pandas.DataFrame
) -> None:
    result = verdicts(
        pgdl, measures=[f"m.{name}" for name in REFERENCE], n_permutations=200, n_bootstrap=100
    )
    fields = ("role", "verdict", "why", "partial", "kendall")
    assert list(result) == [row.measure for row in board]
    for row in board:
        assert all(
            repr(getattr(result[row.measure], name)) == repr(getattr(row, name)) for name in fields
        )


def test_verdicts_in_words() -> None:
    strong, weak = Score(value=0.4, p=0.01), Score(value=0.1, p=0.5)
    facts: dict[str, Any] = {"fixed": "", "hyperparameters": 3, "recipes": 40}
    assert verdict_of(partial=strong, kendall=weak, **facts)[0] == "evidence"
    assert (
        "smaller gap at equal"
        in verdict_of(partial=Score(value=-0.4, p=0.01), kendall=weak, **facts)[1]
    )
    for changes, why in (
        ({"fixed": "it is fixed"}, "it is fixed"),
        ({"kendall": Score(value=-0.97, p=0.01)}, "its order is that of the gap (tau -0.97)"),
        ({"partial": weak, "kendall": strong}, "but not beyond the hyperparameters"),
        ({"partial": weak}, "it does not correlate with the gap"),
    ):
        changed: dict[str, Any] = {"partial": strong, "kendall": weak} | facts | changes
        verdict, words = verdict_of(**changed)
        assert verdict == "no evidence" and why in words
    for changes, why in (
        ({"recipes": 5}, "5 training"),
        ({"hyperparameters": 0}, "no hyperparameter"),
    ):
        changed = {"partial": strong, "kendall": weak} | facts | changes
        verdict, words = verdict_of(**changed)
        assert verdict == "not judged" and why in words


def test_networks_without_settings_are_not_judged_at_equal_settings() -> None:
    rng = numpy.random.default_rng(0)
    gap = rng.normal(size=40)
    names = {"network.name": ["a", "b"] * 20, "gap": gap, "m.near": gap + rng.normal(size=40)}
    options: dict[str, Any] = {"n_permutations": 20, "n_bootstrap": 20}
    unknown = pandas.DataFrame({**names, "seed": range(40), "data.name": None})
    board = gs.rank_measures(unknown, **options)
    row = board.row("near")
    assert (
        board.hyperparameters == ()
        and row.verdict == "not judged"
        and math.isnan(row.partial.value)
    )
    assert board.verdict[0].startswith("Not judged") and "None of" not in " ".join(board.verdict)
    assert row.kendall.value > 0.25  # what needs no settings is reported
    half = unknown.assign(**{"hp.width": [float(k) if k < 20 else numpy.nan for k in range(40)]})
    board = gs.rank_measures(half, **options)
    assert (board.networks, board.dropped) == (20, 20) and board.row("near").verdict != "not judged"
    # a setting that does not apply to some networks is a value of its own
    partly = half.assign(**{"hp.depth": range(40)})
    assert gs.rank_measures(partly, **options).networks == 40


def test_networks_without_settings_are_configurations_of_their_own() -> None:
    table = pandas.DataFrame(
        {"network.name": "a", "hp.width": [1.0, 1.0, numpy.nan, numpy.nan, 2.0]}
    )
    assert training_configurations(table, ["hp.width"]).tolist() == [0, 0, 2, 3, 1]


def test_what_is_fixed_by_settings() -> None:
    table = pandas.DataFrame(
        {"a": [1, 1, 2, 2], "b": [1, 2, 1, 2], "x": [1.0, 2.0, 3.0, 4.0], "same": 1.0}
    )
    assert explain_by_settings(table, "x", ["a", "b"]) == ""
    assert explain_by_settings(table, "same", ["a", "b"]) == "it is the same in all networks"
    seeds = pandas.concat([table, table])
    assert explain_by_settings(seeds, "x", ["a", "b"]).endswith("all seeds have the same")
    assert explain_by_settings(seeds.assign(x=numpy.arange(8.0)), "x", ["a", "b"]) == ""


def test_wrong_input_is_an_error(tmp_path: Path, pgdl: pandas.DataFrame) -> None:
    with pytest.raises(UnreadableFile, match=r"nothing.csv must be a"):
        gs.rank_measures(tmp_path / "nothing.csv")
    with pytest.raises(InvalidInput, match="differ in"):
        gs.rank_measures(pandas.DataFrame({"gap": [0.0] * 20, "m.a": range(20)}))
    with pytest.raises(InvalidInput, match=r"measures, columns named m.NAME"):
        gs.rank_measures(pandas.DataFrame({"gap": [1.0, 2.0], "hp.width": [1, 2]}))
    with pytest.raises(InvalidInput, match=r"'m.rbg'.*Did you mean 'm.rbf'"):
        gs.rank_measures(pgdl, measures=["m.rbg"])
    with pytest.raises(InvalidInput, match=r"Column 'm.wcv'"):
        gs.rank_measures(pgdl.assign(**{"m.wcv": "many"}), measures=["m.wcv"])
    with pytest.raises(InvalidInput, match=r"at least 1; got 0"):
        gs.rank_measures(pgdl, n_test=0)
    with pytest.raises(DataNotFound, match="2020 competition"):
        gs.rank_measures(data_root=tmp_path)


def test_of_many_networks_whole_configurations_are_sampled(pgdl: pandas.DataFrame) -> None:
    thrice = pandas.concat([pgdl] * 3, ignore_index=True)
    thrice["gap"] += numpy.random.default_rng(0).normal(size=len(thrice)) / 1000
    result = gs.rank_measures(
        thrice, measures=["m.rbf"], n_permutations=20, n_bootstrap=20, most_networks=100
    )
    assert result.networks == 99 and result.recipes == 33 and result.drawn_from == 288
    assert result.description.startswith("99 networks sampled from 288, 33 training configurations")
    assert gs.Leaderboard.from_json(result.to_json()).drawn_from == 288
    with pytest.raises(InvalidInput, match="most_networks"):
        gs.rank_measures(thrice, most_networks=2)


def test_another_target_is_named() -> None:
    rng = numpy.random.default_rng(0)
    table = pandas.DataFrame({"hp.width": numpy.arange(40) % 20, "gap": rng.normal(size=40)})
    table = table.assign(loss=rng.normal(size=40), **{"m.norm": rng.normal(size=40)})
    board = gs.rank_measures(table, target="loss", n_permutations=20, n_bootstrap=20)
    again = type(board).from_json(board.to_json())
    for text in (*board.verdict, repr(board), board._repr_html_(), *(row.why for row in board)):
        assert "the gap" not in text
    assert "loss" in board.verdict[0] and again.verdict == board.verdict
    assert "the gap" in gs.rank_measures(table, n_permutations=20, n_bootstrap=20).verdict[0]


NETWORKS = pandas.DataFrame(
    {"m.a": range(8), "m.b": range(8, 0, -1), "hp.width": [1, 2] * 4, "gap": numpy.arange(8) / 9}
)


@pytest.mark.parametrize("name", NETWORKS.columns)
def test_tables_need_one_column_of_each_name(name: str) -> None:
    with pytest.raises(InvalidInput, match=f"'{name}' several times"):
        gs.rank_measures(pandas.concat([NETWORKS, NETWORKS[[name]]], axis=1))


def test_names_of_several_levels_are_refused() -> None:
    levels = NETWORKS.set_axis(
        pandas.MultiIndex.from_tuples([(name, "x") for name in NETWORKS]), axis=1
    )
    for call in (
        lambda: gs.rank_measures(levels),
        lambda: gs.check(None, levels, target="gap"),
        lambda: gs.find_label_issues(None, levels, target="gap"),
        lambda: gs.apply_label_corrections(levels, "list.csv", target="gap"),
    ):
        with pytest.raises(InvalidInput, match="names of one level"):
            call()


def test_files_in_utf_16_are_read_and_false_marks_of_it_refused(tmp_path: Path) -> None:
    text = NETWORKS.to_csv(index=False)
    (tmp_path / "utf16.csv").write_bytes(text.encode("utf-16"))
    board = gs.rank_measures(tmp_path / "utf16.csv", n_permutations=20, n_bootstrap=20)
    assert board.row("a").kendall.value == 1
    for end in ("", "\n"):  # an even and an odd number of bytes
        (tmp_path / "false.csv").write_bytes(b"\xff\xfe" + (text + end).encode())
        with pytest.raises(UnreadableFile, match="utf-16-le is damaged"):
            gs.rank_measures(tmp_path / "false.csv")
