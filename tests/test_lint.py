"""Every rule of tools/lint fires on what it is there to stop, and leaves alone what only looks like it."""

import ast
import fnmatch
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import torches  # noqa: E402
from tools.lint import __main__ as lint_main  # noqa: E402
from tools.lint import (  # noqa: E402
    allow,
    config,
    cpp_text,
    external,
    ratchet,
    rules_cpp,
    rules_imports,
    rules_links,
    rules_old_python,
    rules_python,
    rules_text,
    tidy,
    tidy_record,
)
from tools.lint.project import Finding, Project  # noqa: E402
from tools.suite import budgets, report  # noqa: E402


def project_of(folder, files):
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(text.encode("utf-8", "surrogateescape"))
    return Project(folder, files)


OLD_PYTHON = rules_old_python.old_python
# rule, file, text that breaks it on its last line, text that does not break it
ONE_FILE = [
    (rules_cpp.no_sleep, "src/agent/a.cc", "std::this_thread::sleep_for(kSecond);", "// sleep(1) was here"),
    (rules_cpp.no_sleep, "src/agent/a.cc", "usleep (10);", 'Say("sleep(1)");'),
    (rules_cpp.no_sleep, "src/agent/a.cc", "::nanosleep(&time, nullptr);", "loop.SleepTimer(5);"),
    (rules_cpp.no_catch_all, "src/agent/a.cc", "} catch ( ... ) {", "} catch (const std::exception& error) {"),
    (rules_cpp.no_getenv, "src/agent/a.cc", 'std::getenv("HOME");', 'environment.Get("HOME");'),
    (rules_cpp.no_getenv, "src/cli/a.cc", 'secure_getenv("HOME");', "MyGetenv();"),
    (rules_cpp.no_getenv, "src/cli/a.cc", 'setenv("A", "b", 1);', "Reset();"),
    (rules_cpp.include_direction, "src/base/a.cc", '#include "agent/b.h"', '#include "base/b.h"'),
    (rules_cpp.include_direction, "src/store/a.cc", '#include "phalanx/v1/agent.pb.h"', '#include "base/b.h"'),
    (rules_cpp.include_direction, "src/master/core/a.h", '#include "store/b.h"', '#include "elasticity/b.h"'),
    (rules_cpp.include_direction, "src/master/rules/a.h", '#include "master/core/b.h"', '#include "base/b.h"'),
    (rules_cpp.include_direction, "src/master/core/a.h", '#include "wire/session.h"', '#include "wire/protocol.h"'),
    (rules_cpp.include_direction, "src/agent/a.h", '#include "base/b.h"', None),
    (rules_cpp.include_direction, "src/agent/node/a.h", '#include "master/core/b.h"', '#include "agent/core/b.h"'),
    (rules_cpp.include_direction, "src/agent/workers/a.h", '#include "agent/node/b.h"', '#include "base/c/b.h"'),
    (rules_cpp.include_direction, "src/agent/workers/a.h", '#include "agent/b.h"', '#include "agent/machine/b.h"'),
    (rules_cpp.include_direction, "src/agent/node/a.h", '#include "b.h"', '#include "nlohmann/json.hpp"'),
    (rules_cpp.include_direction, "src/novel/a.h", "int a;", None),
    (rules_cpp.include_direction, "src/master/serve/a.h", '#include "simulation/b.h"', '#include "master/core/b.h"'),
    (rules_cpp.include_direction, "simulation/a.h", '#include "store/b.h"', '#include "agent/node/b.h"'),
    (rules_cpp.pure_cores, "src/agent/core/core.cc", "std::unordered_map<int, int> m;", "std::map<int, int> m;"),
    (rules_cpp.pure_cores, "src/store/engine.h", "absl::flat_hash_set<int> m;", "std::set<int> m;"),
    (rules_cpp.pure_cores, "src/master/rules/budget.cc", "double share = 1;", "int64_t doubled = 1'000;"),
    (rules_cpp.pure_cores, "src/master/rules/lease.h", "auto share = 0.5 * n;", "auto share = n / 2;  // 0.5"),
    (rules_cpp.pure_cores, "src/master/core/core_apply.cc", "auto now = MonotonicMs();", "Step(state, event, now);"),
    (rules_cpp.pure_cores, "src/master/rules/placement.cc", "#include <thread>", "#include <tuple>"),
    (rules_cpp.pure_cores, "src/agent/core/core.cc", "#include <sys/epoll.h>", '#include "base/clock.h"'),
    (
        rules_cpp.pure_cores,
        "src/agent/core/a.cc",
        "exited.set_unix_ms(UnixMs());",
        "exited.set_unix_ms(event.unix_ms);",
    ),
    (
        rules_cpp.wall_clock,
        "src/agent/workers/a.cc",
        "if (UnixMs() > until) End();",
        "if (MonotonicMs() > until) End();",
    ),
    (rules_cpp.wall_clock, "src/store/a.cc", "auto t = std::chrono::system_clock::now();", "steady_clock::now();"),
    (
        rules_cpp.wall_clock,
        "src/base/a.cc",
        "clock_gettime(CLOCK_REALTIME, &t);",
        "clock_gettime(CLOCK_MONOTONIC, &t);",
    ),
    (rules_cpp.pure_cores, "simulation/world.cc", "#include <random>", '#include "simulation/random.h"'),
    (rules_cpp.core_list, "src/agent/node/a.h", "// Decides. Pure.", "// Decides. Pure, but for its clock."),
    (rules_cpp.core_list, "src/base/a.h", "// What is decided purely.", "// F.\n\nint F();  // Pure."),
    (rules_cpp.core_list, "src/master/core/a.h", "// Who may come in.", "// Who may come in. Pure."),
    (rules_cpp.core_list, "src/master/rules/a.h", "int a;  // Pure.", "// A,\n// pure, but that it ends the program."),
    (rules_python.no_sleep, "python/phalanx/a.py", "import time\ntime.sleep(1)", "import time\ntime.monotonic()"),
    (rules_python.no_sleep, "tests/a.py", "from time import sleep as rest\nrest(1)", "def sleep():\n    rest(1)"),
    (rules_python.no_sleep, "tests/a.py", "import time as t\nt.sleep(1)", "t.sleep(1)"),
    (
        rules_python.no_name_twice,
        "python/phalanx/a.py",
        "class A:\n    def save(self): ...\n    def load(self): ...\n    def save(self): ...",
        "class A:\n    @property\n    def at(self): ...\n    @at.setter\n    def at(self, to): ...\ndef at(): ...",
    ),
    (
        rules_python.no_blind_except,
        "a.py",
        "try:\n    f()\nexcept:\n    pass",
        "try:\n    f()\nexcept OSError:\n    pass",
    ),
    (
        rules_python.no_blind_except,
        "a.py",
        "try:\n    f()\nexcept (OSError, Exception):\n    pass",
        "try:\n    f()\nexcept BaseException:\n    undo()\n    raise",
    ),
    (OLD_PYTHON, "python/phalanx/a.py", "a = name.removeprefix('torch.')", "a = name.replace('torch.', '')"),
    (
        OLD_PYTHON,
        "python/phalanx/a.py",
        "import os\nos.pidfd_open(1)",
        "if hasattr(os, 'pidfd_open'): os.pidfd_open(1)",
    ),
    (OLD_PYTHON, "python/phalanx/a/b.py", "import os\nfrom functools import cache", "from functools import lru_cache"),
    (OLD_PYTHON, "python/phalanx/a.py", "import math\nimport tomllib", "import json"),
    (OLD_PYTHON, "tests/test_warm.py", "zip(a, b, strict=True)", "zip(a, b)"),
    (OLD_PYTHON, "tests/workloads/a.py", "def f() -> list[int]: pass", "def f() -> 'list[int]': pass"),
    (
        OLD_PYTHON,
        "python/phalanx/a.py",
        "a: dict[str, int] = {}",
        "from __future__ import annotations\na: dict[str, int]",
    ),
    (OLD_PYTHON, "python/phalanx/a.py", "match a:\n  case 1: pass", "match = 1"),
    (rules_text.no_markers, "src/base/a.cc", "// TODO: later", "mkstemp(XXXXXX)"),
    (rules_text.no_markers, "docs/a.md", "FIXME", "to do"),
    (rules_text.no_machine_paths, "tools/a.sh", "cd /home/ann/phalanx", "cd ~/phalanx"),
    (rules_text.no_machine_paths, "docs/a.md", "see /work/notes", "see docs/work/notes and https://a.org/root/b"),
    (rules_text.no_downloads, "tools/a.sh", "curl https://a.org/b.tar.gz", "see https://a.org/b"),
    (rules_text.no_downloads, "a.txt", "--extra-index-url https://a.org", "torch==2.15.0"),
    (
        rules_text.no_downloads,
        "tools/a.sh",
        "curl -sSL https://a.org/install | bash",
        "curl http://localhost:8080/metrics",
    ),
    (rules_text.no_downloads, "tools/a.sh", 'curl -s "$URL" | sudo sh', 'curl -s "$URL" | grep sh'),
    (rules_text.no_downloads, ".github/workflows/a.yml", "- run: wget https://a.org/b", "- uses: a/b"),
    (rules_text.no_trailing_blanks, "docs/a.md", "text ", "text"),
    (rules_text.no_trailing_blanks, "docs/a.md", "text\r", "text"),
    (rules_text.no_trailing_blanks, "tests/a.c", "int a; ", "int a;"),
    (rules_text.no_markers, "deploy/a.yaml", "# FIXME", "# to do"),
    (rules_text.no_markers, "tools/hook", "#!/usr/bin/env python3\n# TODO", None),
    (rules_text.no_machine_paths, "tools/hook", "#!/bin/sh\ncd /home/ann/phalanx", "cd /home/ann/phalanx"),
    (rules_text.no_markers, "src/base/a.cc", "// gr\udcfcn\n// TODO", "// gr\udcfcn"),
    (rules_text.utf_8, "src/base/a.cc", "// good\n// gr\udcfcn", "// grün"),
    (rules_links.links, "docs/a.md", "see [b](b.md)", "see [a](a.md), [above](#top-1), `[x](y)`\n\n# Top 1"),
    (rules_links.links, "docs/a.md", "[b](#below)", "[b](../docs/) [c](https://a.org/b.md)\n```\n[d](e)\n```"),
    (rules_text.no_long_lines, "src/base/a.h", "x" * 121, "x" * 120),
    (rules_text.no_long_lines, "run", "#!/bin/sh\n# " + "x" * 120, "# short"),
]


