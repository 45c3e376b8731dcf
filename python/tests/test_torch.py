"""PyTorch training: DistributedOptimizer, embeddings, saving and loading."""

import math

import numpy
import pytest

torch = pytest.importorskip("torch")

import equality  # noqa: E402

import slackwater  # noqa: E402
import slackwater.torch  # noqa: E402

CASES = ["plain", "adam", "frozen", "unused", "unused by some", "tied", "accumulated", "clipped", "scaled"]


def test_tensors_are_pushed_and_filled_in_place(run):
    table = slackwater.Table("t", rows=6, width=4, updater="sum", slack=0)
    values = torch.arange(24, dtype=torch.float32).reshape(6, 4)
    table.push(values)
    table.push(torch.nn.Parameter(values))
    out = torch.zeros(6, 4)
    assert table.pull(out=out) is out and torch.equal(out, 2 * values)
    table.push(values.t().contiguous().t())
    assert torch.equal(table.pull(torch.tensor([5, 0])), 3 * values[[5, 0]])
    assert isinstance(table.pull(), numpy.ndarray)
    with pytest.raises(ValueError, match="contiguous"):
        table.pull(out=torch.zeros(4, 6).t())
    with pytest.raises(TypeError, match="holds float32, and the array float64"):
        table.push(values.double())
    with pytest.raises(TypeError, match="torch.float16"):
        table.push(values.half())
    with pytest.raises(ValueError, match="CPU"):
        table.push(values.to("meta"))


def test_slack_0_equals_distributed_data_parallel(tmp_path):
    results = slackwater.launch(equality.compare_all, CASES, tmp_path / "store", workers=4, servers=2)
    assert len({process for process, _ in results}) == 4
    for _, found in results:
        # Tolerance for sums of four float32 in another order, over 20 steps.
        assert all(apart < 2e-4 for apart in found.values()), found


def linear(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 300), torch.nn.Tanh(), torch.nn.Linear(300, 1))


def fit(model, optimizer, steps=60):
    inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(5))
    wanted = inputs.sum(1, keepdim=True)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), wanted)
        loss.backward()
        optimizer.step()
    return loss.item()


def test_single_worker_trains_as_without_slackwater(run):
    alone = linear()
    fit(alone, torch.optim.Adam(alone.parameters(), lr=0.01))
    for more in ({}, {"slack": 2}, {"on": "servers"}):
        model = linear()
        optimizer = slackwater.torch.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.01), model, **more)
        fit(model, optimizer)
        for ours, expected in zip(model.parameters(), alone.parameters()):
            assert torch.allclose(ours, expected, atol=2e-4), more


def test_servers_follow_schedulers_and_refuse_unknown_optimizers(run):
    alone, model = linear(), linear()
    plain = torch.optim.SGD(alone.parameters(), lr=0.02, momentum=0.5)
    wrapped = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
    optimizer = slackwater.torch.DistributedOptimizer(wrapped, model, on="servers")
    for each, trained in ((plain, alone), (optimizer, model)):
        schedule = torch.optim.lr_scheduler.ExponentialLR(each, 0.5)
        for _ in range(3):
            fit(trained, each, steps=5)
            schedule.step()
    for ours, expected in zip(model.parameters(), alone.parameters()):
        assert torch.allclose(ours, expected, atol=1e-5)
    for wrong in (torch.optim.AdamW(model.parameters()), torch.optim.SGD(model.parameters(), weight_decay=0.1)):
        with pytest.raises(ValueError, match="servers have no"):
            slackwater.torch.DistributedOptimizer(wrong, model, on="servers")


def test_refused_gradient_names_its_parameter_and_rank(run):
    for more in ({}, {"slack": 1}, {"on": "servers"}):
        model = linear()
        optimizer = slackwater.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, **more)
        (model[2].bias * float("nan")).sum().backward()
        with pytest.raises(slackwater.RefusedError, match=r"(2\.bias.*worker 0)|(worker 0.*2\.bias)"):
            optimizer.step()


def test_wrong_use_of_the_optimizer_is_refused(run):
    model, other = linear(), linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for more, words in [({"on": "moon"}, "neither"), ({"average": "mode"}, "neither"), ({"average": "samples", "slack": 1}, "slack=0"), ({"average": "samples", "codecs": ["bf16"]}, "leave out codecs")]:
        with pytest.raises(ValueError, match=words):
            slackwater.torch.DistributedOptimizer(optimizer, model, **more)
    with pytest.raises(ValueError, match="4 parameters that the model does not have"):
        slackwater.torch.DistributedOptimizer(optimizer, other)
    slackwater.shutdown()
    with pytest.raises(slackwater.RunError, match="call slackwater.init"):
        slackwater.torch.DistributedOptimizer(optimizer, model)


