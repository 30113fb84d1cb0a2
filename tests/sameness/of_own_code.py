"""Scripts whose own code runs where nothing is called: by an import that names no module, in a class, by a look."""

import textwrap

from sameness.case import case as _case

_SETS = "import os\n\ndef configure():\n    os.environ['LIB_MODE'] = 'set'\n    return 'set'\n"


def case(name, why, text, **more):
    """Adds a script that has `own.configure`, and then imports a library that reads what that sets."""
    text = textwrap.dedent(text) + "import sees_env\nimport standin\nstandin.tell('env:LIB_MODE')\n"
    files = {"own_code.py": _SETS, **{name: textwrap.dedent(body) for name, body in more.pop("files", {}).items()}}
    _case(name, why, text, files=files, **more)


_PACKAGE = {
    "pkg/__init__.py": "",
    "pkg/setting.py": "from own_code import configure\nVALUE = configure()\n",
}

case(
    "relative import of a script that names its package",
    "PEP 366: __package__ is what relative imports go by",
    """
    __package__ = "pkg"
    from .setting import VALUE
    """,
    files=_PACKAGE,
)
case(
    "relative import of a script that has a path",
    "__path__ makes the script a package",
    """
    __path__ = ["pkg"]
    from . import setting
    """,
    files=_PACKAGE,
)
case(
    "relative import that a script may do without",
    "the handler is what Python does of a script that names no package",
    """
    try:
        from .setting import VALUE
    except ImportError:
        from pkg.setting import VALUE
    """,
    files=_PACKAGE,
)
case(
    "star import of modules",
    "__all__ names modules, which import * imports",
    """
    from pkg import *
    """,
    files={**_PACKAGE, "pkg/__init__.py": "__all__ = ['setting']\n"},
)
case(
    "star import of a list that grows",
    "the same, by +=",
    """
    from pkg import *
    """,
    files={**_PACKAGE, "pkg/__init__.py": "__all__ = []\n__all__ += ['setting']\n"},
)
case(
    "star import of a list that is computed",
    "a list that another module of the package has",
    """
    from pkg import *
    """,
    files={
        **_PACKAGE,
        "pkg/__init__.py": "from .names import NAMES\n__all__ = NAMES\n",
        "pkg/names.py": "NAMES = ['setting']\n",
    },
)
case(
    "star import that asks for a list",
    "a module without __all__ whose __getattr__ is asked for it",
    """
    from pkg import *
    """,
    files={
        "pkg/__init__.py": """
            from own_code import configure

            def __getattr__(name):
                configure()
                raise AttributeError(name)
            """
    },
)
case(
    "star import of a private name",
    "import * leaves the script's own function what it was",
    """
    from own_code import configure as _getcwd
    from pkg import *
    _getcwd()
    """,
    files={"pkg/__init__.py": "from os import getcwd as _getcwd\n"},
)

_ENUM = """
    import enum
    from own_code import configure
    class Precision(enum.Enum):
        BF16, FP16 = 1, 2
        @property
        def dtype(self):
            return configure()
        def __str__(self):
            return configure()
"""

for _name, _expression in {
    "property": "Precision.BF16.dtype",
    "property by another name": "(lambda: 0, Precision.BF16)[1].dtype",
    "property in a comprehension": "[one.dtype for one in Precision]",
    "text": "f'{Precision.BF16}'",
    "text by str": "str(Precision.FP16)",
}.items():
    case(f"member, its {_name}", "no call, and code of the script's own", _ENUM + f"    x = {_expression}\n")