@pytest.mark.parametrize(("rule", "path", "bad", "good"), ONE_FILE)
def test_rule(tmp_path, rule, path, bad, good):
    findings = list(rule(project_of(tmp_path / "bad", {path: bad})))
    line = 3 if "except" in bad else bad.count("\n") + 1
    assert [(finding.path, finding.line) for finding in findings] == [(path, line)]
    assert findings[0].advice
    if good is not None:
        assert list(rule(project_of(tmp_path / "good", {path: good}))) == []


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (rules_cpp.no_sleep, "src/base/clock.cc", "nanosleep(&time, nullptr);"),
        (rules_cpp.no_getenv, "src/base/env.cc", 'getenv("A");'),
        (rules_cpp.pure_cores, "src/agent/core/core_test.cc", "#include <thread>"),
        (rules_cpp.pure_cores, "src/agent/node/shell.cc", "double share = 0.5;"),
        (rules_cpp.core_list, "src/base/env.h", "// What comes later is a pure lookup."),
        (rules_cpp.core_list, "src/master/core/job_fixture.h", "// A job for tests."),
        (rules_cpp.core_list, "src/agent/node/a.cc", "// Of a.h, which says whether it is pure."),
        (rules_cpp.core_list, "simulation/world.h", "// One simulated job."),
        (rules_cpp.include_direction, "src/cli/a.cc", '#include "agent/node/b.h"'),
        (rules_old_python.old_python, "tools/a.py", "name.removeprefix('torch.')"),
    ],
)
def test_rule_ends_at_its_door(tmp_path, rule, path, text):
    assert list(rule(project_of(tmp_path, {path: text}))) == []