@pytest.mark.parametrize("more", [{}, {"slack": 2}, {"on": "servers"}])
def test_training_with_1bit_gradients_converges(run, more):
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    optimizer = slackwater.torch.DistributedOptimizer(optimizer, model, codecs=["1bit"], **more)
    begun = fit(model, optimizer, steps=1)
    assert fit(model, optimizer, steps=150) < begun / 20


def several(slack, average):
    """A step of two workers with different gradients. Returns the weight before and after it."""
    torch.set_num_threads(1)
    rank = slackwater.rank()
    model = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(float(rank))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = slackwater.torch.DistributedOptimizer(optimizer, model, slack=slack, average=average)
    began = model.weight.item()
    if average == "samples":
        optimizer.set_samples([1, 3][rank])
    # The gradients are 1 and 2.
    (model.weight * (rank + 1)).sum().backward()
    optimizer.step()
    optimizer.synchronize()
    return began, model.weight.item()


def several_after_another(cases):
    return [several(*case) for case in cases]


def test_averages_are_by_worker_or_by_samples():
    cases = [(0, "workers"), (0, "samples"), (2, "workers")]
    results = slackwater.launch(several_after_another, cases, workers=2, servers=1)
    assert results == [[(0, -1.5), (0, -1.75), (0, -1.5)]] * 2


def test_waiting_pushes_of_front_layers_go_first(run):
    from slackwater.torch import _sending

    sent = []

    class Slow:
        """A push that is done once ``wait`` was called."""

        def __init__(self, name):
            sent.append(name)
            self.waited = False

        def done(self):
            return self.waited

        def wait(self):
            self.waited = True

    sending = _sending.Sending(credit=20)
    # In the order of backward: the last layers first.
    for place in (5, 4, 3, 2, 1):
        sending.push(place, 10, lambda place=place: Slow(place))
    assert sent == [5, 4], "the credit allows two pushes"
    sending.finish()
    assert sent == [5, 4, 1, 2, 3]
    sending.push(1, 50, lambda: Slow("large"))
    assert sent[-1] == "large", "a push larger than the credit goes alone"


def test_backward_with_little_credit_sends_front_layers_first_with_equal_gradients(run, monkeypatch):
    from slackwater.torch import _flat, _sending

    monkeypatch.setattr(_flat, "FUSED_BYTES", 1)
    order, models = [], []
    for credit in (_sending.CREDIT_BYTES, 1):
        model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(4)])
        model.load_state_dict(models[0].state_dict() if models else model.state_dict())
        models.append(model)
        optimizer = slackwater.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
        sending = optimizer._policy.sending
        sending.credit = credit
        push = sending.push
        monkeypatch.setattr(sending, "push", lambda place, size, send: push(place, size, lambda: (order.append(place), send())[1]))
        # No push counts as done before the program waits for it.
        monkeypatch.setattr(_sending.Pushed, "is_done", lambda self: False)
        if credit > 1:
            gradients = None
        model(torch.ones(2, 8)).sum().backward()
        found = [parameter.grad.clone() for parameter in model.parameters()]
        assert gradients is None or all(torch.equal(*pair) for pair in zip(found, gradients))
        gradients = found
    # A bucket for each parameter. With much credit they go in the order of backward; with little,
    # the first goes alone, and then the others from the front.
    assert order == [8, 7, 6, 5, 4, 3, 2, 1] + [8, 1, 2, 3, 4, 5, 6, 7], order


def travels(more):
    """Takes two steps. Returns whether the rows for the second had arrived when the first was done,
    and the bias at the end."""
    torch.set_num_threads(1)
    model = torch.nn.Linear(1, 1)
    with torch.no_grad():
        model.bias.zero_()
    optimizer = slackwater.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model, slack=1, **more)
    if slackwater.rank() == 1:
        # Begin only after worker 0 has looked.
        slackwater.barrier()
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    had_come = all(part.asked.done() for part in optimizer._policy.parts)
    if slackwater.rank() == 0:
        slackwater.barrier()
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    optimizer.synchronize()
    return had_come, round(model.bias.item(), 4)


def travel(cases):
    return [travels(case) for case in cases]


def test_step_with_slack_does_not_wait_for_the_rows_of_the_next():
    results = slackwater.launch(travel, [{}, {"on": "servers"}], workers=2, servers=1)
    # Two steps of both workers, with a gradient of 1 each. Worker 1 begins after worker 0's first
    # step is done.
    assert [bias for _, bias in results[0]] == [bias for _, bias in results[1]] == [-2.0, -2.0], results
    assert [had_come for had_come, _ in results[0]] == [False, False], results


