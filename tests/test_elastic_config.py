"""--elastic-config: rounds have world sizes that the elasticity block of a DeepSpeed config grants."""

import json
import signal
import subprocess

import pytest
from harness import command_path, workload

FLAGS = ["--max-restarts=0"]  # so that any membership change that was counted as a failure would end the job

# Grants 2 and 4 ranks.
BLOCK = {"enabled": True, "max_train_batch_size": 4, "micro_batch_sizes": [1], "version": 0.1, "min_gpus": 2}
WHY = "3 x 1 ranks is no valid world size of the elastic config; 2 x 1 is"


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps({"train_batch_size": "auto", "elasticity": BLOCK}))
    return path


def flags_of(config):
    return [*FLAGS, f"--elastic-config={config}"]


@pytest.mark.slow
def test_only_valid_worlds_train(job, config):
    """Of three nodes two train and the third says why it does not; with a fourth four do; after a loss two."""
    job.variables["PHALANX_TOKEN"] = "who-has-it-may-ask-the-master"
    nodes = [job.node(index, "light_steps.py", nnodes="1:4", flags=flags_of(config)) for index in (0, 1)]
    job.wait_stepping(life=0, world=2)
    nodes.append(job.node(2, "light_steps.py", nnodes="1:4", flags=flags_of(config)))
    nodes[2].wait_line(f"this node waits as a spare: {WHY}")
    where = [job.id, f"--master=127.0.0.1:{job.port}"]
    assert f"nodes wait as spares: {WHY}" in job.phalanx("status", *where).stdout
    assert f"waits as a spare: {WHY}" in job.phalanx("events", *where).stdout

    nodes.append(job.node(3, "light_steps.py", nnodes="1:4", flags=flags_of(config)))
    job.wait_stepping(life=1, world=4)
    victim = job.node_of(1, life=1)
    victim.signal(signal.SIGKILL)
    job.killed_by_test = True
    job.wait_stepping(life=2, world=2)
    job.stop()
    left = [node for node in nodes if node is not victim]
    assert [node.wait() for node in left] == [0, 0, 0], job.story()
    assert {event["world"] for event in job.found("main")} == {2, 4}


def test_waits_for_a_valid_world(job, config):
    """A node that is no valid world alone waits, says for what, and gives up as below the minimum of nodes."""
    node = job.node(0, "tell.py", nnodes="1:4", flags=[*flags_of(config), "--rdzv-conf=join_timeout=2"])
    node.wait_line("waiting for 1 more node: 1 x 1 ranks is no valid world size of the elastic config; 2 x 1 is")
    assert node.wait() == 1, job.story()
    assert "gave up after 2 s (--rdzv-conf join_timeout): waiting for 1 more node" in node.stderr
    assert not job.found("told")


def test_workers_hear_of_the_config(job, config):
    """DEEPSPEED_ELASTICITY_CONFIG holds the block on every node, or stays what the user has set."""
    own = json.dumps(BLOCK, indent=1)
    environments = [None, {"DEEPSPEED_ELASTICITY_CONFIG": own}]
    nodes = [
        job.node(index, "tell.py", nnodes="2", flags=flags_of(config), env=env)
        for index, env in enumerate(environments)
    ]
    told = job.wait_events("told", 2)
    assert [node.wait() for node in nodes] == [0, 0], job.story()
    texts = [event["env"]["DEEPSPEED_ELASTICITY_CONFIG"] for event in told]
    assert [json.loads(text) for text in texts] == [BLOCK, BLOCK]
    assert own in texts


def test_a_standalone_master_takes_it_too(job, config):
    """The master's own flag counts; a node with none, or with another one, is refused with a sentence."""
    master = job.start_master("1:4", f"--elastic-config={config}")
    nodes = [job.node(index, "tell.py", nnodes="1:4", flags=flags_of(config)) for index in (0, 1)]
    job.wait_events("told", 2, world=2)
    assert [node.wait() for node in [*nodes, master]] == [0, 0, 0], job.story()


