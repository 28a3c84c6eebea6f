"""Features of a network: one forward pass, for every function that needs them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from gapscope.base.arguments import check_arguments
from gapscope.base.errors import InvalidInput, check_choice, check_range, describe_value
from gapscope.base.files import atomic_writer, make_folder
from gapscope.base.foreign_data import as_frame
from gapscope.base.samples import Samples, as_samples, slices
from gapscope.base.user_data import RowNote
from gapscope.base.user_warnings import warn_user
from gapscope.batch_norm.refresh import with_data_statistics
from gapscope.inspection.counted_outputs import MASKS
from gapscope.inspection.hooks import copied_calls
from gapscope.inspection.memoization import memoize
from gapscope.inspection.memory import explained_memory
from gapscope.inspection.outputs import (
    checked_outputs,
    measurement_mode,
    prepare_inputs,
    samples_per_pass,
)
from gapscope.inspection.sample_layout import sample_layouts
from gapscope.inspection.validation import ready
from gapscope.inspection.wrapped_networks import unwrap_estimator
from gapscope.measures._forward import FeatureRows
from gapscope.measures.budget import MANY_OUTPUTS
from gapscope.measures.feature_layer import (
    FeaturePlace,
    find_features,
    hidden_states,
    pool_positions,
    positions_first,
    token_mask,
)
from gapscope.results.progress import progress

POOLINGS = ("mean", "first", "last", "none")
# changes when the same arguments give other features
_CACHE_VERSION = 2


@dataclass(frozen=True)
class Features:
    """Features of samples.

    Attributes:
        values: [n, d] on the CPU, or [n, ..., d] of positions without pooling.
        place: Where they are in the network, in words.
        outputs: Outputs [n, K] of the same pass; None if K is above 4,096.
        notes: Sentences about the data.
    """

    values: Float[Tensor, "n ..."]
    place: str
    outputs: Float[Tensor, "n k"] | None = None
    notes: tuple[str, ...] = ()


def _token_notes(network: nn.Module, samples: Samples) -> tuple[str, ...]:
    """Return notes on texts that are probably cut off, and on padding without a mask."""
    mask = token_mask(network, samples.form, samples.inputs)
    if mask is None or mask.ndim != 2:
        return ()
    notes: list[str] = []
    lengths = mask.sum(1)
    longest = mask.shape[1]
    n = len(mask)
    n_full = int((lengths == longest).sum())
    n_shorter = int((lengths == longest - 1).sum())
    # lengths pile up at a limit, the longest texts of others are few: texts are probably cut off if three times as
    # many fill all tokens as are one token shorter
    if n_full < n and n_full >= 3 * max(1, n_shorter, n // 100):
        notes.append(
            f"{n_full} of {n} texts fill all {longest} tokens: the tokenizer may have cut them off."
        )
    names = samples.form and samples.form.names
    if n_full < n and not set(MASKS) & set(names or ()):
        notes.append(
            "Token ids are padded and have no attention_mask, so the network also reads the padding. Pass one."
        )
    return tuple(notes)


def _run(
    network: nn.Module, place: FeaturePlace, samples: Samples, pooling: str, batch_size: int | None
) -> tuple[Tensor, Tensor | None]:
    """Return the pooled features and the outputs of all samples, from one forward pass."""
    rows: list[Tensor] = []
    outputs: list[Tensor] = []
    memory = explained_memory("Pass a smaller batch_size=, or fewer samples.")
    with (
        measurement_mode(network),
        torch.no_grad(),
        memory,
        progress("computing features", len(samples)) as bar,
    ):
        x = prepare_inputs(network, samples.inputs)
        size = samples_per_pass(network, x, batch_size)
        module = {"features": place.module}
        layout = sample_layouts(
            network, x, module, before=place.is_input, select=hidden_states
        ).get("features")
        with copied_calls(module, before=place.is_input, select=hidden_states) as calls:
            for part in slices(len(x), size):
                calls.clear()
                result = checked_outputs(network(x[part].clone()), part.stop - part.start)
                value = None
                if calls:
                    if place.is_input:
                        value = calls[-1].input
                    else:
                        value = calls[-1].output
                if value is None or layout is None:
                    raise InvalidInput(
                        "Features need one tensor with equally many rows of every sample, in an order that shows in "
                        f"their values; {place.description} has none. Pass layer=, the name of another module."
                    )
                n = part.stop - part.start
                by_sample = positions_first(layout.rows_first(value, n), place.module)
                mask = token_mask(network, samples.form, x[part])
                values = pool_positions(layout.grouped(by_sample, n), pooling, mask)
                # half precision loses digits in the sums of later computations
                rows.append(values.to(torch.promote_types(values.dtype, torch.float32)).cpu())
                if result.shape[1] <= MANY_OUTPUTS:
                    outputs.append(result.float().cpu())
                bar.advance(part.stop - part.start)
    return torch.cat(rows), torch.cat(outputs) if outputs else None


def checked_features(features: Any, n: int) -> FeatureRows:
    """Return features that a user passes, on the CPU.

    Args:
        features: Tensor, array or table [n, d], also of polars or Arrow.
        n: Number of samples.

    Raises:
        InvalidInput: They have another shape, are not finite, or are the same for all samples.
    """
    features = as_frame(features)
    try:
        values = (
            torch.as_tensor(features if isinstance(features, Tensor) else np.array(features))
            .detach()
            .cpu()
        )
    except (TypeError, ValueError):
        values = None
    do = "Pass gs.embed(network, data)."
    if values is None or values.ndim != 2 or len(values) != n:
        got = describe_value(features if values is None else values)
        raise InvalidInput(f"features must be numbers [n, d] for the {n} samples; got {got}. {do}")
    _check_values(values, "what was passed", do)
    return values


def features_of_samples(features: Any, samples: Samples) -> FeatureRows:
    """Return features that a user passes, without those of rows that were omitted for the lack of a label.

    Args:
        features: Features of the samples, or of all rows of the data that were passed, see `checked_features`.
        samples: The samples.

    Raises:
        InvalidInput: See `checked_features`.
    """
    if samples.rows is not None and getattr(features, "shape", (0,))[0] == samples.n_rows:
        return checked_features(features, samples.n_rows)[samples.rows.cpu()]
    return checked_features(features, len(samples))


def _check_values(values: Tensor, place: str, do: str) -> None:
    flat = values.flatten(1)
    n_invalid = int((~flat.isfinite().all(1)).sum())
    if n_invalid:
        raise InvalidInput(
            f"Features must be finite; {place} holds NaN or infinity for {n_invalid} of {len(flat)} samples. Check the "
            f"scale of the inputs. {do}"
        )
    if len(flat) > 1 and bool((flat == flat[0]).all()):
        raise InvalidInput(
            f"Features must differ between samples; {place} is the same for all {len(flat)}. {do}"
        )


@memoize
def extract_features(
    network: nn.Module,
    samples: Samples,
    *,
    layer: str | None = None,
    pooling: str = "mean",
    batch_size: int | None = None,
) -> Features:
    """Return the features of a network that is `ready` for these samples.

    Args:
        network: `Ready.network`, with the samples of the same `Ready`.
        samples: The samples, validated.
        layer: As for `embed`.
        pooling: As for `embed`.
        batch_size: As for `embed`.

    Raises:
        InvalidInput: As for `embed`.
    """
    network = with_data_statistics(network, samples.inputs)
    with measurement_mode(network):
        place = find_features(network, samples.inputs, layer)
    values, outputs = _run(network, place, samples, pooling, batch_size)
    _check_values(values, place.description, "Pass layer=, the name of another module.")
    return Features(values, place.description, outputs, _token_notes(network, samples))


def _add(digest: Any, tensor: Tensor) -> None:
    """Add type, shape and values of a tensor to a hash."""
    digest.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
    digest.update(tensor.detach().reshape(-1).contiguous().cpu().view(torch.uint8).numpy())


def _cache_key(network: nn.Module, samples: Samples, layer: str | None, pooling: str) -> str:
    """Return a hash of structure and weights of the network, of the inputs and the options."""
    bare = getattr(network, "adapted_from", network)
    digest = hashlib.sha256(
        f"{_CACHE_VERSION} {layer!r} {pooling} {type(bare).__qualname__} {bare!r}".encode()
    )
    for name, tensor in bare.state_dict().items():
        digest.update(name.encode())
        _add(digest, tensor)
    for part in samples.parts:
        _add(digest, part)
    digest.update(repr(samples.form and samples.form.names).encode())
    return digest.hexdigest()


def _read(path: Path, n: int) -> Tensor | None:
    """Return cached features, None if there is no usable file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        values = load_file(path)["features"]
    except (OSError, SafetensorError, KeyError):
        return None
    if len(values) == n:
        return values
    return None


