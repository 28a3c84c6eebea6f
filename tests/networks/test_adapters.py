from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, MissingExtra
from gapscope.networks import from_timm, from_torchvision, from_transformers
from gapscope.networks.adapters import LogitsOnly

Fake = Callable[[str, str], None]

MODEL = """
from torch import nn

def make(name, num_classes, in_chans=3, **options):
    model = nn.Sequential(nn.Flatten(), nn.Linear(in_chans * 4, 5), nn.ReLU(inplace=True), nn.Linear(5, num_classes))
    model.options = (name, options)
    return model
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    """Puts a package of this name and content on the path, before one that is installed."""
    taken: dict[str, Any] = {}

    def put(name: str, content: str) -> None:
        taken.update({key: sys.modules.pop(key) for key in list(sys.modules) if key.partition(".")[0] == name})
        (tmp_path / f"{name}.py").write_text(content)
        monkeypatch.syspath_prepend(tmp_path)

    yield put
    for path in tmp_path.iterdir():
        sys.modules.pop(path.stem, None)
    sys.modules.update(taken)


def _seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _check_adapter(make: Callable[[int], nn.Module], x: Tensor) -> None:
    before = torch.get_rng_state()
    first, same, other = make(0), make(0), make(1)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first(x), same(x))
    assert not torch.equal(first(x), other(x))
    assert not any(getattr(module, "inplace", False) for module in first.modules())


def test_timm(fake: Fake) -> None:
    fake("timm", MODEL + "create_model = make")
    x = torch.rand(4, 1, 2, 2)
    _check_adapter(lambda seed: from_timm("tiny", n_outputs=3, generator=_seeded(seed), in_chans=1), x)
    network = from_timm("tiny", n_outputs=3, in_chans=1, img_size=2)
    assert network(x).shape == (4, 3)
    assert network.options == ("tiny", {"img_size": 2})


def test_torchvision(fake: Fake) -> None:
    fake("torchvision", MODEL + "class models:\n    get_model = staticmethod(make)")
    x = torch.rand(4, 3, 2, 2)
    _check_adapter(lambda seed: from_torchvision("tiny", n_outputs=3, generator=_seeded(seed)), x)
    assert from_torchvision("tiny", n_outputs=7)(x).shape == (4, 7)


def test_a_package_that_cannot_be_imported_is_named_with_the_fix(fake: Fake) -> None:
    fake("torchvision", "raise RuntimeError('operator torchvision::nms does not exist')")
    with pytest.raises(MissingExtra, match=r"'torchvision' is installed but cannot be imported with torch .*nms does"):
        from_torchvision("resnet18", n_outputs=10)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="needs the package 'timm', which is not installed; run: pip install"):
        from_timm("resnet18", n_outputs=10)


class _Classifier(nn.Module):
    """Stands for a sequence classifier: the mean of the embeddings that the mask leaves."""

    def __init__(self, padding: int | None) -> None:
        super().__init__()
        self.config = SimpleNamespace(pad_token_id=padding)
        self.embedding = nn.Embedding(9, 3)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Any:
        mask = torch.ones_like(x) if attention_mask is None else attention_mask
        embedded = self.embedding(x) * mask[:, :, None]
        return SimpleNamespace(logits=embedded.sum(dim=1) / mask.sum(dim=1, keepdim=True))


def test_a_ready_model_needs_no_package_and_padding_is_masked() -> None:
    model = _Classifier(padding=0)
    network = from_transformers(model)
    tokens = torch.tensor([[4, 5, 0, 0]])
    torch.testing.assert_close(network(tokens), model.embedding(tokens[:, :2]).mean(dim=1))
    unmasked = from_transformers(_Classifier(padding=None))
    torch.testing.assert_close(unmasked(tokens), unmasked.get_submodule("model.embedding")(tokens).mean(dim=1))


def test_images_get_no_mask() -> None:
    class ImageClassifier(nn.Module):
        config = SimpleNamespace(pad_token_id=0)

        def forward(self, pixel_values: Tensor) -> Any:
            return SimpleNamespace(logits=pixel_values.flatten(1))

    assert torch.equal(from_transformers(ImageClassifier())(torch.zeros(2, 1, 2)), torch.zeros(2, 2))


def test_unfit_models_are_refused() -> None:
    with pytest.raises(InvalidInput, match="must return an object with `logits`; Linear returned Tensor"):
        LogitsOnly(nn.Linear(2, 2))(torch.zeros(1, 2))
    with pytest.raises(InvalidInput, match=r"n_outputs can be chosen only where .* got a ready _Classifier"):
        from_transformers(_Classifier(None), n_outputs=3)
    pytest.importorskip("transformers", exc_type=ImportError)
    with pytest.raises(InvalidInput, match="must have an image or sequence classifier for the config; got dict"):
        from_transformers({})


def test_real_vision_transformer() -> None:
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    config = transformers.ViTConfig(
        image_size=8, patch_size=4, num_channels=1, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, num_labels=5,
    )  # fmt: skip
    x = torch.rand(3, 1, 8, 8)
    _check_adapter(lambda seed: from_transformers(config, generator=_seeded(seed)).eval(), x)
    assert from_transformers(config)(x).shape == (3, 5)
    assert from_transformers(config, n_outputs=6)(x).shape == (3, 6) and config.num_labels == 5


def test_real_sequence_classifier_ignores_padding() -> None:
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    network = from_transformers(config, n_outputs=4, generator=_seeded()).eval()
    tokens = torch.tensor([[5, 6, 7]])
    padded = torch.tensor([[5, 6, 7, 0, 0]])
    assert network(tokens).shape == (1, 4)
    torch.testing.assert_close(network(tokens), network(padded))


@pytest.mark.parametrize("make", [from_timm, from_torchvision])
def test_real_timm_and_torchvision(make: Callable[..., nn.Module]) -> None:
    try:
        make("resnet18", n_outputs=4)
    except MissingExtra as error:
        pytest.skip(str(error))
    x = torch.rand(2, 3, 32, 32)
    _check_adapter(lambda seed: make("resnet18", n_outputs=4, generator=_seeded(seed)).eval(), x)
