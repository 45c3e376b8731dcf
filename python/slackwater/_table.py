"""Tables: pushes, pulls and deletions of rows, and saving and loading of whole tables, with NumPy
arrays or PyTorch tensors on the CPU."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional, Union

from . import _run, _slackwater


class Table:
    """A named map from a 64-bit key to a row of ``width`` numbers. The servers of the run hold it.

    Makes the table, or finds it if another worker has made it. Every worker must give a table of
    one name the same settings.

    * ``rows``: ``rows=n`` makes a dense table of the keys 0 to n − 1. None makes a sparse table:
      any key can have a row, which is made when it is first written.
    * ``width``: how many numbers a row has.
    * ``dtype``: "float32" (or numpy.float32, torch.float32), "float64" or "int64".
    * ``updater``: what a push does to a row: "sum", "assign", "sgd", "momentum", "adagrad", "adam",
      "ftrl" or "proximal". The updater's settings are further arguments, as in
      ``updater="adam", rate=0.01, beta1=0.8``.
    * ``slack``: how many clocks a worker that reads may be ahead of the slowest worker (see
      :func:`slackwater.clock`). With None reads never wait.
    * ``combine``: when pushes are applied. "each": every push by itself. "sum" or "mean": the sum
      or mean of a clock's pushes, once, when all workers have ended that clock.
    * ``codecs``: the names of codecs that make messages smaller in both directions, as in ["1bit"];
      or {"up": [...], "down": [...]} for pushes and reads; or "auto".
    * ``initial``: ("uniform" or "normal", seed, scale), for random initial rows. None begins with
      zeros.
    * ``cached_rows``: how many rows this worker's cache can hold. None has no cache.
    * ``eager``: whether servers send changed rows to the caches of workers that read them.
    * ``ordered``: whether a sparse table keeps its rows in the order of keys, for ranges.

    Raises ``TypeError`` or ``ValueError`` for a setting that is wrong, :class:`TableError` if the
    table exists with other settings, and :class:`RunError` if this process is in no run or the run
    is lost.

    >>> import numpy, slackwater
    >>> run = slackwater.init()
    >>> table = slackwater.Table("doc", width=2, updater="sum", slack=0)
    >>> table.push(numpy.array([[1, 2], [3, 4]], "float32"), keys=[7, 42])
    >>> table.pull([42, 7])
    array([[3., 4.],
           [1., 2.]], dtype=float32)
    >>> slackwater.shutdown()
    """

    def __init__(
        self,
        name: str,
        rows: Optional[int] = None,
        width: int = 1,
        dtype: Any = "float32",
        updater: str = "adagrad",
        slack: Optional[int] = 2,
        combine: str = "each",
        codecs: Union[None, str, Sequence[str], Mapping[str, Sequence[str]]] = None,
        *,
        initial: Optional[tuple[str, int, float]] = None,
        cached_rows: Optional[int] = None,
        eager: bool = False,
        ordered: bool = False,
        **settings: float,
    ):
        up, down = _directions(codecs)
        for what, words in (("name", name), ("updater", updater), ("combine", combine)):
            if not isinstance(words, str):
                raise TypeError(f"{what}={words!r} is not a string")
        spec = dict(
            name=name,
            dtype=_dtype_name(dtype),
            rows=None if rows is None else _whole("rows", rows, 1, 2**63, ", or None for a table of any key"),
            width=_whole("width", width, 1, 2**32 - 1),
            updater=updater,
            settings={setting: _number(setting, value) for setting, value in settings.items()},
            slack=None if slack is None else _whole("slack", slack, 0, 2**63, ", or None for readers that never wait"),
            eager=bool(eager),
            combine=combine,
            up=up,
            down=down,
            initial=_initial(initial),
            cached_rows=None if cached_rows is None else _whole("cached_rows", cached_rows, 0, 2**63, ", or None"),
            ordered=bool(ordered),
        )
        run = _run.current()
        known = run._tables.get(name)
        if known is not None and known._spec != spec:
            different = ", ".join(sorted(key for key in spec if spec[key] != known._spec[key]))
            raise _slackwater.TableError(f"table '{name}' was made before with other settings: {different}; use another name")
        self._spec = spec
        self._run = run
        self._table = run._session.table(spec)
        run._tables[name] = self

    @property
    def name(self) -> str:
        """The table's name."""
        return self._spec["name"]

    @property
    def rows(self) -> Optional[int]:
        """How many rows a dense table has; None for a sparse table."""
        return self._spec["rows"]

    @property
    def width(self) -> int:
        """How many numbers a row has."""
        return self._spec["width"]

    @property
    def dtype(self) -> str:
        """The type of the numbers: "float32", "float64" or "int64"."""
        return self._spec["dtype"]

    def __repr__(self) -> str:
        rows = "any key" if self.rows is None else f"{self.rows} rows"
        return f"<slackwater.Table '{self.name}': {rows} × {self.width} {self.dtype}, {self._spec['updater']}>"

    def keys(self, keys: Any) -> _slackwater.Keys:
        """Makes a key list for repeated pushes and pulls of the same rows, and returns
        :class:`Keys`. The keys are converted once, and servers that hold the list get it only once.
        ``keys`` are as in :meth:`push`.

        >>> import slackwater
        >>> run = slackwater.init()
        >>> table = slackwater.Table("of keys", updater="sum", slack=0)
        >>> keys = table.keys([900, 3])
        >>> for _ in range(2):
        ...     table.push([1, 2], keys)
        >>> table.pull(keys).tolist()
        [2.0, 4.0]
        >>> slackwater.shutdown()
        """
        return self._table.keys(keys)

    def push(self, values: Any, keys: Any = None, *, examples: int = 1, lease: Optional[_slackwater.DataLease] = None) -> None:
        """Pushes a row of ``values`` for each of ``keys``, and waits until the servers have applied
        them, or hold them for their clock.

        * ``values``: an array or a tensor of the table's ``dtype``, or lists of numbers.
        * ``keys``: integers of any type: a list, a range, an array or a tensor of them, or a single
          one; or what :meth:`keys` returned. None means all rows of a dense table. Rows of a
          repeated key are added up.
        * ``examples``: how many examples the values were computed from.
        * ``lease``: the data lease that the values were computed from: see
          :func:`slackwater.leases`. A push counts once even if another worker processes the lease
          again.

        Raises ``TypeError`` or ``ValueError`` if the values or keys do not fit, :class:`TableError`
        if the table does not have a key, :class:`RefusedError` if a number is not finite, and
        :class:`RunError` if the run is lost.

        >>> import numpy, slackwater
        >>> run = slackwater.init()
        >>> table = slackwater.Table("pushed", rows=4, width=2, updater="sum", slack=0)
        >>> table.push(numpy.ones((4, 2), "float32"))
        >>> table.push([[1, 2], [3, 4]], keys=[3, 0])
        >>> table.pull([0, 3]).tolist()
        [[4.0, 5.0], [2.0, 3.0]]
        >>> slackwater.shutdown()
        """
        self._table.push(self._contiguous(values), keys, examples, lease).wait()

    def push_async(
        self, values: Any, keys: Any = None, *, examples: int = 1, lease: Optional[_slackwater.DataLease] = None
    ) -> _slackwater.Ticket:
        """As :meth:`push`, but returns at once with a :class:`Ticket` to ``wait()`` for. The
        program may change ``values`` as soon as it returns. If the ticket is dropped, the end of
        the clock raises a failure.

        >>> import numpy, slackwater
        >>> run = slackwater.init()
        >>> table = slackwater.Table("begun", rows=2, updater="sum", slack=0)
        >>> tickets = [table.push_async(numpy.ones(2, "float32")) for _ in range(3)]
        >>> for ticket in tickets:
        ...     ticket.wait()
        >>> table.pull().tolist()
        [3.0, 3.0]
        >>> slackwater.shutdown()
        """
        return self._table.push(self._contiguous(values), keys, examples, lease)

    def pull(self, keys: Any = None, out: Any = None) -> Any:
        """Returns the rows of ``keys``, as fresh as the table's ``slack`` requires. Waits until the
        slowest worker allows that.

        ``keys`` are as in :meth:`push`; None means all rows of a dense table. The rows are written
        to ``out`` if it is given, a contiguous array or tensor of the table's ``dtype``. Otherwise
        they are in a new NumPy array, or a tensor if ``keys`` is one.

        Raises ``TypeError`` or ``ValueError`` if ``keys`` or ``out`` do not fit,
        :class:`TableError` if the table does not have a key, and :class:`RunError` if the run is
        lost.

        >>> import numpy, slackwater
        >>> run = slackwater.init()
        >>> table = slackwater.Table("pulled", rows=4, updater="sum", slack=0)
        >>> table.push([1, 2, 3, 4])
        >>> table.pull()
        array([1., 2., 3., 4.], dtype=float32)
        >>> table.pull(range(1, 3)).tolist()
        [2.0, 3.0]
        >>> rows = numpy.empty(4, "float32")
        >>> table.pull(out=rows) is rows              # written in place
        True
        >>> slackwater.shutdown()
        """
        return self.pull_async(keys, out).wait()

    def pull_async(self, keys: Any = None, out: Any = None) -> _slackwater.Ticket:
        """As :meth:`pull`, but returns at once with a :class:`Ticket`, whose ``wait()`` returns the
        rows. The program must not use ``out`` until then.

        >>> import slackwater
        >>> run = slackwater.init()
        >>> table = slackwater.Table("asked for", rows=2, updater="sum", slack=0)
        >>> ticket = table.pull_async()
        >>> total = sum(range(1000))                  # meanwhile
        >>> ticket.wait().tolist(), ticket.staleness
        ([0.0, 0.0], 0)
        >>> slackwater.shutdown()
        """
        if out is None:
            out = self._room(keys, None)
        return self._table.pull(out, keys)

    def push_pull(self, values: Any, keys: Any = None, out: Any = None, *, examples: int = 1) -> Any:
        """Pushes, then pulls the same rows, in one round trip. Returns the rows with the push
        applied; in a table that combines by clock, once that clock is applied. Arguments and
        exceptions are those of :meth:`push` and :meth:`pull`.

        >>> import slackwater
        >>> run = slackwater.init()
        >>> table = slackwater.Table("both", rows=2, updater="sum", slack=0)
        >>> table.push_pull([1, 2]).tolist(), table.push_pull([1, 2]).tolist()
        ([1.0, 2.0], [2.0, 4.0])
        >>> slackwater.shutdown()
        """
        return self.push_pull_async(values, keys, out, examples=examples).wait()

    def push_pull_async(self, values: Any, keys: Any = None, out: Any = None, *, examples: int = 1) -> _slackwater.Ticket:
        """As :meth:`push_pull`, but returns at once with a :class:`Ticket`, whose ``wait()``
        returns the rows."""
        if out is None:
            out = self._room(keys, values)
        return self._table.push_pull(self._contiguous(values), out, keys, examples)

    def delete(self, keys: Any) -> None:
        """Deletes the rows of ``keys`` of a sparse table, with their updater's state, and waits
        until the servers have done so. Afterwards a key reads as if it had never been pushed, and a
        push makes its row anew. In a table that combines by clock, rows are deleted after the
        combined update of this worker's clock. Raises :class:`TableError` for a dense table.

        >>> import slackwater
        >>> run = slackwater.init()
        >>> table = slackwater.Table("shrinking", width=1, updater="sum", slack=0)
        >>> table.push([1, 2], [7, 8])
        >>> table.delete([7])
        >>> table.pull([7, 8]).ravel().tolist()
        [0.0, 2.0]
        >>> slackwater.shutdown()
        """
        self.delete_async(keys).wait()

    def delete_async(self, keys: Any) -> _slackwater.Ticket:
        """As :meth:`delete`, but returns at once with a :class:`Ticket` to ``wait()`` for."""
        return self._table.delete(keys)

    def pull_all(self) -> tuple[Any, Any]:
        """Returns every row of the table, as two NumPy arrays: keys and rows. Reads from the
        servers, not from the cache."""
        numpy = _numpy("pull_all() gives NumPy arrays")
        keys, values, _ = self._table.pull_all()
        rows = numpy.frombuffer(values, self.dtype).reshape(-1, self.width)
        found = numpy.frombuffer(keys, "uint64") if keys else numpy.arange(len(rows), dtype="uint64")
        return found, rows

    def state(self) -> dict[str, Any]:
        """Returns every row with its updater's state, as NumPy arrays for :meth:`load_state`:
        ``keys``, and ``rows``. Each row has ``width`` weights (with "ftrl", the numbers that they
        are computed from), followed by the updater's state.

        The rows are as fresh as in a pull. After a :meth:`barrier`, while no worker pushes, they
        are the table's exact state. The state leaves out what is not in rows: a rate that
        :meth:`set_rate` has set, and the examples that "ftrl" has counted.
        """
        import numpy

        keys, rows, width = self._table.pull_all_row_state()
        return {"keys": numpy.frombuffer(keys, "uint64"), "rows": numpy.frombuffer(rows, self.dtype).reshape(-1, width)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replaces rows by those of a :meth:`state`, of this table or of another with the same
        settings, and waits until the servers have them. Training then continues as it would have
        from that state. Rows that are not in the state stay as they are. One worker calls this for
        all, while no worker pushes.

        Raises :class:`TableError` for a table that combines by clock, :class:`RefusedError` if a
        number is not finite, and ``TypeError`` or ``ValueError`` if the state does not fit the
        table.

        >>> import numpy, slackwater
        >>> run = slackwater.init()
        >>> table = slackwater.Table("doc", width=2, updater="adagrad", rate=0.5, slack=0)
        >>> table.push(numpy.array([[1, 2]], "float32"), keys=[7])
        >>> state = table.state()
        >>> state["rows"]
        array([[-0.5, -0.5,  1. ,  4. ]], dtype=float32)
        >>> table.push(numpy.array([[3, 4]], "float32"), keys=[7])
        >>> table.load_state(state)
        >>> table.pull([7])
        array([[-0.5, -0.5]], dtype=float32)
        >>> slackwater.shutdown()
        """
        import numpy

        keys = numpy.ascontiguousarray(state["keys"]).astype("uint64", copy=False)
        self._table.set_rows(numpy.ascontiguousarray(state["rows"]), keys).wait()

    def set_rate(self, rate: float) -> None:
        """Changes the learning rate, for updates from this worker's clock on. The rate counts for
        all workers, so one worker calls this. Raises :class:`TableError` if the updater has no
        rate, or if the rate is negative or not finite."""
        self._table.set_rate(rate)

    def clock(self) -> None:
        """Ends this worker's clock, for all tables. The same as :func:`slackwater.clock`."""
        self._run._session.clock()

    def barrier(self) -> None:
        """Waits for the other workers. The same as :func:`slackwater.barrier`."""
        self._run._session.barrier()

    def _room(self, keys: Any, like: Any) -> Any:
        """Makes an array for the rows, or a tensor if ``keys`` or ``like`` is one."""
        if keys is None:
            if self.rows is None:
                raise ValueError(f"table '{self.name}' is sparse: it can have any key; say which rows: keys=[…]")
            count = self.rows
        else:
            count = _count(keys)
        shape = (count,) if self.width == 1 else (count, self.width)
        if _is_tensor(keys) or _is_tensor(like):
            torch = sys.modules["torch"]
            return torch.empty(shape, dtype=getattr(torch, self.dtype))
        return _numpy("without out= a pull makes a NumPy array").empty(shape, self.dtype)

    def _contiguous(self, values: Any) -> Any:
        """Values as a contiguous array. Copies an array that is not contiguous, and makes lists
        arrays of the table's type."""
        flags = getattr(values, "flags", None)
        if flags is not None:
            if not getattr(flags, "c_contiguous", True):
                return _numpy("the array is not contiguous").ascontiguousarray(values)
        elif isinstance(values, (list, tuple)):
            made = _numpy("lists become NumPy arrays").asarray(values)
            # "same_kind" refuses to make integers of fractions; NumPy makes an empty list float64.
            return made.astype(self.dtype, casting="same_kind" if made.size else "unsafe", copy=False)
        elif _is_tensor(values) and not values.is_contiguous():
            return values.contiguous()
        return values


def _is_tensor(value: Any) -> bool:
    # A program that has a tensor has imported PyTorch.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _numpy(why: str) -> Any:
    """Imports NumPy. ``why`` says in the error what needs it."""
    try:
        import numpy
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        raise ModuleNotFoundError(
            f"{why}, and NumPy is not installed: install it (pip install numpy), or give push() and pull(out=…) memory of another kind, "
            "such as array.array('f', [0.0] * 8)",
            name="numpy",
        ) from error
    return numpy


def _count(keys: Any) -> int:
    """How many keys an argument has."""
    if _is_tensor(keys):
        return keys.numel()
    if isinstance(keys, int):
        return 1
    count = getattr(keys, "size", None)
    if count is not None and not callable(count):
        return count
    if not hasattr(keys, "__len__"):
        kind = type(keys).__name__
        raise TypeError(f"keys are integers: a list, a range, an array or a tensor of them, or one; not {kind}")
    return len(keys)


def _whole(what: str, value: Any, least: int, most: int, other: str = "") -> int:
    """Checks a whole number that was given for ``what``."""
    allowed = f"{what} is a whole number from {least} on{other}"
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what}={value!r} will not do: {allowed}") from None
    if not least <= number <= most:
        raise ValueError(f"{what}={value!r} will not do: {allowed}")
    return number


