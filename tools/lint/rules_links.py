"""Links of Markdown pages: each leads to a file that is there, and to a heading that it has."""

import posixpath
import re

from tools.lint.project import Finding

LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
FENCE = re.compile(r"^\s*```")


def prose(project, path):
    """(number, line) of a page without its blocks of code."""
    in_code = False
    for number, line in project.lines(path):
        if FENCE.match(line):
            in_code = not in_code
        elif not in_code:
            yield number, line


def anchors(project, path):
    """Those of its headings, as the usual renderers make them."""
    headings = [line.lstrip("#") for _, line in prose(project, path) if re.match(r"#{1,6} ", line)]
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def links(project):
    folders = {posixpath.dirname(file) for file in project.files}
    folders |= {parent for folder in folders for parent in _parents(folder)}
    for path in project.matching(".md"):
        for number, line in prose(project, path):
            for target, anchor in LINK.findall(re.sub(r"`[^`]*`", "", line)):
                if ":" in target:
                    continue  # an address
                file = posixpath.normpath(posixpath.join(posixpath.dirname(path), target)) if target else path
                if file not in project.files and file not in folders:
                    yield Finding(path, number, "link", f"there is no {file}; links go from the folder of the page")
                elif anchor and anchor not in anchors(project, file):
                    yield Finding(path, number, "link", f"{file} has no heading #{anchor}")


def _parents(folder):
    while folder:
        folder = posixpath.dirname(folder)
        yield folder
