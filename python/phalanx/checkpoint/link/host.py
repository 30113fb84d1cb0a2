"""The child process that keeps this rank's memory where there is no agent, and writes steps to disk
(docs/formats/checkpoint-host.md). `phalanx ckpt host` is what it runs."""

import contextlib
import json
import os
import socket
import subprocess
import threading

from phalanx import _door as door
from phalanx._launch import process

_PACKET_BYTES_MAX = 64 << 10
_SHARDS_A_PACKET = 40  # whatever their names
_ENDS_WITHIN_S = 10


class Lane:
    """One of its two sockets: one request at a time, from any thread."""

    def __init__(self, end):
        self._socket = end
        self._lock = threading.Lock()

    def ask(self, request, **fields):
        """The answer, for as long as that takes. door.Refusal and door.Gone say what else may come."""
        data = json.dumps({"type": request, **fields}).encode("utf-8", "surrogateescape")
        with self._lock:
            try:
                self._socket.send(data, socket.MSG_NOSIGNAL)
                answer = self._socket.recv(_PACKET_BYTES_MAX)
            except (BrokenPipeError, ConnectionResetError):
                answer = b""
            except OSError as error:
                raise door.Gone(f"the checkpoint host's socket: {error.strerror}") from None
        if not answer:
            raise door.Gone("the checkpoint host has ended")
        try:
            answer = json.loads(answer.decode("utf-8", "surrogateescape"))
        except ValueError:
            raise door.Gone("the checkpoint host's answer is no JSON") from None
        if "error" in answer:
            raise door.Refusal(answer["error"])
        return answer

    def close(self):
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # forked children may have it, too
        self._socket.close()


class Host:
    """`memory` answers at once, but for what reserves memory; `storage` when the disk has done it."""

    def __init__(self):
        """Raises door.Gone where it cannot be started."""
        command = process.find_command("phalanx")
        if command is None:
            raise door.Gone("the command phalanx is not there: is the wheel installed for this Python?")
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
        theirs = [pair[1].fileno() for pair in pairs]
        words = [f"--memory-fd={theirs[0]}", f"--storage-fd={theirs[1]}", f"--owner={os.getpid()}"]
        try:
            # Of a session of its own: what a terminal says to this process is not for it, it ends behind us.
            self._process = subprocess.Popen(
                [command, "ckpt", "host", *words],
                pass_fds=theirs,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise door.Gone(f"{command} cannot be started: {error.strerror}") from None
        finally:
            for pair in pairs:
                pair[1].close()
        self.memory, self.storage = (Lane(pair[0]) for pair in pairs)

    def write(self, held, **fields):
        """(the layout, shards) of an image that memory holds: as they are on disk now."""
        image = {key: held[key] for key in ("path", "bytes", "crc32", "rank", "form")}
        answer = self.storage.ask("write", **{**image, **fields})
        layout, shards = answer["layout"], answer["shards"]
        while answer["more"]:
            answer = self.storage.ask("more")
            shards += answer["shards"]
        return layout, shards

    def close_step(self, shards, **manifest):
        """All shards are there: from now on the step counts. What went wrong behind that."""
        for at in range(0, len(shards), _SHARDS_A_PACKET):
            self.storage.ask("shards", shards=shards[at : at + _SHARDS_A_PACKET])
        return self.storage.ask("close", **manifest)["warnings"]

    def end(self):
        """Its memory is gone when it has ended."""
        self.memory.close()
        self.storage.close()
        try:
            self._process.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