def _number(what: str, value: Any) -> float:
    """Converts a number of any type that was given for ``what``."""
    if isinstance(value, (str, bytes)) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        raise TypeError(f"{what}={value!r} will not do: a number is wanted")
    return float(value)


def _initial(initial: Any) -> Optional[tuple[str, int, float]]:
    """Checks the setting ``initial``."""
    if initial is None:
        return None
    if not isinstance(initial, (tuple, list)) or len(initial) != 3:
        raise TypeError(f"initial={initial!r} will not do: it is ('uniform' or 'normal', seed, scale), or None")
    kind, seed, scale = initial
    return str(kind), _whole("the seed of initial", seed, 0, 2**64 - 1), _number("the scale of initial", scale)


def _dtype_name(dtype: Any) -> str:
    """The name of a number type: "float32" for numpy.float32, numpy.dtype("float32"), torch.float32
    and "float32"."""
    if isinstance(dtype, str):
        return dtype
    name = getattr(dtype, "__name__", None) or getattr(dtype, "name", None) or str(dtype)
    return {"float": "float64", "int": "int64"}.get(name, name).removeprefix("torch.")


def _directions(codecs: Union[None, str, Iterable[str], Mapping[str, Sequence[str]]]) -> tuple[list[str], list[str]]:
    """The names of the codecs for pushes and for reads."""
    if codecs is None:
        return [], []
    if isinstance(codecs, str):
        return [codecs], [codecs]
    if not isinstance(codecs, Iterable):
        raise TypeError(f"codecs={codecs!r} will not do: name them, as in ['1bit']")
    if isinstance(codecs, Mapping):
        if unknown := set(codecs) - {"up", "down"}:
            raise ValueError(f"codecs go 'up' and 'down', not {', '.join(sorted(unknown))}")
        up, down = list(codecs.get("up", [])), list(codecs.get("down", []))
    else:
        up, down = list(codecs), list(codecs)
    for name in up + down:
        if not isinstance(name, str):
            raise TypeError(f"codecs are names, as in ['1bit'], not {name!r}")
    return up, down