def _write(path: Path, values: Tensor) -> None:
    from safetensors.torch import save

    make_folder(path.parent)
    with atomic_writer(path, durable=False) as file:
        file.write(save({"features": values.contiguous()}))


@check_arguments
def embed(
    network: nn.Module,
    data: Any,
    *,
    layer: str | None = None,
    pooling: str = "mean",
    batch_size: int | None = None,
    cache_dir: str | Path | None = None,
) -> Float[Tensor, "n ..."]:
    """Return the features of a network for every sample, from one forward pass in evaluation mode.

    Features of a pretrained network, with ridge regression in closed form, forecast a linear probe and find label
    errors at a small part of the cost of fine-tuning: pass `(features, labels)` with the network None to
    `forecast_accuracy`, `find_label_issues` and `estimate_label_noise`.

    Without `layer`, features are the input of the last linear or convolutional layer, so that a new head does not
    count. Networks that are or hold a Hugging Face model of token ids, with or without PEFT adapters, are read at the
    output of its encoder, because the pooler of a checkpoint is often untrained; sentence-transformers at their
    sentence embedding; networks whose head is replaced by `nn.Identity` at their output. Batch norm layers that have
    seen no data get the statistics of these data, on a copy. The network is not changed; Ctrl-C ends the pass.

    Args:
        network: A network in any form that `gapscope.measure` takes.
        data: Inputs, with or without targets, in any form that `gapscope.measure` takes. Labels are not read:
            samples with the label -100 have features as well.
        layer: Name of a module, as in `network.named_modules()`, whose output holds the features; None for the place
            above.
        pooling: Reduction over positions (tokens, pixels): "mean", "first" (a class token), "last", or "none" for
            features of every position, [n, ..., d]. Masked tokens (`attention_mask`, or the padding token of the
            network's configuration) do not count.
        batch_size: Samples per pass; None: as many as memory allows, up to 512.
        cache_dir: Folder that stores the features under a hash of the network's structure and weights, the inputs and
            the options (not of the code of `forward`); the same call then reads them. None stores nothing.

    Returns:
        Features [n, d] in the network's precision, at least float32, on the CPU. Rows are in the order of the data set,
        also if its loader shuffles (with a warning).

    Raises:
        InvalidInput: The data come in another order each time they are read; the network does not run on the inputs,
            has no module of this name or no last layer with equally many inputs of every sample; or the features are
            not finite or the same for all samples.
        NotWritten: `cache_dir` cannot be written.

    >>> import gapscope as gs
    >>> train = gs.load_dataset("digits").train.first(300)
    >>> network = gs.build_network("fully_connected", input_shape=(1, 8, 8), n_outputs=10, width=64)
    >>> features = gs.embed(network, train.inputs)
    >>> features.shape
    torch.Size([300, 64])
    >>> print(gs.forecast_accuracy(None, (features, train.y)).headline)  # doctest: +ELLIPSIS
    Forecast accuracy: 8... % (90 % interval 8... to 9... %) on new data with the same label noise
    """
    check_choice("pooling", pooling, POOLINGS)
    if batch_size is not None:
        check_range("batch_size", batch_size, 1)
    network, data = unwrap_estimator(network, data)
    samples = as_samples(data, with_targets=False)
    samples.original(())  # rows mean nothing if the order changes
    for note in samples.notes:
        if isinstance(note, RowNote):
            warn_user(note)
    inputs = Samples(
        samples.inputs, form=samples.form, columns=samples.columns, notes=samples.notes
    )
    prepared = ready(network, inputs)
    path = None
    if cache_dir is not None:
        key = _cache_key(prepared.network, prepared.samples, layer, pooling)
        path = Path(cache_dir) / f"features-{key[:32]}.safetensors"
        cached = _read(path, len(samples))
        if cached is not None:
            return cached
    features = extract_features(
        prepared.network, prepared.samples, layer=layer, pooling=pooling, batch_size=batch_size
    )
    for note in features.notes:
        warn_user(note)
    if path is not None:
        _write(path, features.values)
    return features.values
