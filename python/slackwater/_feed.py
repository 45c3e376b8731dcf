"""The change feed of a table: a program follows the rows that changed or were deleted, as they are
when it reads the feed.

A feed begins with the changes from now on, with all rows, or with the changes since a clock. It
starts over with all rows of a shard if the shard no longer remembers what the reader lacks."""

from __future__ import annotations

from typing import Any, Iterator, Optional, Union

from . import _slackwater
from ._table import Table


class Changes:
    """One page of a feed: rows of one shard that changed or were deleted, as NumPy arrays. See
    :func:`slackwater.follow`.

    * ``clock``: the rows reflect every update of clocks below this one.
    * ``keys`` (uint64) and ``rows`` (a row of numbers for each key): rows that changed, as they
      are now.
    * ``deleted`` (uint64): keys whose rows were deleted.
    * ``shard``: the shard of the table that the rows belong to, from 0.
    * ``starts_over``: whether the feed starts over with this shard. If so, forget all its rows (the
      keys that :meth:`covers` accepts); the rows that exist follow, in these and the next changes.
    """

    def __init__(self, made: _slackwater.Changes, dtype: str, width: int):
        import numpy

        self._made = made
        self.clock: int = made.clock
        self.shard: int = made.shard
        self.starts_over: bool = made.starts_over
        self.keys = numpy.frombuffer(made.keys, "uint64")
        self.rows = numpy.frombuffer(made.rows, dtype).reshape(-1, width)
        self.deleted = numpy.frombuffer(made.deleted, "uint64")

    def covers(self, keys: Any) -> Any:
        """Returns an array of booleans: for each of ``keys``, whether it belongs to the shard of
        these changes."""
        import numpy

        return numpy.array(self._made.covers(numpy.asarray(keys, "uint64").ravel().tolist()), bool)

    def __repr__(self) -> str:
        over = ", starts over" if self.starts_over else ""
        rows = f"{len(self.keys)} rows, {len(self.deleted)} deleted"
        return f"<slackwater.Changes of clock {self.clock}: {rows}{over}>"


class Feed:
    """A reader of a table's changes, in order for each row. :func:`slackwater.follow` returns one.
    Iterating over it yields :class:`Changes`, and waits for them without limit. It raises
    :class:`RunError` when the run is over."""

    def __init__(self, made: _slackwater.Feed):
        self._feed = made

    @property
    def clock(self) -> int:
        """The clock to continue from with ``follow(..., clock=...)``, later or in another process.
        This feed has returned every change before the run reached it."""
        return self._feed.clock

    def next(self, timeout: Optional[float] = None) -> Optional[Changes]:
        """Returns the next :class:`Changes`. Waits for them at most ``timeout`` seconds (without
        limit if it is None), and then returns None. Raises :class:`RunError` if the run is over."""
        made = self._feed.next(timeout)
        return None if made is None else Changes(made, self._feed.dtype, self._feed.width)

    def __iter__(self) -> Iterator[Changes]:
        while True:
            changes = self.next()
            if changes is not None:
                yield changes


def follow(
    table: Union[Table, str],
    *,
    rows: bool = False,
    clock: Optional[int] = None,
    coordinator: Optional[str] = None,
    timeout: float = 5.0,
) -> Feed:
    """Opens a table's change feed, and returns a :class:`Feed`. It has each row that changes or is
    deleted from now on, as the row is when the feed is read. A row that changes several times shows
    its latest values; the feed may skip the values between.

    With ``rows=True`` the feed begins with all rows. With ``clock=n`` it begins with the changes
    since the run reached clock n. Servers remember a bounded number of changes, while a reader
    follows the table and for a minute after that.

    The feed of a shard starts over, with all its rows, if its server no longer remembers the
    changes since clock n, if the reader falls behind, or if another server takes over the shard.
    Then the feed returns :class:`Changes` with ``starts_over`` set, and the rows that exist follow.

    ``table`` is a :class:`Table` of this process's run. A process that is no worker gives the
    table's name and the ``coordinator="host:port"`` of its run; it waits at most ``timeout``
    seconds for each answer.

    Raises ``ValueError`` if the arguments contradict each other, :class:`TableError` if the run has
    no such table, and :class:`RunError` if the coordinator does not answer.

    >>> import numpy, slackwater
    >>> run = slackwater.init()
    >>> table = slackwater.Table("followed", width=2, updater="sum", slack=0)
    >>> feed = slackwater.follow(table)
    >>> table.push(numpy.array([[1, 2]], "float32"), keys=[7])
    >>> changes = feed.next()
    >>> changes.keys.tolist(), changes.rows.tolist()
    ([7], [[1.0, 2.0]])
    >>> table.delete([7])
    >>> feed.next().deleted.tolist()
    [7]
    >>> slackwater.shutdown()
    """
    if rows and clock is not None:
        raise ValueError("follow() begins with all rows (rows=True) or at a clock (clock=n), not both; give one of them")
    if isinstance(table, Table):
        if coordinator is not None:
            raise ValueError("follow() finds the coordinator of a slackwater.Table itself; give no coordinator, or the table's name")
        return Feed(table._run._session.follow(table._table, rows, clock))
    if coordinator is None:
        raise ValueError(f"to follow table '{table}' by its name, give coordinator=\"host:port\"; or pass a slackwater.Table")
    return Feed(_slackwater.follow(coordinator, table, rows, clock, timeout))
