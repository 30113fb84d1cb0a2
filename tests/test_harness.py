"""What tests of jobs rely on: a node that has ended has been heard."""

import sys
import threading

from harness import WORKLOADS, Job, wait_ends


class LateListener(Job):
    """Reads no report before it may."""

    may_listen = threading.Event()

    def _listen(self):
        self.may_listen.wait()
        super()._listen()


def test_what_was_reported_before_a_nodes_end_is_heard(tmp_path):
    job = LateListener(tmp_path)
    try:
        text = "from report import report; report('first'); report('last')"
        node = job.run(command=[sys.executable, "-c", text], env={"PYTHONPATH": WORKLOADS})
        assert wait_ends([node.pid], 60) == []
        timer = threading.Timer(0.3, job.may_listen.set)
        timer.start()
        assert node.wait() == 0, job.story()
        assert [event["ev"] for event in job.events] == ["first", "last"]
    finally:
        job.may_listen.set()
        job.close()
