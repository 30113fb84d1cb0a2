"""Rules about C++ sources."""

import fnmatch
import re

from tools.lint import config, cpp_text
from tools.lint.project import Finding

FOR_TESTS = re.compile(r"_(?:test|fuzzer|bench)\.cc$|_fixture\.h$|/test_\w+\.h$")
# "Pure.", "decided purely"; what is "pure, but for its clock" is not.
SAYS_PURE = re.compile(r"\bpure(?:ly)?\b(?!,? but\b)", re.IGNORECASE)


def matches(project, paths, pattern, rule, advice):
    """One finding for each line of code that `pattern` fits."""
    expression = re.compile(pattern)
    for path in paths:
        for number, line in project.code_lines(path):
            if expression.search(line):
                yield Finding(path, number, rule, advice)


def no_sleep(project):
    paths = [path for path in project.cpp() if not path.startswith(config.CLOCK_DOOR)]
    pattern = r"\b(?:sleep|usleep|nanosleep|clock_nanosleep)\s*\(|\bsleep_(?:for|until)\b"
    yield from matches(project, paths, pattern, "sleep", "wait for the event itself, or set a timer on the EventLoop")


def no_catch_all(project):
    advice = "catch the library's exception by its type, right at the call, and return a Status"
    yield from matches(project, project.cpp(), r"\bcatch\s*\(\s*\.\.\.\s*\)", "catch-all", advice)


def no_getenv(project):
    paths = [path for path in project.cpp() if not path.startswith(config.ENVIRONMENT_DOOR)]
    advice = "take base/env.h's Environment as a parameter; main() has made it"
    yield from matches(project, paths, r"\b(?:secure_)?getenv\s*\(|\b(?:set|put|unset)env\s*\(", "getenv", advice)


def include_direction(project):
    ours = {"proto", *(folder.split("/")[0] for folder in config.MAY_INCLUDE)}
    for path in project.cpp():
        own = module_of(path)
        if own is None:
            continue
        if own not in config.MAY_INCLUDE:
            yield Finding(path, 1, "include-direction", f"give folder '{own}' its row in tools/lint/config.py")
            continue
        for number, header, quoted in cpp_text.includes(project.text(path)):
            target = "proto" if header.startswith("phalanx/v1/") else header.rpartition("/")[0]
            allowed = target == own or any(f"{target}/".startswith(f"{one}/") for one in config.MAY_INCLUDE[own])
            if quoted and target.split("/")[0] in ours and not allowed and header not in config.MAY_INCLUDE[own]:
                advice = f"{own} may not include {target}; move what is shared down, or pass it in"
                yield Finding(path, number, "include-direction", advice)
            elif quoted and "/" not in header:
                yield Finding(path, number, "include-direction", f'write it from src/: "{own}/{header}"')


def module_of(path):
    """A folder below src/, or simulation/ beside it; None for files of no module."""
    parts = path.split("/")
    if parts[0] == "simulation":
        return parts[0]
    return "/".join(parts[1:-1]) if parts[0] == "src" and len(parts) > 2 else None


def path_of(header):
    """Where the file of an include is."""
    return header if header.startswith("simulation/") else f"src/{header}"


def is_core(path):
    return any(fnmatch.fnmatch(path, pattern) for pattern in config.CORES)


def core_files(project):
    simulated = [path for path in project.cpp() if any(fnmatch.fnmatch(path, each) for each in config.SIMULATED)]
    for path in [*filter(is_core, project.cpp()), *simulated]:
        if not FOR_TESTS.search(path):
            yield path


def core_list(project):
    """A header that calls itself pure in its head is a core, with its .cc; each header of a core calls itself so."""
    doors = (config.CLOCK_DOOR, config.ENVIRONMENT_DOOR)
    for path in project.cpp():
        if not path.endswith(".h") or not path.startswith("src/") or path.startswith(doors) or FOR_TESTS.search(path):
            continue
        head = re.match(r"(?://[^\n]*\n?)*", project.text(path)).group(0).replace("\n// ", " ")
        if is_core(path) and not re.search(r"\bpure(?:ly)?\b", head, re.IGNORECASE):
            yield Finding(path, 1, "core-list", 'a core says so in its head: "Pure."; or take it off the list of cores')
        for file in (path, path.removesuffix(".h") + ".cc"):
            if SAYS_PURE.search(head) and file in project.files and not is_core(file):
                yield Finding(file, 1, "core-list", "it calls itself pure: name it in CORES of tools/lint/config.py")


def pure_cores(project):
    cores = list(core_files(project))
    unordered = r"\bunordered_\w+|\b(?:flat|node)_hash_(?:map|set)\b"
    yield from matches(project, cores, unordered, "core-order", "use std::map or std::set: replay must be exact")
    floating = r"\b(?:float|double)\b|\b\d[\d']*\.\d|\b\d+\.(?!\w)"
    yield from matches(project, cores, floating, "core-float", "count in integers (milliseconds, thousandths)")
    world = r"\b(?:MonotonicMs|MonotonicNs|UnixMs|s?rand|time|clock_gettime|gettimeofday)\s*\("
    yield from matches(project, cores, world, "core-world", "take the time or the number as a parameter")
    for path in cores:
        for number, header, _ in cpp_text.includes(project.text(path)):
            if header in config.HEADERS_NOT_IN_CORES or header.startswith(config.HEADER_FOLDERS_NOT_IN_CORES):
                advice = f"a core decides and does not act; <{header}> belongs into its shell"
                yield Finding(path, number, "core-header", advice)


def wall_clock(project):
    """A jump of it must change nothing, so that only few may know it."""
    paths = [
        path
        for path in project.cpp()
        if not any(fnmatch.fnmatch(path, pattern) for pattern in config.WALL_CLOCK) and not FOR_TESTS.search(path)
    ]
    wall = r"\bUnixMs\s*\(|\bsystem_clock\b|\bCLOCK_REALTIME\w*|\bGPR_CLOCK_REALTIME\b|\bgettimeofday\s*\("
    yield from matches(
        project, paths, wall, "wall-clock", "it may jump: go by MonotonicMs(), or take a time as a parameter"
    )


def dead_files(project):
    """A .cc that no CMakeLists.txt of its folder names, a header that nobody includes."""
    included = set()
    for path in project.cpp():
        own = [path.rsplit(".", 1)[0] + ".h"] if path.endswith(".cc") else []
        for _, header, _ in cpp_text.includes(project.text(path)):
            if path_of(header) not in own or path.endswith("_main.cc"):
                included.add(path_of(header))
    for path in project.cpp():
        folder, _, name = path.rpartition("/")
        if not path.startswith(config.CPP_FOLDERS):
            continue
        if path.endswith(".cc") and name not in re.split(r"[\s()]+", cmake_text(project, folder)):
            yield Finding(path, 1, "dead-file", f"list it in {folder}/CMakeLists.txt or remove it")
        elif path.endswith(".h") and path not in included:
            yield Finding(path, 1, "dead-file", "nobody but its own .cc includes it; use it or remove it")


def cmake_text(project, folder):
    path = f"{folder}/CMakeLists.txt"
    return re.sub(r"#.*", "", project.text(path)) if path in project.files else ""
