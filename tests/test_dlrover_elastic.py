"""ElasticTrainer, ElasticDistributedSampler and ElasticDataLoader of compat/dlrover: the batch of all ranks together
and the position in an epoch stay, whatever the number of ranks."""

import json
import signal
import sys

import pytest

torch = pytest.importorskip("torch")

from dlrover_jobs import COMPAT, dlrover_run  # noqa: E402
from harness import WORKLOADS  # noqa: E402
from test_checkpoint_dcp import of_ranks  # noqa: E402
from test_checkpoint_job import directory as directory  # noqa: E402
from test_checkpoint_job import jobs_with_memory as jobs_with_memory  # noqa: E402
from test_checkpoint_job import make_job as make_job  # noqa: E402

sys.path.insert(0, str(COMPAT))

from dlrover.trainer.torch.elastic import trainer as trainers  # noqa: E402
from dlrover.trainer.torch.elastic.dataloader import ElasticDataLoader  # noqa: E402
from dlrover.trainer.torch.elastic.sampler import ElasticDistributedSampler  # noqa: E402

# --- jobs


def start(job, directory, *arguments, nproc, most, env=None):
    """`most`: ranks of the largest world, in nodes of `nproc` ranks."""
    variables = {"NODE_NUM": str(most // nproc), **(env or {})}
    words = ["--standalone", f"--nproc-per-node={nproc}", "--max-restarts=0"]
    script = [WORKLOADS / "dlrover_elastic.py", f"--dir={directory}", *arguments]
    return dlrover_run(job, *words, *script, env=variables)


def steps_of(*jobs):
    """{step: (samples of all ranks, the weights, the learning rate)}."""
    found = {}
    for job in jobs:
        for event in job.found("step"):
            samples, weights, _ = found.get(event["n"], ([], None, None))
            assert weights is None or abs(weights - event["weights"]) < 1e-12
            found[event["n"]] = (sorted([*samples, *event["taken"]]), event["weights"], event["lr"])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("zero_grad", ["before", pytest.param("behind", marks=pytest.mark.long)])
def test_a_smaller_world_goes_on_with_the_same_steps(make_job, directory, tmp_path, zero_grad):
    """Two ranks, killed in the middle of an epoch; then one, which makes two micro batches of each step."""
    how = [f"--zero-grad={zero_grad}", "--workers=2"]
    straight = make_job()
    assert start(straight, tmp_path / "straight", *how, nproc=2, most=2).wait() == 0, straight.story()
    first, second = make_job(), make_job()
    node = start(first, directory, "--pause-at=5", *how, nproc=2, most=2)
    of_ranks(first, "pausing")
    node.signal(signal.SIGTERM)
    node.wait()
    assert start(second, directory, *how, nproc=1, most=2).wait() == 0, second.story()
    assert [event["n"] for event in second.found("begins")] == [5]
    expected, found = steps_of(straight), steps_of(first, second)
    assert sorted(found) == sorted(expected) == list(range(1, 17)), "64 samples in batches of 8, twice"
    for step, (samples, weights, rate) in expected.items():
        assert found[step][0] == samples and found[step][2] == rate, step
        assert abs(found[step][1] - weights) < 1e-9, step
    for epoch in (0, 1):
        assert sorted(s for step in range(1, 9) for s in found[step + 8 * epoch][0]) == list(range(64))


# --- the sampler


def all_of(state, world, samples=101, shuffle=True, steps=None, batch=4):
    """(what all ranks are given in up to `steps` batches, the state behind that)."""
    given, states = [], []
    for rank in range(world):
        sampler = ElasticDistributedSampler(range(samples), num_replicas=world, rank=rank, shuffle=shuffle)
        sampler.load_state_dict(state)
        taken, iterator = [], iter(sampler)
        for _ in range(len(sampler) if steps is None else steps * batch):
            taken.append(next(iterator, None))
        given.append([index for index in taken if index is not None])
        states.append(sampler.state_dict(len(taken) // batch if steps is None else steps, batch))
    assert all(each == states[0] for each in states)
    return given, states[0]


def test_positions_outlive_any_worlds(choose):
    """An epoch shared out by worlds of random sizes, each of which takes some batches: every sample comes once."""
    for _ in range(50):
        samples, seen, state = choose.randrange(60, 200), [], {}
        while True:
            world = choose.randrange(1, 6)
            left = samples - state.get("completed_num", 0)
            steps = left // (world * 4)
            if steps == 0:
                break
            given, state = all_of({**state, "iter_step": 0}, world, samples, steps=choose.randrange(1, steps + 1))
            seen += [index for of_rank in given for index in of_rank]
        given, _ = all_of(state, 3, samples)
        last = [index for of_rank in zip(*given) for index in of_rank][: samples - len(seen)]
        assert sorted(seen + last) == list(range(samples))


def test_the_order_is_that_of_seed_and_epoch():
    one = ElasticDistributedSampler(range(50), num_replicas=1, rank=0)
    first = list(one)
    one.set_epoch(1)
    assert sorted(first) == list(range(50)) and list(one) != first
    two = [list(ElasticDistributedSampler(range(50), num_replicas=2, rank=rank)) for rank in (0, 1)]
    assert [index for pair in zip(*two) for index in pair] == first


def test_the_end_of_an_epoch_is_shared_out_evenly():
    padded = [list(ElasticDistributedSampler(range(7), 3, rank, shuffle=False)) for rank in range(3)]
    assert padded == [[0, 3, 6], [1, 4, 0], [2, 5, 1]]
    dropped = [list(ElasticDistributedSampler(range(7), 3, rank, shuffle=False, drop_last=True)) for rank in range(3)]
    assert dropped == [[0, 3], [1, 4], [2, 5]]
    assert [len(list(ElasticDistributedSampler(range(1), 3, rank))) for rank in range(3)] == [1, 1, 1]


def test_a_resumed_epoch_is_followed_by_a_whole_one():
    sampler = ElasticDistributedSampler(range(20), 2, 0, shuffle=False)
    sampler.load_state_dict({"completed_num": 16, "epoch": 3})
    assert sampler.epoch == 3 and len(sampler) == 2
    assert next(iter(sampler)) == 16 and list(sampler) == [16, 18], "who looks at it moves nothing"
    assert list(sampler) == list(range(0, 20, 2)), "without set_epoch(), too"
    sampler.load_state_dict({"completed_num": 20, "epoch": 3})
    assert list(sampler) == [], "it was over"
    sampler.load_state_dict({"completed_num": 16, "epoch": 3})
    sampler.set_epoch(3)
    assert len(sampler) == 2
    sampler.set_epoch(4)
    assert len(sampler) == 10


def test_iter_step_counts_the_loop_or_goes_on():
    sampler = ElasticDistributedSampler(range(100), 2, 0)
    sampler.load_state_dict({"completed_num": 40, "epoch": 0, "iter_step": 5})
    iterator = iter(sampler)
    for _ in range(8):
        next(iterator)
    assert sampler.state_dict(2, 4)["completed_num"] == 56, "of this loop"
    assert sampler.state_dict(7, 4)["completed_num"] == 56, "goes on from 5"
    with pytest.raises(ValueError, match=r"iter_step is 9, and each rank was given 2 batches of 4 in this loop"):
        sampler.state_dict(9, 4)


def test_the_next_epoch_has_not_begun_where_the_last_one_ended():
    sampler = ElasticDistributedSampler(range(64), 2, 0)
    loader = ElasticDataLoader(range(64), batch_size=4, sampler=sampler)
    assert len(list(loader)) == 8 and sampler.state_dict(8, 4)["completed_num"] == 64
    sampler.set_epoch(1)
    state = sampler.state_dict(8, 4)
    assert (state["completed_num"], state["epoch"]) == (0, 1)
    sampler.load_state_dict(state)
    assert len(sampler) == 32


def plain(sampler, batches):
    """The loop over a plain DataLoader, whose workers are eight batches ahead, behind so many."""
    loader = iter(torch.utils.data.DataLoader(range(400), 4, sampler=sampler, num_workers=2, prefetch_factor=4))
    for _ in range(batches):
        next(loader)
    return loader  # it lives on, and its workers with it


def test_iter_step_counts_with_workers_that_are_ahead():
    """Also where both ways to count it are possible by what the workers were given."""
    sampler = ElasticDistributedSampler(range(400), 2, 0)
    loop = plain(sampler, 5)
    state = sampler.state_dict(5, 4)
    assert state == {"completed_num": 40, "epoch": 0, "iter_step": 5, "ahead": 8}
    for batches, iter_step in [(2, 2), (2, 7), (8, 8), (8, 13)]:
        sampler.load_state_dict(state)
        loop = plain(sampler, batches)
        assert sampler.state_dict(iter_step, 4)["completed_num"] == 40 + batches * 8, (batches, iter_step)
        assert sampler.state_dict(iter_step, 4)["completed_num"] == 40 + batches * 8, "again"
    sampler.load_state_dict({name: state[name] for name in ("completed_num", "epoch", "iter_step")})
    loop = plain(sampler, 2)
    with pytest.raises(ValueError, match=r"iter_step is 7.* from 0, or those and the 5 before it"):
        sampler.state_dict(7, 4)
    assert sampler.state_dict(2, 4)["completed_num"] == 56, "then only one is possible"
    del loop


def test_frameworks_take_it_for_a_distributed_sampler():
    """Lightning puts any other into a DistributedSampler of its own: each rank then trains on a part of its part."""
    sampler = ElasticDistributedSampler(range(7), 3, 1)
    assert isinstance(sampler, torch.utils.data.DistributedSampler)
    assert (sampler.num_samples, sampler.total_size) == (3, 9)
    sampler.load_state_dict({"completed_num": 4, "epoch": 0})
    assert (sampler.num_samples, sampler.total_size) == (1, 3) == (len(list(sampler)), 3)


def test_a_state_of_another_dataset_is_refused():
    sampler = ElasticDistributedSampler(range(10), 1, 0)
    with pytest.raises(ValueError, match="completed_num is 11 and the dataset has 10 samples"):
        sampler.load_state_dict({"completed_num": 11, "epoch": 0})
    with pytest.raises(ValueError, match="expected numbers of 0 or more"):
        sampler.load_state_dict({"completed_num": -1})
    with pytest.raises(ValueError, match="rank is 2; expected 0 to 1"):
        ElasticDistributedSampler(range(10), 2, 2)
    with pytest.raises(RuntimeError, match=r"call init_process_group\(\) first"):
        ElasticDistributedSampler(range(10))


# --- the loader


@pytest.mark.parametrize("workers", [0, 2])
def test_the_loader_counts_what_was_taken(workers):
    """Worker processes have been given more by then."""
    sampler = ElasticDistributedSampler(range(64), 2, 0)
    loader = ElasticDataLoader(range(64), batch_size=4, sampler=sampler, num_workers=workers)
    for number, _ in enumerate(loader):
        if number == 2:
            break
    assert sampler.state_dict(999, 4)["completed_num"] == 24
    for _ in loader:
        pass
    assert sampler.state_dict(0, 4)["completed_num"] == 64


@pytest.mark.parametrize("workers", [0, 2])
def test_the_batch_size_of_an_epoch_stays(workers):
    sampler = ElasticDistributedSampler(range(64), 1, 0)
    loader = ElasticDataLoader(range(64), batch_size=8, sampler=sampler, num_workers=workers)
    sizes = []
    for batch in loader:
        sizes.append(len(batch))
        loader.update_batch_size(4)
        assert sampler.state_dict(0, 8)["completed_num"] == sum(sizes)
    assert sizes == [8] * 8
    assert [len(batch) for batch in loader] == [4] * 16 and loader.get_batch_size() == 4


def test_the_batch_size_comes_from_a_file(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    monkeypatch.setenv("DLROVER_PARAL_CONFIG_PATH", str(path))
    loader = ElasticDataLoader(range(32), batch_size=4)
    assert len(list(loader)) == 8
    path.write_text(json.dumps({"dataloader": {"version": 1, "batch_size": 16}}))
    assert len(list(loader)) == 2 and loader.get_batch_size() == 16
    path.write_text(json.dumps({"dataloader": {"version": 1, "batch_size": 8}}))
    assert len(list(loader)) == 2, "it knows that version"
    loader.update_batch_size(8)
    assert len(list(loader)) == 4
    path.write_text("no json")
    with pytest.raises(ValueError, match="expected JSON with a 'dataloader'"):
        iter(loader)
    path.write_text(json.dumps({"dataloader": {"version": 1, "batch_size": 8}}))
    assert len(ElasticDataLoader(range(32), batch_size=4)) == 4, "a new one looks at it at once"
    other = ElasticDataLoader(range(32), batch_size=4, config_file=str(tmp_path / "none.json"))
    assert other.get_batch_size() == 4
    with pytest.raises(ValueError, match=r"the batch size is 1\.5"):
        other.update_batch_size(1.5)


# --- the trainer, of one process


@pytest.fixture
def group(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def with_scheduler(model):
    """(ElasticTrainer, the optimizer and the scheduler that it gives, those that it was given): the rate is halved by
    each step, from 1."""
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    halving, trainer = torch.optim.lr_scheduler.StepLR(inner, 1, 0.5), trainers.ElasticTrainer(model)
    return (trainer, *trainer.prepare(inner, halving), inner)


def test_micro_batches_make_a_step(group, monkeypatch, tmp_path):
    """Four of them: one step of the optimizer, by the mean of their gradients."""
    metrics = tmp_path / "metrics" / "m.json"
    monkeypatch.setenv("NODE_NUM", "4")
    monkeypatch.setenv("RUNTIME_METRICS_PATH", str(metrics))
    net = torch.nn.Linear(3, 1, bias=False)
    model = torch.nn.parallel.DistributedDataParallel(net)
    trainer, optimizer, scheduler, inner = with_scheduler(model)
    before = net.weight.detach().clone()
    for number in range(4):
        with trainer.step(fix_total_batch_size=True):
            optimizer.zero_grad()
            model(torch.full((1, 3), float(number))).sum().backward()
            optimizer.step()
            scheduler.step()
        assert torch.equal(net.weight, before) == (number < 3) == (trainer.num_steps == 0)
    assert torch.allclose(before - net.weight, torch.full((1, 3), 1.5)), "the mean of 0, 1, 2, 3"
    assert trainer.num_steps == 1, "of the optimizer: what a loop ends by is the same in each world"
    assert trainer.num_micro_batches == trainer.gradient_accumulation_steps == 4
    assert scheduler.get_last_lr() == [0.5] and optimizer.state_dict() == inner.state_dict()
    assert json.loads(metrics.read_text())["step"] == 1
    with trainer.step(fix_total_batch_size=True):
        model(torch.ones(1, 3)).sum().backward()
    with pytest.raises(ValueError, match="has changed within a batch"), trainer.step():
        pass
    trainer.reset()
    assert net.weight.grad is None and trainer.num_steps == trainer.num_micro_batches == 0
    with trainer.step():
        optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    assert torch.allclose(net.weight.grad, torch.ones(1, 3)), "without it a micro batch is a batch"


@pytest.mark.parametrize("zero_grad", ["before", "behind"])
def test_a_step_behind_the_block_is_held_back_as_in_it(group, monkeypatch, zero_grad):
    """A rank that steps by its own gradients, which no_sync() leaves to it alone, is not as the others are."""
    monkeypatch.setenv("NODE_NUM", "2")
    net = torch.nn.Linear(3, 1, bias=False)
    model = torch.nn.parallel.DistributedDataParallel(net)
    trainer, optimizer, scheduler, _ = with_scheduler(model)
    weights = net.weight.detach().clone()
    for number in range(4):
        if zero_grad == "before":
            optimizer.zero_grad()
        with trainer.step(fix_total_batch_size=True):
            model(torch.full((1, 3), float(number))).sum().backward()
        optimizer.step()
        scheduler.step()
        if zero_grad == "behind":
            optimizer.zero_grad()
        weights -= {1: 0.5, 3: 0.5 * 2.5}.get(number, 0.0)  # learning rate 1, then 0.5, and the mean of two
        assert torch.allclose(net.weight, weights), number
    with trainer.step(fix_total_batch_size=True):
        model(torch.ones(1, 3)).sum().backward()
    scheduler.step()
    assert scheduler.get_last_lr() == [0.25], "within a batch"
    trainer.reset()
    scheduler.step()
    assert scheduler.get_last_lr() == [0.125], "between epochs"


def test_a_scaler_takes_the_optimizer(group, monkeypatch):
    monkeypatch.setenv("NODE_NUM", "2")
    net = torch.nn.Linear(3, 1, bias=False)
    model = torch.nn.parallel.DistributedDataParallel(net)
    trainer = trainers.ElasticTrainer(model)
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=1.0))
    assert isinstance(optimizer, torch.optim.Optimizer) and optimizer.param_groups[0]["lr"] == 1.0
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with trainer.step():
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert net.weight.grad is None


@pytest.mark.parametrize("zero_grad", ["before", "behind"])
def test_gradients_are_unscaled_once_a_batch(group, monkeypatch, zero_grad):
    """Also behind a batch that a GradScaler leaves out."""
    monkeypatch.setenv("NODE_NUM", "2")
    net = torch.nn.Linear(1, 1, bias=False)
    model = torch.nn.parallel.DistributedDataParallel(net)
    torch.nn.init.zeros_(net.weight)
    trainer = trainers.ElasticTrainer(model)
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=1.0))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for value, expected in [(1.0, 0.0), (3.0, -2.0), (float("inf"), -2.0), (1.0, -2.0), (1.0, -2.0), (3.0, -4.0)]:
        with trainer.step(fix_total_batch_size=True):
            if zero_grad == "before":
                optimizer.zero_grad()
            scaler.scale(model(torch.full((1, 1), value)).sum()).backward()
            if trainer.ends_batch:
                scaler.step(optimizer)
                scaler.update()
            if zero_grad == "behind":
                optimizer.zero_grad()
        assert net.weight.item() == expected
    assert scaler.get_scale() == 512.0
    refused = r"where micro batch 1 of 2 is under way.*below `if trainer\.ends_batch:`"
    with pytest.raises(RuntimeError, match=refused), trainer.step(fix_total_batch_size=True):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(1, 1)).sum()).backward()
        scaler.step(optimizer)
    assert net.weight.grad.item() == 256.0, "scaled, as it was"


def test_what_cannot_be_shared_out(group, monkeypatch):
    net = torch.nn.Linear(3, 1)
    trainer = trainers.ElasticTrainer(net)
    with trainer.step(fix_total_batch_size=True):
        pass
    monkeypatch.setenv("NODE_NUM", "2")
    with pytest.raises(TypeError, match="with a Linear; expected a DistributedDataParallel"), trainer.step(
        fix_total_batch_size=True
    ):
        pass
    monkeypatch.delenv("NODE_NUM")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    with pytest.raises(ValueError, match="neither WORKER_NUM nor NODE_NUM is set"), trainer.step(
        fix_total_batch_size=True
    ):
        pass
    monkeypatch.setenv("WORKER_NUM", "3")
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(ValueError, match="the batch of 3 ranks cannot be shared out evenly among 2"), trainer.step(
        fix_total_batch_size=True
    ):
        pass
