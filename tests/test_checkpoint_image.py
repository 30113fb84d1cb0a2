"""Images that the native core makes of real tensors, read by torch's own loaders and by other people's zip tools."""

import collections
import contextlib
import io
import os
import pickle
import shutil
import subprocess
import tempfile
import zipfile
import zlib

import pytest
import torch
from checkpoint_memory import FILLED, Layout, Memory, Rank, check_file, load_library
from control_page import SEALED

try:
    from torch.utils.serialization import config
except ImportError:  # an older torch
    config = None

GIB = 1 << 30
LIBRARY = load_library()


class StoragePickler(pickle.Pickler):
    """A pickle as torch.save writes it, and the storages that it names, in their order."""

    def __init__(self, file):
        super().__init__(file, protocol=2)
        self.storages, self.keys = [], {}

    def persistent_id(self, thing):
        if isinstance(thing, torch.storage.TypedStorage):
            storage, kind, elements = (
                thing._untyped_storage,
                getattr(torch, thing._pickle_storage_type()),
                thing._size(),
            )
        elif isinstance(thing, torch.UntypedStorage):
            storage, kind, elements = thing, torch.UntypedStorage, thing.nbytes()
        else:
            return None
        if storage._cdata not in self.keys:
            self.keys[storage._cdata] = str(len(self.keys))
            self.storages.append(storage)
        return ("storage", kind, self.keys[storage._cdata], "cpu", elements)


class Image:
    """A state, saved into the only slot of a folder."""

    def __init__(self, folder, state, filled=(), sparse=False):
        file = io.BytesIO()
        pickler = StoragePickler(file)
        pickler.dump(state)
        self.pickle, self.storages = file.getvalue(), pickler.storages
        sizes = [storage.nbytes() for storage in self.storages]
        self.layout = Layout(LIBRARY, sizes, len(self.pickle))
        self.memory = Memory(folder, 1, self.layout.file_bytes, sparse=sparse)
        rank = Rank(LIBRARY, self.memory)
        when = [FILLED if i in filled else 0 for i in range(len(sizes))]
        sources = [storage.data_ptr() for storage in self.storages]
        rank.save(self.layout, sources, self.pickle, when=when, threads=2, info=b'{"version":1,"step":1}')
        rank.close()
        self.path = self.memory.path(0)


@pytest.fixture
def shm():
    folder = tempfile.mkdtemp(prefix="phalanx-test-", dir="/dev/shm")
    yield folder
    shutil.rmtree(folder)


def varied_state():
    """What a training script saves, and more kinds of tensors than it has."""
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.BatchNorm1d(200), torch.nn.Linear(200, 7))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.randn(4, 300)).sum().backward()
    optimizer.step()
    shared = torch.randn(100, 50)
    kinds = [torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.int8, torch.uint8, torch.bool]
    kinds += [getattr(torch, name) for name in ("float8_e4m3fn", "uint16") if hasattr(torch, name)]
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": 17,
        "rng": torch.get_rng_state(),
        "kinds": {str(kind): torch.randn(33).to(kind) for kind in kinds},
        "views": [shared, shared[10:20, ::2], shared.t(), shared[3, 4]],
        "empty": [torch.empty(0), torch.empty(3, 0, 2)],
        "big": torch.randn(5 << 20),
        "odd": [torch.arange(n, dtype=torch.uint8) for n in (1, 2, 3, 63, 64, 65, 255)],
        "parameter": torch.nn.Parameter(torch.randn(4)),
        "nested": collections.OrderedDict(a=(1, "two", None, [3.5])),
    }


def assert_same(found, wanted):
    assert type(found) is type(wanted)
    if isinstance(wanted, torch.Tensor):
        assert found.dtype == wanted.dtype
        assert found.shape == wanted.shape
        assert found.stride() == wanted.stride()
        as_bytes = [t.detach().clone().contiguous().view(-1).view(torch.uint8) for t in (found, wanted)]
        assert torch.equal(*as_bytes)
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key, value in wanted.items():
            assert_same(found[key], value)
    elif isinstance(wanted, (list, tuple)):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted):
            assert_same(one, other)
    else:
        assert found == wanted