def synchronizes(cases):
    """Weights after each synchronize(), of workers that push large changes and do not wait for
    them."""
    torch.set_num_threads(1)
    found = []
    for more in cases:
        model = torch.nn.Linear(1, 300_000)
        with torch.no_grad():
            model.bias.zero_(), model.weight.zero_()
        model.register_buffer("seen", torch.zeros(1))
        optimizer = slackwater.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model, **more)
        for turn in range(5):
            # In the last turn worker 1 takes a step fewer, if the other worker does not wait for it
            # within a step.
            fewer = turn == 4 and slackwater.rank() == 1 and more["slack"] > 0
            for _ in range(1 + 2 * turn - fewer):
                optimizer.zero_grad()
                model.bias.sum().backward()
                model.seen += 1
                optimizer.step()
            optimizer.synchronize()
            found.append((model.bias.min().item(), model.bias.max().item(), model.seen.item()))
    return found


def test_synchronize_returns_every_push_of_every_worker():
    cases = [{"slack": 1}, {"slack": 4}, {"slack": 4, "on": "servers"}, {"slack": 0, "on": "servers"}]
    cases += [{"slack": 4, "on": "servers", "codecs": {"down": ["bf16"]}}]
    results = slackwater.launch(synchronizes, cases, workers=2, servers=2)
    for place, case in enumerate(cases):
        ours = [result[5 * place : 5 * place + 5] for result in results]
        taken = [1, 4, 9, 16, 24.5 if case["slack"] else 25]
        assert ours[0] == ours[1] == [(-steps, -steps, math.ceil(steps)) for steps in taken], case


def reads_alone(_):
    """Has worker 0 read before worker 1 begins."""
    torch.set_num_threads(1)
    model = torch.nn.Linear(1, 1)
    with torch.no_grad():
        model.bias.zero_()
    optimizer = slackwater.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model, slack=2)
    if slackwater.rank() == 0:
        model.bias.sum().backward()
        optimizer.step()
        optimizer.synchronize(together=False)
    slackwater.barrier()
    return model.bias.item()


def test_synchronize_alone_waits_for_no_worker():
    assert slackwater.launch(reads_alone, 0, workers=2, servers=1) == [-0.5, 0.0]


def test_embeddings_make_rows_on_first_use_and_train_them(run):
    torch.manual_seed(0)
    embedding = slackwater.torch.Embedding("users", 8, updater="sgd", rate=0.5, slack=0)
    ids = torch.tensor([[3, 2**40], [3, 9]])
    assert embedding(ids).shape == (2, 2, 8)
    for _ in range(100):
        embedding.prefetch(ids)
        (embedding(ids) - 1).square().sum(-1).mean().backward()
        slackwater.clock()
    with torch.no_grad():
        assert torch.allclose(embedding(ids), torch.ones(2, 2, 8), atol=1e-3)
    assert len(embedding.table.pull_all()[0]) == 3


def test_prefetched_rows_are_pulled_once(run, monkeypatch):
    embedding = slackwater.torch.Embedding("early", 2, slack=0)
    pulls, pull = [], embedding.table.pull_async
    monkeypatch.setattr(embedding.table, "pull_async", lambda keys, out: pulls.append(len(out)) or pull(keys, out=out))
    batches = [torch.tensor([[place, place + 1]]) for place in range(4)]
    embedding.prefetch(batches[0])
    for this, following in zip(batches, batches[1:]):
        # Prefetch the next batch before this one is used.
        embedding.prefetch(following)
        embedding(this.view(1, 2))
    assert pulls == [2] * 4
    # New ids in the same tensor are new rows.
    embedding.prefetch(batches[0])
    batches[0] += 7
    with torch.no_grad():
        assert torch.equal(embedding(batches[0]), embedding(torch.tensor([[7, 8]])))


def test_embeddings_equal_those_of_torch(run):
    ours = slackwater.torch.Embedding("ours", 4, updater="sgd", rate=0.1, slack=0)
    bag = slackwater.torch.EmbeddingBag("bag", 4, updater="sgd", rate=0.1, slack=0, mode="sum")
    theirs = torch.nn.Embedding(10, 4)
    with torch.no_grad():
        theirs.weight.copy_(ours(torch.arange(10)))
        assert torch.allclose(bag(torch.arange(10).view(2, 5)), theirs.weight.view(2, 5, 4).sum(1), atol=1e-6)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    ids = torch.tensor([1, 2, 2, 7])
    for _ in range(3):
        for each in (ours, theirs):
            each(ids).pow(3).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        slackwater.clock()
    with torch.no_grad():
        assert torch.allclose(ours(torch.arange(10)), theirs.weight, atol=1e-6)
    with pytest.raises(TypeError, match="ids are integers"):
        ours(torch.ones(3))


