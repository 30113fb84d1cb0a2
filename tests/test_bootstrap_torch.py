"""Warm workers with the real torch: what a fork must not break, and what it must bring."""

import json
import os
import struct
import subprocess
import sys
import textwrap

import pytest
from zygote_agent import BASE_ENV, Agent, write_board

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "python"))

from phalanx._bootstrap.watching import watch

torch = pytest.importorskip("torch")


# A step that an earlier life has come to, as the tests' boards say.
REDO_UNTIL = 119
SITE_PACKAGES = os.path.dirname(os.path.dirname(torch.__file__))


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    """One zygote for all, whatever they do first: torch and numpy lie hidden until they import them."""
    script = tmp_path_factory.mktemp("zygote") / "any.py"
    script.write_text("")
    with Agent() as agent:
        ready = agent.start_zygote(script, learnt=["torch", "numpy"])
        assert ready["type"] == "ready", ready
        yield agent


@pytest.fixture
def run(agent, tmp_path):
    """Runs a script's text in a worker to its end: (output, messages). It must succeed and say nothing else.

    The end is os._exit where it is not what the test is about: Python takes a second to take torch apart."""

    def run(text, *args, how=agent.fork, whole=False, **settings):
        script = tmp_path / "script.py"
        script.write_text(
            textwrap.dedent(text) + ("" if whole else "\nif __name__ == '__main__': __import__('os')._exit(0)\n")
        )
        worker = how().run(script, *args, cwd=tmp_path, **settings)
        messages = worker.messages()
        status, out, err = worker.result()
        assert (status, err) == (0, ""), (status, out, err)
        worker.end()
        return out, messages

    return run


@pytest.fixture
def board(tmp_path):
    path = f"/dev/shm/phalanx-test-{os.getpid()}"
    write_board(path, REDO_UNTIL)
    yield {"path": path, "slot": 1}
    os.unlink(path)


def slot(board):
    with open(board["path"], "rb") as file:
        file.seek(64 + 192 * board["slot"])
        names = "pid optimizer_steps step changed_ns started_ns first_step_ns phase".split()
        names += "from_step saving_ns saving_since_ns caught_up_ns".split()
        return dict(zip(names, struct.unpack("<QQqQQQQqQQQ", file.read(88))))


DDP = """
    import sys
    from phalanx._bootstrap import hidden
    loaded = set(sys.modules)
    import torch, torch.distributed as dist, torch.nn as nn
    from torch.nn.parallel import DistributedDataParallel
    import helper
    def main():
        dist.init_process_group('gloo', init_method='file://' + sys.argv[1], rank=0, world_size=1)
        model = DistributedDataParallel(nn.Linear(4, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        other = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            other.step()
        print(*sorted(name for name in set(sys.modules) - loaded if not hidden.was_given_out(name)))
        dist.destroy_process_group()
    if __name__ == '__main__':
        main()
    """


@pytest.mark.parametrize("tells, step", [(True, 118), (False, 2)], ids=["it does", "it does no more"])
def test_first_step_of_a_script_that_told_its_steps_before(run, board, tells, step):
    """Its own number is waited for, until the second optimizer step at most."""
    text = f"""
        import torch, phalanx
        weight = torch.zeros(1, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for step in range(118, 121):
            weight.grad = torch.ones(1)
            optimizer.step()
            if {tells}: phalanx.step(step)
        """
    _, messages = run(text, board=board, exact_steps=True)
    assert [message.get("step") for message in messages] == [None, step]
    assert slot(board)["optimizer_steps"] == 3 and slot(board)["step"] == (120 if tells else -1)


def last_line(out):
    """Some versions of gloo say on stdout whom they are connected to."""
    return out.splitlines()[-1]


