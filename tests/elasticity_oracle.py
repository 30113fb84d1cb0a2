"""Compares batch plans with DeepSpeed's own, over random configurations, most of them odd.

phalanx.elasticity answers each of them as DeepSpeed does. The command, which knows numbers alone, may refuse those that
hold something else; those of numbers it answers as DeepSpeed does, and none of them otherwise.

    python tests/elasticity_oracle.py --deepspeed FOLDER --version 0.19.7 --command .venv/bin/phalanx

FOLDER holds `elasticity/` of that version of DeepSpeed, from its source distribution or where it is installed. It
needs numpy and packaging, but no torch: what its modules import from the rest of DeepSpeed is put in their place. One
seed makes the same configurations everywhere. The exit code is 1 if an answer differs; the first of those are printed.
"""

import argparse
import collections
import functools
import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import types
import warnings

# Errors whose text is Python's own, or numpy's: their class is compared.
PYTHONS_TEXTS = (
    *("AttributeError", "JSONDecodeError", "OverflowError", "RecursionError", "TypeError", "UFuncTypeError"),
    *("UnicodeDecodeError", "ZeroDivisionError"),
)
DEEPSPEEDS_VALUE_ERRORS = ("Expected ds_config", "All micro batches")
OUR_LIMIT = "ElasticityLimitError"
SLOW_S = 0.5  # DeepSpeed counts GPUs one by one: what takes it longer is left out
CHUNK = 1000
COMPARISONS = 0.1  # of a job's block with its scheduler's
SHOWN = 20

TEXTS = (
    *("", "4", "0.1", "0.2", "x", "it's", 'say "no"', "both ' and \"", "tab\t", "\n", "\\", "é", "\u200b"),
    *("\x7f", "中", "😀"),
)
ODD = (
    *(None, True, False, 0, -1, -0.0, 0.5, 1.0, 2.0, 2.5, 1e16, 1e-7, -3, 7, float("nan"), float("inf")),
    *(-float("inf"), [], [1], {}, {"a": 1}, 2**31, 2**63, -(2**70), 10**40, [[], {}], {"k": [None, "v"]}),
)
VERSIONS = (
    *(0.1, 0.2, "0.1", "0.2", 0, 1, True, 0.15, "1.0", "abc", None, [], " 0.2 ", "2e-1", "0_1", "1_0", "nan"),
    *("inf", "-inf", ".1", "0.", "+.2", "0x1", "\u0660.\u0661", "\u00a00.2\u2003", "0.2\u0000", "", "infinity"),
    *("1e999", 10**400, float("nan"), False, "0.1_", "_0.1", "0__1", "0.2\u001c", "-0.1"),
    *("\u066010", 0.2000000001),
)
TARGETS = (
    *("0.16.5", "0.19.7", "0.3.8", "0.3.7", "0.3.8rc1", "0.3.8.dev0", "0.3.8.post1.dev1", "0.3.8+local"),
    *("0.3.8a", "abc", "v0.4", "V1.0", "1!0.1", "0!0.3.7", "0.3", "0.4", "00.03.08", "0.3.8.0.0", "0.3.8.0.1"),
    *(" 0.16.5 ", "0.3.8-1", "", "0.3.8-", "0.3.8.a", "1.0.", ".1", "1..2", "1.0+", "1.0+a..b", "1.0+a_b-1.c"),
    *("0.3.8-alpha_1", "0.3.8.c", "0.3.8preview", "0.3.8pre2", "0.3.8_rev3", "0.3.8r", "0.3.8.dev"),
    *("0.3.8a1.post2.dev3+x", "0.3.8--1", "0.3.8a--1", "0.3.8dev1post1", "\u00a00.16.5\u2028", "\x1c1.0"),
    *("0.3.\u0668", "1.0\n", "1.0 0", "0.16.5+torch.2.1", "1.0+é", None, 5, 1.5, True, [], ["1"], {}),
    *("99999999999999999999999.0", "0.16.5-rc.1", "0.3.8.POST", "0.3.8ALPHA", "vv1", "v", "1.0v"),
    *("0.3.8.rc-", "1.0a-1-2"),
)
WORLD_SIZES = (0, 0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 100, 128, 256, 1000)
ODD_WORLD_SIZES = (-1, -4, True, False, 2.0, 4.5, 0.0, -0.0, None, "4", "", [], {}, float("nan"), float("inf"), 9999999)
WORLD_VARIABLES = (
    *("4", "8", "0", "16", "", "x", "-1", " 8", "007", "1.5", "½", "²", "٤", "８", "五", "4x", "1_0"),
    *("9999999", "99999999999999999999", "\u0664\u0668"),
)
KEYS = (
    *("enabled", "max_train_batch_size", "micro_batch_sizes", "min_gpus", "max_gpus", "num_gpus_per_node"),
    *("model_parallel_size", "min_time", "version", "prefer_larger_batch", "ignore_non_elastic_batch_info"),
)
NUMBERS = tuple(key for key in KEYS if key not in ("enabled", "micro_batch_sizes", *KEYS[-2:]))
PRIMES = (
    *(2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101),
    *(103, 107),
)


