"""Advice of the Python interface in the words of the command line."""

from __future__ import annotations

import re
from functools import partial

# also where a table, a grid or stored weights were checked, which have no function
FUNCTION = "check a module:function that returns"
STATE = "pass a module:function that returns the state dictionary before training"

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
    "a larger time_budget=, or None for no limit": "a larger --time-budget",
    "a larger time_budget": "a larger --time-budget",
    "in result.label_issues": "that `gapscope labels` lists",
    "pass groups= to gapscope.forecast_accuracy or gapscope.out_of_sample": "pass --groups to `gapscope forecast` or "
    "`gapscope out-of-sample`",
    "gapscope.learning_curve": "`gapscope learning-curve`",
    "gapscope.find_label_issues": "`gapscope labels`",
    "; reasons: .unmeasured": "; --json names the reasons",
    "pass evidence=gs.rank_measures(POOL)": "pass --evidence POOL",
    "pass n_training=len(data); gs.learning_curve": "pass --n-training; `gapscope learning-curve`",
    "leave out precision=": "leave out --precision",
    "cache_dir= keeps them": "--cache-dir keeps them",
    "With cache_dir= the": "With --cache-dir the",
    "(cache_dir=, --cache-dir)": "(--cache-dir)",
    "pass initial_state=, the state dictionary before training": f"{STATE} as a third value",
    "pass initial_state=, a copy.deepcopy of network.state_dict()": f"{STATE} as a third value",
    "pass history=, one mapping per epoch with its train_loss": "networks of `gapscope pool run` have one",
    "write them in one way: y.str.strip().str.lower()": "write them in one way",
    "compare other architectures with gapscope.rank_networks": "compare other architectures with `gapscope forecast` "
    "of a grid",
    "gs.learning_curve(train_fn, data, score=...), with your metric": "`gapscope learning-curve --score`",
    "gs.check(network, data, test=...)": "`gapscope check --test`",
    "gs.check(network, train, test=validation)": "`gapscope check --test`",
    "compare gs.forecast_accuracy(network, data) of each network": "compare `gapscope forecast` of each network",
    "or replace=True to overwrite it": "or --replace to overwrite it",
    "and initial_state=state_dict before training": "and the state dictionary before training, as the third value of a "
    "module:function",
    "pass groups=None": "omit --groups",
    "pass score=None": "omit --score",
    "pass ignore=['GS107']": "pass --ignore GS107",
    "pass engine='ray'": "pass --engine ray",
    "or pass measures=[...]": "or pass --measure",
    "Pass settings= when networks are added to a pool (--set on the command line)": "Pass --set when networks are "
    "added to a pool",
}

# Arguments of Python that are options of commands.
OPTION = re.compile(r"\b([Pp]ass|or) (test|groups|n_training|time_budget|score)=(\d[\d.]*\d|\d)?")
# Data in a form that a function returns, and what no command takes, in this order.
PATTERNS = (
    (
        re.compile(r"pass (gs\.Samples\([^()]*\))"),
        r"return \1 as the data of a module:function",
    ),
    (re.compile(r"`?\b(?:gs|gapscope)\.embed\b(\([^()]*\))?`?"), "`gapscope.embed` in Python"),
    *(
        (re.compile(rf"`?\bgs\.{function}\b(\([^()]*\))?`?"), f"`gapscope {command}`")
        for function, command in (
            ("learning_curve", "learning-curve"),
            ("forecast_accuracy", "forecast"),
            ("estimate_accuracy", "estimate"),
            ("find_label_issues", "labels"),
            ("out_of_sample", "out-of-sample"),
        )
    ),
    (re.compile(r"(?<!n Python, )\bpass (?=\w+=)"), "in Python, pass "),
    (re.compile(r"(?<!n Python, )\bPass (?=\w+=)"), "In Python, pass "),
    (re.compile(r"\btime_budget=(?=\d)"), "--time-budget "),
    (re.compile(r"\btime_budget\b=?"), "--time-budget"),
)


def in_a_shell(text: str) -> str:
    """Return text whose advice is in words of the command line.

    Args:
        text: Text of a result, a note or an error.
    """
    for python, shell in IN_A_SHELL.items():
        # backticks around a name would enclose all that stands in its place
        pattern = f"(`?)([{python[0].lower()}{python[0].upper()}]){re.escape(python[1:])}\\1"
        text = re.sub(pattern, partial(_replaced, shell=shell), text)
    text = OPTION.sub(_as_option, text)
    for pattern, shell in PATTERNS:
        text = pattern.sub(shell, text)
    return text


def _as_option(match: re.Match[str]) -> str:
    """Return an argument as an option, with its value if that is a number."""
    value = f" {match[3]}" if match[3] else ""
    return f"{match[1]} --{match[2].replace('_', '-')}{value}"


def _replaced(match: re.Match[str], shell: str) -> str:
    """Return advice with a capital letter if that of Python has one."""
    return shell[0].upper() + shell[1:] if match[2].isupper() else shell
