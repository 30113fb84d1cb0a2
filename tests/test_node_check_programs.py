"""The helper of the node check, as an agent has it: orders on its stdin, lines on its stdout, and no process left."""

import contextlib
import datetime
import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap

import pytest
from node_check_agent import PYTHON, Helper, Told, end, has_ended, value_of

torch = pytest.importorskip("torch")

from phalanx.node_check import compute, interfaces, sockets, tcp  # noqa: E402
from phalanx.node_check.results import Failed  # noqa: E402

on_device = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
NODES = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
# Without torch nothing is checked but what programs say, and so at once.
QUICK = {"kind": "all", "store": ["127.0.0.1", 1]}
GOOD = '{"passed":true,"sentence":"all is well","values":[{"name":"x","unit":"us","value":3,"better":"less"}]}'
PARTNER = """
import json, os, signal, sys, time
from phalanx.node_check import checks, collective, loading, orders

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def lie(order, torch, group, count, device):
    group.allreduce([torch.zeros(count // 4)]).wait()
    return 1.0

def late(*sum_of):
    time.sleep(1)
    return whole(*sum_of)

whole = collective._round
collective._round = {"die": die, "lie": lie, "late": late}[sys.argv[2]]
for name, run in checks.of(orders.read_order(json.loads(sys.argv[1])), loading.load()):
    run()
"""


