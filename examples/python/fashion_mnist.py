"""Trains a small convolutional network on Fashion-MNIST, in lock-step or with slack.

    python -m slackwater.run --workers 4 examples/python/fashion_mnist.py --slack 3

Every worker learns from its share of the images; worker 0 prints the accuracy on the test images.
With slack 0, training is the same as with DistributedDataParallel. With slack above 0, workers do
not wait for a worker that is slow for a short time.

The four files of the data set (train and t10k, images and labels, as .gz) are published at
https://github.com/zalandoresearch/fashion-mnist. Put them into data/fashion-mnist, or name their
folder with --data.
"""

import argparse
import gzip
from pathlib import Path

import numpy
import torch
from torch import nn

import slackwater
import slackwater.torch

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("--data", type=Path, default=Path("data/fashion-mnist"), help="folder of the data set")
arguments.add_argument("--slack", type=int, default=0, help="how many minibatches workers may be apart")
arguments.add_argument("--epochs", type=int, default=5, help="passes over the images")
arguments.add_argument("--batch", type=int, default=128, help="images in the minibatches of all workers together")
given = arguments.parse_args()


def images(name):
    """Reads a pair of IDX files: images (count, 1, 28, 28) around zero, and labels (count)."""
    with gzip.open(given.data / f"{name}-images-idx3-ubyte.gz") as file:
        pixels = numpy.frombuffer(file.read(), "uint8", offset=16).reshape(-1, 1, 28, 28)
    with gzip.open(given.data / f"{name}-labels-idx1-ubyte.gz") as file:
        labels = numpy.frombuffer(file.read(), "uint8", offset=8)
    return torch.from_numpy(pixels.astype("float32") / 255 - 0.286), torch.from_numpy(labels.astype("int64"))


slackwater.init()
torch.set_num_threads(1)
torch.manual_seed(0)
rank, size = slackwater.rank(), slackwater.size()

model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),  # (16, 14, 14)
    nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),  # (32, 7, 7)
    nn.Flatten(), nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10),
)  # fmt: skip
optimizer = torch.optim.Adam(model.parameters())
optimizer = slackwater.torch.DistributedOptimizer(optimizer, model, slack=given.slack)

pixels, labels = images("train")
mine = torch.arange(rank, len(labels), size)
batch = given.batch // size
steps = len(labels) // size // batch * given.epochs
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
generator = torch.Generator().manual_seed(rank)

for epoch in range(given.epochs):
    order = mine[torch.randperm(len(mine), generator=generator)]
    for chosen in order[: len(order) // batch * batch].split(batch)[: steps // given.epochs]:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(pixels[chosen]), labels[chosen])
        loss.backward()
        optimizer.step()
        schedule.step()
    if rank == 0:
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}", flush=True)
optimizer.synchronize()

if rank == 0:
    pixels, labels = images("t10k")
    model.eval()
    with torch.no_grad():
        right = sum(int((model(part).argmax(1) == wanted).sum()) for part, wanted in zip(pixels.split(500), labels.split(500)))
    print(f"slack {given.slack}, {size} workers: {right / len(labels):.2%} of the test images classified correctly")
slackwater.shutdown()
