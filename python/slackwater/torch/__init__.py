"""PyTorch training with parameter servers: gradients and weights travel through tables.

A script that trains alone, or with DistributedDataParallel, changes in five lines::

    import slackwater, slackwater.torch

    slackwater.init()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = slackwater.torch.DistributedOptimizer(optimizer, model, slack=0)
    for inputs, labels in shard_of(data, slackwater.rank(), slackwater.size()):
        optimizer.zero_grad()
        loss(model(inputs), labels).backward()      # .grad holds the mean over all workers
        optimizer.step()
"""

from ._embedding import Embedding, EmbeddingBag
from ._optimizer import DistributedOptimizer, broadcast
from ._save import load, save

__all__ = ["DistributedOptimizer", "Embedding", "EmbeddingBag", "broadcast", "load", "save"]
