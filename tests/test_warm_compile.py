"""torch.compile in launches whose zygote has learnt from one before. Its modules of settings refuse names, __spec__
among them."""

import subprocess
import types

import pytest
from harness import clean_environment, command_path
from phalanx._bootstrap import hidden

COMPILES = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters())
compiled = torch.compile(model, backend="aot_eager")
for _ in range(2):
    compiled(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print("trained")
"""


class Settings(types.ModuleType):
    def __setattr__(self, name, value):
        raise AttributeError(f"{name} does not exist")


def test_a_module_that_refuses_names_is_given_out():
    loads = []
    spec = hidden.spec_of("settings", Settings("settings"), lambda: loads.append(1))
    spec.loader.exec_module(spec.loader.create_module(spec))
    assert loads == [1]


@pytest.mark.timeout(900)
def test_each_launch_compiles(tmp_path):
    (tmp_path / "train.py").write_text(COMPILES)
    env = {**clean_environment(), "XDG_STATE_HOME": str(tmp_path / "state")}
    for launch in range(3):
        command = [command_path("phalanx-run"), "--standalone", "--nproc-per-node=1", "train.py"]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0 and "trained" in done.stdout, (launch, done.stderr)