def test_a_core_is_listed_with_its_source(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "CORES", ("src/base/listed.*", "src/base/half.h"))
    head = "// What is decided.\n// Pure.\n#pragma once\n"
    files = [f"src/base/{name}.{end}" for name in ("listed", "half", "left") for end in ("h", "cc")]
    project = project_of(tmp_path, {file: head if file.endswith("h") else "" for file in files})
    found = [(finding.path, finding.rule) for finding in rules_cpp.core_list(project)]
    left_out = ["src/base/half.cc", "src/base/left.h", "src/base/left.cc"]
    assert sorted(found) == sorted((file, "core-list") for file in left_out)


def imported_by(file):
    """The files of tests/ and tools/ that a file imports, in its functions too."""
    names = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    paths = {name.replace(".", "/") + ".py" for name in names}
    candidates = {f"tests/{path}" for path in paths} | {path for path in paths if path.startswith("tools/")}
    return {path for path in candidates if (ROOT / path).is_file()}


def test_old_python_reaches_all_that_the_oldest_one_runs():
    """The rule reads whatever ./run test --all-torch names, conftest.py, and what these import."""
    files, left = set(), {test.partition("::")[0] for test in torches.TESTS} | {"tests/conftest.py"}
    while left:
        files |= left
        left = set().union(*map(imported_by, left)) - files
    left_out = [file for file in files if not any(fnmatch.fnmatch(file, pattern) for pattern in config.OLD_PYTHON)]
    assert {"tests/harness.py", "tests/share.py", "tools/venv.py"} < files and len(files) > 20
    assert sorted(left_out) == []


