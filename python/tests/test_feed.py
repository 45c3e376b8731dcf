"""Deleted rows and the change feed, with NumPy."""

import numpy
import pytest

import slackwater


def table(**more):
    return slackwater.Table("t", **{"updater": "sum", "slack": 0, **more})


class Copy:
    """A copy of a table, kept up to date by a feed."""

    def __init__(self, feed):
        self.feed = feed
        self.rows = {}
        self.pages = 0

    def take(self, timeout):
        """Applies changes until none come for ``timeout`` seconds."""
        while (changes := self.feed.next(timeout)) is not None:
            self.pages += 1
            if changes.starts_over and self.rows:
                keys = numpy.array(list(self.rows), "uint64")
                for key in keys[changes.covers(keys)]:
                    del self.rows[int(key)]
            self.rows.update(zip(changes.keys.tolist(), changes.rows.tolist()))
            for key in changes.deleted.tolist():
                self.rows.pop(key, None)
        return self


def test_deleted_rows_read_as_never_pushed_and_are_made_anew(run):
    made = slackwater.Table("t", width=2, updater="adagrad", rate=0.5, slack=0, initial=("uniform", 7, 0.1))
    keys = made.keys([3, 9])
    first = made.pull(keys)
    made.push(numpy.ones((2, 2), "float32"), keys)
    once = made.pull(keys)
    made.delete([9])
    assert made.pull_all()[0].tolist() == [3]
    assert (made.pull(keys) == [once[0], first[1]]).all()
    made.push(numpy.ones((2, 2), "float32"), keys)
    assert (made.pull([9]) == once[1]).all(), "the updater's state went with the row"
    with pytest.raises(slackwater.TableError, match="dense"):
        slackwater.Table("dense", rows=4, slack=0).delete([1])


def test_feed_brings_rows_that_change_and_are_deleted(run):
    for dtype in ("float32", "float64", "int64"):
        made = slackwater.Table(f"of {dtype}", width=2, dtype=dtype, updater="sum", slack=0)
        made.push(numpy.ones((1, 2), dtype), [1])
        feed = slackwater.follow(made)
        assert feed.next(0) is None
        made.push(numpy.array([[1, 2], [3, 4]], dtype), [900, 1])
        changes = feed.next()
        assert changes.rows.dtype == dtype
        assert dict(zip(changes.keys.tolist(), changes.rows.tolist())) == {900: [1, 2], 1: [4, 5]}
        made.delete([900])
        changes = feed.next()
        assert (changes.keys.tolist(), changes.deleted.tolist(), changes.starts_over) == ([], [900], False)
        assert changes.rows.shape == (0, 2)


def test_feed_of_many_rows_comes_in_pages_and_keeps_a_copy_equal(run):
    made, keys = table(width=16), numpy.arange(0, 200_000, dtype="uint64")
    random = numpy.random.default_rng(7)
    made.push(numpy.ones((len(keys), 16), "float32"), keys)
    copy = Copy(slackwater.follow(made, rows=True))
    copy.take(0)
    assert len(copy.rows) == len(keys) and copy.pages > 2
    for _ in range(5):
        some = random.choice(keys, 50_000, replace=False)
        made.push(numpy.ones((len(some), 16), "float32"), some)
        made.delete(random.choice(keys, 10_000, replace=False))
        copy.take(0)
    found, rows = made.pull_all()
    assert copy.rows == dict(zip(found.tolist(), rows.tolist()))


def test_feed_continues_from_a_clock_or_starts_over_if_servers_lack_it(run):
    made = table()
    feed = slackwater.follow(made)
    for clock in range(3):
        made.push([clock + 1], [clock])
        slackwater.clock()
    while feed.clock < 3:
        feed.next(0)
    late = slackwater.follow(made, clock=2)
    assert late.next(0).keys.tolist() == [2]
    made.push([5], [77])
    assert feed.next().keys.tolist() == [77]
    before = slackwater.follow(made, clock=0)
    changes = before.next()
    assert changes.starts_over and changes.covers([0, 1, 77]).all()
    assert sorted(Copy(before).take(0).rows) == [0, 1, 2, 77]


def test_feed_can_be_read_by_a_process_that_is_no_worker():
    coordinator = slackwater._slackwater.free_address()
    with slackwater.init(coordinator, rank=0, size=1):
        made = table(width=2)
        made.push([[1, 2]], [7])
        with pytest.raises(slackwater.TableError, match="no table 'other'; its tables are: 't'"):
            slackwater.follow("other", coordinator=coordinator)
        copy = Copy(slackwater.follow("t", coordinator=coordinator, rows=True)).take(0)
        assert copy.rows == {7: [1, 2]}
        made.push([[1, 2]], [8])
        made.delete([7])
        assert copy.take(0.2).rows == {8: [1, 2]}


def test_follow_refuses_contradicting_arguments(run):
    made = table()
    for wrong, words in (
        (lambda: slackwater.follow(made, rows=True, clock=3), "not both"),
        (lambda: slackwater.follow(made, coordinator="host:1"), "give no coordinator"),
        (lambda: slackwater.follow("t"), "give coordinator="),
        (lambda: slackwater.follow(made).next(-1), "cannot wait -1 s"),
        (lambda: slackwater.follow(made).next(float("nan")), "cannot wait NaN s"),
    ):
        with pytest.raises(ValueError, match=words):
            wrong()
