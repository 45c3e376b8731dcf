"""Tables, for NumPy arrays and PyTorch tensors on the CPU alike."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional, Union

from . import _run, _slackwater


class Table:
    """A named map from a 64-bit key to a row of ``width`` numbers, held by the servers of the run.

    ``rows=n`` makes a dense table of the keys 0 to n − 1; without it any key is a row, which appears when it is first written. Every worker that makes
    a table of one name must say the same of it.

    * ``dtype``: "float32" (or numpy.float32, torch.float32), "float64" or "int64".
    * ``updater``: what a push does to a row: "sum", "assign", "sgd", "momentum", "adagrad", "adam", "ftrl" or "proximal"; their settings
      are further arguments, as in ``updater="adam", rate=0.01, beta1=0.8``.
    * ``slack``: how many clocks a reader may be ahead of the slowest worker; None never waits.
    * ``combine``: "each" push is applied by itself; "sum" or "mean" of a clock's pushes are applied once, when all have ended it.
    * ``codecs``: names of what shrinks messages, both ways, as in ["1bit"]; or {"up": [...], "down": [...]}; or "auto".
    * ``initial``: ("uniform" or "normal", seed, scale), for rows that nobody has written.
    * ``cached_rows``: how many rows this worker keeps copies of. ``eager``: servers send what changed.

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
                raise TypeError(f"{what}={words!r} is no string")
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
        """As it was made."""
        return self._spec["name"]

    @property
    def rows(self) -> Optional[int]:
        """How many rows a dense table has; None for one of any key."""
        return self._spec["rows"]

    @property
    def width(self) -> int:
        """How many numbers a row has."""
        return self._spec["width"]

    @property
    def dtype(self) -> str:
        """What the numbers are: "float32", "float64" or "int64"."""
        return self._spec["dtype"]

    def __repr__(self) -> str:
        rows = "any key" if self.rows is None else f"{self.rows} rows"
        return f"<slackwater.Table '{self.name}': {rows} × {self.width} {self.dtype}, {self._spec['updater']}>"

    def keys(self, keys: Any) -> _slackwater.Keys:
        """The keys made ready once, for pushes and pulls of the same rows again and again: they are sent once, too.

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
        """Pushes a row of ``values`` for each of ``keys`` (all rows of a dense table without), and waits until the servers have it.

        ``keys`` are integers of any type: a list, a range, an array or a tensor of them, or one; or what :meth:`keys` made. ``values`` are an array or a tensor of the table's ``dtype``, or
        lists of numbers. Rows of a key that comes more than once are added up. Raises :class:`RefusedError` if a number is not finite. What was learnt from a ``lease``
        counts once, however often that is learnt from: see :func:`slackwater.leases`.

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
        """As :meth:`push`, and returns at once, with a ticket to ``wait()`` for. ``values`` may be changed as soon as it returns. If nobody waits, a
        failure shows at the end of the clock.

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
        """The rows of ``keys`` (all rows of a dense table without), as fresh as ``slack`` asks: in ``out`` if that is given, else in a new NumPy array,
        or a tensor if ``keys`` is one.

        >>> import numpy, slackwater
        >>> run = slackwater.init()
        >>> table = slackwater.Table("pulled", rows=4, updater="sum", slack=0)
        >>> table.push([1, 2, 3, 4])
        >>> table.pull()
        array([1., 2., 3., 4.], dtype=float32)
        >>> table.pull(range(1, 3)).tolist()
        [2.0, 3.0]
        >>> rows = numpy.empty(4, "float32")
        >>> table.pull(out=rows) is rows              # nothing is copied on the way
        True
        >>> slackwater.shutdown()
        """
        return self.pull_async(keys, out).wait()

    def pull_async(self, keys: Any = None, out: Any = None) -> _slackwater.Ticket:
        """As :meth:`pull`, and returns at once, with a ticket whose ``wait()`` gives the rows. ``out`` must be left alone until then.

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
        """Pushes, and pulls the same rows with the push in them (in a table that combines by clock, once that clock is over), in one round trip.

        >>> import slackwater
        >>> run = slackwater.init()
        >>> table = slackwater.Table("both", rows=2, updater="sum", slack=0)
        >>> table.push_pull([1, 2]).tolist(), table.push_pull([1, 2]).tolist()
        ([1.0, 2.0], [2.0, 4.0])
        >>> slackwater.shutdown()
        """
        return self.push_pull_async(values, keys, out, examples=examples).wait()

    def push_pull_async(self, values: Any, keys: Any = None, out: Any = None, *, examples: int = 1) -> _slackwater.Ticket:
        """As :meth:`push_pull`, and returns at once."""
        if out is None:
            out = self._room(keys, values)
        return self._table.push_pull(self._contiguous(values), out, keys, examples)

    def delete(self, keys: Any) -> None:
        """Deletes the rows of ``keys`` of a sparse table, with what the updater keeps beside them. Later a key reads as if it had never been pushed, and
        a push makes its row anew. In a table that combines by clock, rows are deleted after the combined update of this worker's clock.

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
        """As :meth:`delete`, and returns at once."""
        return self._table.delete(keys)

    def pull_all(self) -> tuple[Any, Any]:
        """Every row that there is, as two NumPy arrays: keys and rows."""
        numpy = _numpy("pull_all() gives NumPy arrays")
        keys, values, _ = self._table.pull_all()
        rows = numpy.frombuffer(values, self.dtype).reshape(-1, self.width)
        found = numpy.frombuffer(keys, "uint64") if keys else numpy.arange(len(rows), dtype="uint64")
        return found, rows

    def state(self) -> dict[str, Any]:
        """Every row that there is with what the updater keeps beside it, as NumPy arrays for :meth:`load_state`: ``keys``, and ``rows`` that are each
        ``width`` weights (of "ftrl", what they are computed from) followed by the updater's state.

        As fresh as a pull; behind a :meth:`barrier`, while nobody pushes, it is the table as it stands. What is beside the rows is not in it: a rate that
        was set, and the examples that "ftrl" has counted.
        """
        import numpy

        keys, rows, width = self._table.pull_all_row_state()
        return {"keys": numpy.frombuffer(keys, "uint64"), "rows": numpy.frombuffer(rows, self.dtype).reshape(-1, width)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts rows of a :meth:`state`, of this table or of another like it, in place of those there, and waits until the servers have them. They then learn on
        as they would have from there; rows that are not in it stay as they are. One worker does it for all, while nobody pushes.

        Not for a table that combines by clock, of whose rows no moment is their own: :class:`TableError`.

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
        """Another learning rate, for what is pushed from this worker's clock on. One worker does it for all."""
        self._table.set_rate(rate)

    def clock(self) -> None:
        """Ends this worker's clock, for all tables: :func:`slackwater.clock`."""
        self._run._session.clock()

    def barrier(self) -> None:
        """Waits for the other workers: :func:`slackwater.barrier`."""
        self._run._session.barrier()

    def _room(self, keys: Any, like: Any) -> Any:
        """An array, or a tensor for those who speak in tensors, with room for the rows."""
        if keys is None:
            if self.rows is None:
                raise ValueError(f"table '{self.name}' has any key; say which rows: keys=[…]")
            count = self.rows
        else:
            count = _count(keys)
        shape = (count,) if self.width == 1 else (count, self.width)
        if _is_tensor(keys) or _is_tensor(like):
            torch = sys.modules["torch"]
            return torch.empty(shape, dtype=getattr(torch, self.dtype))
        return _numpy("without out= a pull makes a NumPy array").empty(shape, self.dtype)

    def _contiguous(self, values: Any) -> Any:
        """What is pushed may lie anyhow: it is copied if it must be. Lists become arrays of the table's numbers."""
        flags = getattr(values, "flags", None)
        if flags is not None:
            if not getattr(flags, "c_contiguous", True):
                return _numpy("the array is not contiguous").ascontiguousarray(values)
        elif isinstance(values, (list, tuple)):
            made = _numpy("lists become NumPy arrays").asarray(values)
            # Numbers with a fraction do not become integers by themselves; an empty list has none.
            return made.astype(self.dtype, casting="same_kind" if made.size else "unsafe", copy=False)
        elif _is_tensor(values) and not values.is_contiguous():
            return values.contiguous()
        return values


