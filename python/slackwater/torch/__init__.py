"""PyTorch training that does not wait: gradients and weights through tables.

Five lines change in a script that trains alone or with DistributedDataParallel::

    import slackwater, slackwater.torch

    slackwater.init()
    model = Net()
    optimizer = slackwater.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, slack=0)
    for inputs, labels in shard_of(data, slackwater.rank(), slackwater.size()):
        optimizer.zero_grad()
        loss(model(inputs), labels).backward()      # .grad holds the mean over all workers
        optimizer.step()
"""

from ._embedding import Embedding, EmbeddingBag
from ._optimizer import DistributedOptimizer, broadcast
from ._save import load, save

__all__ = ["DistributedOptimizer", "Embedding", "EmbeddingBag", "broadcast", "load", "save"]
