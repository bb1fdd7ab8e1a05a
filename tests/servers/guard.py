"""Runs one server, and ends it when the test run that wanted it is gone, however that ended.

``python guard.py OWNER_PID SIGNAL USER COMMAND...``: the server runs as USER where that is not ``-``. At the end it
gets SIGNAL, and SIGKILL ten seconds later.
"""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys

WAKING = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}


def main() -> None:
    signal.signal(signal.SIGCHLD, lambda *_: None)  # ignored by default, so that it would not wake the process
    owner, ending, user, *command = sys.argv[1:]
    if user == "-":
        server = subprocess.Popen(command)
    else:  # its own program may be out of that user's reach, so the guard keeps its rights
        account = pwd.getpwnam(user)
        server = subprocess.Popen(command, user=account.pw_uid, group=account.pw_gid, extra_groups=[])
    signal.pthread_sigmask(signal.SIG_BLOCK, WAKING)  # only now: the server must not inherit it
    while server.poll() is None and _lives(int(owner)):
        heard = signal.sigtimedwait(WAKING, 0.2)
        if heard is not None and heard.si_signo != signal.SIGCHLD:
            break
    if server.poll() is None:
        server.send_signal(int(ending))
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


if __name__ == "__main__":
    main()
