"""Train, score and measure a grid of networks, and look at what goes with the gap."""

import tempfile

import matplotlib.pyplot as plt

import gapscope as gs

grid = gs.Grid(
    base=gs.RunSpec(
        data=gs.DataSpec(name="digits", train_size=200),
        network=gs.NetworkSpec(name="fully_connected"),
        training=gs.TrainingSpec(epochs=40, learning_rate=0.1, momentum=0.9),
    ),
    axes={"network.options.width": [16, 64], "data.label_noise": [0.0, 0.2, 0.4], "seed": [0, 1]},
)
if __name__ == "__main__":  # worker processes import this file
    pool = gs.Pool(tempfile.mkdtemp() + "/pool")
    pool.run(grid, measures=["ntk_trace", "input_jacobian_norm"], workers=1)
    table = pool.to_pandas()
    print(
        table[["network.options.width", "data.label_noise", "test_accuracy", "gap", "ntk_trace"]]
        .round(3)
        .to_string()
    )
    for noise, rows in table.groupby("data.label_noise"):
        plt.scatter(rows["ntk_trace"], rows["gap"], label=f"{noise:.0%} label noise")
    plt.xscale("log")
    plt.xlabel("NTK trace")
    plt.ylabel("generalization gap")
    plt.legend()
