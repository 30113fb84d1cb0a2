"""The stand-in libraries, by file name below site-packages. Each looks at one thing at its import, or makes one."""

_SEES = {
    "sees_env": ["env:LIB_MODE"],
    "sees_env_too": ["env:LIB_MODE", "env:LIB_EXTRA"],
    "sees_has": ["has:LIB_MODE"],
    "sees_env_bytes": ["bytes:LIB_MODE"],
    "sees_all_env": ["environment:LIB_"],
    "sees_all_ranks": ["environment:LOCAL_RANK"],
    "sees_c_env": ["c:LIB_MODE"],
    "sees_c_rank": ["c:RANK"],
    "sees_rank": ["env:RANK"],
    "sees_world": ["env:WORLD_SIZE"],
    "sees_omp": ["c:OMP_NUM_THREADS"],
    "sees_py_omp": ["env:OMP_NUM_THREADS"],
    "sees_argv": ["argv"],
    "sees_main": ["main"],
    "sees_cwd": ["cwd", "exists:here.txt"],
    "sees_path": ["path"],
    "sees_hooks": ["hooks"],
    "sees_filters": ["filters"],
    "sees_logging": ["logging"],
    "sees_locale": ["locale"],
    "sees_signals": ["signals"],
    "sees_draw": ["draw"],
    "sees_threads": ["threads"],
    "sees_gc": ["gc"],
    "sees_umask": ["umask"],
    "sees_recursion": ["recursion"],
    "sees_encoding": ["encoding"],
    "sees_excepthook": ["excepthook"],
    "sees_bytecode": ["bytecode"],
    "sees_stdin": ["stdin"],
    "sees_nothing": [],
    "aardvark": ["loaded:zebra", "loaded:mongoose"],
    "mongoose": ["loaded:zebra", "loaded:aardvark"],
    "zebra": ["loaded:aardvark", "loaded:mongoose"],
    "sees_json_patched": ["attribute:json.dumps"],
}

_MAKES = {
    "makes_lock": "import multiprocessing\nLOCK = multiprocessing.Lock()",
    "makes_queue": "import multiprocessing\nQUEUE = multiprocessing.SimpleQueue()",
    "makes_value": "import multiprocessing\nVALUE = multiprocessing.Value('i', 0)",
    "makes_pipe": "import os\nREAD, WRITE = os.pipe()",
    "makes_socket": "import socket\nHERE, THERE = socket.socketpair()",
    "makes_generator": "import random\nGENERATOR = random.Random()",
    "makes_file": "import os\nFILE = open(os.path.join(os.path.dirname(__file__), 'letters.txt'), buffering=1)",
    "makes_memory_file": "import os\nFD = os.memfd_create('lib')\nos.write(FD, b'abcdefgh')\nos.lseek(FD, 0, 0)",
    "makes_map": "import mmap\nMAP = mmap.mmap(-1, 4096)",
    "makes_epoll": "import os, select\nREAD, WRITE = os.pipe()\nEPOLL = select.epoll()",
    "makes_eventfd": "import ctypes\nFD = ctypes.CDLL(None).eventfd(0, 0o4000)",
    "makes_temporary": "import tempfile\nFILE = tempfile.TemporaryFile()",
    "makes_pool": "import concurrent.futures\nPOOL = concurrent.futures.ThreadPoolExecutor(2)",
    "makes_running_pool": (
        "import concurrent.futures\nPOOL = concurrent.futures.ThreadPoolExecutor(2)\nPOOL.submit(int).result()"
    ),
    "makes_thread": (
        "import threading\nASK, ANSWER = threading.Event(), threading.Event()\n"
        "def serve():\n    ASK.wait()\n    ANSWER.set()\n"
        "threading.Thread(target=serve, name='lib', daemon=True).start()"
    ),
    "makes_sqlite": (
        "import sqlite3\nDATABASE = sqlite3.connect('file:lib?mode=memory', uri=True)\nimport os\nMADE_BY = os.getpid()"
    ),
    "makes_process": "import subprocess\nANSWER = subprocess.check_output(['echo', 'yes']).decode()",
    "makes_local": "import threading\nLOCAL = threading.local()\nLOCAL.value = 7\nMAIN = threading.get_ident()",
    "makes_pid": "import os\nPID = os.getpid()",
    "makes_parent": "import os\nPARENT = os.getppid()",
    "makes_session": "import os\nSESSION = os.getsid(0)",
    "makes_token": "import uuid\nTOKEN = uuid.uuid4().hex",
    "makes_hash": "SEED = hash('lib')",
    "makes_handler": (
        "import signal\nCAUGHT = []\nsignal.signal(signal.SIGUSR1, lambda number, frame: CAUGHT.append(number))"
    ),
    "makes_atexit": "import atexit\natexit.register(print, 'lib at exit')",
    "makes_warning": "import warnings\nwarnings.warn('lib is old', FutureWarning)",
    "makes_output": "print('lib says hello')",
    "makes_basic_config": "import logging\nlogging.basicConfig(level=logging.ERROR, format='lib: %(message)s')",
    "makes_filter": "import warnings\nwarnings.simplefilter('ignore', DeprecationWarning)",
    "makes_environment": "import os\nos.environ.setdefault('LIB_MADE', 'by lib')\nos.environ['LIB_EXTRA'] = 'lib'",
    "makes_patch": (
        "import json\n_dumps = json.dumps\ndef dumps(*args, **kw):\n    return _dumps(*args, **kw)\njson.dumps = dumps"
    ),
    "makes_path": "import os, sys\nsys.path.insert(0, os.path.join(os.path.dirname(__file__), 'lib_hidden'))",
    "makes_finder": (
        "import sys\nclass Finder:\n    @staticmethod\n    def find_spec(name, path=None, target=None):\n"
        "        if name.startswith('sees_'):\n            standin.note('finder', asked=name)\n        return None\n"
        "sys.meta_path.insert(0, Finder)"
    ),
    "makes_limit": "import sys\nsys.setrecursionlimit(4321)",
    "makes_locale": "import locale\nlocale.setlocale(locale.LC_ALL, 'C.UTF-8')",
    "makes_seed": "import random\nrandom.seed(11)",
    "makes_buffer": "import sys\nsys.stdout.reconfigure(line_buffering=True, errors='replace')",
    "makes_cwd": "import os\nCWD = os.getcwd()\nMASK = os.umask(0o027)",
    "makes_error": "raise RuntimeError('lib does not like this')",
    "makes_missing": "try:\n    import not_there\n    HAS = True\nexcept ImportError:\n    HAS = False",
    "makes_main_check": "import sys\nMAIN = sys.modules['__main__']",
    "makes_time": "import time\nSTARTED_S = time.monotonic()",
    "makes_stream": "import sys\nSTREAM = sys.stderr",
    "makes_handler_of_logging": (
        "import logging\nlogging.getLogger('lib').addHandler(logging.StreamHandler())\n"
        "logging.getLogger('lib').propagate = False"
    ),
}