def test_names_that_a_module_of_ours_does_not_have(tmp_path):
    """Python says so only where the line is reached: in an adapter, behind the import of its framework."""
    user = """
from phalanx.a import b, here, gone
from phalanx.a.b import say, made, _tell
from phalanx.a.lazy import anything
import phalanx.a.b

def use(b2):
    b.say(b.missing, b.__name__, b2.missing)
"""
    shadowed = "from phalanx.a import b\n\n\ndef use(b):\n    return b.missing\n"
    files = {
        "python/phalanx/a/__init__.py": "import os as here\n",
        "python/phalanx/a/b.py": "def say():\n    inner = 1\n\n\nif True:\n    with open(say) as made:\n        pass\n",
        "python/phalanx/a/lazy.py": "def __getattr__(name):\n    return 1\n",
        "python/phalanx/user.py": user,
        "python/phalanx/shadowed.py": shadowed,
    }
    found = [(each.path, each.line, each.advice) for each in rules_imports.own_imports(project_of(tmp_path, files))]
    assert sorted(found) == [
        ("python/phalanx/user.py", 2, "phalanx.a has no gone"),
        ("python/phalanx/user.py", 3, "phalanx.a.b has no _tell"),
        ("python/phalanx/user.py", 8, "phalanx.a.b has no missing"),
    ]


def test_dead_files(tmp_path):
    project = project_of(
        tmp_path,
        {
            "src/base/CMakeLists.txt": "phx_library(x SOURCES built.cc) # left.cc",
            "src/base/built.cc": '#include "base/built.h"\n#include "base/shared.h"\n',
            "src/base/built.h": "",
            "src/base/shared.h": "",
            "src/base/left.cc": "",
            "simulation/CMakeLists.txt": "phx_library(y SOURCES built.cc)",
            "simulation/built.cc": '#include "simulation/built.h"\n#include "simulation/shared.h"\n',
            "simulation/built.h": "",
            "simulation/shared.h": "",
        },
    )
    dead = ["simulation/built.h", "src/base/built.h", "src/base/left.cc"]
    assert [finding.path for finding in rules_cpp.dead_files(project)] == dead


def test_final_newline(tmp_path):
    project = project_of(tmp_path, {"a.py": "a", "b.py": "b\n\n", "c.py": "c\n", "d.py": ""})
    assert [finding.path for finding in rules_text.final_newline(project)] == ["a.py", "b.py"]


CPP_FUNCTIONS = """
#define MACRO(x) \\
  void x() {     \\
  }
namespace phalanx {
enum class Kind : int { kA, kB };
struct Plain { int a = 1; std::vector<int> b{1, 2}; };
const std::map<int, int> kTable = {{1, 2}, {3, 4}};
static const auto kLambda = [](int a) { return a; };
template <typename T>
std::vector<T> Collect(const std::map<int, T>& from) {
  auto f = [&](int a) {
    return a;
  };
  return {f(1)};
}
class Loop : public Base {
 public:
  Loop(int a, std::string b = "}{") : a_{a}, b_(std::move(b)), c_{1, 2} {
    Run();
  }
  ~Loop() override = default;
  bool operator()(int a) const { return a == '{'; }
 private:
  friend bool operator==(const Loop& a, const Loop& b) {
    return a.a_ == b.a_;
  }
  std::function<int(int)> map_ = [](int a) { return a; };
};
TEST(Loop, EndsAtOnce) {
  // } not the end
  EXPECT_EQ(R"(})", 1'000);
}
int Loop::Run() const noexcept(true) { return 1; }
extern "C" {
void Door(int a) {
}
}
}  // namespace phalanx
"""


def test_cpp_functions_are_measured():
    found = cpp_text.functions(cpp_text.blank_comments_and_literals(CPP_FUNCTIONS))
    assert [(function.name, function.lines) for function in found] == [
        ("Collect", 7),
        ("Loop", 3),
        ("operator()", 1),
        ("operator==", 3),
        ("Loop.EndsAtOnce", 4),
        ("Loop::Run", 1),
        ("Door", 2),
    ]
    lines = CPP_FUNCTIONS.split("\n")
    assert "Loop(int a" in lines[found[1].line - 1]


