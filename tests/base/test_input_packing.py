"""Several inputs as one tensor, and back."""

from __future__ import annotations

import torch

from gapscope.base.samples import pack_inputs


def test_floats_of_one_type_lie_side_by_side() -> None:
    left, right = torch.randn(5, 2, 3), torch.randn(5)
    x, form = pack_inputs({"left": left, "right": right})
    assert x.shape == (5, 7) and form.names == ("left", "right") and not form.columns
    result = form.unpack(x[1:3])
    assert torch.equal(result[0], left[1:3]) and torch.equal(result[1], right[1:3])


def test_others_are_kept_whole_and_found_by_row() -> None:
    ids, weights = torch.arange(10).reshape(5, 2), torch.randn(5, 4)
    x, form = pack_inputs((ids, weights))
    # row numbers are below 0, so that an embedding refuses them
    assert x.tolist() == [[-1 - i] for i in range(5)] and form.names is None
    result = form.unpack(x[torch.tensor([3, 0])])
    assert torch.equal(result[0], ids[[3, 0]]) and torch.equal(result[1], weights[[3, 0]])


def test_one_input_is_itself() -> None:
    pixels = torch.randn(4, 3, 2, 2)
    x, form = pack_inputs({"pixel_values": pixels})
    assert x is pixels and form.unpack(x) == (pixels,)