# Other ways to write what json.dumps writes, by regular expressions.
UNUSUAL = ((r"2\.0", "20e-1"), ("true", "  true "), ("Infinity", "1e999"), ("-0.0", "-0E5"))
# Of these, version numbers are put together.
VERSION_PARTS = (
    *(
        "0",
        "3",
        "8",
        "7",
        "0.3.8",
        "0.3.7",
        "1",
        "00",
        ".",
        ".",
        "-",
        "_",
        "+",
        "!",
        "a",
        "b",
        "c",
        "rc",
        "alpha",
        "Beta",
    ),
    *("pre", "preview", "post", "rev", "r", "dev", "DEV", "v", " ", "\n", "x", "local"),
)


class TooSlow(Exception):
    """DeepSpeed takes longer than we wait."""


def random_text(rng):
    """A few characters of anywhere in Unicode, lone surrogates among them."""
    ends = (0x80, 0x100, 0x800, 0x3100, 0x10000, 0x20000, 0x110000)
    return "".join(chr(rng.randrange(rng.choice(ends))) for _ in range(rng.randint(0, 6)))


def random_float(rng):
    """Any double, or one that people might write."""
    if rng.random() < 0.5:
        return struct.unpack("<d", rng.randbytes(8))[0]
    return round(rng.uniform(-20, 20), rng.randint(0, 5)) * 10.0 ** rng.randint(-8, 20)


def random_odd(rng):
    kind = rng.random()
    if kind < 0.1:
        return random_float(rng)
    if kind < 0.2:
        return random_text(rng)
    if kind < 0.25:
        return rng.choice((1, -1)) * rng.randrange(10 ** rng.randint(1, 60))
    return rng.choice((*ODD, *TEXTS))


def random_target(rng):
    if rng.random() < 0.5:
        return rng.choice(TARGETS)
    return "".join(rng.choice(VERSION_PARTS) for _ in range(rng.randint(1, 8)))


def random_micro_batches(rng):
    kind = rng.random()
    if kind < 0.6:
        return [rng.randint(1, rng.choice((8, 16, 64))) for _ in range(rng.randint(1, 6))]
    if kind < 0.7:
        return [rng.choice((1, 2, 4, 8, 16, 32, True)) for _ in range(rng.randint(1, 6))]
    if kind < 0.8:  # the least common multiple of many of them overflows
        return [rng.choice(PRIMES) * rng.choice((1, 1, 2, 3)) for _ in range(rng.randint(8, 40))]
    if kind < 0.85:
        return [rng.randint(1, 2 ** rng.randint(1, 30)) for _ in range(rng.randint(1, 4))]
    if kind < 0.9:
        return [True] * rng.randint(0, 3)
    return [rng.choice((random_odd(rng), 1, 2)) for _ in range(rng.randint(0, 4))]