_OTHERS = {
    "letters.txt": "abcdefghijklmnopqrstuvwxyz",
    "foolib/__init__.py": "import standin\nVERSION = 'installed'\nstandin.see(__name__)\n",
    "foolib/part.py": "import standin\nVERSION = 'installed part'\nstandin.see(__name__)\n",
    "uses_foolib.py": "import foolib, standin\nstandin.see(__name__, 'file:foolib')\n",
    "lib_hidden/hidden.py": "import standin\nstandin.see(__name__)\n",
    "dotenv_like.py": (
        "import os\n\ndef load_dotenv(path='.env'):\n    for line in open(path):\n"
        "        name, _, value = line.strip().partition('=')\n        os.environ.setdefault(name, value)\n"
    ),
    "hydra_like.py": (
        "import functools, os\n\ndef main(folder):\n    def decorate(function):\n        @functools.wraps(function)\n"
        "        def run():\n            os.makedirs(folder, exist_ok=True)\n            os.chdir(folder)\n"
        "            return function()\n        return run\n    return decorate\n"
    ),
    "unsloth_like.py": (
        "import sys\nimport standin\nstandin.see(__name__, 'loaded:zebra', 'loaded:aardvark')\n"
        "import json\njson.LIKED = 'first'\nimport zebra\nzebra.PATCHED = True\n"
    ),
    "lazy_like/__init__.py": (
        "import importlib\nimport standin\nstandin.see(__name__)\n\ndef __getattr__(name):\n"
        "    if name.startswith('__'):\n        raise AttributeError(name)\n"
        "    return importlib.import_module('.' + name, __name__)\n"
    ),
    "lazy_like/part.py": "import standin\nstandin.see(__name__, 'env:LIB_MODE')\n",
    "data_like/__init__.py": (
        "import os\nimport standin\nTEXT = open(os.path.join(os.path.dirname(__file__), 'words.txt')).read()\n"
        "standin.see(__name__, 'file:data_like')\n"
    ),
    "data_like/words.txt": "one two\n",
    "spaced/left/__init__.py": "import standin\nstandin.see(__name__)\n",
    "two_sided.py": "try:\n    import makes_rank_choice as side\nexcept ImportError:\n    side = None\n",
    "replaces_itself.py": (
        "import sys, types\nimport standin\nstandin.see(__name__)\nnew = types.ModuleType(__name__)\nnew.VALUE = 5\n"
        "sys.modules[__name__] = new\n"
    ),
    "standin-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: standin\nVersion: 1.0\n",
    "plugin-2.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: plugin\nVersion: 2.0\n",
    "plugin-2.0.dist-info/entry_points.txt": "[standin.plugins]\nnothing = sees_nothing\nmode = sees_env\n",
    "loads_plugins.py": (
        "import importlib.metadata\nimport standin\nstandin.see(__name__)\n"
        "def load():\n    found = importlib.metadata.distribution('plugin').entry_points\n"
        "    return [point.load().__name__ for point in found]\n"
    ),
}


def texts():
    """{file name: text} of all that stands in site-packages, but standin.py."""
    files = dict(_OTHERS)
    for name, looks in _SEES.items():
        files[name + ".py"] = f"import standin\nstandin.see(__name__, {', '.join(map(repr, looks))})\n"
    for name, text in _MAKES.items():
        files[name + ".py"] = f"import standin\nstandin.see(__name__)\n{text}\n"
    return files


SEEING = sorted(_SEES)
MAKING = sorted(_MAKES)
