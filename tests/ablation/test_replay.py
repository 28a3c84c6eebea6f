from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ablation.some_networks import Untraceable, initialized, noise
from gapscope.ablation.replay import record_calls_before
from gapscope.ablation.split import HookedSplit, ReplayedSplit, SplitNetwork, split_at
from gapscope.base.errors import NotMeasurable
from gapscope.inspection.hooks import patch_forwards
from gradients.reference import Wrapped


class Logits(nn.Module):
    """A network of transformers from one tensor to one, which cannot be traced."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__()
        transformers: Any = pytest.importorskip("transformers")
        torch.manual_seed(0)
        config = getattr(transformers, f"{name}Config")(**options)
        kinds = {
            "ResNet": "ForImageClassification",
            "ViT": "ForImageClassification",
            "GPT2": "LMHeadModel",
        }
        self.model = getattr(transformers, name + kinds.get(name, "ForSequenceClassification"))(
            config
        )
        for (
            parameter
        ) in self.model.parameters():  # a random transformer's outputs are nearly constant
            parameter.data.normal_(std=0.2)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.model(**{"pixel_values" if x.ndim == 4 else "input_ids": x}).logits
        return logits[:, -1] if logits.ndim == 3 else logits


BLOCKS = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 20,
}
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


def outputs_of_changed_values(
    network: nn.Module, split: SplitNetwork, layer: str, x: Tensor
) -> tuple[Tensor, Tensor]:
    """Return outputs of the split for changed values, and those of a whole pass."""
    samples = torch.tensor([2, 0, 0, 1, 2])
    source, hooked = split.all_activations(x, 2), HookedSplit(network, layer, split.unit_axis)
    changed = source.values[samples] * noise(*source.values[samples].shape, seed=1)
    return split.outputs(changed.clone(), source, samples), hooked.outputs(
        changed, hooked.activations(x), samples
    )


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
    handle = next(first.children(), first).register_forward_hook(
        lambda *_: computed.append("first")
    )
    split.outputs(source.values, source, torch.arange(3))
    # an outermost module is called, so that its hooks run, but not what is in it
    assert not computed or next(first.children(), None) is None
    handle.remove()
    ours, expected = outputs_of_changed_values(network, split, layer, x)
    assert torch.equal(ours, expected) and not torch.allclose(
        expected, network(x)[[2, 0, 0, 1, 2]], atol=1e-3
    )
    assert [list(vars(module)) for module in network.modules()] == [
        list(content) for content in before
    ]
    assert not any("forward" in vars(module) for module in network.modules())


@torch.no_grad()
def test_only_what_is_read_is_stored() -> None:
    layer, axis, options = NETWORKS["ViT"]
    network = Logits("ViT", **options).eval()
    split = split_at(network, inputs("ViT"), layer, axis)
    source = split.activations(inputs("ViT"))
    kept = [
        len(value)
        for value, kind in zip(source.context, source.kinds, strict=True)
        if kind == "unread"
    ]
    # residual stream and the block's sum
    assert kept and set(kept) == {1} and source.kinds.count("rows") == 2


def _repeats(net: Any, x: Tensor) -> Tensor:
    """One layer called three times, and values that are changed in place."""
    hidden = net.again(x)
    hidden = hidden.relu_() + net.again(hidden.tanh())
    total = hidden.clone()
    total += net.again(net.cut(hidden)).relu_()
    return net.head(total)


@torch.no_grad()
def test_a_layer_that_is_called_again_is_computed_only_behind_the_cut() -> None:
    network: Any = initialized(lambda: untraceable(_repeats, again=nn.Linear(6, 6)))
    x = noise(3, 6)
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
    assert (
        isinstance(split, ReplayedSplit)
        and torch.equal(ours, expected)
        and network.head.forward is twice
    )


def untraceable(forward: Callable[[Any, Tensor], Tensor], **parts: nn.Module) -> nn.Module:
    """A network with the layers "cut" and "head"."""
    layers = {"cut": nn.Linear(6, 6), "head": nn.Linear(6, 4), **parts}
    return Wrapped(lambda net, x: x if x.sum() > 1e9 else forward(net, x), **layers)


def remembers() -> nn.Module:
    """A network whose first module has a side effect, so that replaying its outputs differs."""

    def first(net: Any, x: Tensor) -> Tensor:
        net.mean = x.mean(1, keepdim=True)
        return x.tanh()

    return untraceable(
        lambda net, x: net.head(net.cut(net.first(x)) * net.first.mean), first=Wrapped(first)
    )


def opaque() -> nn.Module:
    """A network with an object before the cut that cannot be divided into samples."""
    first: Any = Wrapped(lambda net, x: SimpleNamespace(value=x.tanh()))
    return untraceable(lambda net, x: net.head(net.cut(net.first(x).value)), first=first)


def arrays() -> nn.Module:
    """A network with an array before the cut."""
    first: Any = Wrapped(lambda net, x: (x.tanh(), x.sum(0).numpy()))
    return untraceable(lambda net, x: net.head(net.cut(net.first(x)[0])), first=first)


@pytest.mark.parametrize("network", [remembers, opaque, arrays])
@torch.no_grad()
def test_what_cannot_be_handed_back_is_computed(network: Callable[[], nn.Module]) -> None:
    built, x = initialized(network), noise(3, 6)
    split = split_at(built, x, "cut", None)
    assert type(split) is HookedSplit
    ours, expected = outputs_of_changed_values(built, split, "cut", x)
    assert torch.equal(ours, expected)


@torch.no_grad()
def test_other_modules_for_other_samples_raise() -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        return net.head(net.cut(net.more(x) if x.sum() > 100 else x))

    split = split_at(untraceable(forward, more=nn.Linear(6, 6)), noise(3, 6), "cut", None)
    assert isinstance(split, ReplayedSplit)
    with pytest.raises(NotMeasurable, match="modules before layer 'cut'"):
        split.activations(noise(3, 6) + 100)


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("ResNet", "model.resnet.encoder.stages.1.layers.1.activation"),
        ("Bert", "model.bert.pooler.activation"),
    ],
)
@torch.no_grad()
def test_the_default_layer_of_networks_of_transformers(name: str, layer: str) -> None:
    network, x = Logits(name, **NETWORKS[name][2]).eval(), inputs(name)
    assert split_at(network, x, None, None).label == layer
