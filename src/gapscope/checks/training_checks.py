"""Checks of the training run: GS203, GS301 and GS302 by the rules of a monitor, and GS303."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from gapscope.checks.context import Context
from gapscope.checks.data_checks import label_errors
from gapscope.checks.registry import Finding, Fine, NotChecked, Outcome, register_check
from gapscope.inspection.outputs import inspection_mode, raw_outputs
from gapscope.results.formatting import pluralize
from gapscope.training.run_checks import RUN_CHECKS, RunState


def _finished_run(context: Context) -> RunState:
    """Return the finished training run as the checks of a run see it."""
    monitor = context.monitor
    losses = [float(row["train_loss"]) for row in context.history]
    has_losses = getattr(monitor, "checks", None) is not None
    if not losses and has_losses and not context.monitored_run.reason:
        losses = list(monitor.checks.losses)
    recordings = len(getattr(monitor, "epochs", ()))

    return RunState(
        context.network,
        context.samples,
        losses=losses,
        is_over=True,
        alarm=getattr(monitor, "alarm", None),
        recordings=recordings,
        epochs=getattr(monitor, "n_due", recordings),
        batch_size=context.batch_size,
        kernel=context.kernel,
    )


def _of_alarm(outcome: Outcome, context: Context) -> Outcome:
    """Return the outcome of GS301 with what is known of the network and of the labels."""
    note = context.monitored_run.note
    if isinstance(outcome, Fine) and note:
        return NotChecked(note)
    if not isinstance(outcome, Finding):
        return outcome
    if note:
        outcome = replace(outcome, evidence=f"{outcome.evidence}; {note}")
    if isinstance(label_errors(context), Fine):
        outcome = replace(
            outcome,
            evidence=f"{outcome.evidence}; the labels have no errors by GS102",
            action="choose the epoch by a 10 % validation split",
            cost=0.0,
            fixes=("weight decay",),
        )
    return outcome


def _after_training(code: str) -> None:
    """Register the rule of a running training as a check of a finished one."""
    check = RUN_CHECKS[code]

    @register_check(
        code,
        title=check.title,
        seconds=check.seconds,
        information=check.information,
        during_training=True,
    )
    def evaluate_rule(context: Context) -> Outcome:
        """Evaluate the rule on the finished training."""
        needs_no_network = code == "GS301"
        if context.untrained_because and not needs_no_network:
            return NotChecked(context.untrained_because)
        run = _finished_run(context)
        is_of_monitor = code == "GS301" and run.alarm is not None
        if is_of_monitor and context.monitored_run.reason:
            return NotChecked(context.monitored_run.reason)
        outcome = check.rule(run)
        if is_of_monitor:
            return _of_alarm(outcome, context)
        found = [
            finding for finding in getattr(context.monitor, "findings", ()) if finding.code == code
        ]
        if code == "GS302" and isinstance(outcome, Finding) and outcome.cost is not None:
            outcome = replace(outcome, cost=max(outcome.cost, context.shortfall or 0.0))
        # what a monitor found at some epoch stays a finding where the end of the run gives no answer
        if found and isinstance(outcome, NotChecked) and not context.monitored_run.reason:
            return found[0]
        return outcome


for _code in RUN_CHECKS:
    _after_training(_code)


def _unused(context: Context, weights: list[nn.Parameter]) -> set[nn.Parameter]:
    """Return the weights that have no part in the outputs, such as those of a pooler or of a second head."""
    if not weights:
        return set()
    with inspection_mode(context.network), torch.enable_grad():
        outputs = raw_outputs(context.network(context.samples.inputs[:2]))
        if not outputs.requires_grad:
            return set()
        gradients = torch.autograd.grad(outputs.sum(), weights, allow_unused=True)
    return {weight for weight, gradient in zip(weights, gradients, strict=True) if gradient is None}


@register_check("GS303", title="parameters that did not change", seconds=0.01)
def unchanged(context: Context) -> Outcome:
    """Report trainable weights that equal the initial ones, and frozen ones of a network that learned too little."""
    if context.prepared is None:
        return NotChecked("needs a torch network")
    if context.initial_state is None:
        return NotChecked("pass initial_state=, a clone of the state dictionary before training")
    if context.untrained_because:
        return NotChecked(context.untrained_because)
    initial = context.initial_state
    weights = dict(context.prepared.bare.named_parameters())
    same = {
        name: weight
        for name, weight in weights.items()
        if name in initial
        and initial[name].shape == weight.shape
        and torch.equal(initial[name].to(weight), weight)
    }
    stuck = [name for name, weight in same.items() if weight.requires_grad and weight.ndim > 1]
    unused = _unused(context, [weights[name] for name in stuck])
    stuck = [name for name in stuck if weights[name] not in unused]
    frozen = [name for name, weight in same.items() if not weight.requires_grad and weight.ndim > 1]
    lost = context.shortfall
    names = stuck or frozen
    count = sum(weights[name].numel() for name in names)
    total = sum(weight.numel() for weight in weights.values())
    text = f"{len(names)} of {len(weights)} parameters ({100 * count / total:.0f} % of the values) did not change"
    if not stuck and not (frozen and lost is not None and lost > 0.03):
        if not names:
            text = "all weights changed"
        if unused:
            text += f", but {pluralize(len(unused), 'parameter')} that forward does not use"
        return Fine(text)
    listed = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    action = "pass them to the optimizer"
    if not stuck:
        action = "they are frozen: set requires_grad, if this was not intended"
    return Finding(f"{text}: {listed}", action, cost=lost, fixes=("unfreeze", "learning rate x 3"))