@pytest.fixture(scope="module")
def no_torch(tmp_path_factory):
    """The environment of a Python without torch, which starts at once."""
    folder = tmp_path_factory.mktemp("no_torch")
    (folder / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    return {"PYTHONPATH": f"{folder}:{PYTHON}"}


@pytest.fixture
def light(no_torch):
    with Helper(**no_torch) as helper:
        yield helper


@pytest.fixture(scope="module")
def pair():
    """Two helpers with torch, for all tests of this file. A helper outlives what an order does."""
    with Helper() as first, Helper() as second:
        yield first, second


@pytest.fixture
def store():
    """An agent's c10d store."""
    return torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def told(tmp_path):
    told = Told(tmp_path / "told")
    yield told
    told.close()


@pytest.fixture
def program(tmp_path):
    """Writes a check program and returns its path."""

    def make(text, name="check_it", interpreter="/bin/sh"):
        path = tmp_path / name
        path.write_text(f"#!{interpreter}\n{textwrap.dedent(text)}\n")
        path.chmod(0o755)
        return str(path)

    return make


def fields_of_pair(store, rank, **fields):
    fields = {"limit_ms": 30000, **fields}
    return {
        "kind": "pair",
        "group_rank": rank,
        "group_size": 2,
        "store": ["127.0.0.1", store.port],
        "address": NODES[rank],
        "peers": ["node-a", "node-b"],
        **fields,
    }


def meet(store, rank):
    """A partner's part of a meeting, by hand. The store as the nodes see it."""
    client = torch.distributed.TCPStore("127.0.0.1", store.port, is_master=False, wait_for_workers=False)
    below = torch.distributed.PrefixStore("node_check/", client)
    below.set_timeout(datetime.timedelta(seconds=30))
    below.add(f"node/{rank}", 1)
    below.add("cuda", 0)
    below.set(f"nics/{rank}", "{}")
    if below.add("came", 1) == 2:
        below.set("all", "0")
    return below


# What a node is asked alone.


def test_alone_with_torch(pair, tmp_path):
    found, ended = pair[0].carry_out(directory=str(tmp_path), address=NODES[0])
    assert pair[0].ready == {"type": "ready", "torch": torch.__version__.partition("+")[0]} and ended == ""
    wanted = ["matmul", "memory_bandwidth", "host_to_device", "device_memory", "disk_write", "loopback"]
    assert list(found) == wanted
    for name, value in [
        ("matmul", "matmul_time"),
        ("memory_bandwidth", "memory_bandwidth"),
        ("disk_write", "disk_write"),
        ("loopback", "loopback_latency"),
    ]:
        assert found[name]["outcome"] == "passed" and value_of(found[name], value) > 0, found[name]
        assert found[name]["took_us"] > 0
    if not torch.cuda.is_available():
        for name in ("host_to_device", "device_memory"):
            assert (found[name]["outcome"], found[name]["sentence"]) == ("skipped", "there is no CUDA device")
    assert not os.listdir(tmp_path), "the file is left"


def test_without_torch_what_needs_it_is_skipped_and_the_rest_runs(light):
    assert light.ready == {"type": "ready", "torch": None}
    found, ended = light.carry_out()
    assert ended == "" and found["matmul"]["sentence"] == "torch is not installed"
    outcomes = {name: result["outcome"] for name, result in found.items()}
    assert [outcomes[name] for name in ("matmul", "host_to_device", "device_memory")] == ["skipped"] * 3
    assert outcomes["memory_bandwidth"] == outcomes["loopback"] == "passed"
    assert found["disk_write"]["sentence"] == "no directory is given to write to"
    together = {"group_size": 2, "store": ["127.0.0.1", 1]}
    for kind in ("pair", "all"):
        found, ended = light.carry_out(kind=kind, **together)
        assert ended == "" and {result["sentence"] for result in found.values()} == {"torch is not installed"}
        assert list(found) == (["tcp", "matmul", "all_reduce"] if kind == "pair" else ["all_reduce"])


def test_a_torch_that_is_broken_is_a_fault(tmp_path):
    (tmp_path / "torch.py").write_text("raise OSError('libc10.so: cannot open shared object file')\n")
    with Helper(PYTHONPATH=f"{tmp_path}:{PYTHON}") as helper:
        found, _ = helper.carry_out()
    assert helper.ready["torch"] is None and found["matmul"]["outcome"] == "failed"
    assert "torch cannot be imported: OSError: libc10.so" in found["matmul"]["sentence"]


def test_a_wrong_product_is_found(monkeypatch):
    right = torch.Tensor.__matmul__

    def wrong(left, other):
        product = right(left, other)
        if product.dtype == torch.float32:
            product[3, 4] += 1
        return product

    monkeypatch.setattr(torch.Tensor, "__matmul__", wrong)
    with pytest.raises(Failed, match="a wrong result on cpu"):
        compute._product_us(torch, "cpu", 64)


def test_devices_whose_memory_is_in_use_are_named():
    class Devices:
        cuda = None

        def needed(self):
            return self

        def devices(self):
            return 3

        def mem_get_info(self, index):
            return ((80 << 30, 50 << 30, 56 << 30)[index], 80 << 30)

    devices = Devices()
    devices.cuda = devices
    with pytest.raises(Failed) as failed:
        compute.device_memory(devices)
    assert str(failed.value) == "CUDA device 1 has 30720 of 81920 MiB in use; at most 30 % may be"
    assert [each["value"] for each in failed.value.values] == [81920, 51200, 57344]


@pytest.mark.parametrize(
    ("fault", "says"),
    [("write:40:ENOSPC", "No space left on device"), ("fsync:1:EIO", "Input/output error")],
)
def test_a_disk_that_fails(no_torch, faulty_disk, tmp_path, fault, says):
    disk = tmp_path / "disk"
    disk.mkdir()
    faulty = {"LD_PRELOAD": str(faulty_disk), "FAULTY_DISK": fault, "FAULTY_DISK_DIR": str(disk)}
    with Helper(stderr=subprocess.DEVNULL, **no_torch, **faulty) as helper:
        found, ended = helper.carry_out(directory=str(disk))
    assert (found["disk_write"]["outcome"], ended) == ("failed", "")
    assert found["disk_write"]["sentence"] == f"disk_write: {says} ({disk})"
    assert not os.listdir(disk) and found["loopback"]["outcome"] == "passed"


def test_a_full_disk_of_its_own(small_disk, light):
    found, _ = light.carry_out(directory=str(small_disk.path))
    assert found["disk_write"]["sentence"] == f"disk_write: No space left on device ({small_disk.path})"
    assert os.statvfs(small_disk.path).f_bavail > 0, "what was written stays"


def test_a_disk_that_hangs_holds_up_the_agent_for_seconds_and_names_the_process(hanging_disk, light):
    with hanging_disk.hanging():
        light.order(directory=str(hanging_disk.path), limit_ms=6000)
        found, ended = light.results()
        assert list(found) == ["matmul", "memory_bandwidth", "host_to_device", "device_memory"]
        left = r"could not be ended within 5 s: \d+ \(python\S*\)"
        assert re.fullmatch(rf"ended after 6 s \(--check-timeout\) in disk_write; {left}", ended)
    found, ended = light.carry_out(8)
    assert (found["loopback"]["outcome"], ended) == ("passed", ""), "it goes on with the disk"


def test_a_folder_and_an_address_that_are_not_there(light):
    found, _ = light.carry_out(directory="/nowhere/at/all", address="203.0.113.7")
    assert found["disk_write"]["sentence"] == "disk_write: No such file or directory (/nowhere/at/all)"
    assert found["loopback"]["sentence"] == "loopback: Cannot assign requested address (203.0.113.7)"


@on_device
def test_on_cuda_devices(pair, store):
    found, ended = pair[0].carry_out()
    assert ended == "" and value_of(found["matmul"], "matmul_time") > 0 and "CUDA" in found["matmul"]["sentence"]
    assert found["host_to_device"]["outcome"] == "passed"
    for index in range(torch.cuda.device_count()):
        assert value_of(found["host_to_device"], f"host_to_device_{index}") > 0
        assert value_of(found["device_memory"], f"device_memory_free_{index}") > 0
    found, ended = pair[0].carry_out(kind="all", store=["127.0.0.1", store.port])
    assert ended == "" and list(found) == ["all_reduce", "all_reduce_nccl"]
    assert value_of(found["all_reduce_nccl"], "all_reduce_nccl_bandwidth") > 0, found


def test_the_interface_of_an_address():
    assert interfaces.of_address("127.0.0.1") == interfaces.of_address("127.0.0.2") == "lo"
    with pytest.raises(Failed, match="no network interface has the address"):
        interfaces.of_address("203.0.113.7")


def test_network_interfaces_that_are_to_be_checked(light):
    found, ended = light.carry_out(nics=["lo"])
    assert (found["nics"]["outcome"], found["nics"]["sentence"], ended) == ("passed", "lo has 127.0.0.1", "")
    found, _ = light.carry_out(nics=["lo", "eth77"])
    there = ", ".join(name for _, name in socket.if_nameindex())
    assert found["nics"]["sentence"] == f"nics: there is no network interface eth77, but {there}"
    for names in (["lo", "lo"], ["eth 0"], ["a-name-of-sixteen"], [f"eth{i}" for i in range(17)]):
        found, ended = light.carry_out(nics=names)
        assert not found and ended.startswith("refused: nics is ["), ended


# Nodes with each other.


def test_a_pair_by_the_interfaces_that_both_check(pair, store):
    for rank, nics in ((0, ["lo", "eth77"]), (1, ["lo", "eth78"])):
        pair[rank].order(**fields_of_pair(store, rank, nics=nics))
    first, second = (pair[rank].results()[0] for rank in (0, 1))
    assert list(first)[:4] == ["tcp", "tcp:eth77", "tcp:lo", "matmul"]
    assert list(second)[:4] == ["tcp", "tcp:eth78", "tcp:lo", "matmul"]
    assert first["tcp:eth77"]["sentence"].startswith("tcp:eth77 with node-b: there is no network interface eth77, but ")
    for found in (first, second):
        assert found["tcp:lo"]["outcome"] == "passed", found
        slower = min(value_of(found["tcp:lo"], f"tcp_bandwidth_{way}:lo") for way in ("to", "from"))
        assert value_of(found["tcp:lo"], "tcp_time:lo") == (4 << 20) // max(1, slower)
        assert value_of(found["tcp:lo"], "tcp_latency:lo") > 0


@pytest.mark.parametrize(
    ("told", "outcome", "sentence"),
    [
        ("{}", "skipped", "node-a checks no network interface lo"),
        (
            '{"lo": ["", "the network interface lo is down"]}',
            "failed",
            "tcp:lo with node-a: there: the network .* down",
        ),
        ('{"lo": ["fd00::1", ""]}', "failed", ".*: 127.0.0.1 here and fd00::1 there are .* versions of IP"),
        ('{"lo": 7}', "failed", "tcp:lo with node-a: there: it says nothing of its address"),
        ("[]", "failed", "tcp:lo with node-a: the store has no addresses of network interfaces under nics/0"),
    ],
)
def test_an_interface_that_a_partner_cannot_use_is_not_waited_for(pair, store, told, outcome, sentence):
    below = meet(store, 0)
    below.set("nics/0", told)
    with socket.create_server((NODES[0], 0)) as server:
        below.set("tcp", json.dumps([NODES[0], server.getsockname()[1], "00" * 32]))
        pair[1].order(**fields_of_pair(store, 1, nics=["lo"], limit_ms=20_000))
        server.accept()[0].close()
        result = pair[1].until("result", "tcp:lo")
    assert result["outcome"] == outcome and re.fullmatch(sentence, result["sentence"]), result
    assert result["took_us"] < 1_000_000
    pair[1].results()


def test_a_pair(pair, store):
    widest = {"tcp_bandwidth_to": 0, "tcp_bandwidth_from": 0}
    for prefix in ("", "again"):  # one store, two groups
        for rank in (0, 1):
            pair[rank].order(**fields_of_pair(store, rank, prefix=prefix))
        for rank in (0, 1):
            found, ended = pair[rank].results()
            outcomes = {name: result["outcome"] for name, result in found.items()}
            assert ended == "" and not {"failed"} & set(outcomes.values()), found
            assert list(found)[:3] == ["tcp", "matmul", "all_reduce"]
            assert 0 < value_of(found["tcp"], "tcp_latency") < 1_000_000
            for way in widest:
                widest[way] = max(widest[way], value_of(found["tcp"], way))
            assert abs(value_of(found["tcp"], "clock_offset")) < 1_000_000
            assert found["tcp"]["sentence"].endswith(f"from node-{'ba'[rank]}")
            assert value_of(found["all_reduce"], "all_reduce_time") > 0
    assert min(widest.values()) > 1, widest


def test_all_nodes(pair, store):
    with Helper() as third:
        for rank, helper in enumerate([*pair, third]):
            place = {"group_rank": rank, "group_size": 3, "address": NODES[rank]}
            helper.order(kind="all", store=["127.0.0.1", store.port], **place)
        for helper in (*pair, third):
            found, ended = helper.results()
            assert ended == "" and found["all_reduce"]["outcome"] == "passed", found
            assert value_of(found["all_reduce"], "all_reduce_bandwidth") > 0
            assert "of 3 nodes" in found["all_reduce"]["sentence"]


def test_of_many_that_never_come_some_are_named(pair, store):
    order = {"kind": "all", "group_rank": 1, "group_size": 12, "store": ["127.0.0.1", store.port], "limit_ms": 6000}
    meet(store, 3)
    pair[0].order(**order, named=False)
    found, ended = pair[0].results()
    sentence = found["all_reduce"]["sentence"]
    names = ", ".join(f"group rank {rank}" for rank in (0, 2, 4, 5, 6, 7, 8, 9))
    assert sentence.startswith(f"all_reduce of 12 nodes: {names} and 2 more did not come to the store at ")
    assert ended == ""


@pytest.mark.parametrize("size", [2, 3])
def test_partners_that_never_come_are_named(pair, store, size):
    fields = fields_of_pair(store, 0, limit_ms=8000)
    if size == 3:
        fields.update(kind="all", group_size=3, peers=["node-a", "node-b", "node-c"])
    found, ended = pair[0].carry_out(**fields)
    names, whom = ("node-b", "with node-b") if size == 2 else ("node-b and node-c", "of 3 nodes")
    why = f"{names} did not come to the store at 127.0.0.1:{store.port} within 5."
    assert ended == ""  # it knew before its limit
    assert found["all_reduce"]["outcome"] == "failed"
    assert found["all_reduce"]["sentence"].startswith(f"all_reduce {whom}: {why}")
    if size == 2:
        assert found["tcp"]["sentence"].startswith(f"tcp with node-b: {why}")
        assert found["matmul"]["outcome"] == "passed" and found["all_reduce"]["took_us"] < 500_000


def test_a_store_that_is_not_there(pair):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        port = taken.getsockname()[1]
        fields = {"kind": "all", "group_size": 2, "store": ["127.0.0.1", port], "limit_ms": 4000}
        found, ended = pair[0].carry_out(**fields)
    why = f"the store at 127.0.0.1:{port} cannot be reached: Connection refused"
    assert (found["all_reduce"]["sentence"], ended) == (f"all_reduce of 2 nodes: {why}", "")


def test_a_partner_that_goes_in_the_middle_of_tcp(pair, store):
    pair[0].order(**fields_of_pair(store, 0))
    address, port, token = tcp._invitation(meet(store, 1).get("tcp"))
    with sockets.dial(address, port, NODES[1], 10) as link:
        link.sendall(token + b"p")
        assert sockets.receive(link, 1) == b"p"
    sentence = pair[0].until("result", "tcp")["sentence"]
    assert sentence == f"tcp with node-b: Connection reset by peer ({address}:{port})"
    assert pair[0].until("result", "matmul")["outcome"] == "passed"
    pair[0].write({"type": "cancel", "id": 7})
    assert pair[0].until("done")["ended"].startswith("cancelled ")


def test_a_partner_that_says_nothing_is_not_waited_for_to_the_limit(pair, store):
    pair[0].order(**fields_of_pair(store, 0, limit_ms=8000))
    meet(store, 1)
    found, ended = pair[0].results()
    assert ended == "" and found["matmul"]["outcome"] == "passed"
    assert found["tcp"]["sentence"].startswith("tcp with node-b: no answer within 3.")
    assert found["tcp"]["sentence"].partition(" (")[2].startswith(f"{NODES[0]}:")
    assert found["all_reduce"]["sentence"].startswith("all_reduce with node-b: no answer within ")


def test_a_stranger_without_the_token_is_not_let_in(pair, store):
    pair[0].order(**fields_of_pair(store, 0))
    address, port, token = tcp._invitation(meet(store, 1).get("tcp"))
    with sockets.dial(address, port, NODES[2], 10) as stranger, pytest.raises(ConnectionResetError):
        stranger.sendall(bytes(len(token)))
        sockets.receive(stranger, 1)
    with sockets.dial(address, port, NODES[1], 10) as link:
        link.sendall(token)
        led = tcp._lead(link)
        tcp._follow(link)
    result = pair[0].until("result", "tcp")
    assert result["outcome"] == "passed" and value_of(result, "tcp_bandwidth_from") == led[2]
    pair[0].write({"type": "cancel", "id": 7})
    pair[0].until("done")


def test_strangers_that_say_nothing_hold_up_no_partner(pair, store):
    """More of them than there are seconds to wait, one with the first bytes of something."""
    pair[0].order(**fields_of_pair(store, 0))
    address, port, token = tcp._invitation(meet(store, 1).get("tcp"))
    with contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(sockets.dial(address, port, NODES[2], 10)) for _ in range(2 * tcp.ANSWER_S)]
        strangers[0].sendall(bytes(len(token) - 1))
        with sockets.dial(address, port, NODES[1], 10) as link:
            link.sendall(token)
            tcp._lead(link)
            tcp._follow(link)
        assert pair[0].until("result", "tcp")["outcome"] == "passed"
    pair[0].write({"type": "cancel", "id": 7})
    pair[0].until("done")