def random_block(rng):
    """An elasticity block that DeepSpeed might be glad with."""
    block = {"enabled": True, "max_train_batch_size": 2 ** rng.randint(0, 12) + rng.randint(0, 50)}
    if rng.random() < 0.1:
        block["max_train_batch_size"] = rng.choice((10**6, 2**24, 123456.5, 1000.0, 2000.25))
    block["micro_batch_sizes"] = random_micro_batches(rng)
    if rng.random() < 0.95:
        block["version"] = rng.choice((0.1, 0.2, 0.2))
    if rng.random() < 0.4:
        block["min_gpus"] = rng.choice((1, 2, 3, 4, 8, 30, 2.5, True))
    if rng.random() < 0.5:
        block["max_gpus"] = rng.choice((1, 4, 8, 32, 100, 1500, 40.5, 10**6, True))
    if rng.random() < 0.3:
        block["prefer_larger_batch"] = rng.choice((True, False, False, 0, "", None, [0]))
    if block.get("version") == 0.2 and rng.random() < 0.6:
        per_node = rng.choice((1, 2, 4, 6, 8, 8.0, 7.5))
        block["num_gpus_per_node"] = per_node
        block["model_parallel_size"] = rng.choice((1, 1, 2, 4, 2.0, 2.5, True))
    if rng.random() < 0.2:
        block["min_time"] = rng.choice((0, 20, 1.5, -1, False))
    return block


def odd_value(rng, key):
    if key == "version":
        return rng.choice(VERSIONS)
    if key == "micro_batch_sizes" and rng.random() < 0.7:
        return random_micro_batches(rng)
    return random_odd(rng)


def spoil(rng, block):
    """One to three members that are odd, or missing."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        key = rng.choice(KEYS)
        if rng.random() < 0.2:
            block.pop(key, None)
        else:
            block[key] = odd_value(rng, key)


def random_row(rng, number):
    block = random_block(rng)
    if rng.random() < 0.45:
        spoil(rng, block)
    config = {"elasticity": block}
    if rng.random() < 0.01:
        config = rng.choice((random_odd(rng), {"elasticity": random_odd(rng)}, {random_text(rng): block}))
    world_size = rng.choice(WORLD_SIZES if rng.random() < 0.93 else ODD_WORLD_SIZES)
    row = {"id": number, "ds_config": config, "world_size": world_size}
    row["return_microbatch"] = rng.random() < 0.4
    row["target_version"] = "0.16.5" if rng.random() < 0.9 else random_target(rng)
    if rng.random() < 0.3:
        row["env"] = {"WORLD_SIZE": rng.choice(WORLD_VARIABLES)}
    return row


def random_comparison(rng, number):
    """A job's block and what its scheduler has seen."""
    runtime = random_block(rng)
    scheduler = dict(runtime)
    for block in (runtime, scheduler):
        if rng.random() < 0.4:
            spoil(rng, block)
    return {"id": number, "runtime": runtime, "scheduler_env": json.dumps(scheduler) if rng.random() < 0.98 else "{"}


def random_line(rng, number, make=random_row):
    row = make(rng, number)
    line = json.dumps(row, ensure_ascii=False)
    if rng.random() < 0.5 or re.search("[\ud800-\udfff]", line):
        line = json.dumps(row)
    if rng.random() < 0.02:  # what json.dumps does not write
        for old, new in UNUSUAL:
            line = re.sub(f"(?<=[ \\[]){old}(?=[],}}])", new, line)
    return line