@pytest.mark.parametrize("kind", ["warm", "cold"])
def test_ddp(agent, run, tmp_path, board, kind):
    (tmp_path / "helper.py").write_text("")
    how = agent.fork if kind == "warm" else agent.cold
    out, messages = run(DDP, tmp_path / "group", how=how, whole=True, board=board, env={"OMP_NUM_THREADS": "1"})
    imported = set(last_line(out).split())
    assert [m["type"] for m in messages[-2:]] == ["started", "first_step"]
    assert messages[-1]["step"] == 1
    learnt = messages[-1]["modules"]
    if kind == "warm":  # nothing that takes time is left to import, so there is nothing to learn
        assert not {name for name in imported if name.startswith(("torch.", "sympy", "triton"))}
        assert learnt == []
    else:
        assert "torch" in imported
        assert {"torch", "torch._dynamo", "torch.optim.sgd", "torch.distributed"} <= set(learnt)
        assert {name.partition(".")[0] for name in learnt} <= watch.INDIFFERENT and len(learnt) <= 4000
        assert learnt.index("torch") < learnt.index("torch._dynamo"), "in the order of their imports"
    values = slot(board)
    assert values["optimizer_steps"] == 3 and values["step"] == -1 and values["phase"] == 3 and values["pid"] > 0
    assert 0 < values["started_ns"] < values["first_step_ns"] <= values["changed_ns"]


@pytest.mark.parametrize("kind", ["warm", "cold"])
def test_the_kernel_lets_go_of_the_ranks_lock(agent, run, board, kind):
    """The script is told whom its word names, and who waits; when it has ended, that its owner is dead."""

    def word():
        with open(board["path"], "rb") as file:
            return struct.unpack("<I", os.pread(file.fileno(), 4, 64 + 192 * board["slot"] + 128))[0]

    text = f"""
        import os
        with open({board["path"]!r}, "rb") as file:
            print(int.from_bytes(os.pread(file.fileno(), 4, 64 + 192 * {board["slot"]} + 128), "little"), os.getpid())
        """
    out, _ = run(text, how=agent.fork if kind == "warm" else agent.cold, board=board, whole=True)
    held, pid = map(int, out.split())
    assert held == 0x80000000 | pid
    assert word() == 0xC0000000


def test_what_is_learnt_can_be_imported_ahead(agent, run, tmp_path):
    """It taints nothing, and no module of torch is left to import, whether the script's text leads to it or not."""
    (tmp_path / "helper.py").write_text("")
    _, messages = run(DDP, tmp_path / "group", how=agent.cold)
    with Agent() as second:
        ready = second.start_zygote(tmp_path / "script.py", learnt=messages[-1]["modules"])
        assert ready["type"] == "ready"
        out, again = run(DDP, tmp_path / "group2", how=second.fork)
    assert "helper" in last_line(out).split() and again[-1]["modules"] == []
    assert not [name for name in last_line(out).split() if watch.is_indifferent(name)]


def test_step_said_by_the_script(run, board):
    text = """
        import torch, phalanx
        phalanx.step(118)
        w = torch.zeros(1, requires_grad=True); w.grad = torch.ones(1)
        torch.optim.SGD([w], lr=0.1).step()
        phalanx.step(119)
        """
    _, messages = run(text, board=board)
    assert [m.get("step") for m in messages] == [None, 118]
    values = slot(board)
    assert (values["step"], values["optimizer_steps"]) == (119, 1)


@pytest.mark.parametrize("before, from_step", [("", 117), ("phalanx.step(117)", 117), ("phalanx.step(118)", 118)])
def test_where_a_life_began(run, board, before, from_step):
    """Behind which step, whether the script tells it before the optimizer's step or after; and when it came to the step
    that an earlier life had reached."""
    text = f"""
        import time, torch, phalanx
        {before}
        w = torch.zeros(1, requires_grad=True); w.grad = torch.ones(1)
        optimizer = torch.optim.SGD([w], lr=0.1)
        marks = []
        for step in range(118, 122):
            optimizer.step()
            marks.append(time.monotonic_ns())
            phalanx.step(step)
        print(*marks)
        """
    marks = [int(mark) for mark in run(text, board=board)[0].split()]
    values = slot(board)
    assert (values["from_step"], values["step"]) == (from_step, 121)
    assert marks[1] < values["caught_up_ns"] < marks[2]


