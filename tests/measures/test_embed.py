"""Features of networks: where they are, pooling over positions, the cache, and bad input."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.measures._forward import forward_pass
from gradients.reference import Wrapped

N, TOKENS, WIDTH = 12, 5, 8
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(N, 6, generator=GENERATOR)
IMAGES = torch.randn(N, 3, 6, 6, generator=GENERATOR)
IDS = torch.randint(1, 20, (N, TOKENS), generator=GENERATOR)
LENGTHS = torch.tensor([2, 3, 4, 5] * 3)
MASK = (torch.arange(TOKENS) < LENGTHS[:, None]).long()


class Encoder(nn.Module):
    """Stand-in for an encoder of Hugging Face: hidden states of tokens, and an untrained pooler."""

    base_model_prefix = "encoder"

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(pad_token_id=0)
        self.words, self.pooler = nn.Embedding(20, WIDTH), nn.Linear(WIDTH, WIDTH)

    @property
    def base_model(self) -> nn.Module:
        return getattr(self, self.base_model_prefix, self)

    def get_input_embeddings(self) -> nn.Module:
        return self.words

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        hidden = self.words(input_ids)
        return {"last_hidden_state": hidden, "pooler_output": torch.tanh(self.pooler(hidden[:, 0]))}


class Classifier(Encoder):
    """Classifier on an encoder, with a head on the untrained pooler."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = Encoder(), nn.Linear(WIDTH, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        return {"logits": self.head(self.encoder(input_ids, attention_mask)["pooler_output"])}


def tokens(**more: Any) -> dict[str, Any]:
    return {"input_ids": IDS * MASK, "attention_mask": MASK, **more}


def mean_of_tokens(words: nn.Embedding) -> Tensor:
    hidden = words(IDS * MASK).detach()
    return torch.stack([hidden[i, : LENGTHS[i]].mean(0) for i in range(N)])


def test_features_are_the_input_of_the_last_linear_layer() -> None:
    network = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    features = gs.embed(network, (X, torch.arange(N) % 3), batch_size=5)
    assert torch.allclose(features, network[:2](X).detach())
    assert torch.equal(gs.embed(network, X, layer="0"), network[0](X).detach())


def test_half_precision_becomes_float32() -> None:
    network = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    assert gs.embed(network.bfloat16(), X).dtype == torch.float32
    assert gs.embed(network.double(), X).dtype == torch.float64


@pytest.mark.parametrize("network", [Encoder(), Classifier()], ids=["encoder", "classifier"])
def test_text_networks_average_the_tokens_that_count(network: Any) -> None:
    words = network.base_model.words
    assert torch.allclose(
        gs.embed(network, tokens(labels=torch.arange(N) % 3)), mean_of_tokens(words)
    )
    assert torch.equal(gs.embed(network, tokens(), pooling="first"), words(IDS[:, 0]).detach())
    last = IDS[torch.arange(N), LENGTHS - 1]
    assert torch.equal(gs.embed(network, tokens(), pooling="last"), words(last).detach())
    assert gs.embed(network, tokens(), pooling="none").shape == (N, TOKENS, WIDTH)


def test_padding_without_a_mask_is_left_out_and_named() -> None:
    network = Encoder()
    with pytest.warns(UserWarning, match="attention_mask"):
        features = gs.embed(network, IDS * MASK)
    assert torch.allclose(features, mean_of_tokens(network.words))


def test_texts_that_are_probably_cut_off_are_named() -> None:
    with pytest.warns(UserWarning, match="3 of 12 texts"):
        mask = torch.arange(TOKENS) < torch.tensor([5, 5, 5, 2, 2, 2, 3, 3, 3, 1, 1, 1])[:, None]
        gs.embed(Classifier(), {"input_ids": IDS * mask, "attention_mask": mask.long()})


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_real_text_classifier_with_adapters() -> None:
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        num_labels=3,
    )
    model = transformers.BertForSequenceClassification(config).eval()
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query"])
    )
    data = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
    hidden = model.bert(**data).last_hidden_state.detach()
    assert torch.allclose(gs.embed(model, data), hidden.mean(1), atol=1e-6)
    assert torch.allclose(gs.embed(adapted, data), hidden.mean(1), atol=1e-6)