def _is_tensor(value: Any) -> bool:
    # Whoever has a tensor has imported PyTorch.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _numpy(why: str) -> Any:
    """NumPy, which nothing needs before it is used."""
    try:
        import numpy
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        raise ModuleNotFoundError(
            f"{why}, and NumPy is not installed: install it (pip install numpy), or give push() and pull(out=…) memory that you have, "
            "as array.array('f', [0.0] * 8)",
            name="numpy",
        ) from error
    return numpy


def _count(keys: Any) -> int:
    """How many keys there are."""
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
    """A whole number that was given for ``what``."""
    allowed = f"{what} is a whole number from {least} on{other}"
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what}={value!r} will not do: {allowed}") from None
    if not least <= number <= most:
        raise ValueError(f"{what}={value!r} will not do: {allowed}")
    return number


def _number(what: str, value: Any) -> float:
    """A number that was given for ``what``, of whatever type."""
    if isinstance(value, (str, bytes)) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        raise TypeError(f"{what}={value!r} will not do: a number is wanted")
    return float(value)


def _initial(initial: Any) -> Optional[tuple[str, int, float]]:
    if initial is None:
        return None
    if not isinstance(initial, (tuple, list)) or len(initial) != 3:
        raise TypeError(f"initial={initial!r} will not do: it is ('uniform' or 'normal', seed, scale), or None")
    kind, seed, scale = initial
    return str(kind), _whole("the seed of initial", seed, 0, 2**64 - 1), _number("the scale of initial", scale)


def _dtype_name(dtype: Any) -> str:
    """"float32" for numpy.float32, numpy.dtype("float32"), torch.float32, float32 and "float32"."""
    if isinstance(dtype, str):
        return dtype
    name = getattr(dtype, "__name__", None) or getattr(dtype, "name", None) or str(dtype)
    return {"float": "float64", "int": "int64"}.get(name, name).removeprefix("torch.")


def _directions(codecs: Union[None, str, Iterable[str], Mapping[str, Sequence[str]]]) -> tuple[list[str], list[str]]:
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
