"""Compares DistributedOptimizer with DistributedDataParallel over Gloo: the same training by both,
case by case, in every worker of a run. `test_torch.py` launches it."""

import contextlib
import copy
import os

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

import slackwater
import slackwater.torch
from slackwater.torch import _flat

STEPS = 20


class Net(torch.nn.Module):
    """A model with layers of several sizes, a buffer, and parameters that some cases leave unused,
    freeze or tie."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(12, 40)
        self.norm = torch.nn.BatchNorm1d(40)
        self.second = torch.nn.Linear(40, 12)
        self.third = torch.nn.Linear(12, 40)
        self.spare = torch.nn.Linear(40, 40)
        self.last = torch.nn.Linear(40, 3)
        self.spared = True
        self.other = 0

    def forward(self, inputs):
        hidden = torch.relu(self.norm(self.first(inputs)))
        hidden = torch.relu(self.third(torch.tanh(self.second(hidden))))
        if not self.spared:
            hidden = self.spare(hidden)
        return self.last(hidden)


def data(rank, step, accumulated=0):
    """A random batch, which depends on the arguments only."""
    generator = torch.Generator().manual_seed(1000 * step + 10 * rank + accumulated)
    return torch.randn(8, 12, generator=generator), torch.randint(0, 3, (8,), generator=generator)


def train(case, rank, size, distributed):
    """Trains a model, with DistributedDataParallel or with DistributedOptimizer. Returns its
    weights and buffers after the last step."""
    # Ranks begin with different weights: all must take rank 0's.
    torch.manual_seed(rank)
    model = Net()
    if case in ("unused", "unused by some"):
        model.spared = True
    else:
        model.spared = False
    if case == "frozen":
        model.first.requires_grad_(False)
    if case == "tied":
        model.third.weight = model.first.weight
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    kind = torch.optim.Adam if case == "adam" else torch.optim.SGD
    # A large epsilon: Adam would amplify rounding errors in gradients near zero, such as those of a
    # bias before a norm.
    optimizer = kind(trained, lr=0.05, **({"eps": 1e-3} if case == "adam" else {"momentum": 0.9}))
    if distributed:
        wrapped = DistributedDataParallel(model, find_unused_parameters=case.startswith("unused"))
        no_sync = wrapped.no_sync
    else:
        wrapped = model
        optimizer = slackwater.torch.DistributedOptimizer(optimizer, model, slack=0)
        no_sync = optimizer.no_sync
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=5, enabled=case == "scaled")
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.5)
    skipped = 0
    for step in range(STEPS):
        if case == "unused by some":
            model.spared = (rank + step) % 3 != 0
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        for turn in range(3 if case == "accumulated" else 1):
            waits = case == "accumulated" and turn < 2
            with no_sync() if waits else contextlib.nullcontext():
                inputs, labels = data(rank, step, turn)
                loss = torch.nn.functional.cross_entropy(wrapped(inputs), labels)
                if case == "scaled" and step == 9 and rank == 1:
                    loss = loss * float("inf")
                scaler.scale(loss).backward()
        if case == "clipped":
            torch.nn.utils.clip_grad_norm_(trained, 0.5)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < before
        schedule.step()
    assert skipped == (1 if case == "scaled" else 0), (case, skipped)
    return copy.deepcopy(model.state_dict())


def compare(case):
    """The largest relative difference between the two results of a case."""
    rank, size = slackwater.rank(), slackwater.size()
    theirs = train(case, rank, size, True)
    ours = train(case, rank, size, False)
    apart = 0.0
    buffers = {name for name, _ in Net().named_buffers()}
    for name, expected in theirs.items():
        if name in buffers and rank != 0:
            # DistributedDataParallel takes rank 0's buffers before the next forward;
            # DistributedOptimizer does so after the step.
            continue
        difference = (ours[name].double() - expected.double()).abs().max()
        relative = float(difference / expected.double().abs().max().clamp(min=1e-3))
        # Written so that NaN counts as a difference: every comparison with NaN is false.
        apart = relative if not relative <= apart else apart
    return apart


def compare_all(cases, store):
    """The difference in each case: with parameters in common buckets, and with a bucket for
    each."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=slackwater.rank(), world_size=slackwater.size()
    )
    found = {case: compare(case) for case in cases}
    _flat.FUSED_BYTES = 1
    found.update({f"{case}, apart": compare(case) for case in cases})
    torch.distributed.destroy_process_group()
    return os.getpid(), found
