"""Which sources clang-tidy has found clean, for machines whose cache does not know: else an empty one would read all of
them anew, which takes as long as half of the tests."""

PATH = "tools/lint/tidy_clean.txt"
_DIGITS = 16  # of a hash; by chance two are the same once in 10^19
_HEAD = """\
# Sources that clang-tidy has read and found clean: the beginning of the hash of all that it looked at (digest() of
# tidy.py), and the path. Another text, another clang-tidy, other checks: another hash, and the source is read.
# ./run lint --record writes this file; ./run lint --all does not ask it.
"""


def read(project):
    """{path: the beginning of its hash}."""
    if PATH not in project.files:
        return {}
    lines = [line.split() for line in project.text(PATH).splitlines() if not line.startswith("#")]
    return {words[1]: words[0] for words in lines if len(words) == 2}  # others are what a merge has left


def has(known, path, digest):
    """Whether `known`, as read() gives it, has that text of the source."""
    return known.get(path) == digest[:_DIGITS]


def write(project, clean):
    """`clean`: (hash, path) of each source."""
    lines = [f"{digest[:_DIGITS]} {path}\n" for digest, path in clean]
    (project.root / PATH).write_text(_HEAD + "".join(lines))
