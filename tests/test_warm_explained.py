"""phalanx warm: what it says of real scripts, each reason once; and that a launch has just what it says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from harness import ROOT, clean_environment, command_path
from sameness.prefix import Prefix, purelib, write_files

BOOTSTRAP = os.environ.get("PHALANX_BOOTSTRAP_DIR") or str(ROOT / "python" / "phalanx" / "_bootstrap")
# Further libraries, that torch stands for: a zygote imports it in milliseconds.
LIBRARIES = {
    "torch/__init__.py": (
        "import os\nNAME = os.environ.get('TORCH_LOOKS')\nif NAME != 'broken':\n"
        "    get_num_threads = set_num_threads = lambda *n: 1\n"
        "class default_generator:\n    seed = staticmethod(lambda: None)\n"
    ),
    "torch/optim.py": "",
    "deriving.py": "class Base: pass\ndef register(made): return made\n",
    "ends_it.py": "import os\nos._exit(7)\n",
    "looks_for_helpers.py": "import aardvark\nimport helpers\n",
    "walks.py": "import os\nMINE = {name: os.environ[name] for name in os.environ if name.startswith('WALKS_')}\n",
    "uses_rank.py": "import standin, sees_rank\nstandin.see(__name__)\n",
}


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    return Prefix(tmp_path_factory.mktemp("prefix") / "usual", command_path("phalanx-run"), LIBRARIES)


class Asking:
    """A script's folder, and what the command says of it."""

    def __init__(self, folder, prefix):
        self.folder, self.prefix = Path(folder), prefix
        self.environment = {
            **clean_environment(),
            "PHALANX_BOOTSTRAP_DIR": BOOTSTRAP,
            "XDG_STATE_HOME": str(self.folder / "state"),
            "STANDIN_DIES": str(self.folder),
            "STANDIN_PRELOADED": str(self.folder / "preloaded"),
        }

    def run(self, *words, env=None):
        command = [self.prefix.folder / "bin" / "phalanx", "warm", *words]
        environment = {**self.environment, **(env or {})}
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=100)

    def json(self, text, *words, env=None, **files):
        """What it says of train.py with that text."""
        write_files(self.folder, {"train.py": text, **{f"{name}.py": body for name, body in files.items()}})
        done = self.run(*(words or ("train.py",)), "--json", env=env)
        assert (done.returncode, done.stderr) == (0, ""), done
        return json.loads(done.stdout)

    def launch(self, text, *words):
        """A launch of one rank, which ends well."""
        write_files(self.folder, {"train.py": text})
        command = [self.prefix.launcher, "--standalone", "--nproc-per-node=1", *(words or ("train.py",))]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stderr
        return done


@pytest.fixture
def asking(tmp_path, prefix):
    return Asking(tmp_path, prefix)


def why_not(told):
    """{module: why} of what is not imported ahead."""
    return {row["module"]: row["why"] for row in told["not_imported"]}


# A script's text, and where and why its imports ahead end.
ENDS = {
    "an effect": ("import json\nimport os\nos.environ['A'] = '1'\n", 3, "sets variables"),
    "a call": ("import json\nconfigure()\n", 2, "does something: what follows may depend on it"),
    "a base": ("import deriving\nclass Mine(deriving.Base): pass\n", 2, "derives a class from a library's class"),
    "an own base": (
        "import json\nclass A: __init_subclass__ = None\nclass B(A): pass\n",
        3,
        "derives a class from one that may be told of it",
    ),
    "a library's value": (
        "import deriving\nN = len(deriving.Base)\n",
        2,
        "does something: what follows may depend on it",
    ),
    "a decorator": ("import deriving\n@deriving.register\ndef f(): pass\n", 2, "is decorated by"),
    "a default": ("import json\ndef f(x=make()): pass\n", 2, "is a definition that calls something"),
    "an if": ("import os\nif os.environ.get('A'):\n    import json\n", 2, "decides by what is not known"),
    "a loop": ("import json\nfor i in json.loads('[]'): pass\n", 2, "is a statement whose parts may run"),
    "a try": (
        "import os\ntry: a = os.environ['A']\nexcept KeyError: os.mkdir('a')\n",
        2,
        "may raise, and what is done",
    ),
    "a look perhaps": ("import deriving\nif B: A = deriving.Base\n", 2, "looks at a library's name perhaps"),
    "all names": ("import json\nfrom deriving import *\n", 2, "takes all names of a library's module"),
    "nothing of that name": ("import json\nimport no_such_library\n", 2, "is not found beforehand"),
}


