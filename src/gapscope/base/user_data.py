"""Data sets and loaders of the user: samples that change or cannot be read, numbers of samples, workers."""

# torch's loaders have no types
# pyright: basic

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import numpy
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset

from gapscope.base.errors import GapscopeError, InvalidInput, first_line
from gapscope.base.type_guards import has_length, is_list_or_tuple, is_mapping

PICTURES = (
    "Samples must be tensors of one shape; got PIL pictures. Convert each in the data set, as the network needs it: "
    "torch.tensor(numpy.array(picture.convert('RGB').resize((64, 64)))).permute(2, 0, 1) / 255. A folder of pictures "
    "is read by gapscope.data.ImageFolder."
)
# Samples that are read again: a random flip changes one of them with the probability 1 - 2^-8.
N_READ_AGAIN = 8


class RowNote(str):
    """A note about the samples that were read: which, in which order, or that they change."""


CHANGING_NOTE = RowNote(
    "Samples change each time that they are read (random augmentation): one draw of each was read. Pass the data set "
    "without augmentation for numbers that repeat."
)


class Rows(Subset[Any]):
    """Rows of a data set of the user, whose numbers stay those of the data set."""


def check_length(data: Any) -> None:
    """Raise InvalidInput for a data set with numbered samples whose number is not known."""
    if not is_stream(data) and not has_length(data):
        raise InvalidInput(
            f"A data set needs a length; got a {type(data).__name__} without one. Add __len__, which returns the "
            "number of samples, or pass [data[i] for i in range(n)]."
        )


def is_stream(data: Any) -> bool:
    """Return whether data are a data set without numbered samples, which is read in its order (it may have a length).

    Args:
        data: Data in any form.
    """
    return isinstance(data, IterableDataset)


def refuse_stream(data: Any) -> NoReturn:
    """Raise InvalidInput for a stream where samples have numbers, or columns names.

    Args:
        data: A stream of torch or of Hugging Face.

    Raises:
        InvalidInput: Always.
    """
    if hasattr(data, "take"):
        first = "data.take(n)"
    else:
        first = "itertools.islice(data, n)"
    raise InvalidInput(
        f"Samples with numbers are needed; got a stream, {type(data).__name__}. Pass list(data), or list({first}) for "
        "its first n samples."
    )


def read_sample(data: Any, row: int) -> Any:
    """Return a sample of a data set.

    Raises:
        InvalidInput: The data set raised an error, which is the cause.
        GapscopeError: Errors of gapscope pass as they are.
        MemoryError: Memory ended.
    """
    try:
        return data[row]
    except (GapscopeError, MemoryError):
        raise
    except Exception as error:
        if isinstance(data, Rows):
            data, row = data.dataset, data.indices[row]
        if is_stream(data):
            refuse_stream(data)
        raise InvalidInput(
            f"A data set must return each of its {len(data)} samples; sample {row} of {type(data).__name__} raised "
            f"{_reason(error)} Repair or omit it: torch.utils.data.Subset(data, rows)"
            f"{', or correct __len__' if isinstance(error, IndexError) else ''}."
        ) from error


def _reason(error: Exception) -> str:
    """Return the type and message of an error, also of a worker, as the end of a sentence."""
    text = str(error).strip()
    if text.startswith("Caught "):
        reason = text.splitlines()[-1][:160]
    else:
        reason = f"{type(error).__name__}: {first_line(error)}"
    return reason.rstrip(".") + "."


def batches_of(loader: Iterable[Any]) -> Iterator[Any]:
    """Yield the batches of a loader; an error of its data set, collate function or workers becomes one message."""
    n_batches = 0
    batches: Any = ()
    try:
        batches = iter(loader)
        for batch in batches:
            yield batch
            n_batches += 1
    except MemoryError:
        raise
    except Exception as error:
        try:
            _end_workers(loader, batches)
            _explain(loader, n_batches, error)
        except RuntimeError as late:  # torch's signal handler for dead workers raises anywhere
            if isinstance(late, GapscopeError):
                raise
            _explain(loader, n_batches, late)


def _end_workers(loader: Any, batches: Any) -> None:
    """End the workers of a loader that failed: torch's signal handler would raise later, in other code."""
    if hasattr(batches, "_shutdown_workers"):
        batches._shutdown_workers()
        if getattr(loader, "_iterator", None) is batches:  # persistent workers
            loader._iterator = None