class Tagger(nn.Module):
    """A linear layer at every token."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.tags = nn.Embedding(20, WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.tags(self.words(ids))


def test_features_of_positions() -> None:
    network, data = Tagger(), {"ids": IDS, "mask": MASK, "labels": IDS % 4}
    hidden = network.words(IDS).detach()
    assert torch.equal(gs.embed(network, data, pooling="none"), hidden)
    weights = MASK[:, :, None].float()
    assert torch.allclose(gs.embed(network, data), (hidden * weights).sum(1) / weights.sum(1))


def test_feature_maps_are_averaged_over_pixels() -> None:
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    maps = network[:2](IMAGES).detach()
    assert torch.allclose(gs.embed(network, IMAGES), maps.mean((2, 3)), atol=1e-6)
    assert torch.equal(gs.embed(network, IMAGES, pooling="none"), maps.movedim(1, -1))


@pytest.mark.parametrize(
    "change", [nn.ReLU(inplace=True), torch.relu_, lambda h: h.mul_(2), lambda h: h.add_(1)]
)
def test_a_layer_is_read_before_what_follows_changes_it(change: Any) -> None:
    layer = nn.Linear(6, 4)
    network = Wrapped(
        lambda net, x: net.head(change(net.layer(x))), layer=layer, head=nn.Linear(4, 3)
    )
    values = layer(X).detach()
    assert torch.equal(gs.embed(network, X, layer="layer"), values)
    assert torch.equal(gs.embed(network, X), change(values.clone()))


LABELS = torch.arange(N)
LOADERS: dict[str, dict[str, Any]] = {
    "shuffled": {"shuffle": True},
    "drop_last": {"drop_last": True},
    "weighted": {"sampler": WeightedRandomSampler([1.0] * N, N)},
    "batch sampler": {"batch_sampler": [[3, 1], [0, 2], list(range(4, N))]},
}


@pytest.mark.parametrize("name", LOADERS)
def test_rows_of_another_order_than_that_of_the_loader_are_warned_of(name: str) -> None:
    options: dict[str, Any] = LOADERS[name]
    if "batch_sampler" not in options:
        options = {**options, "batch_size": 5}
    loader = DataLoader(TensorDataset(X, LABELS), **options)
    network = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    with pytest.warns(UserWarning, match="read in order") as caught:
        features = gs.embed(network, loader)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(features, gs.embed(network, DataLoader(TensorDataset(X, LABELS))))


class RandomStream(IterableDataset[Any]):
    """A stream in another order each time."""

    def __iter__(self) -> Any:
        yield from X[torch.randperm(N)]


def test_a_stream_in_random_order_has_no_rows() -> None:
    with pytest.raises(InvalidInput, match="another order each time"):
        gs.embed(nn.Linear(6, 4), DataLoader(RandomStream(), batch_size=4))


def test_the_input_of_the_head_is_read_before_it_changes() -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        hidden = net.layer(x)
        outputs = net.head(hidden)
        hidden.zero_()
        return outputs

    layer = nn.Linear(6, 4)
    network = Wrapped(forward, layer=layer, head=nn.Linear(4, 3))
    values = layer(X).detach()
    assert torch.equal(gs.embed(network, X), values)
    features = forward_pass(network, X).features
    assert features is not None and torch.equal(features, values.double())


def test_an_identity_in_place_of_the_head_is_the_output() -> None:
    trunk = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    features = gs.embed(nn.Sequential(trunk, nn.Identity()), IMAGES)
    assert torch.equal(features, trunk(IMAGES).detach())


def test_an_identity_after_the_last_layer_is_no_removed_head() -> None:
    network = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3), nn.Identity())
    assert gs.embed(network, X).shape == (N, 4)


def test_the_cache_knows_weights_data_and_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    first = gs.embed(network, X, cache_dir=tmp_path)
    assert torch.equal(gs.embed(network, X, cache_dir=tmp_path), first)
    assert len(list(tmp_path.iterdir())) == 1
    with torch.no_grad():
        next(network.parameters()).add_(1)
    changed = gs.embed(network, X, cache_dir=tmp_path)
    assert not torch.equal(changed, first)
    gs.embed(network, X + 1, cache_dir=tmp_path)
    gs.embed(network, X, layer="0", cache_dir=tmp_path)
    files = list(tmp_path.iterdir())
    assert len(files) == 4
    for file in files:
        file.write_bytes(b"no tensors")
    # a damaged file is written again
    assert torch.equal(gs.embed(network, X, cache_dir=tmp_path), changed)
    monkeypatch.setattr("gapscope.measures.embed.extract_features", None)
    assert torch.equal(gs.embed(network, X, cache_dir=tmp_path), changed)


class Graph(nn.Module):
    """The last linear layer takes nodes of all samples in one dimension, the last sample first."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.last = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        nodes = self.body(x).repeat_interleave(3, 0).flip(0)
        return self.last(nodes).flip(0).reshape(len(x), 3, 3).mean(1)


class Constant(nn.Module):
    """Features that do not depend on the input."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value, self.last = value, nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.full_like(x, self.value)).clamp(-1, 1).nan_to_num() + x[:, :1]


@pytest.mark.parametrize(
    ("network", "fact"),
    [
        (Graph(), "'body'"),
        (nn.Flatten(), "no linear"),
        (Constant(1.0), "the same for all 12"),
        (Constant(float("inf")), "12 of 12"),
        (nn.Bilinear(6, 6, 2), "input1, input2"),
    ],
    ids=["graph", "no layer", "constant", "infinite", "several inputs"],
)
def test_unusable_networks(network: nn.Module, fact: str) -> None:
    with pytest.raises(InvalidInput) as error:
        gs.embed(network, X)
    assert fact in str(error.value)


@pytest.mark.parametrize(
    "options",
    [{"layer": "lst"}, {"pooling": "max"}, {"batch_size": 0}],
    ids=["layer", "pooling", "batch_size"],
)
def test_unusable_options(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(options))):
        gs.embed(nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3)), X, **options)


def test_images_of_several_sizes() -> None:
    dataset = [(torch.zeros(3, size, size), 0) for size in (6, 8)]
    network = nn.Sequential(nn.Flatten(), nn.Linear(108, 2))
    loader = torch.utils.data.DataLoader(dataset, batch_size=1)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="same shape"):
        gs.embed(network, loader)


def test_an_interrupted_pass_leaves_the_network_as_it_was() -> None:
    class Stopped(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            if len(input) == 3:
                raise KeyboardInterrupt
            return super().forward(input)

    network = nn.Sequential(Stopped(6, 4), nn.Linear(4, 3)).train()
    with pytest.raises(KeyboardInterrupt):
        gs.embed(network, X, batch_size=3)
    assert network.training
    assert not network[1]._forward_pre_hooks
