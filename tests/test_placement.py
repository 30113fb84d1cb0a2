"""Where a worker runs: --numa-binding binds it to CPUs, --virtual-local-rank shows it one device.

Machines with more nodes than this one are trees like /sys, named by PHALANX_SYSFS_ROOT; devices are a torch of the
test's own, which only the Python that is asked for them imports. The CPUs are always real ones of this machine.
"""

import contextlib
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from harness import ROOT, Job, clean_environment

DUMP = Path(os.environ.get("PHALANX_BINDING_DUMP", ROOT / "build/release/src/agent/machine/binding_dump"))
MODES = ["node", "socket", "exclusive", "core-complex"]
CPUS = sorted(os.sched_getaffinity(0))
two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="one CPU cannot be divided")

TELL = """\
import json, os, sys
told = {"cpus": sorted(os.sched_getaffinity(0)), "args": sys.argv[1:], "env": dict(os.environ)}
name = os.environ["RANK"] + "." + os.environ["TORCHELASTIC_RESTART_COUNT"]
with open(os.path.join(os.environ["TELL_TO"], name), "w") as out:
    json.dump(told, out)
"""


# --- machines


def cpu_list(cpus):
    return ",".join(str(cpu) for cpu in sorted(cpus))


class Sysfs:
    """A tree like /sys."""

    def __init__(self, root):
        self.root = root

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def nodes(self, cpus_by_node):
        self.write("devices/system/node/online", cpu_list(cpus_by_node))
        self.write("devices/system/node/possible", cpu_list(cpus_by_node))
        for node, cpus in cpus_by_node.items():
            self.write(f"devices/system/node/node{node}/cpulist", cpu_list(cpus))

    def cpu(self, cpu, socket, siblings, sharers):
        folder = f"devices/system/cpu/cpu{cpu}"
        self.write(f"{folder}/topology/physical_package_id", socket)
        self.write(f"{folder}/topology/thread_siblings_list", cpu_list(siblings))
        caches = [
            (1, "Data", siblings),
            (1, "Instruction", siblings),
            (2, "Unified", siblings),
            (3, "Unified", sharers),
        ]
        for index, (level, kind, shared) in enumerate(caches):
            self.write(f"{folder}/cache/index{index}/level", level)
            self.write(f"{folder}/cache/index{index}/type", kind)
            self.write(f"{folder}/cache/index{index}/shared_cpu_list", cpu_list(shared))

    def device(self, address, node):
        self.write(f"bus/pci/devices/{address}/numa_node", node)


@pytest.fixture
def sysfs(tmp_path):
    """Two sockets of one node and one core each: the first CPU of this machine, and the last."""
    tree = Sysfs(tmp_path / "sys")
    tree.nodes({0: CPUS[:1], 1: CPUS[-1:]})
    tree.cpu(CPUS[0], 0, CPUS[:1], CPUS[:1])
    tree.cpu(CPUS[-1], 1, CPUS[-1:], CPUS[-1:])
    return tree


def torch_with_devices(folder, buses):
    """A torch that sees devices on these PCI buses, as CUDA_VISIBLE_DEVICES chooses and orders them."""
    folder.mkdir()
    (folder / "torch.py").write_text(
        f"""\
import os
buses = {buses!r}
visible = os.environ.get("CUDA_VISIBLE_DEVICES")
seen = buses if visible is None else [buses[int(number)] for number in visible.split(",") if number]
class Properties:
    pci_domain_id, pci_device_id = 0, 0
    def __init__(self, bus): self.pci_bus_id = bus
class cuda:
    is_available = lambda: bool(seen)
    device_count = lambda: len(seen)
    get_device_properties = lambda index: Properties(seen[index])
class xpu:
    is_available = lambda: False
"""
    )
    return folder


# --- jobs


