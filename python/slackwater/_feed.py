"""The change feed of a table: each row that changed or was deleted, as it is now."""

from __future__ import annotations

from typing import Any, Iterator, Optional, Union

from . import _slackwater
from ._table import Table


class Changes:
    """Some rows of a table that changed or were deleted, as NumPy arrays: see
    :func:`slackwater.follow`.

    * ``clock``: the clock that the rows are of. They hold every update of earlier clocks.
    * ``keys`` (uint64) and ``rows`` (a row of numbers for each key): rows that changed, as they
      are now.
    * ``deleted`` (uint64): keys whose rows were deleted.
    * ``shard``: the shard of the table that the rows are of, from 0.
    * ``starts_over``: the feed starts over with this shard. Forget all its rows (the keys that
      :meth:`covers` names); those that exist follow, in these and the next changes.
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
        """For each of ``keys``, whether it is of the shard that these changes are of: an array of
        booleans."""
        import numpy

        return numpy.array(self._made.covers(numpy.asarray(keys, "uint64").ravel().tolist()), bool)

    def __repr__(self) -> str:
        over = ", starts over" if self.starts_over else ""
        rows = f"{len(self.keys)} rows, {len(self.deleted)} deleted"
        return f"<slackwater.Changes of clock {self.clock}: {rows}{over}>"


class Feed:
    """The changes of a table, in order for each row. ``slackwater.follow`` returns it; iterating
    over it waits for changes without end."""

    def __init__(self, made: _slackwater.Feed):
        self._feed = made

    @property
    def clock(self) -> int:
        """The clock to go on from, later or elsewhere, with ``follow(..., clock=...)``: all that
        changed before the run came to it has been returned."""
        return self._feed.clock

    def next(self, timeout: Optional[float] = None) -> Optional[Changes]:
        """The next changes; waits for them, at most ``timeout`` seconds, and then returns None.
        Raises :class:`RunError` if the run is over."""
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
    """Follows a table: each row that changes or is deleted from now on, as it is when the feed is
    read. A row that changes often shows its latest values; values between may be left out.

    With ``rows=True`` the feed begins with all rows. With ``clock=n`` it begins with what has
    changed since the run came to clock n; servers remember that while a reader follows the table,
    and for a minute after that. A reader that falls behind, or whose server is lost, is told so:
    the feed starts over (``Changes.starts_over``).

    A process that is no worker names the table and the ``coordinator="host:port"`` of its run,
    and waits at most ``timeout`` seconds for each answer.

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
        raise ValueError("follow() begins with all rows (rows=True) or at a clock (clock=n), not both")
    if isinstance(table, Table):
        if coordinator is not None:
            raise ValueError("follow() takes a coordinator with the name of a table, not with a table of this process's run")
        return Feed(table._run._session.follow(table._table, rows, clock))
    if coordinator is None:
        raise ValueError(f"table '{table}' is a name: give the coordinator of its run, too, or a slackwater.Table")
    return Feed(_slackwater.follow(coordinator, table, rows, clock, timeout))
