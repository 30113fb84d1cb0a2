"""Libraries that make at import what a fork must not share: each life must find it new."""

from sameness.case import case

case(
    "lock of multiprocessing",
    "held by a life that is killed: the review's f",
    """
    import makes_lock
    import standin
    print(makes_lock.LOCK.acquire(block=False))
    standin.tell()
    """,
)
case(
    "queue of multiprocessing",
    "what a dead life has put there",
    """
    import makes_queue
    import standin
    print(makes_queue.QUEUE.empty())
    makes_queue.QUEUE.put("left over")
    standin.tell()
    """,
)
case(
    "value of multiprocessing",
    "shared memory behind a lock",
    """
    import makes_value
    import standin
    print(makes_value.VALUE.value)
    makes_value.VALUE.value += 1
    standin.tell()
    """,
)
case(
    "pipe",
    "bytes that a dead life has written",
    """
    import makes_pipe
    import os, select, standin
    print(select.select([makes_pipe.READ], [], [], 0)[0] == [])
    os.write(makes_pipe.WRITE, b"left over")
    standin.tell()
    """,
)
case(
    "socket",
    "the same of a socket pair",
    """
    import makes_socket
    import select, standin
    print(select.select([makes_socket.HERE], [], [], 0)[0] == [])
    makes_socket.THERE.send(b"left over")
    standin.tell()
    """,
)
case(
    "open file",
    "its position is shared by forks",
    """
    import makes_file
    import os, standin
    print(os.lseek(makes_file.FILE.fileno(), 0, os.SEEK_CUR), makes_file.FILE.read(5))
    standin.tell("fds")
    """,
)
case(
    "file by descriptor",
    "no object says that it is one",
    """
    import makes_memory_file
    import os, standin
    print(os.read(makes_memory_file.FD, 3))
    standin.tell("fds")
    """,
)
case(
    "temporary file",
    "deleted, still open, one position for all",
    """
    import makes_temporary
    import standin
    makes_temporary.FILE.seek(0, 2)
    print(makes_temporary.FILE.tell())
    makes_temporary.FILE.write(b"left over")
    makes_temporary.FILE.flush()
    standin.tell()
    """,
)
case(
    "shared memory map",
    "anonymous memory that forks share",
    """
    import makes_map
    import standin
    print(makes_map.MAP[:4])
    makes_map.MAP[:4] = b"left"
    standin.tell()
    """,
)
case(
    "epoll",
    "a descriptor whose list of others is shared",
    """
    import makes_epoll
    import os, standin
    print(makes_epoll.EPOLL.poll(0))
    makes_epoll.EPOLL.register(makes_epoll.READ)
    os.write(makes_epoll.WRITE, b"x")
    standin.tell()
    """,
)
case(
    "eventfd",
    "a counter in the kernel",
    """
    import makes_eventfd
    import os, standin
    try:
        print(os.read(makes_eventfd.FD, 8))
    except BlockingIOError:
        print("empty")
    os.write(makes_eventfd.FD, (1).to_bytes(8, "little"))
    standin.tell()
    """,
)
case(
    "SQLite",
    "a connection belongs to the process that made it",
    """
    import makes_sqlite
    import os, standin
    print(makes_sqlite.MADE_BY == os.getpid())
    makes_sqlite.DATABASE.execute("create table words (word)")
    standin.tell()
    """,
)
case(
    "thread pool",
    "made at import, used in the rank",
    """
    import makes_pool
    import standin
    print(makes_pool.POOL.submit(pow, 2, 5).result(timeout=20))
    standin.tell("threads")
    """,
)
case(
    "thread pool that runs",
    "its threads are not in a fork, which waits for ever",
    """
    import makes_running_pool
    import standin
    print(makes_running_pool.POOL.submit(pow, 2, 5).result(timeout=20))
    standin.tell()
    """,
)
case(
    "thread",
    "started at import, asked by the script",
    """
    import makes_thread
    import standin
    makes_thread.ASK.set()
    print(makes_thread.ANSWER.wait(timeout=20))
    standin.tell("loaded:makes_thread")
    """,
)
case(
    "process",
    "a library that runs a program at import",
    """
    import makes_process
    import standin
    print(makes_process.ANSWER)
    standin.tell()
    """,
)
case(
    "thread local",
    "the main thread is the same for a library",
    """
    import makes_local
    import threading
    import standin
    print(makes_local.LOCAL.value, makes_local.MAIN == threading.get_ident())
    standin.tell("threads")
    """,
)
case(
    "process id",
    "a library that remembers in which process it was imported",
    """
    import makes_pid
    import os, standin
    print(makes_pid.PID == os.getpid())
    standin.tell()
    """,
)
case(
    "session",
    "the same of the session",
    """
    import makes_session
    import os, standin
    print(makes_session.SESSION == os.getsid(0))
    standin.tell()
    """,
)
case(
    "parent",
    "the same of the parent, which a watchdog asks for",
    """
    import makes_parent
    import os, standin
    print(makes_parent.PARENT == os.getppid())
    standin.tell()
    """,
)
case(
    "random numbers of a library",
    "a generator of its own draws something else in each life: the review's g",
    """
    import makes_generator
    import os, standin
    with open("drawn", "a+") as file:
        file.seek(0)
        drawn, new = file.read().split(), repr(makes_generator.GENERATOR.random())
        print(new not in drawn)
        file.write(new + "\\n")
    standin.tell()
    """,
)
case(
    "token of a library",
    "a name that must be unique for a process",
    """
    import makes_token
    import standin
    with open("tokens", "a+") as file:
        file.seek(0)
        print(makes_token.TOKEN not in file.read().split())
        file.write(makes_token.TOKEN + "\\n")
    standin.tell()
    """,
)