def test_state_is_saved_and_loaded(run, tmp_path):
    model = torch.nn.Sequential()
    model.add_module("users", slackwater.torch.Embedding("users", 2, updater="sgd", rate=0.5, slack=0))
    model.add_module("top", torch.nn.Linear(2, 1))
    with torch.no_grad():
        model.top.weight.fill_(2.0)
    model(torch.tensor([4, 6])).sum().backward()
    slackwater.clock()
    path = tmp_path / "model.safetensors"
    slackwater.torch.save(model, path)
    with torch.no_grad():
        expected = model(torch.tensor([4, 6]))
        model.top.weight.zero_()
    model.users.table.push(numpy.ones((1, 2), "float32"), keys=[4])
    model.load_state_dict(slackwater.torch.load(path))
    with torch.no_grad():
        assert torch.allclose(model(torch.tensor([4, 6])), expected)
    path.write_bytes(b"no tensors")
    with pytest.raises(ValueError, match="not a safetensors file"):
        slackwater.torch.load(path)


@pytest.mark.parametrize("updater", ["sum", "sgd", "momentum", "adagrad", "adam", "proximal"])
def test_loaded_embeddings_train_on_as_the_original(run, tmp_path, updater):
    settings = {} if updater == "sum" else {"rate": 0.1}
    first = slackwater.torch.Embedding("first", 2, updater=updater, slack=0, **settings)

    def learn(embedding, steps):
        for _ in range(steps):
            embedding(torch.tensor([4, 6])).pow(2).sum().backward()
            slackwater.clock()
        with torch.no_grad():
            return embedding(torch.tensor([4, 6, 9]))

    learn(first, 3)
    path = tmp_path / "rows.safetensors"
    slackwater.torch.save(first, path)
    expected = learn(first, 3)
    second = slackwater.torch.Embedding("second", 2, updater=updater, slack=0, seed=7, **settings)
    learn(second, 1)
    second.load_state_dict(slackwater.torch.load(path))
    assert torch.equal(learn(second, 3)[:2], expected[:2])


def loads(path):
    embedding = slackwater.torch.Embedding("rows", 2, updater="sum", slack=0)
    embedding.load_state_dict(slackwater.torch.load(path))
    slackwater.barrier()
    with torch.no_grad():
        return embedding(torch.tensor([3])).tolist()


def test_state_that_every_worker_loads_is_set_once(tmp_path):
    path = tmp_path / "rows.safetensors"
    rows = {"_extra_state": {"keys": torch.tensor([3]), "rows": torch.ones(1, 2)}}
    slackwater.torch.save(rows, path)
    assert slackwater.launch(loads, path, workers=2, servers=1) == [[[1.0, 1.0]]] * 2