def test_nodes_with_another_config_are_refused(job, config, tmp_path):
    master = job.start_master("1:4", f"--elastic-config={config}")
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"elasticity": {**BLOCK, "max_train_batch_size": 6}}))
    another = job.node(0, "tell.py", nnodes="1:4", flags=flags_of(other))
    without = job.node(1, "tell.py", nnodes="1:4", flags=FLAGS)
    assert [another.wait(), without.wait()] == [1, 1], job.story()
    assert "the job has one, and this node another: give the same on all nodes" in another.stderr
    assert "the job has one, and this node none: give the same on all nodes" in without.stderr
    master.signal(signal.SIGTERM)
    master.wait()


def test_a_new_master_goes_on_with_the_config(job, config):
    """What the journal holds counts on: another config is refused, and with the same one the job goes on."""

    def start_master(*flags):
        place = [f"--port={job.port}", f"--job-id={job.id}", f"--state-dir={job.folder / 'master'}"]
        return job.run(*place, "--nnodes=1:4", *flags, command=[command_path("phalanx-master")], name="master")

    def join(index):
        return job.node(index, "light_steps.py", nnodes="1:4", flags=[*flags_of(config), "--rdzv-conf=is_host=0"])

    master = start_master(f"--elastic-config={config}")
    nodes = [join(index) for index in (0, 1)]
    job.wait_stepping(life=0, world=2)
    master.signal(signal.SIGKILL)
    job.killed_by_test = True
    assert master.wait() == -signal.SIGKILL
    wrong = start_master("--resume")
    assert wrong.wait() == 71
    assert "--elastic-config: the job of the journal was begun with another one, or with none" in wrong.stderr
    master = start_master(f"--elastic-config={config}", "--resume")
    master.wait_line("all nodes of epoch 1 are back: no rank was restarted")
    nodes.append(join(2))
    nodes[2].wait_line(f"this node waits as a spare: {WHY}")
    job.stop()
    assert [node.wait() for node in [*nodes, master]] == [0, 0, 0, 0], job.story()


BAD_FILES = {
    "missing": (None, "cannot be read: No such file or directory"),
    "no JSON": ("{'elasticity': 1}", "JSONDecodeError"),
    "empty": ("", "JSONDecodeError"),
    "no block": ("{}", "'elasticity' is missing from config json"),
    "disabled": ('{"elasticity": {"enabled": false}}', "Elasticity is disabled"),
    "no batch": ('{"elasticity": {"enabled": true}}', "Elasticity config missing max_train_batch_size"),
    "no size": (
        json.dumps({"elasticity": {**BLOCK, "min_gpus": 3, "max_gpus": 3}}),
        "no valid world size is --nnodes=1:4",
    ),
    "NaN": (json.dumps({"elasticity": {**BLOCK, "min_time": float("nan")}}), "JSONDecodeError: no JSON: line 1"),
    "min_time": (json.dumps({"elasticity": {**BLOCK, "min_time": "20"}}), "'min_time' in the elasticity block is '20'"),
}


@pytest.mark.parametrize("fault", BAD_FILES)
def test_bad_files_are_refused_at_the_door(job, tmp_path, fault):
    text, sentence = BAD_FILES[fault]
    path = tmp_path / "bad.json"
    if text is not None:
        path.write_text(text)
    flags = ["--nnodes=1:4", f"--elastic-config={path}"]
    node = job.run(*flags, "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:1", workload("tell.py"))
    assert node.wait() == 2, job.story()
    assert f"phalanx-run: error: --elastic-config={path}: " in node.stderr
    assert sentence in node.stderr
    master = subprocess.run(
        [command_path("phalanx-master"), "--port=0", *flags], capture_output=True, text=True, timeout=60
    )
    assert master.returncode == 2, master.stderr
    assert "--elastic-config" in master.stderr


def test_a_schedulers_other_config_is_refused(job, config):
    env = {"DEEPSPEED_ELASTICITY_CONFIG": json.dumps({**BLOCK, "max_train_batch_size": 8})}
    node = job.standalone("tell.py", flags=[f"--elastic-config={config}"], env=env)
    assert node.wait() == 2, job.story()
    assert "DEEPSPEED_ELASTICITY_CONFIG in the environment does not agree with it" in node.stderr
