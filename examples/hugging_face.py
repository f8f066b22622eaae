"""A data set of Hugging Face's library, of which each worker reads its own part."""

import ooodist

ooodist.init()

import keras
from datasets import Dataset
from datasets.distributed import split_dataset_by_node

from ooodist.data.kinds import digits

x, y = digits.load()
dataset = Dataset.from_dict({"image": x / 16, "label": y})  # your own: load_dataset(...)
part = split_dataset_by_node(dataset, rank=ooodist.rank(), world_size=ooodist.size())
batches = part.to_tf_dataset(batch_size=32, columns="image", label_cols="label", shuffle=True)

keras.utils.set_random_seed(1)
layers = [keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
model = keras.Sequential([keras.Input((8, 8)), *layers])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", loss, metrics=["accuracy"])
model = ooodist.distribute(model)

model.fit(batches, epochs=3, verbose=2)
