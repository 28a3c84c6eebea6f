from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ablation.some_networks import Untraceable, initialized, noise
from gapscope.ablation.replay import patch_forwards, record_calls_before
from gapscope.ablation.split import HookedSplit, ReplayedSplit, SplitNetwork, split_at
from gapscope.base.errors import NotMeasurable


class Logits(nn.Module):
    """A network of transformers from one tensor to one, which cannot be traced."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__()
        transformers: Any = pytest.importorskip("transformers")
        torch.manual_seed(0)
        config = getattr(transformers, f"{name}Config")(**options)
        kinds = {"ResNet": "ForImageClassification", "ViT": "ForImageClassification", "GPT2": "LMHeadModel"}
        self.model = getattr(transformers, name + kinds.get(name, "ForSequenceClassification"))(config)
        for parameter in self.model.parameters():  # a random transformer's outputs are nearly constant
            parameter.data.normal_(std=0.2)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.model(**{"pixel_values" if x.ndim == 4 else "input_ids": x}).logits
        return logits[:, -1] if logits.ndim == 3 else logits


BLOCKS = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 20}
NETWORKS = {
    "ResNet": ("model.resnet.encoder.stages.1.layers.1.activation", 1,
               {"hidden_sizes": [8, 16], "depths": [1, 2], "embedding_size": 8, "num_labels": 5}),
    "ViT": ("model.vit.layers.1.mlp.activation_fn", -1, BLOCKS | {"image_size": 32, "num_labels": 5}),
    "Bert": ("model.bert.encoder.layer.1.intermediate", -1, BLOCKS | {"vocab_size": 50, "num_labels": 5}),
    "GPT2": ("model.transformer.h.1.mlp.act", -1,
             {"n_embd": 16, "n_layer": 3, "n_head": 2, "vocab_size": 50, "use_cache": False}),
}  # fmt: skip


def inputs(name: str) -> Tensor:
    if name in ("ResNet", "ViT"):
        return noise(3, 3, 32, 32)
    return torch.randint(1, 50, (3, 6), generator=torch.Generator().manual_seed(0))


def outputs_of_changed_values(network: nn.Module, split: SplitNetwork, layer: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs of the split for changed values, and those of a whole pass."""
    samples = torch.tensor([2, 0, 0, 1, 2])
    source, hooked = split.all_activations(x, 2), HookedSplit(network, layer, split.unit_axis)
    changed = source.values[samples] * noise(*source.values[samples].shape, seed=1)
    return split.outputs(changed.clone(), source, samples), hooked.outputs(changed, hooked.activations(x), samples)


@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_networks_of_transformers_are_cut_and_nothing_stays_changed(name: str) -> None:
    layer, axis, options = NETWORKS[name]
    network, x = Logits(name, **options).eval(), inputs(name)
    before = [dict(vars(module)) for module in network.modules()]
    computed: list[str] = []
    split = split_at(network, x, layer, axis)
    assert isinstance(split, ReplayedSplit)
    source = split.activations(x)
    with record_calls_before(network, split.module[layer]) as calls:
        network(x)
    first = next(module for module, _ in calls if next(module.parameters(), None) is not None)
    handle = next(first.children(), first).register_forward_hook(lambda *_: computed.append("first"))
    split.outputs(source.values, source, torch.arange(3))
    # an outermost module is called, so that its hooks run, but not what is in it
    assert not computed or next(first.children(), None) is None
    handle.remove()
    ours, expected = outputs_of_changed_values(network, split, layer, x)
    assert torch.equal(ours, expected) and not torch.allclose(expected, network(x)[[2, 0, 0, 1, 2]], atol=1e-3)
    assert [list(vars(module)) for module in network.modules()] == [list(content) for content in before]
    assert not any("forward" in vars(module) for module in network.modules())


@torch.no_grad()
def test_only_what_is_read_is_kept() -> None:
    layer, axis, options = NETWORKS["ViT"]
    network = Logits("ViT", **options).eval()
    split = split_at(network, inputs("ViT"), layer, axis)
    source = split.activations(inputs("ViT"))
    kept = [len(value) for value, kind in zip(source.context, source.kinds, strict=True) if kind == "unread"]
    assert kept and set(kept) == {1} and source.kinds.count("rows") == 2  # residual stream and the block's sum


