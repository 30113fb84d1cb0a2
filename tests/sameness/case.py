"""One script of the corpus, as data: its files, how it is started, what is edited between its first two lives."""

import textwrap

ALL = {}


class Case:
    def __init__(self, name, why, files, **more):
        self.name = name
        self.why = why  # what it asks
        self.files = files
        self.script = more.pop("script", "train.py")
        self.is_module = more.pop("is_module", False)
        self.args = more.pop("args", ())
        self.environment = more.pop("environment", {})
        self.edits = more.pop("edits", {})  # {file: new text}, when the first life dies
        self.installed = more.pop("installed", {})  # further files of site-packages, for this case alone
        self.ranks = more.pop("ranks", 1)
        self.preloads = more.pop("preloads", ())  # libraries that must come from the zygote in the first life
        assert not more, more


def case(name, why, text="", **more):
    """Adds a script: `text` is train.py; `files` are further ones."""
    files = {name: _text(body) for name, body in more.pop("files", {}).items()}
    if text:
        files["train.py"] = _text(text)
    more["installed"] = {name: _text(body) for name, body in more.get("installed", {}).items()}
    more["edits"] = {name: _text(body) for name, body in more.get("edits", {}).items()}
    assert name not in ALL, name
    ALL[name] = Case(name, why, files, **more)


def _text(body):
    return body if isinstance(body, bytes) else textwrap.dedent(body).lstrip("\n")
