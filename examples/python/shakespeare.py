"""Trains a small character transformer on Tiny Shakespeare, in lock-step or with slack.

    python -m slackwater.run --workers 4 examples/python/shakespeare.py --slack 3

Every worker draws random pieces of the text and learns from them. Worker 0 prints the loss on the
last tenth of the text, in nats per character, and a sample that the model wrote.

The text (input.txt) is published at
https://github.com/karpathy/char-rnn/tree/master/data/tinyshakespeare. Compress it with gzip and put
it into data/tinyshakespeare, or name its folder with --data.
"""

import argparse
import gzip
from pathlib import Path

import torch
from torch import nn

import slackwater
import slackwater.torch

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("--data", type=Path, default=Path("data/tinyshakespeare"), help="folder of the text")
arguments.add_argument("--slack", type=int, default=0, help="how many minibatches workers may be apart")
arguments.add_argument("--steps", type=int, default=600, help="minibatches of each worker")
arguments.add_argument("--batch", type=int, default=32, help="pieces in the minibatches of all workers together")
given = arguments.parse_args()

LENGTH, WIDTH, LAYERS, HEADS = 64, 96, 3, 4

text = gzip.open(given.data / "input.txt.gz", "rt").read()
letters = sorted(set(text))
numbers = torch.tensor([letters.index(letter) for letter in text])
train, held = numbers[: len(numbers) * 9 // 10], numbers[len(numbers) * 9 // 10 :]


class Writer(nn.Module):
    """A transformer that predicts the next character at each position of a text."""

    def __init__(self):
        super().__init__()
        self.letters = nn.Embedding(len(letters), WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, len(letters))
        self.register_buffer("ahead", torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), 1))

    def forward(self, pieces):  # (batch, length) -> (batch, length, letters)
        length = pieces.shape[1]
        hidden = self.letters(pieces) + self.places(torch.arange(length))
        return self.out(self.norm(self.layers(hidden, mask=self.ahead[:length, :length], is_causal=True)))


def loss_of(model, begins, source):
    pieces = torch.stack([source[begin : begin + LENGTH + 1] for begin in begins])
    return nn.functional.cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())


slackwater.init()
torch.set_num_threads(1)
torch.manual_seed(0)
rank, size = slackwater.rank(), slackwater.size()
model = Writer()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
optimizer = slackwater.torch.DistributedOptimizer(optimizer, model, slack=given.slack)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=given.steps)
generator = torch.Generator().manual_seed(rank)

for step in range(given.steps):
    optimizer.zero_grad()
    begins = torch.randint(len(train) - LENGTH, (given.batch // size,), generator=generator)
    loss = loss_of(model, begins, train)
    loss.backward()
    if given.slack == 0:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    if rank == 0 and (step + 1) % 100 == 0:
        print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)
optimizer.synchronize()

if rank == 0:
    model.eval()
    with torch.no_grad():
        begins = torch.arange(0, len(held) - LENGTH - 1, LENGTH)
        losses = [loss_of(model, part, held) for part in begins.split(64)]
        print(f"slack {given.slack}, {size} workers: {torch.stack(losses).mean():.4f} nats per character")
        written = numbers[:1].view(1, 1)
        for _ in range(200):
            chances = model(written[:, -LENGTH:])[:, -1].softmax(-1)
            written = torch.cat([written, torch.multinomial(chances, 1, generator=generator)], 1)
        print("".join(letters[number] for number in written[0]))
slackwater.shutdown()