SAVES = """
    import io, pickle, sys, threading, time
    import phalanx
    from phalanx._bootstrap import board
    inside = []  # moments at which a save was under way for sure
    def nap():
        inside.append(time.monotonic_ns())
        time.sleep(0.02)
        inside.append(time.monotonic_ns())
    class Slow(io.BytesIO):
        def write(self, data):
            nap()
            return super().write(data)
    def took(what):
        del inside[:]
        before = board.words[board.SAVING_NS]
        began = time.monotonic_ns()
        what()
        whole = time.monotonic_ns() - began
        counted = board.words[board.SAVING_NS] - before
        assert board.words[board.SAVING_SINCE_NS] == 0
        least = inside[-1] - inside[0]
        return "all" if least <= counted <= whole else "none" if counted == 0 else f"{counted} of {whole}"
"""


@pytest.mark.parametrize("kind", ["warm", "cold"])
def test_time_of_saves(agent, run, board, kind):
    """torch.save and phalanx.saving() are counted once, in the main thread alone, well or not; torch stays itself."""
    text = """
        import torch
        from torch.serialization import save
        assert torch.save is save is torch.serialization.save is pickle.loads(pickle.dumps(torch.save))
        assert torch.save.__name__ == "save" and torch.save.__module__ == "torch.serialization"
        tensors = [torch.ones(3)]
        print(took(lambda: torch.save(tensors, Slow())))
        def in_thread(what):
            thread = threading.Thread(target=what)
            thread.start()
            thread.join()
        print(took(lambda: in_thread(lambda: torch.save(tensors, Slow()))))
        def explicitly():
            with phalanx.saving(), phalanx.saving():
                torch.save(tensors, Slow())
                torch.save(tensors, Slow())
        print(took(explicitly))
        print(took(lambda: in_thread(explicitly)))
        def fail():
            try:
                with phalanx.saving():
                    nap()
                    raise KeyError("gone")
            except KeyError as error:
                assert error.args == ("gone",)
        print(took(fail))
        buffer = io.BytesIO()
        assert torch.save(tensors, buffer) is None
        assert torch.equal(torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)[0], tensors[0])
        """
    how = agent.fork if kind == "warm" else agent.cold
    out, _ = run(textwrap.dedent(SAVES) + textwrap.dedent(text), how=how, board=board)
    assert out.split() == ["all", "none", "all", "none", "all"]
    assert slot(board)["saving_ns"] > 100e6 and slot(board)["saving_since_ns"] == 0


def test_time_of_distributed_saves(run, tmp_path, board):
    """torch.distributed.checkpoint, hooked when the script imports it: save, and what async_save holds up."""
    text = """
        import logging
        logging.disable(logging.INFO)  # torch 2.2 tells of each save
        assert "torch.distributed.checkpoint.state_dict_saver" not in sys.modules
        import torch, torch.distributed as dist
        import torch.distributed.checkpoint as dcp
        import warnings
        warnings.simplefilter("ignore")  # torch 2.4 warns of its own storages
        from torch.distributed.checkpoint.state_dict_saver import save
        assert dcp.save is save is pickle.loads(pickle.dumps(dcp.save))
        watches = [f for f in sys.meta_path if "LoadWatch" in repr(f)]
        stay = ("deepspeed.runtime.config", "transformers.trainer_callback")
        assert [any(map(f.awaits, stay)) for f in watches] == [True, True], "the others have left"
        dist.init_process_group('gloo', init_method='file://' + sys.argv[1], rank=0, world_size=1)
        class State:
            def state_dict(self):
                nap()
                return {"w": torch.ones(4)}
            def load_state_dict(self, state):
                pass
        def place(name):
            return dcp.FileSystemWriter(sys.argv[2] + name)
        print(took(lambda: dcp.save({"state": State()}, storage_writer=place("a"))))
        if hasattr(dcp, "async_save"):  # since torch 2.3
            futures = []
            print(took(lambda: futures.append(dcp.async_save({"state": State()}, storage_writer=place("b")))))
            before = board.words[board.SAVING_NS]
            futures[0].result()
            assert board.words[board.SAVING_NS] == before
        dist.destroy_process_group()
        """
    out, _ = run(
        textwrap.dedent(SAVES) + textwrap.dedent(text), tmp_path / "group", tmp_path / "checkpoint", board=board
    )
    told = [line for line in out.splitlines() if not line.startswith("[Gloo]")]  # torch 2.9 tells of its connections
    assert set(told) == {"all"} and len(told) in (1, 2)