def calculated_offsets(on):
    """torch computes where storages lie, instead of asking the file."""
    if not on:
        return contextlib.nullcontext()
    if config is None:
        pytest.skip("this torch does not compute offsets")
    return config.patch("load.calculate_storage_offsets", True)


@pytest.mark.parametrize("computed", [False, True], ids=["asked", "computed"])
@pytest.mark.parametrize("mmap", [False, True], ids=["read", "mapped"])
def test_torch_loads_it(shm, mmap, computed, monkeypatch):
    monkeypatch.setenv("TORCH_SERIALIZATION_DEBUG", "1")  # torch compares each computed offset with the file
    state = varied_state()
    image = Image(shm, state)
    with calculated_offsets(computed):
        loaded = torch.load(image.path, weights_only=True, mmap=mmap)
    assert_same(loaded, state)
    views = [view.untyped_storage().data_ptr() for view in loaded["views"]]
    assert len(set(views)) == 1, "views share their storage"


def test_its_pickle_is_that_of_torch(shm):
    state = varied_state()
    image = Image(shm, state)
    torch.save(state, f"{shm}/stock.pt")
    with zipfile.ZipFile(f"{shm}/stock.pt") as stock, zipfile.ZipFile(image.path) as ours:
        assert stock.read("stock/data.pkl") == ours.read("archive/data.pkl") == image.pickle
        for name in stock.namelist():
            if not name.endswith("serialization_id"):
                assert stock.read(name) == ours.read(name.replace("stock/", "archive/", 1)), name
        written_by_us = {name[len("archive/") :] for name in ours.namelist()}
        assert written_by_us - {name[len("stock/") :] for name in stock.namelist()} <= {
            ".phalanx/info",
            ".format_version",
            ".storage_alignment",
        }


def test_storages_lie_where_the_plan_says(shm):
    image = Image(shm, varied_state())
    reader = torch._C.PyTorchFileReader(str(image.path))
    assert [reader.get_record_offset(f"data/{i}") for i in range(len(image.storages))] == image.layout.offsets
    assert not any(offset % 64 for offset in image.layout.offsets)
    loaded = torch.load(image.path, weights_only=True, mmap=True)
    assert loaded["big"].data_ptr() % 64 == 0


def test_zip_tools_read_it(shm):
    image = Image(shm, varied_state())
    with zipfile.ZipFile(image.path) as archive:
        assert archive.testzip() is None
        assert len(archive.namelist()) == len(image.storages) + 7
        assert archive.read("archive/.phalanx/info") == b'{"version":1,"step":1}'
    unzip = shutil.which("unzip")
    if unzip:
        answer = subprocess.run([unzip, "-tq", str(image.path)], capture_output=True, text=True)
        assert answer.returncode == 0, answer.stdout + answer.stderr


def test_the_control_page_speaks_of_it(shm):
    image = Image(shm, varied_state())
    slot = image.memory.read(0)
    assert slot["state"] == SEALED
    assert slot["fields"]["n"] == len(image.storages)
    assert slot["fields"]["layout"] == image.layout.hash
    assert slot["fields"]["bytes"] == os.path.getsize(image.path) == image.layout.file_bytes
    assert slot["fields"]["crc"] == zlib.crc32(image.path.read_bytes())


def test_states_without_storages(shm):
    for state in ({}, {"lr": 0.1}, {"empty": torch.empty(0)}):
        image = Image(tempfile.mkdtemp(dir=shm), state)
        assert_same(torch.load(image.path, weights_only=True), state)
        assert check_file(LIBRARY, image.path) == ""