class Repeats(nn.Module):
    """One layer called three times, and values that are changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.again, self.cut, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 1e9:  # cannot be traced
            return x
        hidden = self.again(x)
        hidden = hidden.relu_() + self.again(hidden.tanh())
        kept = hidden.clone()
        kept += self.again(self.cut(hidden)).relu_()
        return self.head(kept)


@torch.no_grad()
def test_a_layer_that_is_called_again_is_computed_only_behind_the_cut() -> None:
    network, x = initialized(Repeats), noise(3, 6)
    split = split_at(network, x, "cut", None)
    assert isinstance(split, ReplayedSplit)
    ours, expected = outputs_of_changed_values(network, split, "cut", x)
    assert torch.allclose(ours, expected)  # of another number of rows, its last bits differ
    source, counted = split.activations(x), []
    own = network.again.forward

    def counting(value: Tensor) -> Tensor:
        counted.append(1)
        return own(value)

    with patch_forwards({network.again: counting}):
        split.outputs(source.values, source, torch.arange(3))
    assert len(counted) == 1 and "forward" not in vars(network.again)


@torch.no_grad()
def test_a_forward_of_the_module_itself_stays() -> None:
    network, x = initialized(Untraceable), noise(3, 6)
    own = network.head.forward
    network.head.forward = twice = lambda input: 2 * own(input)
    split = split_at(network, x, "body", None)
    ours, expected = outputs_of_changed_values(network, split, "body", x)
    assert isinstance(split, ReplayedSplit) and torch.equal(ours, expected) and network.head.forward is twice


class Remembers(nn.Module):
    """A module with a side effect on another one, so that replaying outputs differs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.cut, self.head = Leaves(), nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 1e9:
            return x
        return self.head(self.cut(self.first(x)) * self.first.mean)


class Leaves(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        self.mean = x.mean(1, keepdim=True)
        return x.tanh()


class Packed:
    def __init__(self, value: Tensor) -> None:
        self.value = value


class Wraps(nn.Module):
    def forward(self, x: Tensor) -> Packed:
        return Packed(x.tanh())


class Counts(nn.Module):
    """A module that returns an array with a tensor."""

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        return x.tanh(), x.sum(0).numpy()


class TakesApart(nn.Module):
    """A module before the cut whose result cannot be divided into samples."""

    def __init__(self, before: nn.Module, tensor_of: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.before, self.cut, self.head = before, nn.Linear(6, 6), nn.Linear(6, 4)
        self.tensor_of = tensor_of

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 1e9:
            return x
        return self.head(self.cut(self.tensor_of(self.before(x))))


def opaque() -> nn.Module:
    return TakesApart(Wraps(), lambda packed: packed.value)


def arrays() -> nn.Module:
    return TakesApart(Counts(), lambda pair: pair[0])


@pytest.mark.parametrize("network", [Remembers, opaque, arrays])
@torch.no_grad()
def test_what_cannot_be_handed_back_is_computed(network: Callable[[], nn.Module]) -> None:
    built, x = initialized(network), noise(3, 6)
    split = split_at(built, x, "cut", None)
    assert type(split) is HookedSplit
    ours, expected = outputs_of_changed_values(built, split, "cut", x)
    assert torch.equal(ours, expected)


class Chooses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.more, self.cut, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cut(self.more(x) if x.sum() > 100 else x))


@torch.no_grad()
def test_other_modules_for_other_samples_are_refused() -> None:
    split = split_at(initialized(Chooses), noise(3, 6), "cut", None)
    assert isinstance(split, ReplayedSplit)
    with pytest.raises(NotMeasurable, match="different modules before layer 'cut' for different samples"):
        split.activations(noise(3, 6) + 100)


@pytest.mark.parametrize(
    ("name", "layer"),
    [("ResNet", "model.resnet.encoder.stages.1.layers.1.activation"), ("Bert", "model.bert.pooler.activation")],
)
@torch.no_grad()
def test_the_default_layer_of_networks_of_transformers(name: str, layer: str) -> None:
    network, x = Logits(name, **NETWORKS[name][2]).eval(), inputs(name)
    assert split_at(network, x, None, None).label == layer