class Teller:
    """A job whose workers tell how they find themselves."""

    def __init__(self, job, tmp_path):
        self.job = job
        self.folder = tmp_path / "told"
        self.folder.mkdir()
        self.script = tmp_path / "tell.py"
        self.script.write_text(TELL)

    def start(self, *flags, nproc=2, script=None, args=(), env=None):
        env = {"TELL_TO": self.folder, "CUDA_VISIBLE_DEVICES": "", **(env or {})}
        env = {name: value for name, value in env.items() if value is not None}
        return self.job.standalone(script or self.script, *args, nproc=nproc, flags=flags, env=env)

    def run(self, *flags, **settings):
        node = self.start(*flags, **settings)
        assert node.wait() == 0, self.job.story()
        return node

    def told(self, rank, life=0):
        return json.loads((self.folder / f"{rank}.{life}").read_text())

    def cpus(self, life=0):
        ranks = sorted(int(path.name.split(".")[0]) for path in self.folder.glob(f"*.{life}"))
        return [self.told(rank, life)["cpus"] for rank in ranks]


@pytest.fixture
def teller(job, tmp_path):
    return Teller(job, tmp_path)


@two_cpus
def test_exclusive_cores_of_this_machine(teller):
    """By the real /sys: nobody's CPUs are another's, all are used, and --explain says which."""
    node = teller.run("--numa-binding=exclusive", "--explain")
    first, second = (set(cpus) for cpus in teller.cpus())
    assert first and second and not first & second
    lines = re.findall(
        r"explain: local rank (\d) is bound to CPUs (\S+): NUMA node \d+, workers are spread", node.stderr
    )
    assert [rank for rank, _ in lines] == ["0", "1"]
    for (_, text), cpus in zip(lines, (first, second)):
        assert parse_cpu_list(text) == cpus


@pytest.mark.parametrize("mode", ["node", "socket", "core-complex"])
def test_shared_cpus_of_this_machine(teller, mode):
    """Where there is one node, one socket and one last cache, a worker may use all that the launcher may."""
    tops = {Path(f"/sys/devices/system/cpu/cpu{cpu}/cache/index3/shared_cpu_list") for cpu in CPUS}
    shared = {path.read_text().strip() if path.exists() else str(path) for path in tops}
    if len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) != 1 or len(shared) != 1:
        pytest.skip("this machine has more of them")
    teller.run(f"--numa-binding={mode}", nproc=1)
    assert teller.cpus() == [CPUS]


@two_cpus
@pytest.mark.parametrize("mode", ["node", "socket", "exclusive", "core-complex"])
def test_each_of_two_sockets_has_a_worker(teller, sysfs, mode):
    teller.run(f"--numa-binding={mode}", env={"PHALANX_SYSFS_ROOT": sysfs.root})
    assert teller.cpus() == [CPUS[:1], CPUS[-1:]]


STARTS = {
    "warm": [],
    "cold": ["--no-warm"],
    "module": ["-m"],
    "cold module": ["-m", "--no-warm"],
    "program": ["--no-python"],
}


@two_cpus
@pytest.mark.parametrize("start", STARTS)
def test_near_the_device(teller, sysfs, tmp_path, start):
    """Device 0 is near the last CPU, device 1 near the first; CUDA_VISIBLE_DEVICES leaves out another one."""
    for bus, node in ((0x10, 0), (0xA0, 0), (0xB0, 1)):
        sysfs.device(f"0000:{bus:02x}:00.0", node)
    env = {
        "PYTHONPATH": f"{torch_with_devices(tmp_path / 'fake', [0x10, 0xA0, 0xB0])}:{tmp_path}",
        "CUDA_VISIBLE_DEVICES": "2,1",
        "PHALANX_SYSFS_ROOT": sysfs.root,
    }
    script, args = teller.script, ()
    if "module" in start:
        script = "tell"
    elif start == "program":
        script, args = sys.executable, (teller.script,)
    node = teller.run("--numa-binding=node", "--explain", *STARTS[start], script=script, args=args, env=env)
    assert teller.cpus() == [CPUS[-1:], CPUS[:1]]
    for rank, cpu, bus in ((0, CPUS[-1], "b0"), (1, CPUS[0], "a0")):
        where = f"NUMA node {1 - rank}, near device {rank} (0000:{bus}:00.0)"
        assert f"explain: local rank {rank} is bound to CPUs {cpu}: {where}\n" in node.stderr