def test_a_partner_that_listens_no_more(pair, store):
    below = meet(store, 0)
    with socket.socket() as taken:
        taken.bind((NODES[0], 0))  # and does not listen
        port = taken.getsockname()[1]
        below.set("tcp", json.dumps([NODES[0], port, "00" * 32]))
        pair[1].order(**fields_of_pair(store, 1))
        found = pair[1].until("result", "tcp")
    assert found["sentence"] == f"tcp with node-a: Connection refused ({NODES[0]}:{port})"
    pair[1].write({"type": "cancel", "id": 7})
    pair[1].until("done")


def with_partner(helper, store, how):
    """What rank 0 finds beside a partner that does so in its sums."""
    order = {"type": "order", "id": 1, "directory": "", "programs": [], **fields_of_pair(store, 1, limit_ms=120_000)}
    partner = subprocess.Popen(
        [sys.executable, "-c", PARTNER, json.dumps(order), how],
        env={**os.environ, "PYTHONPATH": PYTHON},
        stderr=subprocess.DEVNULL,
    )
    found, ended = helper.carry_out(**fields_of_pair(store, 0, limit_ms=120_000))
    partner.kill()
    partner.wait()
    return found, ended


def test_a_node_is_not_slow_because_its_partner_comes_late(pair, store):
    """To every sum by a second, as a program on a machine that does much else."""
    found, ended = with_partner(pair[0], store, "late")
    assert found["all_reduce"]["outcome"] == "passed" and ended == "", found
    assert value_of(found["all_reduce"], "all_reduce_time") < 900_000, found


