"""Data leases: workers take input range by range, and each range counts once although workers are
lost."""

from __future__ import annotations

from typing import Iterator, Optional

from . import _run, _slackwater
from ._slackwater import DataLease


class DataLeases:
    """This worker's leases of one data set: see :func:`slackwater.leases`. Iterating over it yields
    :class:`DataLease` after :class:`DataLease`, until all leases of all workers are committed.
    Commit each before taking the next."""

    def __init__(self, made: _slackwater.DataLeases):
        self._leases = made
        self._taken: Optional[DataLease] = None

    def __iter__(self) -> Iterator[DataLease]:
        return self

    def __next__(self) -> DataLease:
        if self._taken is not None and not self._taken.is_committed:
            raise _slackwater.TableError(
                f"lease {self._taken.number} is not committed, and other workers wait for that; call commit(lease) when all of it is pushed"
            )
        self._taken = self._leases.take()
        if self._taken is None:
            raise StopIteration
        return self._taken

    def commit(self, lease: DataLease) -> None:
        """Commits a lease: this worker has pushed everything for it, in this clock or earlier. Call
        it before the clock ends. Returns at once; the lease is committed when the servers have all
        those pushes. Raises :class:`TableError` if the lease is committed already."""
        self._leases.commit(lease)

    def end(self) -> None:
        """Ends the data set for all workers before all of it is read. Pushes that were made stay.
        Waits until the other workers have committed their leases or have ended the data set too."""
        self._leases.end()

    @property
    def share(self) -> int:
        """How many minibatches this worker should put into a clock, according to its measured
        speed."""
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
    """Leases the data set ``name``, which is cut into ``ranges`` ranges, together with all workers
    that use the same name. Each must give the same arguments. Returns :class:`DataLeases`, to
    iterate over.

    Each range of each epoch is one lease. The coordinator grants it to one worker, which pushes its
    gradients with ``lease=`` and commits it. If a worker is lost, its leases go to other workers,
    which process them again; servers leave out the parts that they hold already. So every example
    counts once, provided that a lease is processed in the same way every time. Its minibatches must
    depend on the lease alone, and each must push the same keys to the same tables in the same
    order.

    * ``epochs``: how many times the input is read.
    * ``shuffle``: seed of the order of ranges in each epoch. None takes them in order.
    * ``per_clock``: how many minibatches a worker of average speed puts into a clock.
      :attr:`DataLeases.share` says how many this worker should.
    * ``input``: a description of the input, and a number such as a checksum. A worker with another
      number is turned away.

    Raises ``ValueError`` if a count is below 1, :class:`TableError` if another worker described the
    data set differently, and :class:`RunError` if the run is lost.

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
        raise ValueError(f"leases need at least a range, an epoch and a minibatch per clock, not {ranges}, {epochs} and {per_clock}")
    terms = dict(name=name, ranges=ranges, epochs=epochs, shuffle=shuffle, per_clock=per_clock, input=input)
    return DataLeases(_run.current()._session.leases(terms))
