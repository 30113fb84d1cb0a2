"""The tools of others, each turned into findings of our shape."""

import re
import shutil
import subprocess
import sys

from tools.lint import config
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


def gofmt(project):
    files = project.matching(".go")
    if files and not shutil.which("gofmt"):
        return [Finding("operator/go.mod", 1, "gofmt", "no gofmt on PATH; ./run lint brings one")]
    status, output = run(project, ["gofmt", "-l", *files]) if files else (0, "")
    findings = [Finding(path, 1, "gofmt", f"gofmt -w {path}") for path in output.splitlines() if path in set(files)]
    if status != 0 and not findings:
        findings.append(Finding("operator/go.mod", 1, "gofmt", output.strip()[-400:]))
    return findings


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
    scripts = project.shell_scripts()
    command = ["shellcheck", "--external-sources", "--format=gcc", *scripts]
    return checked(project, "shellcheck", command) if scripts else []