@pytest.mark.parametrize(("how", "says"), [("die", " by peer"), ("lie", "numbers of the sum are wrong")])
def test_a_partner_that_fails_in_the_middle_of_all_reduce(pair, store, how, says):
    found, ended = with_partner(pair[0], store, how)
    assert found["tcp"]["outcome"] == "passed" and ended == "", found["tcp"]
    assert found["all_reduce"]["outcome"] == "failed" and says in found["all_reduce"]["sentence"].lower(), found
    assert found["all_reduce"]["sentence"].startswith("all_reduce with node-b: ")


# Check programs.


def test_a_program_reads_its_order_and_its_values_come_through(light, program):
    path = program(
        f"""
        read -r order
        case "$order" in *'"id":7,'*) ;; *) exit 9 ;; esac
        case "$PHALANX_CHECK_KIND-$PHALANX_CHECK_GROUP_RANK-$PHALANX_CHECK_GROUP_SIZE" in all-0-1) ;; *) exit 8 ;; esac
        [ $# = 0 ] || exit 7
        echo noise
        echo noise >&2
        echo '{GOOD}'
        """
    )
    found, ended = light.carry_out(**QUICK, programs=[path])
    result = found["check_it"]
    assert (result["outcome"], result["sentence"], ended) == ("passed", "all is well", "")
    assert result["values"] == [{"name": "x", "unit": "us", "value": 3, "better": "less"}]


