from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gapscope.ablation.tails import States

activities = st.integers(1, 7).flatmap(
    lambda units: st.lists(st.lists(st.booleans(), min_size=units, max_size=units), min_size=1, max_size=5)
)


@settings(max_examples=60, deadline=None)
@given(activities)
def test_every_step_is_the_state_in_which_the_right_active_units_are_left(rows: list[list[bool]]) -> None:
    active = torch.tensor(rows)
    samples, units = active.shape
    states = States(active)
    kept = states.mask(torch.arange(states.total)) & active[states.sample_of]
    for sample in range(samples):
        for n in range(units + 1):
            first_removed, last_removed = active[sample].clone(), active[sample].clone()
            first_removed[:n] = False
            last_removed[units - n :] = False
            for order, expected in enumerate((first_removed, last_removed)):
                state = states.steps[order, sample, n]
                assert states.sample_of[state] == sample
                assert torch.equal(kept[state], expected)


@settings(max_examples=60, deadline=None)
@given(activities)
def test_no_state_of_a_sample_stands_twice(rows: list[list[bool]]) -> None:
    active = torch.tensor(rows)
    states = States(active)
    kept = states.mask(torch.arange(states.total)) & active[states.sample_of]
    labelled = torch.cat([states.sample_of[:, None], kept.long()], 1)
    assert len(labelled.unique(dim=0)) == states.total
    assert states.total == sum(max(1, 2 * sum(row)) for row in rows)
