"""Tables with NumPy arrays and other buffers."""

import array

import numpy
import pytest

import slackwater

pytestmark = pytest.mark.usefixtures("run")


def table(**more):
    return slackwater.Table("t", **{"updater": "sum", "slack": 0, **more})


def test_pull_returns_what_was_pushed_for_each_number_type():
    for dtype in ("float32", numpy.float64, numpy.dtype("int64")):
        made = slackwater.Table(f"of {dtype}", rows=4, width=2, dtype=dtype, updater="sum")
        values = numpy.arange(8, dtype=made.dtype).reshape(4, 2)
        made.push(values)
        made.push(values)
        assert made.pull().dtype == values.dtype
        assert (made.pull() == 2 * values).all()


def test_rows_follow_the_order_of_the_callers_keys():
    made = table(width=2)
    keys = numpy.array([900, 3, 2**63 + 5, 77], dtype="uint64")
    values = numpy.arange(8, dtype="float32").reshape(4, 2)
    made.push(values, keys)
    assert (made.pull(keys) == values).all()
    assert (made.pull(keys[::-1].copy()) == values[::-1]).all()
    assert (made.pull([77, 3]) == values[[3, 1]]).all()


def test_repeated_keys_are_added_up_and_read_repeatedly():
    made = table()
    made.push(numpy.array([1, 2, 4], "float32"), keys=[5, 6, 5])
    assert made.pull([5, 5, 6]).tolist() == [5, 5, 2]


def test_key_lists_can_be_reused():
    made = table(width=3)
    keys = made.keys(numpy.array([4, 1, 9], "int64"))
    assert len(keys) == 3
    for _ in range(3):
        made.push(numpy.ones((3, 3), "float32"), keys)
    assert (made.pull(keys) == 3).all()


def test_ranges_are_keys_of_a_dense_table():
    made = table(rows=10)
    made.push(numpy.ones(3, "float32"), keys=range(4, 7))
    assert made.pull().tolist() == [0, 0, 0, 0, 1, 1, 1, 0, 0, 0]
    assert made.pull(range(5, 9)).tolist() == [1, 1, 0, 0]
    assert made.pull(range(0, 8, 2)).tolist() == [0, 0, 1, 1]
    assert made.pull(range(6, 2, -1)).tolist() == [1, 1, 1, 0]
    assert made.pull(range(0)).tolist() == [] == made.pull(range(7, 4)).tolist()


def test_keys_are_integers_of_any_type_and_layout():
    for made in (table(rows=10, width=2), slackwater.Table("sparse", width=2, updater="sum", slack=0)):
        values = numpy.arange(6, dtype="float32").reshape(3, 2)
        made.push(values, keys=range(2, 5))
        for dtype in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"):
            assert (made.pull(numpy.array([4, 2], dtype)) == values[[2, 0]]).all(), dtype
        assert (made.pull(numpy.arange(8)[2:5:2]) == values[[0, 2]]).all()
        assert (made.pull(bytearray([3])) == values[1]).all()
        assert made.pull(range(2, 5, 2)).tolist() == values[[0, 2]].tolist()
        # A single integer of any type is a list of one key.
        assert made.pull(3).tolist() == [[2, 3]] == made.pull(numpy.int64(3)).tolist()
        made.push([[1, 1]], 3)
        assert made.pull(made.keys(3)).tolist() == [[3, 4]]
        # NumPy makes an empty list an array of float64.
        for nothing in ([], (), numpy.array([]), range(0)):
            assert made.pull(nothing).shape == (0, 2)
            made.push(numpy.empty((0, 2), "float32"), nothing)
            made.push([], nothing)


def test_lists_of_numbers_are_pushed():
    made = table(rows=2, width=2)
    made.push([[1, 2.5], (3, 4)])
    assert made.push_pull([1] * 4).tolist() == [[2, 3.5], [4, 5]]
    counts = slackwater.Table("counts", rows=2, dtype="int64", updater="sum", slack=0)
    counts.push([1, 2])
    assert counts.pull().tolist() == [1, 2]
    with pytest.raises(TypeError, match="int64"):
        counts.push([1, 2.5])
    with pytest.raises(ValueError, match="the array has 3"):
        made.push([1, 2, 3])