SAYS = [
    ("true", "wrote nothing; right is one JSON object"),
    ("echo oops >&2", "wrote nothing; right is one JSON object such as"),
    ("echo all is well", "its last line is no JSON: all is well; right is one JSON object"),
    ("echo '[1]'", "its last line is no JSON object: [1]"),
    ("echo '{}'; echo done", "its last line is no JSON: done"),
    ("""echo '{"passed":1,"sentence":""}'""", "passed is neither true nor false"),
    ("""echo '{"passed":true}'""", "sentence is no string"),
    ("""echo '{"passed":true,"sentence":"","values":{}}'""", "values is no array of at most 256 objects"),
    (
        """echo '{"passed":true,"sentence":"","values":[{"name":"x","unit":"us","value":1.5}]}'""",
        "a value's value is no integer of 64 bits: ",
    ),
    (
        """echo '{"passed":true,"sentence":"","values":[{"name":"x","unit":"us","value":9223372036854775808}]}'""",
        "a value's value is no integer of 64 bits: ",
    ),
    (
        """echo '{"passed":true,"sentence":"","values":[{"name":"","unit":"us","value":1}]}'""",
        "a value has no name of 1 to 64 letters",
    ),
    (
        """echo '{"passed":true,"sentence":"","values":[{"name":"x","unit":"u s","value":1}]}'""",
        "a value has no unit of at most 16 letters",
    ),
    (
        """echo '{"passed":true,"sentence":"","values":[{"name":"x","unit":"","value":1,"better":"big"}]}'""",
        "a value's better is none of less, more and nothing",
    ),
    ("""echo '{"passed":true,"sentence":"","values":[NaN]}'""", "its last line is no JSON"),
    ("""head -c 60000 /dev/zero | tr '\\0' '['""", "its last line is no JSON"),
    ("printf '\\377\\376'", "its last line is no JSON: \\xff\\xfe"),
    ("""echo '{"passed":false,"sentence":"too hot"}'""", "too hot"),
    ("""echo '{"passed":false,"sentence":""}'""", "did not pass, and does not say why"),
    (f"echo '{GOOD}'; echo no fan >&2; exit 3", "exited with status 3, where 0 is right, also of a check that has"),
    (f"echo '{GOOD}'; kill -SEGV $$", "died by SIGSEGV"),
    (
        f"head -c 70000 /dev/zero | tr '\\0' ' '; echo; echo '{GOOD}'",
        "wrote more than 64 KiB; right is one JSON object",
    ),
    ("exec cat /dev/zero", "wrote more than 64 KiB; right is one JSON object"),
]


