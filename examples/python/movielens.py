"""Trains a matrix factorisation of MovieLens-100K: users and films are rows of sparse tables.

    python -m slackwater.run --workers 4 examples/python/movielens.py --slack 3

The model predicts a rating as the mean rating, plus a bias of the user and one of the film, plus
the product of their factors. Every worker learns from its share of the ratings in u1.base. Worker 0
prints the error on the ratings in u1.test.

MovieLens-100K is published at https://grouplens.org/datasets/movielens/100k/. Compress u1.base and
u1.test with gzip and put them into data/ml-100k, or name their folder with --data.
"""

import argparse
import gzip
from pathlib import Path

import numpy
import torch

import slackwater
import slackwater.torch

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("--data", type=Path, default=Path("data/ml-100k"), help="folder of the data set")
arguments.add_argument("--slack", type=int, default=3, help="how many minibatches workers may be apart")
arguments.add_argument("--epochs", type=int, default=30, help="passes over the ratings")
arguments.add_argument("--factors", type=int, default=16, help="factors of a user or film")
arguments.add_argument("--rate", type=float, default=0.1, help="learning rate of adagrad")
arguments.add_argument("--shrink", type=float, default=0.1, help="how much each rating pulls its rows towards zero")
given = arguments.parse_args()


def ratings(name):
    """Reads a file: users, films and ratings."""
    with gzip.open(given.data / name, "rt") as file:
        columns = numpy.loadtxt(file, usecols=(0, 1, 2)).T
    users, films = torch.from_numpy(columns[:2].astype("int64"))
    return users, films, torch.from_numpy(columns[2].astype("float32"))


class Factors(torch.nn.Module):
    """A row for each user and each film: its factors, and in the last place its bias."""

    def __init__(self, mean):
        super().__init__()
        settings = dict(updater="adagrad", rate=given.rate, slack=given.slack, scale=0.05)
        self.users = slackwater.torch.Embedding("users", given.factors + 1, seed=1, **settings)
        self.films = slackwater.torch.Embedding("films", given.factors + 1, seed=2, **settings)
        self.mean = mean

    def forward(self, users, films):
        user, film = self.users(users), self.films(films)  # (batch, factors + 1) each
        product = (user[:, :-1] * film[:, :-1]).sum(1)
        norm = user.square().sum(1) + film.square().sum(1)
        return self.mean + product + user[:, -1] + film[:, -1], norm


slackwater.init()
torch.set_num_threads(1)
rank, size = slackwater.rank(), slackwater.size()
users, films, stars = ratings("u1.base.gz")
model = Factors(float(stars.mean()))
mine = torch.arange(rank, len(stars), size)
batch = 800 // size
generator = torch.Generator().manual_seed(rank)

for epoch in range(given.epochs):
    for chosen in mine[torch.randperm(len(mine), generator=generator)].split(batch):
        predicted, norm = model(users[chosen], films[chosen])
        loss = (predicted - stars[chosen]).square() + given.shrink * norm
        loss.sum().div(batch * size / 100).backward()  # pushes the gradients
        slackwater.clock()  # this minibatch is done
slackwater.barrier()

if rank == 0:
    users, films, stars = ratings("u1.test.gz")
    with torch.no_grad():
        predicted, _ = model(users, films)
    error = (predicted.clamp(1, 5) - stars).square().mean().sqrt()
    print(f"slack {given.slack}, {size} workers: RMSE {error:.4f} on u1.test")
slackwater.shutdown()