@pytest.mark.parametrize("kind", ["warm", "cold"])
def test_a_failed_save_looks_as_without_us(agent, tmp_path, kind):
    """The traceback of the script, and one that it prints itself, have lines of the script and of torch alone."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import sys, traceback, torch
        try:
            torch.save([1], "/nowhere/at/all")
        except RuntimeError as error:
            frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
            if sys.version_info >= (3, 11): assert frames[:2] == ["<module>", "save"], frames
            if sys.version_info >= (3, 11): assert "_bootstrap" not in traceback.format_exc()
        try:
            torch.save()
        except TypeError as error:
            if sys.version_info >= (3, 11): assert len(traceback.extract_tb(error.__traceback__)) == 1
        torch.save([1], "/nowhere/at/all")
        """)
    )
    plain = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path, env=BASE_ENV)
    worker = (agent.fork if kind == "warm" else agent.cold)().run(script, cwd=tmp_path)
    status, _, err = worker.result()
    assert (status, err) == (1, plain.stderr)
    assert "nowhere" in err
    worker.end()


def test_optimizers_that_come_and_go(run, board):
    """The first is counted; a second one beside it (a GAN's) is not; when the first is gone, the next is."""
    text = """
        import gc, torch
        def optimizer():
            w = torch.zeros(1, requires_grad=True); w.grad = torch.ones(1)
            return torch.optim.SGD([w], lr=0.1)
        first, second = optimizer(), optimizer()
        for _ in range(3): first.step(); second.step(); second.step()
        del first; gc.collect()
        second.step(); second.step()
        """
    run(text, board=board)
    assert slot(board)["optimizer_steps"] == 5


def test_hooks_of_others_are_left_alone(run):
    text = """
        import torch
        seen = []
        from torch.optim.optimizer import register_optimizer_step_post_hook as register
        register(lambda *a: seen.append('global'))
        w = torch.zeros(1, requires_grad=True); w.grad = torch.ones(1)
        o = torch.optim.SGD([w], lr=0.1)
        o.register_step_post_hook(lambda *a: seen.append('own'))
        o.step(); o.step()
        print(*sorted(seen))
        """
    assert run(text)[0] == "global global own own\n"


def test_compiler_does_not_meet_the_hook(agent, tmp_path, board):
    script = tmp_path / "script.py"
    text = """
        import os, torch
        torch._logging.set_logs(graph_breaks=True, recompiles=True)
        m = torch.nn.Linear(3, 3); o = torch.optim.SGD(m.parameters(), lr=0.1)
        @torch.compile(backend='eager')
        def train():
            m(torch.ones(1, 3)).sum().backward()
            o.step()
        for _ in range(5): train()
        os._exit(0)
        """
    script.write_text(textwrap.dedent(text))
    status, _, err = agent.fork().run(script, board=board).result()
    assert status == 0 and "Graph break" in err
    assert "hooks.py" not in err
    takes_hooks_away = torch.__version__.startswith("2.2.")  # whoever has set them; there only phalanx.step counts
    assert slot(board)["optimizer_steps"] == (0 if takes_hooks_away else 5)