def long_cpp(lines):
    return "void Long() {\n" + "  Call();\n" * (lines - 2) + "}\n"


def long_python(lines):
    return "class A:\n    def long(self):\n" + "        call()\n" * (lines - 1)


@pytest.mark.parametrize(
    ("path", "name", "text"), [("src/base/a.cc", "Long", long_cpp), ("tests/a.py", "A.long", long_python)]
)
def test_ratchet(tmp_path, path, name, text):
    def check(lines, known):
        return list(ratchet.check(project_of(tmp_path, {path: text(lines), ratchet.RATCHET: json.dumps(known)})))

    key = f"{path}::{name}"
    assert check(70, {}) == []
    assert "71 lines; split it" in check(71, {})[0].advice
    assert check(80, {key: 80}) == []
    assert "grew from 80 to 81" in check(81, {key: 80})[0].advice
    assert "became shorter" in check(79, {key: 80})[0].advice
    assert "became shorter" in check(60, {key: 80})[0].advice


def test_ratchet_only_tightens(tmp_path):
    known = {"a.cc::Long": 90, "a.cc::Gone": 80, "b.cc::Long": 75}
    files = {"a.cc": long_cpp(85), "b.cc": long_cpp(78), "c.cc": long_cpp(99), ratchet.RATCHET: json.dumps(known)}
    ratchet.tighten(project_of(tmp_path, files))
    assert json.loads((tmp_path / ratchet.RATCHET).read_text()) == {"a.cc::Long": 85, "b.cc::Long": 75}


def test_allow_list(tmp_path):
    entries = [
        {"rule": "sleep", "path": "tests/*.py", "text": "step", "reason": "a workload"},
        {"rule": "sleep", "path": "gone.py", "reason": "was needed once"},
        {"rule": "getenv", "path": "gone.cc", "reason": "of a rule that did not run"},
        {"rule": "sleep", "path": "bare.py"},
    ]
    files = {"tests/a.py": "sleep(step)\nsleep(1)\n", allow.ALLOW: json.dumps(entries)}
    found = [Finding("tests/a.py", 1, "sleep", ""), Finding("tests/a.py", 2, "sleep", "")]
    kept = allow.apply(project_of(tmp_path, files), {"sleep"}, found)
    assert kept[0] == found[1]
    assert [finding.advice for finding in kept[1:]] == [
        "gone.py no longer breaks 'sleep'; remove its entry",
        "say why bare.py may break 'sleep'",
    ]


def test_go_is_formatted_by_gofmt_and_has_long_lines_for_generators_alone(tmp_path):
    wide = "x" * 130
    files = {
        "a.go": f"package a\n\n// +kubebuilder:{wide}\nvar a = 1\n",
        "b.go": f"package a\n\n// {wide}\nvar  b = 1\n",
        "c.go": f"// Code generated by x. DO NOT EDIT.\n\npackage a\n\n// {wide}\n",
    }
    project = project_of(tmp_path, files)
    assert [(finding.path, finding.line) for finding in rules_text.no_long_lines(project)] == [("b.go", 3)]
    assert [finding.path for finding in external.gofmt(project)] == ["b.go"]


def test_clang_format_and_shellcheck_speak_in_our_shape(tmp_path):
    files = {"src/base/a.cc": "int  a ;\n", "run": '#!/bin/bash\nfor f in $(ls); do echo "$f"; done; echo $f\n'}
    project = project_of(tmp_path, files)
    assert [(finding.path, finding.line) for finding in external.clang_format(project)][:1] == [("src/base/a.cc", 1)]
    assert {(finding.path, finding.line) for finding in external.shellcheck(project)} == {("run", 2)}


def test_shell_scripts_are_known_by_their_interpreter(tmp_path):
    files = {
        "tools/a.sh": "",
        "tools/hook": "#!/usr/bin/env bash\n",
        "tools/other": "#!/bin/sh -e\n",
        "tools/snake": "#!/usr/bin/env python3\n",
        "tools/fish": "#!/usr/bin/fish\n",
        "data": "sh\n",
    }
    assert project_of(tmp_path, files).shell_scripts() == ["tools/a.sh", "tools/hook", "tools/other"]


