"""clang-tidy over our sources but the tests. It reads many files at once, and remembers by content what was clean.

Most of its time goes into the headers of others, which it walks through anew for each source. So sources of a folder
with the same flags are read together, as one file that includes them. A clean batch clears all its sources. Each
source of any other batch is read alone, and what is said of it then is what counts. misc-unused-using-decls looks at
main files alone: it reads sources with using-declarations once more. What rank libraries compile in a way of its own
is read alone, in both ways.

What is clean is known from the cache of this machine, and from what the project brings along: tidy_record.py.
"""

import concurrent.futures
import dataclasses
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tools.lint import config, cpp_text, external, tidy_record
from tools.lint.project import Finding, Project

PACKAGES = Path(__file__).resolve().parents[1] / "apt-packages.txt"
# What the packages of that list stand on: headers of the language, of the C library, of gRPC's C part.
HEADERS_BENEATH = ("libc6-dev", "libgrpc-dev", "libstdc++-*-dev")
UPSTREAM = "${Package} ${source:Upstream-Version}\\n"
LLVM_VERSION = re.compile(r"LLVM version \S+")
BATCH_FILES = 10
PROGRESS_EVERY_S = 10
MAIN_FILE_CHECK = "misc-unused-using-decls"
# A batch's sources count as headers of it.
BATCH_OPTIONS = [r"--header-filter=(^|/)(src|simulation)/.*\.(h|cc)$"]
IN_RANKS = "PHALANX_IN_RANKS"
USING_DECLARATION = re.compile(r"^\s*using\s+(?!namespace\b)[\w:]+::\w+\s*;", re.M)
# Names that two sources of one batch must not both have: types, constants, aliases, macros.
NAME = re.compile(
    r"\b(?:struct|class|enum|union|namespace|using|#\s*define)\s+(\w+)"
    r"|^(?:constexpr|const|static|inline)\b[^=({;]*?\b(\w+)\s*(?:\[[^\]]*\])?\s*[={;]",
    re.M,
)
PROTO_IMPORT = re.compile(r'^\s*import\s+(?:public\s+|weak\s+)?"([^"]+)"', re.M)
LEFT_OUT = re.compile(r"\s-(?:o|MF|MT|MD|c)(?:\s+\S+)?(?=\s|$)|\s-O\d\b")


@dataclasses.dataclass(frozen=True)
class Source:
    """A source as clang-tidy reads it: one command, or several where rank libraries compile it in another way."""

    path: str
    commands: tuple
    flags: str  # without what says nothing about the code
    base: str  # what decides beside files of the project
    verdict: Path  # exists where this machine knows it as clean
    is_recorded: bool  # as clean

    def is_clean(self):
        return self.is_recorded or self.verdict.exists()

    def is_as_it_was(self, project):
        """Whether `project`, read just now, has the text that the verdict is about."""
        try:
            return digest(project, self.path, self.base) == self.verdict.name
        except FileNotFoundError:
            return False


def clang_tidy(project, everything=False):
    """`everything` reads also what is remembered as clean."""
    database = project.root / "build" / "release" / "compile_commands.json"
    if not database.is_file():
        return [Finding("CMakePresets.json", 1, "clang-tidy", "needs build/release: use ./run lint")]
    sources = sources_of(project, json.loads(database.read_text()))
    if not sources:
        return [Finding("CMakePresets.json", 1, "clang-tidy", "build/release has no source of ours: use ./run lint")]
    todo = [source for source in sources if everything or not source.is_clean()]
    if not todo:
        return []
    batches = list(batched(project, todo))
    # Of this run alone: another one in this clone writes other batches. Below the root, whose .clang-tidy holds there.
    with tempfile.TemporaryDirectory(prefix="tidy-", dir=project.root / "build") as folder:
        write_batches(project, batches, Path(folder))
        return check_batches(project, Path(folder), batches, len(todo))


def check_batches(project, folder, batches, count):
    """The findings of all `count` sources. Tells from time to time how far it is."""
    findings, done, told = set(), 0, time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        running = {pool.submit(check_batch, project, folder, n, batch): batch for n, batch in enumerate(batches)}
        try:
            for future in concurrent.futures.as_completed(running):
                findings.update(future.result())
                done += len(running[future])
                if time.monotonic() - told > PROGRESS_EVERY_S:
                    told = time.monotonic()
                    print(f"lint: clang-tidy has read {done} of {count} sources", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)  # else all that waits would be read first
            raise
    return sorted(findings)


def sources_of(project, entries):
    base = surroundings(project)
    cache = Path(os.environ.get("PHALANX_CACHE") or project.root / "build") / "clang-tidy"
    cache.mkdir(parents=True, exist_ok=True)
    known = tidy_record.read(project)
    commands = {}
    for entry in entries:
        path = os.path.relpath(entry["file"], project.root)
        if path in project.files and path.startswith(config.CPP_FOLDERS) and not path.endswith("_test.cc"):
            commands.setdefault(path, []).append(entry)
    sources = []
    for path in sorted(commands):
        # What ranks load is compiled twice. The second time says nothing new, but where the text asks for it.
        chosen = commands[path] if IN_RANKS in project.text(path) else [min(commands[path], key=for_ranks)]
        flags = "\n".join(plain_flags(project, entry) for entry in chosen)
        read = digest(project, path, base + flags)
        is_recorded = tidy_record.has(known, path, read)
        sources.append(Source(path, tuple(map(json.dumps, chosen)), flags, base + flags, cache / read, is_recorded))
    return sources


def record(project):
    """Writes down what is clean as it stands now, as this machine or the record before knows."""
    database = json.loads((project.root / "build" / "release" / "compile_commands.json").read_text())
    clean = [source for source in sources_of(project, database) if source.is_clean()]
    tidy_record.write(project, [(source.verdict.name, source.path) for source in clean])


