from __future__ import annotations

import numpy
import pandas

from gapscope.statistics.intervals import cluster_weights, configuration_ids, members, permutations


def test_networks_of_one_recipe_differ_in_nothing_but_the_seed() -> None:
    table = pandas.DataFrame({"width": [8, 16, 8, 8], "penalties": [[], [], [], [{"a": 1}]], "seed": [0, 0, 1, 0]})
    assert configuration_ids(table, ["width", "penalties"]).tolist() == [0, 1, 0, 2]
    assert configuration_ids(table, []).tolist() == [0, 1, 2, 3]


def test_whole_clusters_change_places_with_those_of_their_size() -> None:
    clusters = numpy.array([0, 1, 0, 2, 2, 3, 3])
    of_rows, seen = members(clusters), set()
    for order in permutations(clusters, 200, 0):
        assert sorted(order) == list(range(7)) and order[1] == 1
        sources = [set(clusters[order[rows]]) for rows in of_rows]
        assert all(len(source) == 1 for source in sources)
        seen.add(tuple(order))
    assert len(seen) == 6 * 8  # 3! orders of the pairs, two orders inside each


def test_rows_of_a_cluster_are_drawn_together() -> None:
    weights = cluster_weights(numpy.array([0, 0, 1, 2]), 300, 0)
    assert (weights[:, 0] == weights[:, 1]).all() and set(weights[:, [0, 2, 3]].sum(1)) == {3.0}
    assert abs(weights.mean() - 1) < 0.1