def test_ruff_speaks_in_our_shape(tmp_path):
    project = project_of(tmp_path, {"a.py": "import os\n\nx = ( 1 )\n"})
    assert [(finding.path, finding.line, finding.rule) for finding in external.ruff_check(project)] == [
        ("a.py", 1, "ruff")
    ]
    assert [(finding.path, finding.rule) for finding in external.ruff_format(project)] == [("a.py", "ruff-format")]


def tidy_project(folder, header):
    """A file with a use after move that only its header brings in, and the database of its build."""
    files = {
        "src/base/a.cc": '#include <string>\n#include "base/a.h"\n'
        "std::string Two(const std::string& a) { return Use(a); }\n",
        "src/base/a.h": header,
        ".clang-tidy": (ROOT / ".clang-tidy").read_text(),
        "build/release/compile_commands.json": json.dumps(
            [
                {
                    "directory": str(folder),
                    "file": str(folder / "src/base/a.cc"),
                    "command": "c++ -std=c++20 -Isrc -c src/base/a.cc",
                }
            ]
        ),
    }
    return project_of(folder, files)


def test_clang_tidy_remembers_what_was_clean_and_sees_a_header_change(tmp_path, monkeypatch):
    monkeypatch.setenv("PHALANX_CACHE", str(tmp_path / "cache"))
    clean = "#pragma once\ninline std::string Use(const std::string& a) { return a; }\n"
    assert tidy.clang_tidy(tidy_project(tmp_path, clean)) == []
    remembered = list((tmp_path / "cache" / "clang-tidy").iterdir())
    assert len(remembered) == 1
    broken = (
        "#pragma once\n#include <utility>\ninline std::string Use(std::string a) { auto b = std::move(a); return a; }\n"
    )
    findings = tidy.clang_tidy(tidy_project(tmp_path, broken))
    assert [(finding.path, finding.line) for finding in findings] == [("src/base/a.h", 3)]
    assert "bugprone-use-after-move" in findings[0].advice
    assert list((tmp_path / "cache" / "clang-tidy").iterdir()) == remembered


def test_clang_tidy_knows_what_the_project_brings_along_as_clean(tmp_path, monkeypatch):
    clean = "#pragma once\ninline std::string Use(const std::string& a) { return a; }\n"
    monkeypatch.setenv("PHALANX_CACHE", str(tmp_path / "cache"))
    project = tidy_project(tmp_path, clean)
    assert tidy.clang_tidy(project) == []
    (tmp_path / tidy_record.PATH).parent.mkdir(parents=True)
    tidy.record(project)
    monkeypatch.setenv("PHALANX_CACHE", str(tmp_path / "an empty one"))
    found = [Finding("src/base/a.cc", 1, "clang-tidy", "no")]
    monkeypatch.setattr(tidy, "tidy", lambda *_: found)

    def read_again(header, everything=False):
        texts = {path: tidy_project(tmp_path, header).text(path) for path in tidy_project(tmp_path, header).files}
        texts[tidy_record.PATH] = (tmp_path / tidy_record.PATH).read_text()
        return tidy.clang_tidy(project_of(tmp_path, texts), everything)

    assert read_again(clean) == []
    assert read_again(clean, everything=True) == found
    assert read_again(clean + "\n") == found
    tidy.record(tidy_project(tmp_path, clean + "\n"))  # which nobody has found clean
    assert tidy_record.read(project_of(tmp_path, {tidy_record.PATH: (tmp_path / tidy_record.PATH).read_text()})) == {}


def sources_project(folder, texts):
    """Sources of one folder, and the database of their build."""
    files = {f"src/base/{name}": text for name, text in texts.items()}
    entries = [
        {"directory": str(folder), "file": str(folder / path), "command": f"c++ -std=c++20 -Isrc -c {folder / path}"}
        for path in files
    ]
    files[".clang-tidy"] = (ROOT / ".clang-tidy").read_text()
    files["build/release/compile_commands.json"] = json.dumps(entries)
    return project_of(folder, files)


MOVED = "#include <string>\n#include <utility>\nstd::string {}(std::string a) {{ auto b = std::move(a); return a; }}\n"


