"""How much does batch norm regularize, and what does a larger batch size change?"""

import matplotlib.pyplot as plt

import gapscope as gs

digits = gs.load_dataset("digits")
x, y = (
    digits.train.inputs[:512],
    gs.data.inject_label_noise(digits.train.targets[:512], 0.2, n_classes=10),
)
network = gs.build_network("small_cnn", input_shape=(1, 8, 8), n_outputs=10, batch_norm=True)
gs.train(network, (x, y), gs.TrainingSpec(epochs=6, batch_size=32))
advice = gs.advise_batch_norm(network, (x, y), batch_size=32, new_batch_size=128)
print(*advice.sentences, sep="\n")

table = advice.to_pandas()
places = range(len(table))
plt.barh(
    [place + 0.2 for place in places],
    table["excess"],
    0.4,
    xerr=table["standard_error"],
    label="batches of 32",
)
plt.barh(
    [place - 0.2 for place in places],
    table["new_excess"],
    0.4,
    xerr=table["new_standard_error"],
    label="of 128",
)
plt.yticks(places, table["layer"])
plt.xlabel("training loss that batch norm adds")
plt.legend()