@pytest.mark.parametrize("name", ENDS)
def test_the_place_and_the_reason_where_the_prefix_ends(asking, name):
    text, line, why = ENDS[name]
    told = asking.json(text + "import sees_nothing\n")
    assert told["warm"] and told["prefix_end"]["where"] == f"train.py:{line}"
    assert told["prefix_end"]["text"].startswith(("import of no_such", text.splitlines()[line - 1].strip()))
    assert told["prefix_end"]["why"].startswith(why)
    assert why_not(told)["sees_nothing"].startswith(f"is imported behind train.py:{line}, ")
    assert "sees_nothing" not in told["modules"]
    assert told["imported"][0]["where"] == "train.py:1"


def test_the_end_may_be_in_a_module_of_the_users_own(asking):
    told = asking.json("import json\nimport own\nimport zebra\n", own="import aardvark\nprepare()\n")
    assert [(row["where"], row["module"]) for row in told["imported"]] == [
        ("train.py:1", "json"),
        ("own.py:1", "aardvark"),
    ]
    assert told["prefix_end"]["where"] == "own.py:2"
    assert why_not(told)["own"] == "is the user's own: it is read, never imported ahead"
    assert why_not(told)["zebra"] == "is imported behind own.py:2, prepare()"


def test_a_script_of_each_rank_is_told_of_by_that_of_the_first(asking):
    write_files(asking.folder, {"train_0.py": "import zebra\n"})
    told = asking.json("import aardvark\n", "train_${local_rank}.py")
    assert (told["script"], [row["module"] for row in told["imported"]]) == ("train_0.py", ["zebra"])
    done = asking.run("other_${local_rank}.py")
    assert done.returncode == 1 and "the script cannot be read: other_0.py" in done.stderr


def test_what_tainted_a_zygote_costs_the_next_one(asking):
    told = asking.json("import sees_rank\nimport makes_socket\nimport uses_rank\nimport zebra\n")
    # Each ends its prefix: nothing behind it is imported, so nothing there taints.
    assert told["warm"] and told["zygotes"] == 2
    assert why_not(told)["sees_rank"] == "it reads RANK while it is imported"
    assert why_not(told)["zebra"] == "stands behind sees_rank, which is not imported ahead"
    assert told["stopped"] == {
        "module": "sees_rank",
        "where": "train.py:1",
        "why": "it reads RANK while it is imported",
    }
    told = asking.json("import aardvark, zebra, sees_rank\n")
    assert [row["module"] for row in told["imported"]] == ["aardvark", "zebra"]
    told = asking.json("import makes_socket\n")
    assert re.match(r"it (opened socket:|holds a socket)", why_not(told)["makes_socket"])
    told = asking.json("import uses_rank\n")
    assert why_not(told)["uses_rank"] == "it imports sees_rank: it reads RANK while it is imported"


def test_what_an_earlier_launch_has_learnt(asking):
    text = "import zebra\nimport sees_rank\nimport torch\n"
    asking.launch(text)
    told = asking.json(text)
    assert told["zygotes"] == 1 and told["hidden"][0]["library"] == "torch"
    assert why_not(told)["sees_rank"].startswith("an earlier launch found that it must not be imported ahead")
    (file,) = asking.folder.glob("state/phalanx/learnt-*.json")
    learnt = json.loads(file.read_text())
    assert learnt["deny"] == ["sees_rank"]
    # As after a life for which what was imported ahead of its turn was not what it would have imported.
    file.write_text(json.dumps({**learnt, "deny": ["sees_rank", "phalanx.late"]}))
    told = asking.json(text)
    assert told["hidden"] == [] and told["hidden_why_not"].startswith("a life of this script began anew")
    assert list(why_not(told)) == ["sees_rank", "torch"]
    told = asking.json(text, "--anew", "train.py")
    assert (told["zygotes"], why_not(told)["sees_rank"]) == (2, "it reads RANK while it is imported")


