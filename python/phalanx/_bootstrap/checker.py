"""A spare becomes the program that checks its node, with the torch that its zygote has imported: what `python -m
phalanx.node_check` is (docs/formats/node-check.md), a second of one processor sooner."""

import os
import sys

from phalanx._bootstrap import hidden, linux, places, runner, stdio, threads

_MODULE = "phalanx.node_check"


def become(channel, warmth, request, fds):
    """Does not return. `channel`: the spare's; `request`, `fds`: what came with `check`."""
    orders, reports, words = fds
    channel.close()
    warmth.seen.forget_files()
    # Nobody else reads orders, and what libraries print is no report.
    stdio.put_in_place([os.open(os.devnull, os.O_RDONLY), os.dup(words), words])
    stdio.renew()
    given = request["env"]
    runner.set_environment({**warmth.coerced, **warmth.as_started(given)})
    runner.let_signals_in()
    # Nothing of the script's folder is for this program, whatever names its modules have.
    places.take_off_path()
    if hidden.find("torch") is None:
        _execute(given, orders, reports)
    _dress(given)

    def start_anew(_why, _is_part):
        _execute(given, orders, reports)

    from phalanx.node_check import helper

    torch = _import_torch(warmth, start_anew)
    status = helper.Helper(orders, reports, torch).run()
    sys.stderr.flush()
    os._exit(status)


def _import_torch(warmth, start_anew):
    from phalanx.node_check import loading

    hidden.set_variables(warmth.left.environment)
    # Which devices these may hide are the script's business: they are to be checked.
    before = hidden.set_as_imported_with()
    hidden.await_imports(threads.Uncounted(), start_anew, start_anew)
    torch = loading.load()
    hidden.set_variables(before)
    torch.counts_threads_by(threads.count_anew)
    return torch


def _dress(given):
    """What others see of this process, and what it would have got at its start."""
    words = [*linux.interpreter_options(), "-m", _MODULE]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = words
    runner.set_arguments(["-m"])
    runner.make_main_module("module", None)
    linux.set_command_line(words, given)


def _execute(given, orders, reports):
    stdio.put_in_place([orders, reports, os.dup(2)])
    os.execve(sys.executable, [*runner.own_words(), "-m", _MODULE], given)
