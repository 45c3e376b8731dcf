"""Data leases: input that is dealt out in ranges, each of which counts once, whoever is lost on the way."""

from __future__ import annotations

from typing import Iterator, Optional

from . import _run, _slackwater
from ._slackwater import DataLease


class DataLeases:
    """This worker's leases of one data set, to be taken one after another: see :func:`slackwater.leases`."""

    def __init__(self, made: _slackwater.DataLeases):
        self._leases = made
        self._taken: Optional[DataLease] = None

    def __iter__(self) -> Iterator[DataLease]:
        return self

    def __next__(self) -> DataLease:
        if self._taken is not None and not self._taken.is_committed:
            raise _slackwater.TableError(
                f"lease {self._taken.number} is not committed, and others wait for that; call commit(lease) when all of it is pushed"
            )
        self._taken = self._leases.take()
        if self._taken is None:
            raise StopIteration
        return self._taken

    def commit(self, lease: DataLease) -> None:
        """Says that a lease is done: what there was to learn from it was pushed, in this clock or earlier. Returns at once; it is committed when the servers have all
        of that. To be said before the clock ends."""
        self._leases.commit(lease)

    def end(self) -> None:
        """Ends the data set for all workers, wherever they are in it: that was enough. What was pushed stays."""
        self._leases.end()

    @property
    def share(self) -> int:
        """How many minibatches to put into a clock, by how fast this worker has been: end the clock after so many."""
        return self._leases.share


def leases(
    name: str,
    ranges: int,
    *,
    epochs: int = 1,
    shuffle: Optional[int] = None,
    per_clock: int = 1,
    input: Optional[tuple[str, int]] = None,
) -> DataLeases:
    """Leases the data set ``name``, cut into so many ``ranges``, together with all workers that name it; each must say the same.

    Every range of every epoch is given to one worker, which pushes what it learns from it with ``lease=`` and commits it. The leases of a worker that is lost are given to others, which
    learn from them again, and servers leave out what they hold already: so every example counts once. For that a lease must be learnt from in the same
    way every time: its minibatches are cut from the lease alone, and each pushes the same keys to the same tables in the same order.

    ``shuffle`` is the seed of the order of ranges in each epoch; without, they come in order. ``per_clock`` is how many minibatches a worker of average speed puts
    into a clock (:attr:`DataLeases.share` says how many this one should). ``input`` says in words, and with a number (a checksum), what is read: a worker that reads something
    else is turned away.

    >>> import numpy, slackwater
    >>> run = slackwater.init()
    >>> counts = slackwater.Table("counts of ranges", rows=4, updater="sum", slack=0)
    >>> leases = slackwater.leases("doc", ranges=4, epochs=3)
    >>> for lease in leases:
    ...     counts.push(numpy.ones(1, "float32"), keys=[lease.range], lease=lease)
    ...     leases.commit(lease)
    ...     slackwater.clock()
    >>> counts.pull().tolist()
    [3.0, 3.0, 3.0, 3.0]
    >>> slackwater.shutdown()
    """
    if ranges < 1 or epochs < 1 or per_clock < 1:
        raise ValueError(f"leases need a range, an epoch and a minibatch in a clock at least, not {ranges}, {epochs} and {per_clock}")
    terms = dict(name=name, ranges=ranges, epochs=epochs, shuffle=shuffle, per_clock=per_clock, input=input)
    return DataLeases(_run.current()._session.leases(terms))