def test_asking_leaves_nothing_behind(asking):
    asking.json("import sees_rank\nopen('ran', 'w')\n")
    assert sorted(path.name for path in asking.folder.iterdir()) == ["train.py"]


def test_torch_behind_usual_things_lies_hidden(asking):
    told = asking.json("import argparse\nparser = argparse.ArgumentParser()\nimport torch\n")
    assert told["prefix_end"]["where"] == "train.py:2"
    assert told["hidden"][0]["library"] == "torch" and told["hidden"][0]["why"] == "train.py:3 imports torch"
    assert {"torch", "torch.optim"} <= set(told["hidden_modules"]) and "torch" not in told["modules"]
    assert "torch" not in why_not(told)


def test_torch_behind_variables_that_the_text_sets(asking):
    told = asking.json("import os\nos.environ['PYTORCH_X'] = '1'\nos.environ.pop('NOBODY', None)\nimport torch\n")
    assert told["prefix_end"]["where"] == "train.py:2"
    why = "train.py:4 imports torch; it is imported with PYTORCH_X=1, as the script sets it"
    assert told["hidden"][0]["why"] == why


def test_torch_behind_an_effect_does_not(asking):
    told = asking.json("prepare()\nimport torch\n")
    assert told["hidden"] == []
    assert told["hidden_why_not"].startswith(
        "train.py:2 imports torch behind train.py:1; a first step teaches it, unless"
    )
    assert why_not(told)["torch"] == "is imported behind train.py:1, prepare()"
    told = asking.json("import json\n")
    assert told["hidden_why_not"].startswith("the script leads to no library")


def test_what_makes_a_spare_start_afresh(asking):
    told = asking.json("import sees_env\nimport torch\n")
    assert {"LIB_MODE", "TORCH_LOOKS"} <= set(told["afresh"]["variables"])
    assert (told["afresh"]["all_variables"], told["afresh"]["arguments"]) == (False, False)
    told = asking.json("import walks\nimport sees_argv\n", "train.py", "--epochs=3")
    assert (told["afresh"]["all_variables"], told["afresh"]["arguments"]) == (True, True)


def test_modules_that_were_asked_for(asking):
    told = asking.json("prepare()\nimport zebra\n", "--preload=zebra,no_such_library", "train.py")
    assert told["imported"] == [{"module": "zebra", "where": "--preload"}]
    assert why_not(told) == {"no_such_library": "it is not found"}


COLD = {
    "the environment": ("import json\n", {"PHALANX_WARM": "0"}, "PHALANX_WARM=0 asks for a cold start"),
    "the script": ("# phalanx: cold\n", {}, "the script asks for a cold start ('# phalanx: cold')"),
    "no files": ("import json\n", {"PHALANX_BOOTSTRAP_DIR": "/nowhere"}, "Phalanx's Python files are not beside this"),
    "what ends it": ("import ends_it\n", {}, "the process that spares come from does not live: ended with exit code 7"),
    "what ends it behind its imports": (
        "import torch\n",
        {"TORCH_LOOKS": "broken"},
        "the process that spares come from does not live: ended with exit code 1; its last words: Traceback",
    ),
    "an own file": ("import looks_for_helpers\n", {}, "the script's folder has its own 'helpers'"),
}


@pytest.mark.parametrize("name", COLD)
def test_a_cold_start_is_an_answer(asking, name):
    text, env, why = COLD[name]
    told = asking.json(text, env=env, helpers="")
    assert told["warm"] is False and told["why"].startswith(why)
    assert told["interpreter"] == str(asking.prefix.python)
    done = asking.run("train.py", env=env)
    assert done.returncode == 0 and done.stdout.startswith(f"train.py starts cold: {why}"), done


@pytest.mark.parametrize(
    "words, why",
    [
        (["--no-warm", "train.py"], "--no-warm asks for a cold start"),
        (["--no-python", "./train.py"], "a program (--no-python) is not forked from a Python"),
    ],
)
def test_flags_of_a_launch_count(asking, words, why):
    assert asking.json("import json\n", *words)["why"] == why


