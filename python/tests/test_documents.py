"""The package's documentation: examples run, public items have docstrings, and the stub matches the
compiled half."""

import ast
import doctest
import inspect
import pathlib
import re

import pytest

import slackwater
from slackwater import _feed, _leases, _run, _slackwater, _table

HAVE_EXAMPLES = [
    slackwater.Table,
    slackwater.Table.keys,
    slackwater.Table.pull,
    slackwater.Table.pull_async,
    slackwater.Table.push,
    slackwater.Table.push_async,
    slackwater.Table.push_pull,
    slackwater.Keys,
    slackwater.DataLease,
    slackwater.Run,
    slackwater.Ticket,
    slackwater.barrier,
    slackwater.clock,
    slackwater.follow,
    slackwater.init,
    slackwater.launch,
    slackwater.leases,
    slackwater.local_rank,
]


@pytest.mark.parametrize("module", [_table, _run, _leases, _feed], ids=lambda module: module.__name__)
def test_examples_run(module):
    done = doctest.testmod(module)
    assert done.failed == 0 and done.attempted > 0


@pytest.mark.parametrize("kind", [slackwater.Ticket, slackwater.DataLease, slackwater.Keys], ids=lambda kind: kind.__name__)
def test_examples_of_compiled_types_run(kind):
    example = doctest.DocTestParser().get_doctest(kind.__doc__, {}, kind.__name__, None, 0)
    done = doctest.DocTestRunner().run(example)
    assert done.failed == 0 and done.attempted > 0


def test_examples_of_the_python_page_run():
    page = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "python.md").read_text()
    examples = re.findall(r"^```python run\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert examples
    for example in examples:
        exec(compile(example, "docs/python.md", "exec"), {})


@pytest.mark.parametrize("item", HAVE_EXAMPLES, ids=lambda item: item.__qualname__)
def test_main_items_have_an_example(item):
    assert ">>> " in item.__doc__


def test_public_items_have_docstrings():
    for name in slackwater.__all__:
        item = getattr(slackwater, name)
        assert name == "__version__" or item.__doc__, name
        if inspect.isclass(item):
            members = [member for member in vars(item) if not member.startswith("_")]
            # The docstring of the class describes attributes.
            described = [member for member in members if getattr(item, member).__doc__ or f"``{member}``" in item.__doc__]
            assert described == members, name


def test_launch_documents_all_its_settings():
    from slackwater import _launch

    assert inspect.signature(slackwater.launch) == inspect.signature(_launch.launch)
    for setting in ("replicas", "failure_timeout", "shared_memory"):
        assert f"``{setting}``" in slackwater.launch.__doc__


def plain(names):
    """The names without private and special ones, which differ between Python versions."""
    return {name for name in names if not name.startswith("_")}


def stated():
    """Yields the names in the stub, with the names of the members for each class."""
    stub = pathlib.Path(_table.__file__).with_name("_slackwater.pyi")
    for item in ast.parse(stub.read_text()).body:
        if isinstance(item, ast.ClassDef):
            attributes = {member.target.id for member in item.body if isinstance(member, ast.AnnAssign)}
            yield item.name, attributes | {member.name for member in item.body if isinstance(member, ast.FunctionDef)}
        elif isinstance(item, ast.FunctionDef):
            yield item.name, None
        elif isinstance(item, ast.AnnAssign):
            yield item.target.id, None


def test_stub_matches_the_compiled_half():
    stub = dict(stated())
    assert set(stub) == {name for name in vars(_slackwater) if not name.startswith("__")} | {"__version__"}
    for name, members in stub.items():
        if members is not None:
            assert plain(members) == plain(vars(getattr(_slackwater, name))), name