def test_pull_writes_into_out():
    made = table(rows=1000, width=300)
    values = numpy.random.default_rng(1).normal(size=(1000, 300)).astype("float32")
    made.push(values)
    out = numpy.zeros((1000, 300), "float32")
    assert made.pull(out=out) is out
    assert (out == values).all()
    part = out[100:200]
    part[:] = 0
    made.pull(range(100, 200), out=part)
    assert (out == values).all()


def test_push_pull_returns_rows_with_the_push_applied():
    made = table(rows=3, slack=None)
    assert made.push_pull(numpy.ones(3, "float32")).tolist() == [1, 1, 1]
    out = numpy.empty(2, "float32")
    assert made.push_pull(numpy.ones(2, "float32"), keys=[2, 0], out=out) is out
    assert out.tolist() == [2, 2]


def test_tickets_can_be_waited_for_twice():
    made = table(rows=3)
    push = made.push_async(numpy.ones(3, "float32"))
    pull = made.pull_async()
    rows = pull.wait()
    assert rows.tolist() == [1, 1, 1] and pull.wait() is rows
    assert push.wait() is None
    assert push.done() and pull.done()
    assert (pull.clock, pull.staleness, pull.failed_clocks) == (0, 0, [])


def test_pushed_array_may_be_changed_at_once():
    made = table(rows=1 << 16, width=32)
    values = numpy.ones((1 << 16, 32), "float32")
    ticket = made.push_async(values)
    values[:] = 7
    ticket.wait()
    assert (made.pull() == 1).all()


def test_any_buffer_can_be_pushed_and_filled():
    made = table(rows=3, dtype="float64")
    made.push(array.array("d", [1, 2, 3]))
    made.push(memoryview(array.array("d", [1, 1, 1])))
    frozen = numpy.ones(3)
    frozen.flags.writeable = False
    made.push(frozen)
    out = array.array("d", [0, 0, 0])
    made.pull(out=out)
    assert out.tolist() == [3, 4, 5]


def test_array_that_is_not_contiguous_can_be_pushed_but_not_filled():
    made = table(rows=3)
    made.push(numpy.arange(6, dtype="float32")[::2])
    assert made.pull().tolist() == [0, 2, 4]
    with pytest.raises(ValueError, match="contiguous"):
        made.pull(out=numpy.zeros(6, "float32")[::2])


def test_updaters_have_settings_and_rates_change():
    made = slackwater.Table("sgd", rows=2, updater="sgd", rate=0.5, slack=0)
    made.push(numpy.ones(2, "float32"))
    slackwater.clock()
    made.set_rate(0.25)
    made.push(numpy.ones(2, "float32"))
    assert made.pull().tolist() == [-0.75, -0.75]


def test_codecs_keep_values_and_initial_rows_depend_on_the_seed():
    made = table(rows=100, width=100, codecs={"up": ["bf16"]})
    made.push(numpy.full((100, 100), 0.5, "float32"))
    assert (made.pull() == 0.5).all()
    one = slackwater.Table("one", width=4, updater="sum", initial=("normal", 3, 0.1))
    two = slackwater.Table("two", width=4, updater="sum", initial=("normal", 3, 0.1))
    assert (one.pull([1, 2]) == two.pull([1, 2])).all() and one.pull([1, 2]).std() > 0


def test_pull_all_returns_every_row():
    made = table(width=2)
    made.push(numpy.ones((3, 2), "float32"), keys=[1, 2**40, 7])
    keys, rows = made.pull_all()
    assert sorted(keys.tolist()) == [1, 7, 2**40] and rows.shape == (3, 2)


def test_clock_table_has_the_mean_when_the_clock_is_over():
    made = table(rows=2, combine="mean", updater="assign")
    made.push(numpy.array([2, 4], "float32"))
    assert made.pull().tolist() == [0, 0]
    made.clock()
    assert made.pull().tolist() == [2, 4]