def test_forked_children_are_not_the_rank(run, board):
    text = """
        import os, torch, phalanx
        w = torch.zeros(1, requires_grad=True); w.grad = torch.ones(1)
        o = torch.optim.SGD([w], lr=0.1)
        pid = os.fork()
        if pid == 0:
            o.step(); o.step(); phalanx.step(9)
            links = [os.readlink(f'/proc/self/fd/{f}') for f in os.listdir('/proc/self/fd')[:-1]]
            print([link for link in links if 'socket' in link])
            os._exit(0)
        os.waitpid(pid, 0)
        o.step()
        """
    out, messages = run(text, board=board)
    assert out == "[]\n"
    assert [m["type"] for m in messages] == ["started", "first_step"]
    values = slot(board)
    assert (values["optimizer_steps"], values["step"]) == (1, -1)


@pytest.mark.parametrize(
    ("setting", "are_learnt"),
    [("TOKENIZERS_PARALLELISM", True), ("CUDA_VISIBLE_DEVICES", True), ("PYTORCH_CUDA_ALLOC_CONF", False)],
)
def test_modules_imported_after_a_change_of_the_environment(agent, run, setting, are_learnt):
    """Where C++ may read the variable, the next life does not find them imported; others are compared there."""
    text = f"""
        import importlib, os, phalanx, mpmath
        os.environ[{setting!r}] = '1'
        importlib.import_module('networkx')
        phalanx.step(1)
        os.environ['OTHER'] = '2'
        assert type(os.environ).__setitem__.__module__ == 'os' and os.environ['OTHER'] == '2'
        """
    _, messages = run(text, how=agent.cold)
    learnt = messages[-1]["modules"]
    assert messages[-2] == {"type": "started"}
    assert "mpmath" in learnt and ("networkx" in learnt) == are_learnt


def test_changes_by_libraries_do_not_count(agent, run):
    text = f"""
        exec(compile("import os; os.environ['X'] = '1'", {SITE_PACKAGES + "/some/library.py"!r}, 'exec'))
        import mpmath, phalanx
        phalanx.step(1)
        """
    assert "mpmath" in run(text, how=agent.cold)[1][-1]["modules"]


def test_environment_given_after_torch_was_imported(run):
    text = """
        import os, torch
        print(torch.get_num_threads(), os.environ.get('OPENBLAS_NUM_THREADS'), torch.cuda._parse_visible_devices())
        a = torch.randn(400, 400); print(torch.allclose(a @ a, (a.double() @ a.double()).float(), atol=1e-2))
        """
    expected = f"{plain_threads(OMP_NUM_THREADS='3')} None [1, 3]\nTrue\n"
    assert run(text, env={"OMP_NUM_THREADS": "3", "CUDA_VISIBLE_DEVICES": "1,3"})[0] == expected
    assert run(text, env={"OMP_NUM_THREADS": "1,4", "CUDA_VISIBLE_DEVICES": ""})[0] == "1 None []\nTrue\n"


THREADS = "import torch; print(torch.get_num_threads())"


def plain_threads(**env):
    """How many threads torch uses in a plain process. MKL gives no more than there are cores, unless it is told to."""
    command = [sys.executable, "-c", THREADS]
    return int(subprocess.run(command, env={**BASE_ENV, **env}, capture_output=True, check=True).stdout)


@pytest.mark.parametrize("mkl", [{"MKL_DYNAMIC": "FALSE"}, {"MKL_NUM_THREADS": "1"}])
def test_threads_that_mkl_is_asked_for(tmp_path, mkl):
    (tmp_path / "train.py").write_text(THREADS)
    env = {"OMP_NUM_THREADS": "64", **mkl}
    with Agent(env=mkl) as agent:
        assert agent.start_zygote(tmp_path / "train.py")["type"] == "ready"
        worker = agent.fork().run(tmp_path / "train.py", env=env)
        assert worker.messages() == [{"type": "started"}], "from the spare"
        assert worker.result() == (0, f"{plain_threads(**env)}\n", "")


