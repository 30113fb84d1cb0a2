"""The same lives without a launcher: a zygote and its spares, and the agent's end of their sockets."""

from zygote_agent import Agent

from sameness.lives import LIVES, rank_environment

ZYGOTES_MAX = 12


class Launch:
    """One launch: zygotes until one is ready, as src/agent/workers/spares.h has it; without one all are cold."""

    def __init__(self, agent, place, learnt, denied):
        self.agent, self.place, self.learnt, self.denied = agent, place, learnt, denied
        self.zygotes = 0
        self.is_warm = self._warm_up()

    def _warm_up(self):
        case = self.place.case
        kind = "module" if case.is_module else "script"
        while self.zygotes < ZYGOTES_MAX:
            self.zygotes += 1
            said = self.agent.start_zygote(case.script, kind, self.place.work, self.learnt, self.denied, args=case.args)
            if said is None or said["type"] == "failed":
                return False
            if said["type"] == "ready":
                return True
            self.denied.append(said["module"])
        return False

    def live(self, environment):
        """((stdout, stderr, exit status), messages) of one life."""
        case = self.place.case
        worker = self.agent.fork() if self.is_warm else self.agent.cold()
        kind = "module" if case.is_module else "script"
        worker.run(case.script, *case.args, kind=kind, cwd=self.place.work, env=environment, base={})
        status, *texts = worker.result()
        messages = worker.messages()
        worker.end()
        return (*texts, str(status)), messages


def by_spares(place, environment, lives=LIVES):
    """{life: (stdout, stderr, exit status)}, and how many zygotes all launches have needed."""
    environment = {**environment, **place.environment()}
    said, zygotes, learnt, denied = {}, 0, [], []
    for names in filter(None, (lives[:2], lives[2:])):
        with Agent(str(place.prefix.python), base=environment, cwd=place.work) as agent:
            launch = Launch(agent, place, learnt, denied)
            for life, name in enumerate(names):
                said[name], messages = launch.live({**rank_environment(place, life), **environment})
                for message in messages:
                    learnt = message.get("modules") or learnt
                    denied += [message["deny"]] if message.get("deny") else []
            zygotes += launch.zygotes
    return said, zygotes
