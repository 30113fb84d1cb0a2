"""Checks every rule and prints one line per finding: file:line: rule: what to do instead."""

import argparse
import sys
import time
import xml.etree.ElementTree as xml
from pathlib import Path

from tools.lint import (
    allow,
    external,
    ratchet,
    rules_cpp,
    rules_imports,
    rules_links,
    rules_old_python,
    rules_python,
    rules_text,
    tidy,
)
from tools.lint.project import Project

# Name of a check -> (function, the rules it speaks of).
CHECKS = {
    "sleep": (lambda project: [*rules_cpp.no_sleep(project), *rules_python.no_sleep(project)], {"sleep"}),
    "catch-all": (rules_cpp.no_catch_all, {"catch-all"}),
    "blind-except": (rules_python.no_blind_except, {"blind-except"}),
    "name-twice": (rules_python.no_name_twice, {"name-twice"}),
    "own-import": (rules_imports.own_imports, {"own-import"}),
    "old-python": (rules_old_python.old_python, {"old-python"}),
    "getenv": (rules_cpp.no_getenv, {"getenv"}),
    "function-length": (ratchet.check, {"function-length"}),
    "include-direction": (rules_cpp.include_direction, {"include-direction"}),
    "wall-clock": (rules_cpp.wall_clock, {"wall-clock"}),
    "pure-cores": (rules_cpp.pure_cores, {"core-order", "core-float", "core-world", "core-header"}),
    "core-list": (rules_cpp.core_list, {"core-list"}),
    "dead-file": (rules_cpp.dead_files, {"dead-file"}),
    "marker": (rules_text.no_markers, {"marker"}),
    "machine-path": (rules_text.no_machine_paths, {"machine-path"}),
    "download": (rules_text.no_downloads, {"download"}),
    "utf-8": (rules_text.utf_8, {"utf-8"}),
    "trailing-blank": (rules_text.no_trailing_blanks, {"trailing-blank"}),
    "long-line": (rules_text.no_long_lines, {"long-line"}),
    "final-newline": (rules_text.final_newline, {"final-newline"}),
    "link": (rules_links.links, {"link"}),
    "clang-format": (external.clang_format, {"clang-format"}),
    "gofmt": (external.gofmt, {"gofmt"}),
    "ruff": (external.ruff_check, {"ruff"}),
    "ruff-format": (external.ruff_format, {"ruff-format"}),
    "shellcheck": (external.shellcheck, {"shellcheck"}),
    "clang-tidy": (tidy.clang_tidy, {"clang-tidy"}),
}
SLOW = {"clang-tidy"}


def run_check(project, name, everything):
    """The findings of one check, less what allow.json allows."""
    function, rules = CHECKS[name]
    options = {"everything": True} if everything and name in SLOW else {}
    return sorted(set(allow.apply(project, rules, function(project, **options))))


def write_junit(path, results, times_s):
    """One case a check. Its class is what has a budget of time (tools/suite/budgets.json): slow ones have their own."""
    suite = xml.Element("testsuite", name="lint")
    for name, findings in results.items():
        budget = name if name in SLOW else "lint"
        case = xml.SubElement(suite, "testcase", classname=budget, name=name, time=f"{times_s[name]:.3f}")
        if findings:
            xml.SubElement(case, "failure", message=f"{len(findings)} findings").text = "\n".join(map(str, findings))
    xml.ElementTree(suite).write(path)


def main():
    parser = argparse.ArgumentParser(prog="./run lint", description=__doc__)
    parser.add_argument("--fast", action="store_true", help="leave out clang-tidy")
    parser.add_argument("--all", action="store_true", help="clang-tidy also on what it remembers as clean")
    parser.add_argument("--record", action="store_true", help="write down what clang-tidy knows as clean, for others")
    parser.add_argument("--tighten", action="store_true", help="lower ratchet.json to what the functions have now")
    parser.add_argument("--junit", type=Path, help="also write a report in JUnit's format")
    parser.add_argument("check", nargs="*", help=f"only these: {' '.join(CHECKS)}")
    arguments = parser.parse_args()
    unknown = set(arguments.check) - set(CHECKS)
    if unknown:
        parser.error(f"no check {', '.join(sorted(unknown))}; there are: {' '.join(CHECKS)}")
    project = Project.of_checkout(Path.cwd())
    if arguments.tighten:
        ratchet.tighten(project)
        project = Project.of_checkout(Path.cwd())
    began, results, times_s = time.monotonic(), {}, {}
    for name in arguments.check or CHECKS:
        if arguments.fast and name in SLOW:
            continue
        check_began = time.monotonic()
        results[name] = run_check(project, name, arguments.all)
        times_s[name] = time.monotonic() - check_began
        for finding in results[name]:
            print(finding)
    if arguments.record:
        tidy.record(project)
    if arguments.junit:
        write_junit(arguments.junit, results, times_s)
    count = sum(map(len, results.values()))
    print(f"lint: {len(results)} checks, {count} findings, {time.monotonic() - began:.1f} s", file=sys.stderr)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
