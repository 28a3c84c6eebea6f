"""Advice of the Python interface in the words of the command line."""

from __future__ import annotations

import re

# also where a table, a grid or stored weights were checked, which have no function
FUNCTION = "check a module:function that returns"

# Phrases of advice that name arguments and functions of Python, and what a shell has in their place.
IN_A_SHELL = {
    "pass initial_state=, a clone of the state dictionary before training": f"{FUNCTION} {{..., 'initial_state': ...}}",
    "pass monitor=, a gapscope.Monitor with an alarm": f"{FUNCTION} {{..., 'monitor': ...}}",
    "pass batch_size=, the batch size of training": f"{FUNCTION} {{..., 'batch_size': ...}}",
    "or initial_state=, as it was": f"or {FUNCTION} {{..., 'initial_state': ...}}, as it was",
    "pass history= or initial_state=": f"{FUNCTION} {{..., 'history': ...}} or {{..., 'initial_state': ...}}",
    "pass history= to learn the direction": f"{FUNCTION} {{..., 'history': ...}} to learn the direction",
    "pass train_fn= to try it": "pass --train to try it",
    "pass train_fn= to check": "pass --train",
    "pass time_budget=None": "pass a larger --time-budget",
    "time_budget=None allows": "a larger --time-budget allows",
    "time_budget= allows": "--time-budget allows",
    "a larger time_budget=, or None for no limit": "a larger --time-budget",
    "a larger time_budget": "a larger --time-budget",
    "in result.label_issues": "that `gapscope labels` lists",
    "pass groups= to gapscope.forecast_accuracy or gapscope.out_of_sample": "pass --groups to `gapscope forecast`",
    "gapscope.learning_curve": "`gapscope learning-curve`",
    "gapscope.embed": "`gapscope.embed` in Python",
    "gapscope.find_label_issues": "`gapscope labels`",
    "pass test=": "pass --test",
    "Pass test=": "Pass --test",
    "; reasons: .unmeasured": "; --json names the reasons",
    "pass evidence=gs.rank_measures(POOL)": "pass --evidence POOL",
    "pass n_training=len(data); gs.learning_curve": "pass --n-training; `gapscope learning-curve`",
    "pass groups=": "pass --groups",
    "leave out precision=": "leave out --precision",
    "cache_dir= keeps them": "--cache-dir keeps them",
    "With cache_dir= the": "With --cache-dir the",
    "(cache_dir=, --cache-dir)": "(--cache-dir)",
    "Pass settings= when networks are added to a pool (--set on the command line)": "Pass --set when networks are "
    "added to a pool",
}


def in_a_shell(text: str) -> str:
    """Return text whose advice is in words of the command line.

    Args:
        text: Text of a result, a note or an error.
    """
    for python, shell in IN_A_SHELL.items():
        # backticks around a name would enclose all that stands in its place
        text = re.sub(f"(`?){re.escape(python)}\\1", shell, text)
    return text