def surroundings(project):
    """What decides over all sources beside their own text: clang-tidy, how we ask it and read its answer, and the
    headers of others, by the versions of their packages. Where there are no packages those count by nothing. It is the
    same on all machines that have the same: clang-tidy also tells of the processor, and a distribution's own revisions
    mend what no header shows."""
    version = "".join(LLVM_VERSION.findall(external.run(project, [config.CLANG_TIDY, "--version"])[1]))
    ours = "".join(Path(module).read_text() for module in (__file__, external.__file__, cpp_text.__file__))
    packages = ""
    if shutil.which("dpkg-query"):
        names = [*packages_of("build"), *HEADERS_BENEATH]
        packages = external.run(project, ["dpkg-query", "-W", "-f", UPSTREAM, *names])[1]
    return "\0".join((version, ours, packages))


def packages_of(group):
    """The names in a group of tools/apt-packages.txt."""
    text = PACKAGES.read_text().partition(f"[{group}]")[2].partition("\n[")[0]
    return re.findall(r"^([\w.+-]+)", text.partition("\n")[2], re.M)


def for_ranks(entry):
    return IN_RANKS in entry["command"]


def plain_flags(project, entry):
    command = entry["command"].replace(entry["file"], "").replace(str(project.root), "")
    command = command.replace(os.path.relpath(entry["file"], project.root), "")
    return LEFT_OUT.sub("", LEFT_OUT.sub("", command))


@dataclasses.dataclass
class Names:
    """What sources read as one file must not share: functions; types and constants of one that another speaks of."""

    functions: set
    types: set
    words: set

    def collide(self, other):
        return self.functions & other.functions or self.types & other.words or other.types & self.words

    def add(self, other):
        self.functions |= other.functions
        self.types |= other.types
        self.words |= other.words


def names_of(project, path):
    code = project.code(path)
    types = {name for pair in NAME.findall(code) for name in pair if name} - {"phalanx", path.split("/")[-2]}
    functions = {function.name for function in cpp_text.functions(code) if "::" not in function.name}
    return Names(functions, types, set(re.findall(r"\b[A-Za-z_]\w*\b", code)))


def batched(project, sources):
    """Lists of sources that can be read as one file."""
    open_batches = {}  # (folder, flags) -> [(sources, names)]
    for source in sources:
        names = names_of(project, source.path)
        candidates = open_batches.setdefault((source.path.rpartition("/")[0], source.flags), [])
        fitting = [pair for pair in candidates if len(pair[0]) < BATCH_FILES and not pair[1].collide(names)]
        if len(source.commands) > 1:
            yield [source]
        elif fitting:
            fitting[0][0].append(source)
            fitting[0][1].add(names)
        else:
            candidates.append(([source], names))
    yield from (members for candidates in open_batches.values() for members, _ in candidates)


def write_batches(project, batches, folder):
    """One file for each batch, and the database that says how to read these and all sources."""
    entries = [json.loads(command) for batch in batches for source in batch for command in source.commands]
    for number, batch in enumerate(batches):
        lines = [f'#include "{project.root / source.path}"  // NOLINT(bugprone-suspicious-include)' for source in batch]
        path = folder / f"batch_{number}.cc"
        path.write_text("\n".join(lines) + "\n")
        like = json.loads(batch[0].commands[0])
        plain = os.path.relpath(like["file"], project.root)
        command = like["command"].replace(like["file"], str(path)).replace(f" {plain}", f" {path}")
        entries.append({**like, "file": str(path), "command": command})
    (folder / "compile_commands.json").write_text(json.dumps(entries))


def check_batch(project, folder, number, batch):
    """The findings, one source at a time where the batch as a whole is not clean."""
    together = len(batch) > 1 and not tidy(project, folder, folder / f"batch_{number}.cc", BATCH_OPTIONS)
    found = {source: check_source(project, folder, source, together) for source in batch}
    now = Project(project.root, project.files)
    for source in batch:
        if found[source]:
            source.verdict.unlink(missing_ok=True)
        elif source.is_as_it_was(now):  # else nobody knows which text clang-tidy has read
            source.verdict.touch()
    return [finding for findings in found.values() for finding in findings]


def check_source(project, folder, source, together):
    """What is left to be found in a source; `together`: its batch was clean."""
    if not together:
        return tidy(project, folder, source.path)
    if USING_DECLARATION.search(project.code(source.path)):
        return tidy(project, folder, source.path, [f"--checks=-*,{MAIN_FILE_CHECK}"])
    return []


def tidy(project, folder, path, options=()):
    command = [config.CLANG_TIDY, "-p", str(folder), "--quiet", "--extra-arg=-Wno-unknown-warning-option"]
    return external.checked(project, "clang-tidy", [*command, *options, str(path)], about=str(path))


def digest(project, path, base):
    """A hash of `base`, of the checks, of the file and of every file of ours that it includes, however far."""
    seen, queue = {".clang-tidy"}, [path]
    while queue:
        current = queue.pop()
        if current in seen:
            continue
        seen.add(current)
        for _, header, _ in cpp_text.includes(project.text(current)):
            proto = re.sub(r"(?:\.grpc)?\.pb\.h$", ".proto", f"proto/{header}")
            queue += [candidate for candidate in (f"src/{header}", header, proto) if candidate in project.files]
        if current.endswith(".proto"):
            imported = [f"proto/{name}" for name in PROTO_IMPORT.findall(project.text(current))]
            queue += [candidate for candidate in imported if candidate in project.files]
    text = base + "".join(f"{name}\0{project.text(name)}\0" for name in sorted(seen))
    return hashlib.sha256(text.encode()).hexdigest()
