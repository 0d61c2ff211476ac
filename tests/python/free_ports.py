"""Ports for servers that come back to them, as tests/support/free_ports.h gives them."""
import contextlib
import fcntl
import os
import pathlib
import socket

_held = []  # the locked files; they are this process's until it ends


def free_port_pair():
    """A port that is free, as is the next, below those that the kernel gives to outgoing connections."""
    folder = pathlib.Path(f"/tmp/troupe-test-ports-{os.geteuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    first_outgoing = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in range(min(first_outgoing, 32768) - 2, 1024, -2):
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(open(folder / str(port), "a"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for wanted in (port, port + 1):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", wanted))
            except OSError:
                continue
            # The sockets are closed here, the file is not.
            _held.append(os.fdopen(os.dup(file.fileno()), "a"))
            return port
    raise AssertionError("no two free ports below those of outgoing connections")
