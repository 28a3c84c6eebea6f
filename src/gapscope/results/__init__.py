"""Results of public functions: text, tables, JSON and plots, with a progress bar.

Common parameters:
    path: File to read or write.
    folder: Folder of one run, with `record.json` and usually `history.jsonl`.
    axes: Matplotlib axes; None for a new figure.
    level: Nominal coverage of intervals.
    title: Text next to the progress bar.
    total: Sum of all advances of the bar.
"""