def test_clang_tidy_reads_sources_together_and_finds_what_it_finds_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("PHALANX_CACHE", str(tmp_path / "cache"))
    texts = {"a.cc": "int A() { return 1; }\n", "b.cc": MOVED.format("B"), "c.cc": "int C() { return 1; }\n"}
    project = sources_project(tmp_path, texts)
    sources = tidy.sources_of(project, json.loads(project.text("build/release/compile_commands.json")))
    assert [len(batch) for batch in tidy.batched(project, sources)] == [3]
    findings = tidy.clang_tidy(project)
    assert [(finding.path, finding.line) for finding in findings] == [("src/base/b.cc", 3)]
    assert [source.verdict.exists() for source in sources] == [True, False, True]
    # A bug comes to a file of a batch that was clean, and leaves again.
    clean = sources_project(tmp_path, {**texts, "b.cc": "int B() { return 1; }\n"})
    assert tidy.clang_tidy(clean) == []
    monkeypatch.setattr(tidy, "tidy", lambda *arguments: pytest.fail("all is remembered as clean"))
    assert tidy.clang_tidy(clean) == []


def test_clang_tidy_reads_apart_what_cannot_be_read_together(tmp_path, monkeypatch):
    monkeypatch.setenv("PHALANX_CACHE", str(tmp_path / "cache"))
    texts = {
        "a.cc": "namespace {\nint Same() { return 1; }\n}  // namespace\nint A() { return Same(); }\n",
        "b.cc": "namespace {\nint Same() { return 2; }\n}  // namespace\nint B() { return Same(); }\n",
        "c.cc": "#include <utility>\nusing std::pair;\n",
    }
    project = sources_project(tmp_path, texts)
    sources = tidy.sources_of(project, json.loads(project.text("build/release/compile_commands.json")))
    assert [[Path(s.path).name for s in batch] for batch in tidy.batched(project, sources)] == [
        ["a.cc", "c.cc"],
        ["b.cc"],
    ]
    assert [(finding.path, finding.line) for finding in tidy.clang_tidy(project)] == [("src/base/c.cc", 2)]
    # Where the names do not tell that sources collide, each is read alone.
    monkeypatch.setattr(tidy, "names_of", lambda project, path: tidy.Names(set(), set(), set()))
    assert [len(batch) for batch in tidy.batched(project, sources)] == [3]
    assert [(finding.path, finding.line) for finding in tidy.clang_tidy(project, True)] == [("src/base/c.cc", 2)]


def sources_of(project):
    return tidy.sources_of(project, json.loads(project.text("build/release/compile_commands.json")))


def test_no_source_at_all_is_a_finding(tmp_path, monkeypatch):
    """A database of another place, or one that could not be written whole."""
    monkeypatch.setenv("PHALANX_CACHE", str(tmp_path / "cache"))
    (finding,) = tidy.clang_tidy(sources_project(tmp_path, {}))
    assert "has no source of ours" in finding.advice


def test_a_source_that_changes_while_it_is_read_is_not_remembered_as_clean(tmp_path, monkeypatch):
    monkeypatch.setenv("PHALANX_CACHE", str(tmp_path / "cache"))
    project = sources_project(tmp_path, {"a.cc": "int A() { return 1; }\n", "b.cc": "int B() { return 1; }\n"})
    sources = sources_of(project)

    def change(*_):
        (tmp_path / "src/base/b.cc").write_text("int B() { return 2; }\n")
        return []

    monkeypatch.setattr(tidy, "tidy", change)
    assert tidy.clang_tidy(project) == []
    assert [source.verdict.exists() for source in sources] == [True, False]


def test_reading_all_again_forgets_a_wrong_verdict(tmp_path, monkeypatch):
    monkeypatch.setenv("PHALANX_CACHE", str(tmp_path / "cache"))
    project = sources_project(tmp_path, {"a.cc": "int A() { return 1; }\n"})
    (source,) = sources_of(project)
    source.verdict.touch()
    found = [Finding("src/base/a.cc", 1, "clang-tidy", "no")]
    monkeypatch.setattr(tidy, "tidy", lambda *_: found)
    assert tidy.clang_tidy(project) == []
    assert tidy.clang_tidy(project, everything=True) == found
    assert tidy.clang_tidy(project) == found