def loses(slack, lost, seconds):
    """Trains for 200 steps; if ``lost``, worker 1 is killed at step 20."""
    import os
    import signal
    import time

    torch.set_num_threads(1)
    model = linear(slackwater.rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    optimizer = slackwater.torch.DistributedOptimizer(optimizer, model, slack=slack)
    longest = 0.0
    for step in range(200):
        if lost and slackwater.rank() == 1 and step == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        begin = time.monotonic()
        loss = fit(model, optimizer, steps=1)
        longest = max(longest, time.monotonic() - begin)
    assert longest < seconds, longest
    return loss, len(slackwater.live_ranks())


@pytest.mark.slow
@pytest.mark.parametrize("slack", [0, 3])
def test_training_goes_on_without_a_worker_that_is_killed(slack):
    # The failure timeout is a second; a step that takes 20 seconds hangs.
    results = slackwater.launch(loses, slack, True, 20, workers=3, servers=2, replicas=2, failure_timeout=1.0)
    whole = slackwater.launch(loses, slack, False, 20, workers=3, servers=2)
    assert results[1] is None
    for loss, live in (results[0], results[2]):
        assert live <= 2 and loss < 2 * whole[0][0] + 1e-3, (results, whole)


def stays(place):
    """Trains until another worker has joined, and for 100 more steps."""
    import time

    torch.set_num_threads(1)
    model = linear(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    optimizer = slackwater.torch.DistributedOptimizer(optimizer, model, slack=3)
    limit, came = time.monotonic() + 100, None
    step = 0
    while came is None or step < came + 100:
        assert time.monotonic() < limit
        loss = fit(model, optimizer, steps=1)
        step += 1
        if came is None and len(slackwater.live_ranks()) == 3:
            came = step
    return loss


COMER = """
import test_torch, torch, slackwater, slackwater.torch
slackwater.init()
model = test_torch.linear(9)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
optimizer = slackwater.torch.DistributedOptimizer(optimizer, model, slack=3)
for _ in range(50):
    loss = test_torch.fit(model, optimizer, steps=1)
print("came as", slackwater.rank(), loss)
"""


def stays_and_calls(place):
    import os
    import subprocess
    import sys

    if slackwater.rank() == 0:
        told = {name: value for name, value in os.environ.items() if name != "SLACKWATER_PLACE"}
        told["PYTHONPATH"] = os.pathsep.join(sys.path)
        comer = subprocess.Popen([sys.executable, "-c", COMER], env=told, stdout=subprocess.PIPE, text=True)
    loss = stays(place)
    return (loss, comer.communicate(timeout=100)[0]) if slackwater.rank() == 0 else loss


@pytest.mark.slow
def test_late_worker_takes_its_share():
    (loss, said), other = slackwater.launch(stays_and_calls, 0, workers=2, servers=2, replicas=2, failure_timeout=5.0)
    assert "came as 2" in said, said
    assert max(loss, other, float(said.split()[-1])) < 0.05


def digest(model):
    import hashlib

    state = hashlib.sha256()
    for tensor in [*model.parameters(), *model.buffers()]:
        state.update(tensor.detach().numpy().tobytes())
    return state.hexdigest()[:16]


def keeps_step(more, seconds, steps=None):
    """Trains for ``steps`` steps, or until another worker has joined and left. Returns a digest of
    weights and buffers after each clock."""
    import time

    torch.set_num_threads(1)
    rank, more = slackwater.rank(), dict(more)
    if more.pop("begins late", False) and rank == 1:
        # Begin when the third worker has joined: worker 0 then waits in its first step.
        while 2 not in slackwater.live_ranks():
            time.sleep(0.01)
        time.sleep(1.0)
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
    # Every worker's gradient of it is 1, so it shows whether a mean is over the workers that had a
    # gradient.
    model.register_parameter("steady", torch.nn.Parameter(torch.zeros(1)))
    # Momentum is a state that the late worker must be given too.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = slackwater.torch.DistributedOptimizer(optimizer, model, slack=0, **more)
    digests, limit, came, generator = {}, time.monotonic() + seconds, False, torch.Generator().manual_seed(rank)
    while len(digests) < steps if steps is not None else not came or 2 in slackwater.live_ranks():
        assert time.monotonic() < limit
        came = came or 2 in slackwater.live_ranks()
        inputs = torch.randn(16, 4, generator=generator)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        (loss + model.steady.sum()).backward()
        optimizer.step()
        digests[slackwater.now()] = digest(model), model.steady.item()
    return digests


LOCK_STEP = """
import json, sys, test_torch, slackwater
slackwater.init()
print(json.dumps(test_torch.keeps_step({}, 100, steps=20)))
"""


def keeps_step_and_calls(more):
    import json
    import os
    import subprocess
    import sys

    comer = None
    if slackwater.rank() == 0:
        told = {name: value for name, value in os.environ.items() if name != "SLACKWATER_PLACE"}
        told["PYTHONPATH"] = os.pathsep.join(sys.path)
        program = LOCK_STEP.replace("{}", repr(more))
        comer = subprocess.Popen([sys.executable, "-c", program], env=told, stdout=subprocess.PIPE, text=True)
    digests = keeps_step(more, 100)
    if comer is None:
        return digests, None
    said = json.loads(comer.communicate(timeout=100)[0])
    return digests, {int(clock): tuple(found) for clock, found in said.items()}


@pytest.mark.parametrize(
    "more",
    [
        {},
        pytest.param({"codecs": ["bf16"]}, marks=pytest.mark.slow),
        pytest.param({"average": "samples"}, marks=pytest.mark.slow),
        {"begins late": True},
    ],
)
def test_late_worker_in_lock_step_is_given_the_weights(more):
    (first, comer), (second, _) = slackwater.launch(keeps_step_and_calls, more, workers=2, servers=2, replicas=2, failure_timeout=5.0)
    assert len(comer) == 20 and len(set(comer.values())) == 20
    for clock, found in comer.items():
        assert first[clock] == second[clock] == found, clock
    speed = 1.0
    for clock in range(2, max(comer) + 1):
        speed = 0.9 * speed + 1
        change = first[clock][1] - first[clock - 1][1]
        assert abs(change / (-0.01 * speed) - 1) < 1e-3, (clock, min(comer))
