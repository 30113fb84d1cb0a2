"""torch's libraries are mapped beside imports, and nobody waits for that where they need not."""

import os
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch")

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def python(text):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "python")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_what_is_imported_meanwhile_needs_neither_torch_nor_the_loader():
    """The dynamic loader has one lock: an extension module would wait until torch's libraries are mapped."""
    found = python("""
        import importlib, sys
        from phalanx._bootstrap import forker, libraries
        for name in libraries.FIRST:
            importlib.import_module(name)
        before = set(sys.modules)
        for name in libraries.MEANWHILE:
            importlib.import_module(name)
        new = [name for name in sys.modules if name not in before]
        files = {name: getattr(sys.modules[name], "__file__", None) for name in new}
        extensions = [name for name, file in files.items() if file and not file.endswith(".py")]
        print("torch" in sys.modules, extensions)
    """)
    assert found == "False []"


def test_libraries_are_mapped_without_importing_torch():
    mapped = python("""
        import sys
        from phalanx._bootstrap import libraries
        libraries.start_mapping().join()
        with open("/proc/self/maps") as maps:
            print("libtorch_cpu.so" in maps.read(), "torch" in sys.modules)
        import torch
        print(torch.ones(2, 2).sum().item())
    """)
    assert mapped == "True False\n4.0"


def test_no_torch_no_mapping():
    assert (
        python("""
        import sys
        from phalanx._bootstrap import libraries
        sys.path[:] = [folder for folder in sys.path if "site-packages" not in folder]
        print(libraries.start_mapping())
    """)
        == "None"
    )