@two_cpus
def test_a_program_is_bound_from_its_first_instruction(teller, sysfs):
    """Nothing of ours runs in it: what the kernel says of it is what it was started with."""
    script = 'grep Cpus_allowed_list: /proc/self/status > "$TELL_TO/$RANK.txt"'
    env = {"PHALANX_SYSFS_ROOT": sysfs.root}
    teller.run("--numa-binding=node", "--no-python", script="sh", args=("-c", script), env=env)
    for rank, cpu in ((0, CPUS[0]), (1, CPUS[-1])):
        assert (teller.folder / f"{rank}.txt").read_text().split() == ["Cpus_allowed_list:", str(cpu)]


@two_cpus
@pytest.mark.parametrize("flags", [[], ["--no-warm"]], ids=["warm", "cold"])
def test_the_next_life_is_bound_as_well(teller, sysfs, flags):
    teller.script.write_text(TELL + "sys.exit(name == '1.0')\n")
    teller.run("--numa-affinity", "--max-restarts=1", *flags, env={"PHALANX_SYSFS_ROOT": sysfs.root})
    assert teller.cpus(life=1) == [CPUS[:1], CPUS[-1:]]


# --- threads


def torch_threads_when_bound(cpus):
    """What torch counts in a process that was never anything else."""
    done = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.get_num_threads())"],
        env=clean_environment(),
        preexec_fn=lambda: os.sched_setaffinity(0, cpus),
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


COUNT = TELL.replace("told = {", "import torch\ntold = {'threads': torch.get_num_threads(), ")


@two_cpus
@pytest.mark.slow
def test_torch_counts_the_threads_of_a_bound_worker(teller, sysfs):
    teller.script.write_text(COUNT)
    node = teller.run("--numa-binding=node", nproc=1, env={"PHALANX_SYSFS_ROOT": sysfs.root})
    assert "start afresh" not in node.stderr
    assert teller.told(0)["threads"] == torch_threads_when_bound(CPUS[:1]) != torch_threads_when_bound(CPUS)


@two_cpus
@pytest.mark.slow
def test_a_given_number_of_threads_stays(teller, sysfs):
    teller.script.write_text(COUNT)
    teller.run("--numa-binding=node", nproc=1, env={"PHALANX_SYSFS_ROOT": sysfs.root, "OMP_NUM_THREADS": "2"})
    assert (teller.told(0)["threads"], teller.cpus()) == (2, [CPUS[:1]])


@two_cpus
def test_places_of_openmp_need_a_fresh_process(teller, sysfs):
    teller.script.write_text(COUNT)
    env = {"PHALANX_SYSFS_ROOT": sysfs.root, "OMP_PLACES": "threads"}
    node = teller.run("--numa-binding=node", nproc=1, env=env)
    assert "a spare had to start afresh: OMP_PLACES is applied when a process starts" in node.stderr
    assert (teller.told(0)["threads"], teller.cpus()) == (1, [CPUS[:1]])


# --- refusals


def refusal(teller, *flags, **settings):
    """The sentence; nothing of the script may have run."""
    node = teller.start(*flags, **settings)
    assert node.wait() == 1, teller.job.story()
    assert not list(teller.folder.iterdir())
    return node.stderr


def test_a_machine_that_tells_nothing(teller, tmp_path):
    said = refusal(teller, "--numa-binding=socket", env={"PHALANX_SYSFS_ROOT": tmp_path / "nothing"})
    assert f"--numa-binding=socket: {tmp_path}/nothing/devices/system/node/online cannot be read\n" in said


def test_too_few_cores(teller, sysfs):
    env = {"PHALANX_SYSFS_ROOT": sysfs.root}
    said = refusal(teller, "--numa-binding=exclusive", nproc=5, env=env)
    assert "exclusive gives each worker cores of its own, and NUMA node 0 has 3 workers for 1 usable core" in said


