"""Interrupts at any call leave no trace of measuring, and none is lost."""

from __future__ import annotations

import gc
import inspect
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gapscope.ablation.layers import trace
from gapscope.accuracy.forecast import forecast_accuracy
from gapscope.inspection.interrupts import postponed_interrupts, whole_results
from gapscope.inspection.outputs import inspection_mode
from gapscope.measures.ntk import ntk_trace
from gapscope.penalties.gradient_similarity import GradientSimilarityPenalty

NUMBERS = [
    number for number in (signal.SIGINT, getattr(signal, "SIGALRM", None)) if number is not None
]


def _do(work: Callable[[], Any], call: int = -1, number: int = signal.SIGINT) -> int:
    """Do the work, send a signal at one of its calls of Python functions, and return the number of calls."""
    seen = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal seen
        # Python drops exceptions while it closes a generator that was not exhausted
        seen += event == "call" and not frame.f_code.co_flags & inspect.CO_GENERATOR
        if seen == call:
            sys.setprofile(None)
            signal.raise_signal(number)

    gc.disable()  # Python drops exceptions in what it calls while it collects garbage
    try:
        sys.setprofile(count)
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return seen


def _state(network: nn.Module) -> tuple[Any, ...]:
    modules = [(m.training, dict(vars(m)), len(m._forward_hooks)) for m in network.modules()]
    gradients = [id(p.grad) for p in network.parameters()]
    patches = (
        nn.Module.__call__,
        nn.Module.__getattr__,
        torch.is_grad_enabled(),
        torch.backends.mkldnn.enabled,
    )
    handlers = tuple(signal.getsignal(number) for number in NUMBERS)
    return (
        modules,
        gradients,
        patches,
        handlers,
        torch.get_rng_state().sum(),
        torch._C._len_torch_function_stack(),
    )


@pytest.fixture
def network() -> nn.Sequential:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    network(torch.randn(5, 3)).sum().backward()
    return network


@pytest.mark.parametrize("verb", ["inspection", "measure", "penalty", "trace"])
def test_interrupts_at_any_call_restore_everything(network: nn.Sequential, verb: str) -> None:
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    penalty = GradientSimilarityPenalty(0.1)
    if verb == "penalty":
        network[1].eval()  # a training pass changes the running statistics, interrupted or not

    def inspect() -> None:
        with inspection_mode(network):
            network(x)

    work = {
        "inspection": inspect,
        "measure": lambda: ntk_trace(network, x),
        "penalty": lambda: penalty.forward_with_penalty(network, x),
        "trace": lambda: trace(network),
    }[verb]
    work()
    n, before = _do(work), _state(network)
    for call in range(3, n, max(1, n // 20)):
        try:
            n_calls = _do(work, call)
        except KeyboardInterrupt:
            n_calls = 0
        # later passes make fewer calls; an interrupt that was sent must arrive
        assert n_calls < call
        assert _state(network) == before


def test_an_interrupt_waits_while_a_context_is_left() -> None:
    events = []

    class Context:
        def __enter__(self) -> None:
            signal.raise_signal(signal.SIGINT)
            events.append("entered")

        def __exit__(self, *error: object) -> None:
            signal.raise_signal(signal.SIGINT)
            events.append("left")

    with pytest.raises(KeyboardInterrupt), postponed_interrupts():
        with pytest.raises(KeyboardInterrupt), Context():
            events.append("body")
            threading.Event().wait(10)
        assert events == ["entered", "body", "left"]
        threading.Event().wait(10)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_timeouts_by_a_signal_are_postponed_as_well() -> None:
    if not hasattr(signal, "SIGALRM"):
        pytest.skip("this system has no alarm")

    class TimeIsUp(Exception):
        pass

    def handler(number: int, frame: Any) -> None:
        raise TimeIsUp

    before = signal.signal(signal.SIGALRM, handler)
    left = False

    class Context:
        def __enter__(self) -> None:
            pass

        def __exit__(self, *error: object) -> None:
            nonlocal left
            signal.raise_signal(signal.SIGALRM)
            left = True

    try:
        with pytest.raises(TimeIsUp), postponed_interrupts(), Context():
            pass
        assert left
        assert signal.getsignal(signal.SIGALRM) is handler
    finally:
        signal.signal(signal.SIGALRM, before)


def test_other_threads_have_no_handlers() -> None:
    handlers = []

    def body() -> None:
        with postponed_interrupts():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(signal.SIGINT)]


def test_an_interrupted_part_returns_nothing_to_the_function_that_called_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gapscope.accuracy.forecast_run.learning_curve_points", interrupt)
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    data = x, (x[:, 0] > 0).long()
    # for the user the finished rows are worth having; for a check they would become a reason
    assert not forecast_accuracy(None, data).curve
    with pytest.raises(KeyboardInterrupt), whole_results():
        forecast_accuracy(None, data)
