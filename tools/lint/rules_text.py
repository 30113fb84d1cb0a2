"""Rules about any text."""

import re

from tools.lint import config
from tools.lint.project import Finding

# Beside those that name their interpreter in their first line.
SOURCES = (
    *(".h", ".c", ".cc", ".go", ".py", ".pyi", ".sh", ".cmake", "CMakeLists.txt", ".proto", ".toml"),
    *(".ts", ".js", ".css"),
)
TEXTS = (
    *(*SOURCES, ".md", ".json", ".txt", ".yml", ".yaml", ".cfg", ".ini", ".html", ".svg", ".in"),
    *(".clang-tidy", ".clang-format", ".gitignore", ".gitattributes", ".editorconfig", "Dockerfile", "Makefile"),
)
MACHINE_PATH = re.compile(r"(?<![\w.~}])/(?:work|home/\w+|root|Users/\w+)/")
DOWNLOAD = re.compile(
    r"https?://\S+\.(?:tar|tgz|zip|whl|deb|gz|xz|bz2)\b"
    r"|--(?:extra-)?index-url|--find-links|--trusted-host|\bgit\+https?:"
    r"|\b(?:curl|wget)\b[^|#`]*https?://(?!localhost\b|127\.)"
    r"|\b(?:curl|wget)\b.*\|\s*(?:sudo\s+)?(?:ba|da)?sh\b"
)


# Of Go's generators, as go help generate has it; and instructions to them, which are one line each.
GENERATED = re.compile(r"^// Code generated .* DO NOT EDIT\.$", re.M)
INSTRUCTION = re.compile(r"^\s*//(?: \+kubebuilder:|go:)")


def files(project, endings):
    own = [path for path in project.files if not path.startswith("LICENSE")]
    return [path for path in own if ("/" + path).endswith(endings) or project.starts(path)]


def each_line(project, endings, pattern, rule, advice):
    for path in files(project, endings):
        for number, line in project.lines(path):
            if pattern.search(line):
                yield Finding(path, number, rule, advice)


def no_markers(project):
    pattern = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b")
    yield from each_line(project, TEXTS, pattern, "marker", "do it now, or say in prose what is missing and why")


def no_machine_paths(project):
    advice = "no paths of one machine; derive it from the clone, the environment or a parameter"
    yield from each_line(project, TEXTS, MACHINE_PATH, "machine-path", advice)


def no_downloads(project):
    yield from each_line(
        project, TEXTS, DOWNLOAD, "download", "name the package; where it comes from is the machine's affair"
    )


def no_trailing_blanks(project):
    advice = "remove blanks at the end of the line (of C++ and Python ./run format does)"
    yield from each_line(project, TEXTS, re.compile(r"[ \t\r]+$"), "trailing-blank", advice)


def utf_8(project):
    """All other rules read such a file as well as it goes."""
    for path in files(project, TEXTS):
        try:
            project.bytes(path).decode("utf-8")
        except UnicodeDecodeError as error:
            line = project.bytes(path).count(b"\n", 0, error.start) + 1
            byte = project.bytes(path)[error.start]
            yield Finding(path, line, "utf-8", f"byte 0x{byte:02x} is not UTF-8; save the file as UTF-8")


def no_long_lines(project):
    for path in files(project, SOURCES):
        is_go = path.endswith(".go")
        if is_go and GENERATED.search(project.text(path)):
            continue
        for number, line in project.lines(path):
            if len(line) > config.MAX_COLUMNS and not (is_go and INSTRUCTION.match(line)):
                yield Finding(path, number, "long-line", f"{len(line)} columns; break it at {config.MAX_COLUMNS}")


def final_newline(project):
    for path in files(project, TEXTS):
        text = project.text(path)
        if text and (not text.endswith("\n") or text.endswith("\n\n")):
            yield Finding(path, text.count("\n") + 1, "final-newline", "end the file with exactly one line break")