def import_deepspeed(folder):
    """compute_elastic_config and ensure_immutable_elastic_config of the DeepSpeed whose modules are in `folder`."""
    package = types.ModuleType("deepspeed")
    package.__path__ = [folder]
    elasticity = types.ModuleType("deepspeed.elasticity")
    elasticity.__path__ = [os.path.join(folder, "elasticity")]
    version = types.ModuleType("deepspeed.git_version_info")
    version.version = "0"
    utils = types.ModuleType("deepspeed.utils")
    utils.logger = types.SimpleNamespace(info=lambda *_: None, warning=lambda *_: None)
    for module in (package, elasticity, version, utils):
        sys.modules[module.__name__] = module
    from deepspeed.elasticity import elasticity as found

    return found.compute_elastic_config, found.ensure_immutable_elastic_config


def plain(value):
    """A number without numpy's type."""
    return value.item() if hasattr(value, "item") else value


def ask(compute, row):
    """What compute_elastic_config answers to a row, in the shape of our answers."""
    answer = compute(row["ds_config"], row["target_version"], row["world_size"], row["return_microbatch"])
    gpus = None if answer[1] is None else {"list": [plain(count) for count in answer[1]]}
    ok = {"final_batch_size": plain(answer[0]), "valid_gpus": gpus}
    return ok | ({"micro_batch_size": answer[2]} if len(answer) == 3 else {})


def ask_for_comparison(ensure_immutable, row):
    os.environ["DEEPSPEED_ELASTICITY_CONFIG"] = row["scheduler_env"]
    ensure_immutable(row["runtime"])
    return True


def answer_of(call):
    """What a call comes to, in the shape of our answers."""
    try:
        return {"ok": call()}
    except TooSlow:
        raise
    except Exception as error:  # whatever it is, it is the answer
        name = type(error).__name__.replace("_UFuncNoLoopError", "UFuncTypeError")
        return {"error": {"class": name, "message": str(error)}}


def expected(question, function, line):
    """What DeepSpeed answers to a line; None where it takes too long."""
    row = json.loads(line)
    os.environ.pop("WORLD_SIZE", None)
    os.environ.update(row.get("env", {}))
    try:
        signal.setitimer(signal.ITIMER_REAL, SLOW_S)
        try:
            return answer_of(lambda: question(function, row))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except TooSlow:  # also where it comes while an answer is on its way
        return None


def same(want, got):
    if "error" not in want or "error" not in got:
        return repr(want) == repr(got)  # 1, 1.0 and True differ
    if want["error"]["class"] != got["error"]["class"]:
        return False
    message = want["error"]["message"]
    if want["error"]["class"] == "ValueError" and not message.startswith(DEEPSPEEDS_VALUE_ERRORS):
        return True
    return want["error"]["class"] in PYTHONS_TEXTS or message == got["error"]["message"]


def is_number(value):
    return type(value) in (int, float) and -(2**53) < value < 2**53


def blocks_of(row):
    if "runtime" in row:
        return [row["runtime"], json.loads(row["scheduler_env"])]
    config = row["ds_config"]
    return [config.get("elasticity") if isinstance(config, dict) else None]


def is_numbers(row):
    """Whether the command has no reason to refuse the row but DeepSpeed's."""
    for block in blocks_of(row) if row.get("scheduler_env") != "{" else [None]:
        sizes = block.get("micro_batch_sizes", []) if isinstance(block, dict) else None
        if not isinstance(sizes, list) or not all(type(size) is int and is_number(size) for size in sizes):
            return False
        if not all(is_number(block[key]) for key in NUMBERS if key in block):
            return False
        if set("NI\\") & set(json.dumps(block)):  # NaN, Infinity and odd texts, even where nobody looks
            return False
    return (
        type(row.get("world_size", 0)) is int
        and isinstance(row.get("target_version", "1"), str)
        and re.fullmatch(r"\d{1,18}(\.\d{1,18})*", row.get("target_version", "1"), re.ASCII) is not None
        and row.get("env", {}).get("WORLD_SIZE", "").isascii()
    )