def test_what_is_no_answer_has_failed_and_says_why(light, program):
    paths = [program(text, f"check_{index}") for index, (text, _) in enumerate(SAYS)]
    found, ended = light.carry_out(**QUICK, programs=paths)
    assert ended == ""
    for index, (text, says) in enumerate(SAYS):
        result = found[f"check_{index}"]
        assert result["outcome"] == "failed" and result["sentence"].startswith(f"check_{index}: {says}"), (text, result)
    assert found["check_18"]["sentence"].endswith("; its last words: no fan")


def test_a_program_that_cannot_be_executed(light, program, tmp_path):
    (tmp_path / "plain").write_text(GOOD)
    paths = [str(tmp_path / "absent"), str(tmp_path / "plain"), program("", "odd", interpreter="/no/such/shell")]
    found, _ = light.carry_out(**QUICK, programs=paths)
    assert [found[name]["sentence"] for name in ("absent", "plain", "odd")] == [
        f"absent: cannot be executed: No such file or directory ({paths[0]})",
        f"plain: cannot be executed: Permission denied ({paths[1]})",
        f"odd: cannot be executed: No such file or directory ({paths[2]})",
    ]


def hanging(told):
    """A program that hangs, and has a grandchild in a session of its own whose parent is gone."""
    return f"""
        (setsid sh -c 'echo $$ > {told.path}; exec sleep 1000' &)
        echo $$ > {told.path}
        echo I wait for the door >&2
        exec sleep 1000
        """


def test_a_program_that_hangs_is_ended_with_all_that_it_has_started(light, program, told):
    light.order(**QUICK, programs=[program(hanging(told), "hang.sh")], limit_ms=6000)
    handles = [told.pidfd(), told.pidfd()]
    found, ended = light.results()
    words = "its last words: I wait for the door"
    assert ended == f"ended after 6 s (--check-timeout) in hang.sh; {words}" and "hang.sh" not in found
    assert [has_ended(handle) for handle in handles] == [True, True]
    assert light.carry_out(8)[1] == ""


def test_what_a_program_leaves_behind_ends_with_it(light, program, told):
    path = program(f"setsid sh -c 'echo $$ > {told.path}; exec sleep 1000' &\necho '{GOOD}'\nread x < {told.path}.go")
    os.mkfifo(f"{told.path}.go")
    light.order(**QUICK, programs=[path, program("exec sleep 1000", "next")])
    handle = told.pidfd()  # it holds the program's stdout, too
    with open(f"{told.path}.go", "w") as go:
        go.write("\n")
    assert light.until("result", "check_it")["outcome"] == "passed"
    assert has_ended(handle), "it is there while the next one runs"
    light.write({"type": "cancel", "id": 7})
    light.until("done")


def test_a_flood_of_complaints_holds_up_nobody(light, program):
    fine = program(f"head -c 3000000 /dev/zero >&2; echo '{GOOD}'", "fine")
    endless = program("exec cat /dev/zero >&2", "endless")
    found, ended = light.carry_out(**QUICK, programs=[fine, endless], limit_ms=6000)
    assert (found["fine"]["outcome"], ended) == ("passed", "ended after 6 s (--check-timeout) in endless")


def test_an_order_that_says_too_much_is_ended(light, program):
    value = {"name": "n" * 64, "unit": "MB/s", "value": -(1 << 63), "better": "more"}
    answer = json.dumps({"passed": True, "sentence": "\U0001f525" * 1100, "values": [value] * 256})
    paths = [program(f"cat << 'X'\n{answer}\nX", f"check_{index}") for index in range(12)]
    found, ended = light.carry_out(**QUICK, programs=paths)
    assert ended.startswith(("ended behind check_", "ended in check_"))
    assert ended.endswith(": it wrote more than 256 KiB") and 4 < sum(name.startswith("check_") for name in found) < 8
    assert all(len(result["sentence"]) <= 1000 for result in found.values())


