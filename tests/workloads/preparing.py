"""Reports which memory a script has made ready for its saves, and when."""

from phalanx.checkpoint.copying import writer
from report import report


def tell():
    prepare = writer.Writer.prepare

    def told(self, expanded, image, waits=True):
        report("prepared", page=self._page, waits=waits, bytes=image.file_bytes())
        return prepare(self, expanded, image, waits)

    writer.Writer.prepare = told


def tell_plans(kind):
    """Of a Checkpointer of megatron_dist's: each time that megatron-core and torch plan."""
    plan = kind._plan_and_save

    def told(self, contents, writer):
        report("planned", step=writer.handle.step)
        return plan(self, contents, writer)

    kind._plan_and_save = told