def kind_of(answer):
    """What a comparison is counted as: the error's class, or "ok"."""
    return answer["error"]["class"] if "error" in answer else "ok"


def phalanx_functions(version):
    """compute_elastic_config as that DeepSpeed's, and ensure_immutable_elastic_config."""
    from phalanx import elasticity

    compute = functools.partial(elasticity.compute_elastic_config, deepspeed_version=version)
    return compute, elasticity.ensure_immutable_elastic_config


def commands_answers(command, lines):
    done = subprocess.run(
        command, input="".join(f"{line}\n" for line in lines), capture_output=True, check=True, encoding="utf-8"
    )
    return [json.loads(answer) for answer in done.stdout.splitlines()]


class Comparison:
    """What came of all rows so far."""

    def __init__(self):
        self.compared, self.slow, self.limited, self.refused = 0, 0, 0, 0
        self.different = []  # (line, who, what DeepSpeed says, what they say)
        self.alike = collections.Counter()  # kinds of answers of phalanx.elasticity
        self.commands = collections.Counter()  # and of the command, to rows of numbers

    def add(self, lines, question, theirs, ours, command):
        for line, answer in zip(lines, commands_answers(command, lines), strict=True):
            self.compared += 1
            del answer["id"]
            want = expected(question, theirs, line)
            if want is None:
                self.slow += 1
            else:
                self.add_python(line, want, expected(question, ours, line))
                self.add_command(line, want, answer)

    def add_python(self, line, want, got):
        if got is None or got.get("error", {}).get("class") == OUR_LIMIT:
            self.limited += 1
        elif same(want, got):
            self.alike[kind_of(want)] += 1
        else:
            self.different.append((line, "phalanx.elasticity", want, got))

    def add_command(self, line, want, got):
        kind = kind_of(got)
        row = json.loads(line)
        if same(want, got):
            self.commands[kind] += 1
        elif kind == OUR_LIMIT or ("error" in got and not is_numbers(row)):
            self.refused += 1
        else:
            self.different.append((line, "phalanx elasticity", want, got))


def too_slow(*_):
    raise TooSlow


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--deepspeed", required=True, help="a folder with DeepSpeed's elasticity/")
    parser.add_argument("--version", required=True, choices=("0.16.5", "0.19.7"))
    parser.add_argument("--command", required=True, help="the `phalanx` command")
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    compute, ensure_immutable = import_deepspeed(arguments.deepspeed)
    signal.signal(signal.SIGALRM, too_slow)
    warnings.simplefilter("ignore")  # numpy's, of integers that overflow
    rng = random.Random(arguments.seed)
    command = [arguments.command, "elasticity", "plan", "--jsonl", "--deepspeed-version", arguments.version]
    our_compute, our_ensure_immutable = phalanx_functions(arguments.version)
    result = Comparison()
    while result.compared < arguments.count:
        numbers = range(result.compared, min(result.compared + CHUNK, arguments.count))
        if rng.random() < COMPARISONS:
            lines = [random_line(rng, number, random_comparison) for number in numbers]
            result.add(lines, ask_for_comparison, ensure_immutable, our_ensure_immutable, command)
        else:
            result.add([random_line(rng, number) for number in numbers], ask, compute, our_compute, command)
    for line, who, want, got in result.different[:SHOWN]:
        print(f"{line}\n  DeepSpeed: {json.dumps(want)}\n  {who}: {json.dumps(got)}")
    for who, counts in (("alike", result.alike), ("alike of the command", result.commands)):
        print(f"{who}: " + ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
    ends = f"{len(result.different)} differ, {result.slow} too slow for DeepSpeed, {result.limited} above our limits"
    ends += f", {result.refused} refused by the command alone"
    print(f"seed {arguments.seed}, DeepSpeed {arguments.version}, {result.compared} rows: {ends}")
    return 1 if result.different else 0


if __name__ == "__main__":
    sys.exit(main())