def test_a_check_that_dies_by_a_signal(light, program):
    """As a driver's library may let it."""
    path = program("echo the driver fell over > /proc/$PPID/fd/2\nkill -SEGV $PPID\nexec sleep 1000", "driver")
    _, ended = light.carry_out(**QUICK, programs=[path])
    assert ended == "died by SIGSEGV in driver; its last words: the driver fell over"
    assert light.carry_out(8)[1] == ""


# Ends.


@pytest.mark.parametrize("how", ["end of orders", signal.SIGTERM, signal.SIGKILL], ids=["orders", "SIGTERM", "SIGKILL"])
def test_a_helper_that_ends_leaves_no_process(no_torch, program, told, how):
    with Helper(**no_torch) as helper:
        helper.order(**QUICK, programs=[program(hanging(told))])
        handles = [told.pidfd(), told.pidfd()]
        if how == "end of orders":
            helper.process.stdin.close()
            assert helper.process.wait(30) == 0
        else:
            end(helper, how)
            assert helper.process.returncode == (0 if how == signal.SIGTERM else -signal.SIGKILL)
        if how != signal.SIGKILL:
            assert [has_ended(handle) for handle in handles] == [True, True]
            return
    # The program itself has ended, or does. Its grandchild would be the agent's, a subreaper.
    assert any(has_ended(handle, 30) for handle in handles)
    for handle in handles:
        if not has_ended(handle):
            signal.pidfd_send_signal(handle, signal.SIGKILL)


def test_cancel(light, program, told):
    waiting = program(f"echo $$ > {told.path}\nread x < {told.path}.go\necho '{GOOD}'", "waiting")
    os.mkfifo(f"{told.path}.go")
    light.order(**QUICK, programs=[waiting, program(hanging(told), "hang.sh")])
    os.close(told.pidfd())
    light.write({"type": "cancel", "id": 6})  # another one, which is over
    with open(f"{told.path}.go", "w") as go:
        go.write("\n")
    handles = [told.pidfd(), told.pidfd()]
    light.write({"type": "cancel", "id": 7})
    found, ended = light.results()
    assert (found["waiting"]["outcome"], ended) == ("passed", "cancelled in hang.sh")
    assert [has_ended(handle) for handle in handles] == [True, True]
    light.write({"type": "cancel", "id": 7})
    assert light.carry_out(8)[1] == ""


