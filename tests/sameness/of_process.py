"""Scripts that change the process around a library: directory, arguments, signals, logging, warnings, locale, seeds."""

from sameness.case import case

case(
    "chdir",
    "a library looks for a file in the working directory",
    """
    import os
    os.chdir("inner")
    import sees_cwd
    import standin
    os.chdir("..")
    standin.tell("cwd")
    """,
    files={"inner/here.txt": "x"},
)
case(
    "working directory kept by a library",
    "getcwd and umask at import",
    """
    import os
    os.makedirs("run", exist_ok=True)
    os.chdir("run")
    import makes_cwd
    os.chdir("..")
    import standin
    print(makes_cwd.CWD, makes_cwd.MASK)
    standin.tell("umask")
    """,
)
case(
    "hydra",
    "a decorated main changes the directory and imports there",
    """
    import hydra_like
    @hydra_like.main("outputs")
    def main():
        import sees_cwd
        import os, standin
        os.chdir("..")
        standin.tell()
    if __name__ == "__main__":
        main()
    """,
)
case(
    "argv read at import",
    "absl and others parse sys.argv at import",
    """
    import sees_argv
    import standin
    standin.tell("argv")
    """,
    args=("--lr=0.1", "two words"),
)
case(
    "argv changed",
    "a script that hides its own arguments from a library",
    """
    import sys
    sys.argv = sys.argv[:1] + ["--hidden"]
    import sees_argv
    import standin
    standin.tell("argv")
    """,
    args=("--lr=0.1",),
)
case(
    "logging first",
    "basicConfig of the script before a library's: the review's e",
    """
    import logging
    logging.basicConfig(level=logging.DEBUG, format="script: %(message)s")
    import makes_basic_config, sees_logging
    import standin
    logging.getLogger().warning("to stderr")
    standin.tell("logging")
    """,
)
case(
    "logging second",
    "the library's basicConfig comes first, and wins",
    """
    import logging
    import makes_basic_config
    logging.basicConfig(level=logging.DEBUG, format="script: %(message)s")
    import sees_logging
    import standin
    logging.getLogger().error("to stderr")
    standin.tell("logging")
    """,
)
case(
    "logging class",
    "setLoggerClass before a library makes its logger",
    """
    import logging
    class Loud(logging.Logger):
        pass
    logging.setLoggerClass(Loud)
    import sees_logging, makes_handler_of_logging
    import standin
    print(type(logging.getLogger("lib")).__name__)
    logging.getLogger("lib").error("to stderr")
    standin.tell()
    """,
)
case(
    "warnings filter",
    "a filter that the script sets before a library warns",
    """
    import warnings
    warnings.simplefilter("ignore")
    import makes_warning, sees_filters
    import standin
    standin.tell()
    """,
)
case(
    "warnings as errors",
    "an import that then fails",
    """
    import warnings
    warnings.simplefilter("error")
    try:
        import makes_warning
    except FutureWarning as warning:
        print("raised", warning)
    import standin
    standin.tell()
    """,
)
case(
    "warnings filter of a library",
    "a library's filter holds for the script",
    """
    import makes_filter
    import sees_filters
    import warnings
    warnings.warn("old", DeprecationWarning)
    import standin
    standin.tell("filters")
    """,
)
case(
    "PYTHONWARNINGS",
    "filters by the environment",
    """
    import sees_filters
    import standin
    standin.tell("filters")
    """,
    environment={"PYTHONWARNINGS": "error::UserWarning,ignore::FutureWarning"},
)
case(
    "locale of the script",
    "setlocale before a library looks",
    """
    import locale
    locale.setlocale(locale.LC_ALL, "C.UTF-8")
    import sees_locale, sees_encoding
    import standin
    standin.tell("locale")
    """,
)
case(
    "locale of a library",
    "setlocale by a library",
    """
    import makes_locale
    import sees_locale
    import standin
    standin.tell("locale", "encoding")
    """,
)
case(
    "signals before a library",
    "a handler of the script that a library then finds",
    """
    import signal
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import sees_signals
    import standin
    standin.tell("signals")
    """,
)
case(
    "signals as a library finds them",
    "Python's own handlers, as in a fresh process",
    """
    import sees_signals
    import standin
    standin.tell("signals")
    """,
)
case(
    "signals of a library",
    "a handler that a library installs catches in the rank",
    """
    import makes_handler
    import os, signal
    os.kill(os.getpid(), signal.SIGUSR1)
    import standin
    print(makes_handler.CAUGHT)
    standin.tell("signals")
    """,
)
case(
    "seed of the script",
    "random.seed before a library draws",
    """
    import random
    random.seed(7)
    import sees_draw
    import standin
    standin.tell("draw")
    """,
)
case(
    "seed of a library",
    "a library seeds, the script draws",
    """
    import makes_seed
    import standin
    standin.tell("draw", "draw")
    """,
)
case(
    "umask of the script",
    "what a library writes at import has the script's umask",
    """
    import os
    os.umask(0o077)
    import sees_umask
    import standin
    standin.tell("umask")
    """,
)
case(
    "recursion limit",
    "of the script, then of a library",
    """
    import sys
    sys.setrecursionlimit(2345)
    import sees_recursion
    import makes_limit
    import standin
    standin.tell("recursion")
    """,
)
case(
    "garbage collector",
    "a library looks whether it is on, and how it is set",
    """
    import sees_gc
    import standin
    standin.tell("gc")
    """,
)
case(
    "garbage collector of the script",
    "switched off before an import",
    """
    import gc
    gc.disable()
    gc.set_threshold(111, 22, 3)
    import sees_gc
    import standin
    standin.tell("gc")
    """,
)
case(
    "streams at import",
    "encoding, standard input, the excepthook, bytecode",
    """
    import sees_encoding, sees_stdin, sees_excepthook, sees_bytecode
    import standin
    standin.tell("encoding", "stdin", "bytecode")
    """,
)
case(
    "streams replaced",
    "sys.stdout is another object before a library comes",
    """
    import io, sys
    kept, sys.stdout = sys.stdout, io.StringIO()
    import makes_output
    said, sys.stdout = sys.stdout.getvalue(), kept
    import standin
    print(repr(said))
    standin.tell()
    """,
)
case(
    "stream kept by a library",
    "a library keeps sys.stderr and writes there later",
    """
    import makes_stream, sys
    print("late words", file=makes_stream.STREAM)
    import standin
    print(makes_stream.STREAM is sys.stderr)
    standin.tell()
    """,
)
case(
    "stream reconfigured",
    "a library reconfigures sys.stdout",
    """
    import makes_buffer
    import sys
    print(sys.stdout.errors, sys.stdout.line_buffering)
    import standin
    standin.tell("encoding")
    """,
)
case(
    "excepthook",
    "the script's own, before a library looks",
    """
    import sys
    def mine(kind, value, trace):
        pass
    sys.excepthook = mine
    import sees_excepthook
    import standin
    standin.tell("excepthook")
    """,
)
case(
    "atexit of a library",
    "registered at import, run at the rank's end, once",
    """
    import makes_atexit
    import atexit
    atexit.register(print, "script at exit")
    import standin
    standin.tell()
    """,
)
case(
    "output of a library",
    "a library that prints and warns at import",
    """
    import os
    os.environ["LIB_MODE"] = "loud"
    import makes_output, makes_warning
    import standin
    standin.tell()
    """,
)