case(
    "member of an enumeration, under another name",
    "a variable, a list, a tuple that is taken apart",
    _ENUM
    + """
    kept = Precision.BF16
    listed = [kept]
    x = listed[0].dtype
""",
)
case(
    "enumeration of another module",
    "the class comes by an import",
    """
    from pkg.kinds import Precision
    x = Precision.BF16.dtype
    """,
    files={"pkg/__init__.py": "", "pkg/kinds.py": _ENUM},
)
case(
    "enumeration with a mixin",
    "the mixin's __init__ runs for each member",
    """
    import enum
    from own_code import configure
    class Mixin:
        def __init__(self, *args):
            configure()
    class Kind(Mixin, enum.Enum):
        A = 1
    """,
)
case(
    "enumeration with a mixin that is a dataclass",
    "what its fields are made by runs for each member",
    """
    import dataclasses, enum
    from own_code import configure
    @dataclasses.dataclass
    class Mixin:
        size: int
        made: str = dataclasses.field(default_factory=configure)
    class Kind(Mixin, enum.Enum):
        A = 1
    """,
)
case(
    "enumeration that is told of its attributes",
    "__setattr__ of a member that is made",
    """
    import enum
    from own_code import configure
    class Kind(enum.Enum):
        A = 1
        def __setattr__(self, name, value):
            configure()
            super().__setattr__(name, value)
    """,
)
case(
    "class in brackets",
    "a __class_getitem__ of its own",
    """
    from own_code import configure
    class Registry:
        def __class_getitem__(cls, name):
            return configure()
    x = Registry["a"]
    """,
)
case(
    "class in brackets, in an annotation",
    "the same where nobody keeps the value",
    """
    from own_code import configure
    class Registry:
        def __class_getitem__(cls, name):
            return configure()
    def run(x: Registry["a"]):
        pass
    """,
)
case(
    "property of a class",
    "classmethod over property, which Python 3.9 to 3.12 know",
    """
    from own_code import configure
    class Config:
        @classmethod
        @property
        def mode(cls):
            return configure()
    x = Config.mode
    """,
)
case(
    "default that a dataclass shows",
    "the text of a signature has the default's own",
    """
    import dataclasses, enum
    from own_code import configure
    class Kind(enum.Enum):
        A = 1
        def __repr__(self):
            return configure()
    @dataclasses.dataclass
    class Options:
        kind: Kind = Kind.A
    """,
)
case(
    "attribute that is told of its class",
    "__set_name__ of a library's value",
    """
    import libtold
    class Options:
        field = libtold.FIELD
    """,
    installed={
        "libtold.py": "import os\n\nclass _Told:\n    def __set_name__(self, owner, name):\n"
        "        os.environ['LIB_MODE'] = 'told'\n\nFIELD = _Told()\n"
    },
)
case(
    "key of a container",
    "a call in the place that a value is put to",
    """
    from own_code import configure
    known = dict()
    known[configure()] = 1
    """,
)
case(
    "name of a comprehension",
    "that of a builtin, for another function",
    """
    import own_code
    x = [len() for len in [own_code.configure]]
    """,
)
case(
    "module of a package that imports it itself",
    "import pkg.part runs the package first, which imports the part before others",
    """
    import pkg.part
    """,
    files={
        "pkg/__init__.py": "from .part import x\nimport aardvark\n",
        "pkg/part.py": "import zebra, mongoose\nx = 1\n",
    },
    preloads=("aardvark", "mongoose", "sees_env", "zebra"),
)
case(
    "name of a module that is being imported",
    "two modules of the script import each other, and one has a fallback",
    """
    import first
    """,
    files={
        "first.py": "import second\nLATER = 1\n",
        "second.py": "try:\n    from first import LATER\nexcept ImportError:\n    import own_code\n"
        "    own_code.configure()\n",
    },
)
case(
    "type checking that is switched on",
    "a name of the script's own",
    """
    import own_code
    TYPE_CHECKING = True
    if TYPE_CHECKING:
        own_code.configure()
    """,
)
case(
    "classes as scripts have them",
    "none of it runs anything: all of it must be warm",
    """
    import dataclasses, enum, typing
    class Kind(str, enum.Enum):
        A, B = "a", "b"
        def run(self):
            return self.value
    class Shown(enum.Enum):
        A = 1
        def __str__(self):
            return self.name
    @dataclasses.dataclass
    class Options:
        kind: Kind = Kind.A
        shown: Shown = Shown.A
        names: typing.List[Kind] = dataclasses.field(default_factory=lambda: [Kind.A])
        @property
        def is_a(self):
            return self.kind == Kind.A
    KINDS = [kind.value for kind in Kind]
    NAME = f"{Kind.A.value} {Shown.A.name}"
    def run(kind=Kind.A, shown: typing.Optional[Shown] = Shown.A):
        return Options(kind, shown)
    """,
    preloads=("sees_env",),
)