def test_a_second_order_ends_the_first(light, program, told):
    light.order(**QUICK, programs=[program(hanging(told), "hang.sh")])
    handles = [told.pidfd(), told.pidfd()]
    light.order(8)
    assert light.results()[1] == "given up in hang.sh for order 8"
    assert [has_ended(handle) for handle in handles] == [True, True]
    found, ended = light.results(8)
    assert found["loopback"]["outcome"] == "passed" and ended == ""


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"kind": "some"}, "kind is 'some'; it is one of alone, pair, all"),
        ({"kind": "pair", "store": ["a", 1]}, "group_rank 0 of group_size 1 is none of kind pair"),
        ({"group_rank": 1}, "group_rank 1 of group_size 1 is none of kind alone"),
        ({"group_size": 1.0}, "group_size is no integer from 0 to "),
        ({"peers": ["a", "b"]}, "peers has 2 names for group_size 1"),
        ({"switchbox": {"source": "nvidia", "pairs": [[0, 1.5]]}}, "switchbox has no pairs"),
        ({"kind": "all"}, "kind all has no store to meet at"),
        ({"kind": "all", "store": ["a", 70000]}, "store has port 70000"),
        ({"limit_ms": True}, "limit_ms is no integer"),
        ({"limit_ms": 0}, "limit_ms is 0"),
        ({"address": ""}, "address is empty"),
        ({"programs": ["ls"]}, "programs has more than 32 paths, or one that is not absolute"),
        ({"switchbox": {"source": "guess"}}, "switchbox has source 'guess'"),
        ({"switchbox": {"source": "nvidia", "pairs": [[0, 0]]}}, "switchbox has no pairs"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(light, fields, says):
    found, ended = light.carry_out(**fields)
    assert not found and ended.startswith(f"refused: {says}")


@pytest.mark.parametrize("line", [b"hello\n", b"[1]\n", b'{"type":"order"}\n', b'{"type":"x","id":1}\n', b"[" * 70000])
def test_a_helper_that_hears_garbage_says_so_and_ends(no_torch, line):
    with Helper(stderr=subprocess.PIPE, **no_torch) as helper:
        helper.process.stdin.write(line if line.endswith(b"\n") else line + b"\n")
        assert helper.process.wait(30) == 2
        said = helper.process.stderr.read().decode()
    assert said.startswith("phalanx.node_check: ") and "Traceback" not in said and said.count("\n") == 1


def test_a_folder_of_the_job_does_not_replace_what_the_helper_imports(no_torch, tmp_path, monkeypatch):
    for name in ("json", "select", "socket", "statistics", "tempfile"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong one')\n")
    monkeypatch.chdir(tmp_path)
    with Helper(**no_torch) as helper:
        assert helper.carry_out()[1] == ""


# The switchbox.


def switchbox(source, **fields):
    asked = {"pairs": [[0, 1], [2, 4]], "min_bandwidth_mb_s": 10000, "min_channels": 2, **fields}
    return {"source": source, **asked}


@pytest.mark.parametrize(
    ("rates", "channels", "outcome", "says"),
    [
        ({"0:1": 10000, "2:4": 10000}, 2, "passed", "2 of 2 pairs have 10000 MB/s or more"),
        ({"0:1": 12000, "2:4": 90000, "5:6": 1}, 2, "passed", "2 of 2 pairs have 10000 MB/s or more"),
        (
            {"0:1": 12000, "2:4": 9999},
            1,
            "failed",
            "switchbox: 1 of 2 pairs have 10000 MB/s or more; below it: 2-4 has 9999 MB/s; 2 channels are wanted",
        ),
    ],
)
def test_a_switchbox(light, tmp_path, rates, channels, outcome, says):
    (tmp_path / "rates.json").write_text(json.dumps(rates))
    found, ended = light.carry_out(**QUICK, switchbox=switchbox(f"file:{tmp_path}/rates.json"))
    result = found["switchbox"]
    assert (result["outcome"], result["sentence"], ended) == (outcome, says, "")
    assert value_of(result, "switchbox_0_1") == rates["0:1"] and value_of(result, "switchbox_2_4") == rates["2:4"]
    assert value_of(result, "channels") == channels and result["values"][-1]["unit"] == "count"


def test_fewer_channels_may_be_enough(light, tmp_path):
    (tmp_path / "rates.json").write_text('{"0:1": 12000, "2:4": 5}')
    found, _ = light.carry_out(**QUICK, switchbox=switchbox(f"file:{tmp_path}/rates.json", min_channels=1))
    assert found["switchbox"]["outcome"] == "passed" and "2-4 has 5 MB/s" in found["switchbox"]["sentence"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"0:1": 12000}', "{path} has no MB/s of 2-4"),
        ('{"0:1": 1.5, "2:4": 1}', "{path} is no object of integers"),
        ("[]", "{path} is no object of integers"),
        ("{", "{path} is no JSON: "),
        (None, "No such file or directory ({path})"),
    ],
)
def test_a_switchbox_of_a_file_that_does_not_tell(light, tmp_path, text, says):
    path = tmp_path / "rates.json"
    if text is not None:
        path.write_text(text)
    found, _ = light.carry_out(**QUICK, switchbox=switchbox(f"file:{path}"))
    assert found["switchbox"]["outcome"] == "failed"
    assert found["switchbox"]["sentence"].startswith(f"switchbox: {says.format(path=path)}")


@pytest.mark.parametrize(
    ("unit", "passed", "says"),
    [
        ("MB/s", True, "2 of 2 pairs have 10000 MB/s or more"),
        ("GB/s", True, "switchbox: {path} has no MB/s of 0-1, 2-4"),
        ("MB/s", False, "switchbox: the box is off"),
    ],
)
def test_a_switchbox_of_a_tool(light, program, unit, passed, says):
    values = [{"name": f"switchbox_{pair}", "unit": unit, "value": 20000} for pair in ("0_1", "2_4")]
    answer = {"passed": passed, "sentence": "" if passed else "the box is off", "values": values}
    path = program(f"echo '{json.dumps(answer)}'", "tool")
    found, _ = light.carry_out(**QUICK, switchbox=switchbox(f"tool:{path}"))
    assert found["switchbox"]["sentence"] == says.format(path=path)


def test_a_switchbox_without_devices_never_passes(light, pair):
    found, _ = light.carry_out(**QUICK, switchbox=switchbox("nvidia", min_channels=0))
    sentence = "switchbox: CUDA devices cannot be asked: torch is not installed"
    assert (found["switchbox"]["outcome"], found["switchbox"]["sentence"]) == ("failed", sentence)
    far = torch.cuda.device_count()
    asked = switchbox("nvidia", min_channels=0, pairs=[[0, 1], [1, far + 2]])
    found, _ = pair[0].carry_out(switchbox=asked)
    sentence = f"switchbox: a pair names CUDA device {far + 2}, and there are {far} devices to see"
    assert (found["switchbox"]["outcome"], found["switchbox"]["sentence"]) == ("failed", sentence)
