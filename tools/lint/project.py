"""The files under check, read once, and the shape of a finding."""

import dataclasses
import functools
import re
import subprocess
from pathlib import Path

from tools.lint import cpp_text

SHELL = re.compile(r"#!\s*\S*/(?:env\s+(?:-S\s+)?)?(?:ba|da|k)?sh\b")


@dataclasses.dataclass(frozen=True, order=True)
class Finding:
    path: str
    line: int
    rule: str
    advice: str  # what to do instead

    def __str__(self):
        return f"{self.path}:{self.line}: {self.rule}: {self.advice}"


class Project:
    """A tree of files. Paths are relative to its root, with slashes."""

    def __init__(self, root, files):
        self.root = Path(root)
        self.files = sorted(files)

    @classmethod
    def of_checkout(cls, root):
        """What git knows and what it would know after `git add`; ignored files are nobody's concern."""
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.split("\0")
        return cls(root, {path for path in listed if path and (Path(root) / path).is_file()})

    def matching(self, *suffixes):
        return [path for path in self.files if path.endswith(suffixes)]

    def cpp(self):
        return self.matching(".h", ".cc")

    def python(self):
        return self.matching(".py")

    @functools.cache  # noqa: B019 - one Project lives as long as the program
    def text(self, path):
        """The file's text, line breaks as they are. What is not UTF-8 (a finding of its own) stands as U+FFFD."""
        return self.bytes(path).decode("utf-8", errors="replace")

    @functools.cache  # noqa: B019
    def bytes(self, path):
        return (self.root / path).read_bytes()

    def starts(self, path):
        """Its first line where that names an interpreter, else empty."""
        with open(self.root / path, "rb") as file:
            first = file.readline(256)
        return first.decode("utf-8", errors="replace") if first.startswith(b"#!") else ""

    @functools.cache  # noqa: B019
    def shell_scripts(self):
        """By their names, or by the interpreter that an executable one without a known name asks for."""
        return [path for path in self.files if path.endswith(".sh") or SHELL.match(self.starts(path))]

    def lines(self, path):
        """(number, line) of a file, from 1."""
        return enumerate(self.text(path).split("\n"), 1)

    @functools.cache  # noqa: B019
    def code(self, path):
        """A C++ file with comments and the insides of literals blanked; lines stay where they are."""
        return cpp_text.blank_comments_and_literals(self.text(path))

    def code_lines(self, path):
        return enumerate(self.code(path).split("\n"), 1)