def test_too_few_devices(teller, sysfs, tmp_path):
    sysfs.device("0000:10:00.0", 0)
    env = {
        "PHALANX_SYSFS_ROOT": sysfs.root,
        "PYTHONPATH": torch_with_devices(tmp_path / "fake", [0x10]),
        "CUDA_VISIBLE_DEVICES": None,
    }
    said = refusal(teller, "--numa-binding=node", env=env)
    assert "--numa-binding=node: each worker is bound near its own device, and 2 workers see 1\n" in said


def test_a_python_without_torch(teller, tmp_path):
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake" / "torch.py").write_text("raise ImportError('no torch here')\n")
    said = refusal(teller, "--numa-binding=node", env={"PYTHONPATH": tmp_path / "fake"})
    assert "--numa-binding=node: Python could not say where the devices lie:" in said
    assert "ImportError: no torch here" in said


# --- as torch binds


def parse_cpu_list(text):
    cpus = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus


def random_machine(rng, tree):
    """Writes one and returns {node: CPUs}."""
    sockets, nodes, caches, cores = (
        rng.choice([1, 2]),
        rng.choice([1, 1, 2, 4]),
        rng.choice([1, 2, 3]),
        rng.randint(1, 4),
    )
    in_all = sockets * nodes * caches * cores
    two_a_core = rng.random() < 0.5
    cpus_by_node = {}
    for core in range(in_all):
        node = core // (caches * cores)
        first = core // cores * cores
        sharers = [*range(first, first + cores)]
        siblings = [core, core + in_all] if two_a_core else [core]
        if two_a_core:
            sharers += [cpu + in_all for cpu in sharers]
        for cpu in siblings:
            tree.cpu(cpu, node // nodes, siblings, sharers)
            cpus_by_node.setdefault(node, []).append(cpu)
    tree.nodes(cpus_by_node)
    return cpus_by_node


def random_case(rng, folder):
    tree = Sysfs(folder)
    cpus_by_node = random_machine(rng, tree)
    cpus = [cpu for members in cpus_by_node.values() for cpu in members]
    allowed = cpus if rng.random() < 0.5 else rng.sample(cpus, rng.randint(1, len(cpus)))
    count = rng.randint(1, 8)
    devices = [f"0000:{bus:02x}:00.0" for bus in rng.sample(range(256), count)]
    for device in devices:
        tree.device(device, rng.choice(list(cpus_by_node) if len(cpus_by_node) > 1 else [0, -1]))
    return {
        "sysfs": str(folder),
        "mode": rng.randint(1, 4),
        "allowed": cpu_list(allowed),
        "devices": devices,
        "workers": rng.randint(1, count),
    }


@contextlib.contextmanager
def torch_on(case):
    """torch.numa.binding as it finds itself on that machine."""
    from torch.numa import binding

    root, devices = case["sysfs"], case["devices"]
    listdir = os.listdir

    def node_of(*, device_index):
        return max(int(Path(f"{root}/bus/pci/devices/{devices[device_index]}/numa_node").read_text()), 0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(binding, "open", lambda path: open(path.replace("/sys", root, 1)), raising=False)
        patch.setattr(os, "listdir", lambda path: listdir(path.replace("/sys", root, 1)))
        patch.setattr(binding, "_get_device_count", lambda: len(devices))
        patch.setattr(binding, "_get_numa_node_index_for_device_index", node_of)
        patch.setattr(binding, "_get_allowed_cpu_indices_for_current_thread", lambda: parse_cpu_list(case["allowed"]))
        yield binding


def torchs_answer(case):
    """The CPUs of each worker, or None where it finds none for one of them."""
    with torch_on(case) as binding:
        options = binding.NumaOptions(affinity_mode=binding.AffinityMode(MODES[case["mode"] - 1]))
        try:
            found = [
                binding._get_logical_cpus_to_bind_to(device_index=rank, numa_options=options)
                for rank in range(case["workers"])
            ]
        except (RuntimeError, ValueError, ZeroDivisionError):
            return None
    return found if all(found) else None


def test_binds_as_torch_does(tmp_path):
    """The same random machines, put before both."""
    pytest.importorskip("torch.numa.binding")
    assert DUMP.exists(), f"{DUMP} is missing: build it (./run build), or name it by PHALANX_BINDING_DUMP"
    rng = random.Random(2025)
    cases = [random_case(rng, tmp_path / f"sys{number}") for number in range(80)]
    lines = "".join(json.dumps(case) + "\n" for case in cases)
    done = subprocess.run([DUMP], input=lines, capture_output=True, text=True, check=True, timeout=60)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(cases)
    compared = dict.fromkeys(MODES, 0)
    refused = 0
    for case, ours in zip(cases, answers):
        theirs = torchs_answer(case)
        if theirs is None:
            # Torch's socket fails as soon as any node has no CPU to use; ours leaves such a node out.
            assert isinstance(ours, str) or MODES[case["mode"] - 1] == "socket", (case, ours)
            refused += 1
            continue
        assert not isinstance(ours, str), (case, ours)
        assert [parse_cpu_list(text) for text in ours] == theirs, case
        compared[MODES[case["mode"] - 1]] += 1
    assert min(compared.values()) >= 5 and refused >= 5, (compared, refused)


# --- --virtual-local-rank

DEVICE_VARIABLES = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "RANK", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
OUTER = {
    "none": {},
    "numbers and names": {"CUDA_VISIBLE_DEVICES": "2, 3,GPU-4f2a"},
    "hip": {"HIP_VISIBLE_DEVICES": "6,7", "CUDA_VISIBLE_DEVICES": "0,1"},
}


@pytest.mark.parametrize("outer", OUTER)
def test_a_virtual_local_rank_is_torchruns(tmp_path, outer):
    seen = {}
    for launcher in ("torchrun", "phalanx-run"):
        folder = tmp_path / launcher
        folder.mkdir()
        job = Job(folder, launcher)
        try:
            teller = Teller(job, folder)
            env = {"CUDA_VISIBLE_DEVICES": None, **OUTER[outer]}
            teller.run("--virtual-local-rank", args=("${local_rank}",), env=env)
            told = [teller.told(rank) for rank in range(2)]
        finally:
            job.close()
        seen[launcher] = [({name: one["env"].get(name) for name in DEVICE_VARIABLES}, one["args"]) for one in told]
    assert seen["phalanx-run"] == seen["torchrun"]
    assert [one[0]["LOCAL_RANK"] for one in seen["phalanx-run"]] == ["0", "0"]


def test_everything_else_goes_by_the_real_local_rank(teller, tmp_path):
    """Board, files and console of twelve workers."""
    flags = ["--virtual-local-rank", "--tee=3", "--local-ranks-filter=10", f"--log-dir={tmp_path / 'logs'}"]
    teller.script.write_text(TELL + "print('here is', os.environ['RANK'])\n")
    devices = ",".join(str(number) for number in range(20, 32))
    node = teller.run(*flags, nproc=12, args=("${local_rank}",), env={"CUDA_VISIBLE_DEVICES": devices})
    for rank in range(12):
        told = teller.told(rank)
        env = told["env"]
        assert (env["LOCAL_RANK"], env["RANK"], env["CUDA_VISIBLE_DEVICES"]) == ("0", str(rank), str(20 + rank))
        assert (told["args"], env["LOCAL_WORLD_SIZE"]) == ([str(rank)], "12")
        assert env["PHALANX_BOARD"].endswith(f":{rank}")
        (log,) = (tmp_path / "logs").glob(f"*/attempt_0/{rank}/stdout.log")
        assert log.read_text() == f"here is {rank}\n"
        assert Path(env["TORCHELASTIC_ERROR_FILE"]).parent == log.parent
    assert node.stdout == "[default10]:here is 10\n"


def test_each_virtual_local_rank_needs_a_device(teller):
    node = teller.start("--virtual-local-rank", nproc=2, env={"CUDA_VISIBLE_DEVICES": "5"})
    assert node.wait() == 2
    assert "CUDA_VISIBLE_DEVICES=5 has no device for local rank 1: expected one for each of 2 workers" in node.stderr