@pytest.mark.parametrize("env", [{}, {"OMP_NUM_THREADS": "1"}, {"OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "1"}])
def test_threads_of_numpy(run, env):
    """The zygote imports with one thread; the worker has as many as its environment says, or as there are cores."""
    text = "import os, numpy as n; n.ones((300, 300)) @ n.ones((300, 300)); print(len(os.listdir('/proc/self/task')))"
    plain = subprocess.run([sys.executable, "-c", text], env={**BASE_ENV, **env}, capture_output=True, text=True)
    assert run(text, env=env)[0] == plain.stdout


MULTIPLIES = "n.ones((300, 300)) @ n.ones((300, 300)); print(len(os.listdir('/proc/self/task')))"
BEFORE_NUMPY = {
    "a library sets it before": "import os, setter, numpy as n\n",
    "a library sets it behind": "import os, numpy as n, setter\n",
    "the script sets it before": "import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport numpy as n\n",
}


@pytest.mark.parametrize("before", BEFORE_NUMPY)
def test_threads_of_numpy_where_the_number_changes(tmp_path, before):
    """It counts where it stands when NumPy is imported."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "setter.py").write_text("import os\nos.environ['OMP_NUM_THREADS'] = '1'")
    (tmp_path / "train.py").write_text(BEFORE_NUMPY[before] + MULTIPLIES)
    env = {"PYTHONPATH": str(packages)}
    plain = subprocess.run(
        [sys.executable, tmp_path / "train.py"], env={**BASE_ENV, **env}, capture_output=True, text=True
    )
    with Agent(env=env) as agent:
        assert agent.start_zygote(tmp_path / "train.py", learnt=["numpy"])["type"] == "ready"
        worker = agent.fork().run(tmp_path / "train.py", env=env)
        assert worker.messages() == [{"type": "started"}]
        assert worker.result() == (0, plain.stdout, "")


def test_zygote_has_touched_no_device(agent, run):
    text = """
        import torch
        print(torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork())
        print(getattr(torch.cuda, '_cached_device_count', None))  # not in torch 2.2
        """
    assert run(text)[0] == "False False\nNone\n"
    zygote = agent.zygote_process.pid
    assert not [fd for fd in os.listdir(f"/proc/{zygote}/fd") if "nvidia" in os.readlink(f"/proc/{zygote}/fd/{fd}")]
    assert os.listdir(f"/proc/{zygote}/task") == [str(zygote)]


def test_folder_for_generated_code(run):
    """Older torches make one while they are imported: each life has its own, and takes along no other's."""
    text = """
        import os, sys
        import torch.distributed.nn.jit.instantiator as torchs
        folder = getattr(torchs, 'INSTANTIATED_TEMPLATE_DIR_PATH', None)
        print(folder, folder and (os.path.isdir(folder), sys.path.count(folder)))
        """
    first, second = (run(text, whole=True)[0].split(" ", 1) for _ in range(2))
    if first[0] == "None":
        pytest.skip("this torch makes none")
    assert first[0] != second[0] and not os.path.exists(first[0]) and not os.path.exists(second[0])
    assert first[1] == second[1] == "(True, 1)\n"


def test_random_numbers(run):
    text = """
        import json, random, torch, numpy
        print(json.dumps([torch.initial_seed(), torch.rand(1).item(), numpy.random.rand(), random.random()]))
        torch.manual_seed(0); numpy.random.seed(0); random.seed(0)
        print(json.dumps([torch.rand(2).tolist(), numpy.random.rand(), random.random(), torch.cuda.default_generators]))
        """
    first, second = (run(text)[0].splitlines() for _ in range(2))
    assert all(a != b for a, b in zip(json.loads(first[0]), json.loads(second[0])))
    plain = subprocess.run([sys.executable, "-c", textwrap.dedent(text)], env=BASE_ENV, capture_output=True, text=True)
    assert first[1] == second[1] == plain.stdout.splitlines()[1]


def test_data_loader_workers(run):
    """With classes of the script, which a spawned worker imports again, and seeds as under Python itself."""
    text = """
        import torch
        from torch.utils.data import DataLoader, Dataset, get_worker_info
        class Squares(Dataset):
            def __len__(self): return 4
            def __getitem__(self, i): return i * i, get_worker_info().id, torch.initial_seed() - get_worker_info().id
        if __name__ == '__main__':
            for method, workers in (('fork', 2), ('spawn', 1)):
                torch.manual_seed(0)
                base_seed = torch.empty((), dtype=torch.int64).random_().item()
                torch.manual_seed(0)
                loader = DataLoader(Squares(), batch_size=2, num_workers=workers, multiprocessing_context=method)
                for squares, ids, seeds in loader:
                    print(method, squares.tolist(), ids.tolist(), [s - base_seed for s in seeds.tolist()])
        """
    # To Python's own end: os._exit would leave semaphores that a loader has not collected yet.
    assert run(text, whole=True)[0].splitlines() == [
        "fork [0, 1] [0, 0] [0, 0]",
        "fork [4, 9] [1, 1] [0, 0]",
        "spawn [0, 1] [0, 0] [0, 0]",
        "spawn [4, 9] [0, 0] [0, 0]",
    ]


def test_data_loader_workers_of_a_script_that_filters_warnings(run):
    """Torch's worker seeds NumPy, a part of which nobody has imported: it comes as it would behind `import numpy`."""
    text = """
        import torch, warnings
        class Data(torch.utils.data.Dataset):
            def __len__(self): return 2
            def __getitem__(self, index): return index
        warnings.simplefilter('default')
        print([batch.item() for batch in torch.utils.data.DataLoader(Data(), num_workers=1)])
        """
    assert run(text)[0] == "[0, 1]\n"


def test_killed_data_loader_worker_is_an_error_of_the_rank(agent, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, torch\n"
        "from torch.utils.data import DataLoader\n"
        "class Dies(list):\n"
        "    def __getitem__(self, i): os.kill(os.getpid(), signal.SIGKILL)\n"
        "for _ in DataLoader(Dies([1, 2]), num_workers=1): pass\n"
    )
    status, _, err = agent.fork().run(script).result()
    assert status == 1 and "DataLoader worker" in err and "killed by signal: Killed" in err


def test_nothing_is_said_at_the_end(agent, run):
    """Finalisation destroys what it destroys in any process: libraries that look for leaks find none."""
    run("import torch, torch._dynamo\nclass C:\n    def __del__(self): pass\nc = C(); c.c = c\n", whole=True)


def test_spare_shares_its_memory(agent):
    spare = agent.fork()
    with open(f"/proc/{spare.pid}/smaps_rollup") as file:
        values = {line.split(":")[0]: int(line.split()[1]) for line in file if line.endswith("kB\n")}
    assert values["Private_Dirty"] + values["Private_Clean"] < 16 << 10  # 11 MB, once it has copied what it will write
    assert values["Rss"] > 100 << 10


@pytest.mark.parametrize("name", sorted(watch.INDIFFERENT))
def test_each_hidden_library_brings_all_that_it_imports(run, name):
    """One may have imported another that was there before, and hold but a plain value of it. Torch's family (functorch,
    torchgen) brings more: what torch came to them for."""
    text = f"""
        import sys
        try:
            import {name}
        except ModuleNotFoundError:
            pass
        tops = sorted({{module.partition(".")[0] for module in sys.modules}} & {set(watch.INDIFFERENT)})
        print(*tops)
        """
    plain = [sys.executable, "-c", textwrap.dedent(text)]
    expected = subprocess.run(plain, env=BASE_ENV, capture_output=True, text=True, check=True).stdout.split()
    found = run(text)[0].split()
    assert set(expected) <= set(found) if name in ("functorch", "torchgen") else expected == found