def test_a_verdict_hangs_on_all_that_decides_it(tmp_path, monkeypatch):
    """On the imports of a .proto, on packages with headers, on how clang-tidy is asked, and on the checks."""
    monkeypatch.setenv("PHALANX_CACHE", str(tmp_path / "cache"))

    def verdict(imported="", checks="Checks: '*'\n"):
        project = sources_project(tmp_path, {"a.cc": '#include "phalanx/v1/a.pb.h"\n'})
        more = {
            "proto/phalanx/v1/a.proto": 'import "phalanx/v1/b.proto";\n',
            "proto/phalanx/v1/b.proto": imported,
            ".clang-tidy": checks,
        }
        (source,) = sources_of(project_of(tmp_path, {path: project.text(path) for path in project.files} | more))
        return source.verdict.name

    assert verdict() == verdict()
    names = [verdict(), verdict(imported="message B {}\n"), verdict(checks="Checks: '-*'\n")]
    assert "libgrpc++-dev" in tidy.packages_of("build") and "clang-14" not in tidy.packages_of("build")
    versions = []
    run = external.run

    def upgraded(project, command):
        status, said = run(project, command)
        if command[0] == "dpkg-query":
            versions.append(said)
            said = said.replace("libabsl-dev 2", "libabsl-dev 3")
        return status, said

    monkeypatch.setattr(external, "run", upgraded)
    monkeypatch.setattr(tidy.shutil, "which", lambda _: "dpkg-query")
    names.append(verdict())
    assert "libabsl-dev 2" in versions[0] and "libstdc++-" in versions[0]
    assert all(len(line.split()) == 2 and "-" not in line.split()[1] for line in versions[0].splitlines())

    def elsewhere(project, command):
        status, said = run(project, command)
        return status, said.replace("Host CPU: ", "Host CPU: another than ")

    monkeypatch.setattr(external, "run", elsewhere)
    assert verdict() == names[0], "on a machine with another processor"
    monkeypatch.setattr(external, "run", run)
    (tmp_path / "tidy.py").write_text("another way to ask\n")
    monkeypatch.setattr(tidy, "__file__", str(tmp_path / "tidy.py"))
    names.append(verdict())
    assert len(set(names)) == len(names)


def test_two_runs_of_clang_tidy_in_one_clone_read_their_own_batches(tmp_path, monkeypatch):
    monkeypatch.setenv("PHALANX_CACHE", str(tmp_path / "cache"))
    texts = {name: f"int {name[0].upper()}() {{ return 1; }}\n" for name in ("a.cc", "b.cc", "c.cc")}
    project = sources_project(tmp_path, texts)
    read = []

    def look(project, folder, path, options=()):
        if not read:
            read.append(None)
            sources_of(project)[0].verdict.touch()
            tidy.clang_tidy(project)  # of the two that are left, while we work
        read.append(Path(path).read_text().count("#include"))
        return []

    monkeypatch.setattr(tidy, "tidy", look)
    assert tidy.clang_tidy(project) == []
    assert read[1:] == [2, 3]
    assert sorted(path.name for path in (tmp_path / "build").iterdir()) == ["release"]


def test_each_rule_is_explained():
    page = (ROOT / "docs" / "lint.md").read_text()
    names = {*lint_main.CHECKS, *(rule for _, rules in lint_main.CHECKS.values() for rule in rules)}
    assert sorted(name for name in names if f"`{name}`" not in page) == []


def test_command_line_exits_with_one_line_per_finding(tmp_path):
    project_of(tmp_path, {"docs/a.md": "text \n", "pyproject.toml": ""})
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    command = [sys.executable, "-m", "tools.lint", "trailing-blank", "marker", "--junit", "report.xml"]
    answer = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert answer.returncode == 1
    assert answer.stdout.startswith("docs/a.md:1: trailing-blank: ")
    assert answer.stdout.count("\n") == 1
    assert (tmp_path / "report.xml").read_text().count("<failure") == 1
    assert len(re.findall(r' time="\d+\.\d{3}"', (tmp_path / "report.xml").read_text())) == 2


def test_the_times_of_checks_count_to_the_budgets_of_lint_and_of_clang_tidy(tmp_path):
    limits = {
        "default": 1000,
        **{name: limit for name, limit in budgets.read().items() if name in ("lint", "clang-tidy")},
    }
    assert len(limits) == 3
    names = {"sleep": 1 + limits["lint"], "marker": 0.5, "clang-tidy": 1 + limits["clang-tidy"]}
    lint_main.write_junit(tmp_path / "report.xml", dict.fromkeys(names, ()), names)
    times_s = report.read_report("lint", tmp_path / "report.xml", 0).times_s
    assert times_s == {"lint": limits["lint"] + 1.5, "clang-tidy": limits["clang-tidy"] + 1}
    assert len(budgets.over(times_s, limits)) == 2


def test_a_tool_that_fails_without_a_word_is_a_finding(tmp_path):
    findings = external.checked(project_of(tmp_path, {}), "probe", ["false"], about="src/base/a.cc")
    assert [(finding.path, finding.rule) for finding in findings] == [("src/base/a.cc", "probe")]