def test_a_profilers_variable_is_the_reason(asking):
    """Not the notice that --spares has no effect then."""
    env = {"CUDA_INJECTION64_PATH": "/nowhere/injection.so"}
    told = asking.json("import json\n", "--spares=1", "train.py", env=env)
    assert told["warm"] is False and told["why"].startswith("CUDA_INJECTION64_PATH is set, as nsys and ncu do")


def test_another_interpreter_is_cold(asking):
    env = {"PYTHON_EXEC": sys.executable, "PHALANX_BOOTSTRAP_DIR": ""}
    assert asking.json("import json\n", env=env)["why"].startswith("PYTHON_EXEC names another interpreter")


def test_no_answer(asking):
    """What cannot be read is no question, nor one without an interpreter."""
    write_files(asking.folder, {"wrong.py": "import json\nx = = 1\n", "folder/x.txt": ""})
    for words, why in {
        ("nowhere.py",): "the script cannot be read: nowhere.py: No such file or directory",
        ("folder",): f"the script cannot be read: {asking.folder}/folder: Is a directory",
        ("wrong.py",): f"the script cannot be read: {asking.folder}/wrong.py:2: invalid syntax",
        ("-m", "nowhere"): "the script cannot be read: there is no such module",
    }.items():
        done = asking.run(*words)
        assert (done.returncode, done.stdout, done.stderr) == (1, "", f"phalanx: {why}\n")
    done = asking.run("wrong.py", env={"PYTHON_EXEC": "/nowhere/python"})
    assert done.returncode == 2 and "PYTHON_EXEC=/nowhere/python" in done.stderr
    done = asking.run("--nonsense", "wrong.py")
    assert done.returncode == 2 and "unrecognized argument: --nonsense" in done.stderr


# Its first line only makes a value, so that all behind it is prefix, up to the print.
SHOWS = """import sys
THERE = sorted(sys.__dict__["modules"])
import json, sees_env, own, email.message
import torch, standin
print("there", *THERE)
import zebra
"""


@pytest.mark.parametrize("words", [["train.py"], ["-m", "train"]])
def test_a_launch_has_at_its_first_line_what_the_answer_lists(asking, words):
    write_files(asking.folder, {"own.py": "import aardvark\n"})
    told = asking.json(SHOWS, *words)
    assert {"json", "sees_env", "aardvark", "email.message", "torch", "standin"} <= set(told["modules"])
    said = asking.launch(SHOWS, *words).stdout
    there = next(line for line in said.splitlines() if line.startswith("there ")).split()[1:]
    pythons = ["runpy"] if "-m" in words else []  # as under any `python -m`
    assert [name for name in there if name.partition(".")[0] != "phalanx"] == sorted([*told["modules"], *pythons])


def blocks(kind):
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    return re.findall(rf"^```{kind} warm\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def simplified(text):
    """Without numbers, which are other ones with each torch, the width of columns, and where long lines are broken."""
    return re.sub(r"\d+", "N", re.sub(r"\s+", " ", text))


def test_the_documentation_shows_what_is_said(tmp_path):
    """With the torch of the tests, by an installation of its own. "..." stands for what depends on versions."""
    script, (said,) = blocks("python"), blocks("console")
    prefix = Prefix(tmp_path / "venv", command_path("phalanx-run"))
    prefix.packages.joinpath("others.pth").write_text(purelib())
    prefix.packages.joinpath("tracker.py").write_text("import os\nRANK = os.environ.get('RANK')\n")
    prefix.packages.joinpath("phalanx").symlink_to(os.path.dirname(BOOTSTRAP))
    asking = Asking(tmp_path, prefix)
    write_files(tmp_path, {"train.py": script[0], "settings.py": "def apply(): pass\n"})
    command, expected = said.removeprefix("$ ").split("\n", 1)
    found = asking.run(*command.split()[2:], env={"PHALANX_BOOTSTRAP_DIR": ""}).stdout
    found = simplified(found.replace(str(tmp_path), ""))
    wanted = re.escape(simplified(expected)).replace(re.escape("..."), ".*")
    assert re.fullmatch(wanted, found, re.DOTALL), found
