"""The tools of others, each turned into findings of our shape."""

import concurrent.futures
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tools.lint import config, cpp_text
from tools.lint.project import Finding

GCC_STYLE = re.compile(r"^(?P<path>[^:\n]+):(?P<line>\d+):\d+: (?:warning|error|note|style|info): (?P<text>.*)$", re.M)


def run(project, command):
    answer = subprocess.run(command, cwd=project.root, capture_output=True, text=True, check=False)
    return answer.returncode, answer.stdout + answer.stderr


def findings_of(project, rule, output, advice=None):
    for match in GCC_STYLE.finditer(output):
        if ": note: " in match.group(0):
            continue
        path = match.group("path")
        if path.startswith("/"):
            if not path.startswith(f"{project.root}/"):
                continue
            path = path[len(str(project.root)) + 1 :]
        yield Finding(path, int(match.group("line")), rule, advice or match.group("text"))


def checked(project, rule, command, advice=None, about=None):
    """Runs a tool; an exit status that its findings do not explain is a finding itself, about `about` where given."""
    status, output = run(project, command)
    findings = list(findings_of(project, rule, output, advice))
    if status != 0 and not findings:
        findings.append(Finding(about or command[0], 1, rule, f"ended with {status}: {output.strip()[-400:]}"))
    return sorted(set(findings))


def clang_format(project):
    files = project.cpp()
    command = [config.CLANG_FORMAT, "--dry-run", "-Werror", *files]
    return checked(project, "clang-format", command, "./run format") if files else []


def ruff_check(project):
    command = [sys.executable, "-m", "ruff", "check", "--quiet", "--output-format=concise", "."]
    status, output = run(project, command)
    pattern = re.compile(r"^([^:\n]+):(\d+):\d+: (.*)$", re.M)
    findings = [Finding(path, int(line), "ruff", text) for path, line, text in pattern.findall(output)]
    if status != 0 and not findings:
        findings.append(Finding("pyproject.toml", 1, "ruff", output.strip()))
    return findings


def ruff_format(project):
    status, output = run(project, [sys.executable, "-m", "ruff", "format", "--check", "--output-format=concise", "."])
    paths = set(re.findall(r"^([^:\n]+):\d+:\d+: ", output, re.M))
    findings = [Finding(path, 1, "ruff-format", "./run format") for path in paths]
    if status != 0 and not findings:
        findings.append(Finding("pyproject.toml", 1, "ruff-format", output.strip()))
    return findings


def shellcheck(project):
    scripts = [path for path in project.files if path in ("run", ".ci/run") or path.endswith(".sh")]
    command = ["shellcheck", "--external-sources", "--format=gcc", *scripts]
    return checked(project, "shellcheck", command) if scripts else []


def clang_tidy(project):
    """Our sources but the tests, in parallel. A clean file stays clean while it and what it includes stay the same."""
    database = project.root / "build" / "release" / "compile_commands.json"
    if not database.is_file():
        return [Finding("CMakePresets.json", 1, "clang-tidy", "needs build/release: use ./run lint")]
    version = run(project, [config.CLANG_TIDY, "--version"])[1]
    base = version + (project.root / ".clang-tidy").read_text()
    cache = Path(os.environ.get("PHALANX_CACHE") or project.root / "build") / "clang-tidy"
    cache.mkdir(parents=True, exist_ok=True)
    jobs = {}
    for entry in json.loads(database.read_text()):
        path = os.path.relpath(entry["file"], project.root)
        if path in project.files and path.startswith(config.CPP_FOLDERS) and not path.endswith("_test.cc"):
            flags = entry["command"].replace(str(project.root), "")
            jobs[path] = cache / digest(project, path, base + flags)
    todo = [path for path in sorted(jobs) if not jobs[path].exists()]
    findings = set()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, found in zip(todo, pool.map(lambda path: tidy_one(project, path), todo)):
            findings.update(found)
            if not found:
                jobs[path].touch()
    return sorted(findings)


def tidy_one(project, path):
    command = [config.CLANG_TIDY, "-p", "build/release", "--quiet", "--extra-arg=-Wno-unknown-warning-option", path]
    return checked(project, "clang-tidy", command, about=path)


def digest(project, path, base):
    """A hash of the file and of every file of ours that it includes, however far."""
    seen, queue = set(), [path]
    while queue:
        current = queue.pop()
        if current in seen:
            continue
        seen.add(current)
        for _, header, _ in cpp_text.includes(project.text(current)):
            proto = re.sub(r"(?:\.grpc)?\.pb\.h$", ".proto", f"proto/{header}")
            queue += [candidate for candidate in (f"src/{header}", header, proto) if candidate in project.files]
    text = base + "".join(f"{name}\0{project.text(name)}\0" for name in sorted(seen))
    return hashlib.sha256(text.encode()).hexdigest()