def test_a_flipped_bit_is_found(shm):
    image = Image(shm, varied_state())
    assert check_file(LIBRARY, image.path) == ""
    with zipfile.ZipFile(image.path) as archive:
        names = {info.filename: info for info in archive.infolist() if info.file_size}
    with open(image.path, "r+b") as file:
        for name, info in names.items():
            file.seek(info.header_offset + 26)
            lengths = file.read(4)
            data_at = info.header_offset + 30 + lengths[0] + 256 * lengths[1] + lengths[2] + 256 * lengths[3]
            at = data_at + info.file_size // 2
            byte = image_byte(file, at)
            write_byte(file, at, byte ^ 4)
            assert name in check_file(LIBRARY, image.path)
            write_byte(file, at, byte)
    assert check_file(LIBRARY, image.path) == ""


def image_byte(file, at):
    file.seek(at)
    return file.read(1)[0]


def write_byte(file, at, value):
    file.seek(at)
    file.write(bytes([value]))
    file.flush()


def test_files_of_torch_pass_the_check(tmp_path):
    torch.save(varied_state(), tmp_path / "stock.pt")
    assert check_file(LIBRARY, tmp_path / "stock.pt") == ""
    with open(tmp_path / "stock.pt", "r+b") as file:
        file.truncate(os.path.getsize(tmp_path / "stock.pt") - 1)
    assert "cut short" in check_file(LIBRARY, tmp_path / "stock.pt")


def test_crc_is_that_of_zlib():
    data = os.urandom(100001)
    for n in (0, 1, 63, 1023, 1024, 65537, 100001):
        assert LIBRARY.phx_crc32(77, data, n) == zlib.crc32(data[:n], 77)


@pytest.mark.slow
def test_more_records_than_16_bits_count(shm):
    state = [torch.full((i % 9,), i % 128, dtype=torch.uint8) for i in range(66_000)]
    image = Image(shm, state)
    assert check_file(LIBRARY, image.path) == ""
    with zipfile.ZipFile(image.path) as archive:
        assert archive.testzip() is None
        assert len(archive.namelist()) == 66_007
    with calculated_offsets(config is not None):
        loaded = torch.load(image.path, weights_only=True, mmap=True)
    assert len(loaded) == len(state)
    assert all(torch.equal(one, other) for one, other in zip(loaded, state))


def free_memory():
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes",
    [(4 * GIB,), *(pytest.param(sizes, marks=pytest.mark.long) for sizes in ((4 * GIB - 1, 4 * GIB), (4 * GIB + 3,)))],
)
def test_beyond_32_bits(tmp_path, sizes):
    """Sizes and places on both sides of 4 GiB. Nobody fills the large ones: they are holes of a file on disk."""
    if free_memory() < 2 * sum(sizes):
        pytest.skip("holes of a file that are mapped take memory")
    holes = [torch.empty(size, dtype=torch.uint8) for size in sizes]  # nobody touches them either
    state = {"holes": holes, "behind": torch.arange(1000), "empty": torch.empty(0), "last": torch.randn(70000)}
    folder = tempfile.mkdtemp(dir=tmp_path)
    image = Image(folder, state, filled=range(len(holes)), sparse=True)
    for computed in (False, config is not None):
        with calculated_offsets(computed):
            loaded = torch.load(image.path, weights_only=True, mmap=True)
        assert [hole.numel() for hole in loaded["holes"]] == list(sizes)
        assert not any(hole[[0, -1]].any() for hole in loaded["holes"])
        assert torch.equal(loaded["behind"], state["behind"])
        assert torch.equal(loaded["last"], state["last"])
        del loaded
    with zipfile.ZipFile(image.path) as archive:
        assert archive.getinfo("archive/data/0").file_size == sizes[0]
        assert archive.read(f"archive/data/{len(holes)}") == state["behind"].numpy().tobytes()
    assert check_file(LIBRARY, image.path) == ""
    shutil.rmtree(folder)