@pytest.mark.parametrize(
    "updater", ["sum", "assign", "sgd", "momentum", "adagrad", "adam", "ftrl", "proximal"]
)
@pytest.mark.parametrize("rows", [None, 6])
def test_loaded_state_trains_on_as_the_original(updater, rows):
    def learn(made, seed, keys):
        values = numpy.random.default_rng(seed).uniform(0.1, 1, (len(keys), 4)).astype("float32")
        made.push(values, keys, examples=0)

    spec = dict(rows=rows, width=4, updater=updater, slack=1, cached_rows=10)
    made, other = slackwater.Table("made", **spec), slackwater.Table("other", **spec)
    learn(made, 1, [5, 0, 3])
    learn(made, 2, [3, 4])
    state = {name: values.copy() for name, values in made.state().items()}
    assert state["rows"].shape == (rows or 4, {"momentum": 8, "adagrad": 8, "ftrl": 8, "adam": 13}.get(updater, 4))
    other.pull([0, 1, 2, 3, 4, 5])
    other.load_state(state)
    made_then = made.pull([0, 1, 2, 3, 4, 5])
    assert made_then.any() and (other.pull([0, 1, 2, 3, 4, 5]) == made_then).all()
    # Loading the state again undoes later pushes.
    learn(made, 3, [5, 0, 3, 4])
    assert (made.pull([0, 1, 2, 3, 4, 5]) != made_then).any()
    made.load_state(state)
    for seed in (4, 5):
        learn(made, seed, [5, 3, 4])
        learn(other, seed, [5, 3, 4])
    one, two = made.state(), other.state()
    assert one["keys"].tobytes() == two["keys"].tobytes() and one["rows"].tobytes() == two["rows"].tobytes()
    assert (made.pull([5, 3, 4]) == other.pull([5, 3, 4])).all() and (made.pull([5]) != made_then[5]).any()


def test_state_of_each_number_type_is_loaded_in_any_order():
    for dtype in ("float32", "float64", "int64"):
        made = slackwater.Table(f"of {dtype}", width=2, dtype=dtype, updater="sum", slack=0)
        rows = numpy.arange(6, dtype=dtype).reshape(3, 2)
        made.load_state({"keys": numpy.array([9, 2**63, 4], "uint64"), "rows": rows})
        assert (made.pull([9, 2**63, 4]) == rows).all()
        state = made.state()
        assert state["rows"].dtype == dtype
        assert dict(zip(state["keys"].tolist(), state["rows"].tolist())) == {9: [0, 1], 2**63: [2, 3], 4: [4, 5]}


def test_empty_state_can_be_loaded():
    made = table(width=3, updater="adam")
    state = made.state()
    assert state["keys"].shape == (0,) and state["rows"].shape == (0, 10)
    made.load_state(state)
    assert made.state()["rows"].shape == (0, 10)


def test_load_state_refuses_a_state_that_does_not_fit():
    made = slackwater.Table("t", rows=2, width=2, updater="adagrad", slack=0)
    state = made.state()
    with pytest.raises(ValueError, match="2 rows of 4 of table 't' are 8 numbers, and the array has 4"):
        made.load_state({**state, "rows": state["rows"][:, :2]})
    with pytest.raises(TypeError, match="float32"):
        made.load_state({**state, "rows": state["rows"].astype("float64")})
    with pytest.raises(ValueError, match="more than once"):
        made.load_state({**state, "keys": [1, 1]})
    with pytest.raises(slackwater.RefusedError, match="key 1 .* not finite"):
        made.load_state({**state, "rows": numpy.array([[1, 1, 1, 1], [1, 1, 1, numpy.inf]], "float32")})
    by_clock = slackwater.Table("by clock", rows=2, updater="sgd", combine="mean", slack=0)
    with pytest.raises(slackwater.TableError, match="combines by clock"):
        by_clock.load_state(by_clock.state())
    assert (made.pull() == 0).all()
