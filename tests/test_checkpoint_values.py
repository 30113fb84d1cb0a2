"""What is to be the same on all ranks is compared between them, and a difference told once."""

import re
import struct
import zlib

import pytest
from phalanx.checkpoint import ddp
from phalanx.checkpoint.state import per_rank, shared_values
from phalanx.checkpoint.state.per_rank import PerRank
from test_checkpoint_job import directory as directory
from test_checkpoint_job import jobs_with_memory as jobs_with_memory
from test_checkpoint_job import make_job as make_job
from test_checkpoint_job import rows

# docs/formats/checkpoint-socket.md
TEXTS = [
    (None, b"n"),
    (True, b"t"),
    (False, b"f"),
    (0, b"i0;"),
    (-255, b"i-ff;"),
    (1 << 80, b"i100000000000000000000;"),
    (0.25, b"d" + struct.pack("<d", 0.25)),
    ("né", b"s3;n\xc3\xa9"),
    (b"", b"b0;"),
    ([1, "a"], b"l2;i1;s1;a"),
    ((1, ["a"]), b"l2;i1;l1;s1;a"),
    ({"b": 1, "a": {2: None}}, b"m2;s1;am1;i2;ns1;bi1;"),
]


@pytest.mark.parametrize(("value", "text"), TEXTS)
def test_the_text_of_a_value(value, text):
    assert shared_values.checksums({"x": value}) == {"x": zlib.crc32(text)}


def test_two_values_have_two_texts():
    values = [*(value for value, _ in TEXTS), 1, "1", b"1", 1.0, [], {}, [[]], [None, None], {"a": 1, "b": {2: None}}]
    assert len({shared_values.checksums({"x": value})["x"] for value in values}) == len(values)


def test_the_order_of_a_dict_is_none():
    first = shared_values.checksums({"x": {"a": 1, "b": [2]}})
    assert first == shared_values.checksums({"x": {"b": [2], "a": 1}}) != {}


class Number(int):
    pass


@pytest.mark.parametrize(
    "value", [{1, 2}, object(), Number(1), [1, object()], {"a": {1}}, {(1, 2): 3}, PerRank(3), list(range(1001))]
)
def test_what_has_no_text_is_not_compared(value):
    assert shared_values.checksums({"x": value, "y": 1}) == shared_values.checksums({"y": 1}) != {}
    assert shared_values.checksums([value]) == shared_values.checksums(value if type(value) is list else [value]) == {}


def test_so_many_are_compared_and_no_more():
    names = [f"n{number}" for number in range(100)]
    assert list(shared_values.checksums(dict.fromkeys(names, 1))) == names[:64]
    assert shared_values.checksums({"x" * 201: 1, "a\n": 1, 7: 1, "\ud800": 1, "x" * 200: 1}).keys() == {"x" * 200}
    assert list(shared_values.checksums({"x": list(range(900))})) == ["x"]


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("kind", ["ddp", "dcp"])
def test_a_difference_is_told_once_with_its_name_and_ranks(job, directory, kind, nodes):
    """Of ranks of one node, and of two: on the consoles, and in the record. Training goes on."""
    arguments = [directory, kind]
    started = [
        job.node(index, "differing.py", *arguments, nnodes=str(nodes), nproc=4 // nodes, flags=["--redirects=3"])
        for index in range(nodes)
    ]
    assert [node.wait() for node in started] == [0] * nodes, job.story()
    told = [line for node in started for line in node.stderr.splitlines() if "is not the same on ranks" in line]
    assert len(told) == 1, told
    place = re.escape(str(directory))
    said = rf"step 2 of {place}: 'best' is not the same on ranks [012] and 3; each rank is given back"
    assert re.search(said, told[0]), told
    assert len(rows(job, "checkpoint-differs")) == 1
    assert {event["n"] for event in job.found("saved")} == {1, 2, 3, 4}


def test_a_rank_has_its_own_of_what_the_leader_has_none_of():
    own = {"seen": per_rank.saved(3), "rest": per_rank.saved(4)}
    found = ddp._with_own({"seen": per_rank.saved(1), "step": 7}, own)
    assert found == {"seen": per_rank.saved(3), "step": 7, "rest": per_rank.saved(4)}