def _explain(loader: Any, n_batches: int, error: Exception) -> NoReturn:
    """Raise the error of a loader that yielded some batches, with the sample or the function that it comes from."""
    n_workers = getattr(loader, "num_workers", 0)
    if isinstance(error, GapscopeError) and not n_workers:
        raise error
    if "_utils/collate.py" in "".join(traceback.format_exception(error)):
        if "PIL." in str(error):
            raise InvalidInput(PICTURES) from error
        raise InvalidInput(
            "All samples must have tensors of one shape, which can be stacked; torch's collate function raised "
            f"{_reason(error)} Convert, pad or crop the samples in the data set, or pass a DataLoader with a "
            "collate_fn."
        ) from error
    # what a worker raised begins with "Caught"; a sample that ended a worker would end this process
    if not n_workers or str(error).startswith("Caught "):
        _find_sample(loader, n_batches)
    advice = "Correct its data set or collate_fn."
    if n_workers:
        advice = "Set num_workers=0 to see where."
    raise InvalidInput(
        f"A loader must yield all of its batches; batch {n_batches} raised {_reason(error)} {advice}"
    ) from error


def _find_sample(loader: Any, n_batches: int) -> None:
    """Raise the error of the first sample of a batch, in order, that cannot be read."""
    if not isinstance(loader, DataLoader) or is_stream(loader.dataset):
        return
    data: Any = loader.dataset
    size = getattr(loader.batch_sampler, "batch_size", 1)
    for row in range(n_batches * size, min((n_batches + 1) * size, len(data))):
        read_sample(data, row)


def with_one_worker(loader: DataLoader[Any]) -> tuple[DataLoader[Any], list[str]]:
    """Return a loader of a stream that reads it once, and a note.

    Each of several workers yields the whole stream, unless its code divides it; a single one does so in both cases.
    """
    if loader.num_workers < 2:
        return loader, []
    single: DataLoader[Any] = DataLoader(
        loader.dataset,
        batch_size=loader.batch_size,
        drop_last=loader.drop_last,
        collate_fn=loader.collate_fn,
        num_workers=1,
        worker_init_fn=loader.worker_init_fn,
        generator=loader.generator,
        timeout=loader.timeout,
        multiprocessing_context=loader.multiprocessing_context,
    )
    note = (
        f"The stream was read by one worker, not {loader.num_workers}: each worker yields the whole stream, unless "
        "the data set divides it by torch.utils.data.get_worker_info()."
    )
    return single, [RowNote(note)]


def notes_on_numbers(data: Any) -> list[str]:
    """Return a note on what the number of a sample means in a part of a data set, or in several."""
    name = "data"
    number = "i"
    while isinstance(data, Subset) and not isinstance(data, Rows):
        number = f"{name}.indices[{number}]"
        name = f"{name}.dataset"
        data = data.dataset
    if number != "i":
        return [f"Sample i is that of the Subset: its row in {name} is {number}."]
    if isinstance(data, ConcatDataset):
        return [
            "Samples are numbered through the data sets of the ConcatDataset, one after the other: sample i is in "
            "data.datasets[bisect.bisect_right(data.cumulative_sizes, i)]."
        ]
    return []


def change_between_reads(data: Any, rows: Iterable[int]) -> bool:
    """Return whether a data set returns other values when samples are read again.

    Chosen rows are not read again: what chose them reads each sample once, with its random augmentation.
    """
    if isinstance(data, Rows):
        return False
    return any(not _are_equal(read_sample(data, row), read_sample(data, row)) for row in rows)


def _are_equal(first: Any, second: Any) -> bool:
    """Return whether two samples have the same numbers; values of other types are not compared."""
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return first.shape == second.shape and torch.allclose(
            first, second, rtol=0.0, atol=0.0, equal_nan=True
        )
    if isinstance(first, numpy.ndarray) and isinstance(second, numpy.ndarray):
        return numpy.array_equal(first, second, equal_nan=first.dtype.kind in "fc")
    if is_mapping(first) and is_mapping(second):
        return all(name in second and _are_equal(first[name], second[name]) for name in first)
    if is_list_or_tuple(first) and is_list_or_tuple(second):
        return len(first) == len(second) and all(map(_are_equal, first, second))
    if isinstance(first, int | float) and isinstance(second, int | float):
        return first == second or (first != first and second != second)
    return True
