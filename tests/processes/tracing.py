"""A tracer: a forked worker is stopped at each of its system calls on some files, and killed there, or the call fails.

It is ptrace itself, through ctypes: no package of the system is needed, and a plain user may trace their own children.
Knows Linux on x86-64. Calls count from the moment that the worker begins; its threads are traced with it.
The worker filters its own calls: it stops at those that may be for a file, and makes all others at full speed.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.crash.processes import Line, Worker

_SEIZE, _INTERRUPT, _CONT, _SYSCALL, _POKEUSER, _DETACH, _GET_SYSCALL_INFO = 0x4206, 0x4207, 7, 24, 6, 17, 0x420E
_SYSGOOD, _TRACECLONE, _TRACESECCOMP, _EXITKILL = 1, 8, 0x80, 0x100000
_WALL = 0x40000000
_SYSCALL_STOP = signal.SIGTRAP | 0x80
_EVENT_SECCOMP = 7
_RAX, _RDX, _ORIG_RAX = 10 * 8, 12 * 8, 15 * 8  # offsets in the user area
_INFO_BYTES = 88
_AT_FDCWD = -100

# The calls that SQLite and the evidence files make, by number on x86-64: whether a descriptor or a path says the file.
_BY_DESCRIPTOR = {
    **{0: "read", 1: "write", 3: "close", 5: "fstat", 17: "pread64", 18: "pwrite64", 72: "fcntl"},
    **{74: "fsync", 75: "fdatasync", 77: "ftruncate", 285: "fallocate"},
}
_BY_PATH = {4: "stat", 6: "lstat", 21: "access", 87: "unlink"}
_BY_PATH_AT = {257: "openat", 262: "newfstatat", 263: "unlinkat"}
_MMAP = 9
_NUMBERS = (*_BY_DESCRIPTOR, *_BY_PATH, *_BY_PATH_AT, _MMAP)
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2  # what prctl is asked
_LOAD, _IF_EQUAL, _RETURN, _ALLOW, _TRACE = 0x20, 0x15, 0x06, 0x7FFF0000, 0x7FF00000  # of the filter's program
NAMES = frozenset({*_BY_DESCRIPTOR.values(), *_BY_PATH.values(), *_BY_PATH_AT.values(), "mmap"})

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_libc.ptrace.restype = ctypes.c_long


def _ptrace(request: int, task: int, address: int = 0, data: int = 0) -> None:
    if _libc.ptrace(request, task, address, ctypes.c_void_p(data & 0xFFFFFFFFFFFFFFFF)) == -1:
        number = ctypes.get_errno()
        if number == 3:  # ESRCH: it was killed in the meantime
            raise ProcessLookupError(number, os.strerror(number))
        raise OSError(number, f"ptrace: {os.strerror(number)}")


def _filter_calls() -> None:
    """From now on this process, which is traced, and its threads stop before the calls above, and at no other one.

    Source: seccomp(2), SECCOMP_RET_TRACE; ptrace(2), PTRACE_EVENT_SECCOMP.
    """
    steps = [(_LOAD, 0, 0, 0)]  # the number of the call
    steps += [(_IF_EQUAL, len(_NUMBERS) - at, 0, number) for at, number in enumerate(_NUMBERS)]
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _TRACE)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    described = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(program)))
    for asked in ((_NO_NEW_PRIVILEGES, 1, 0, 0, 0), (_SET_SECCOMP, _FILTER, ctypes.addressof(described), 0, 0)):
        if _libc.prctl(*map(ctypes.c_ulong, asked)) == -1:
            raise OSError(ctypes.get_errno(), f"prctl: {os.strerror(ctypes.get_errno())}")


class StoppedThread:
    """One thread of a worker, stopped alone, which no signal can do: SIGSTOP stops the whole process."""

    def __init__(self, task: int) -> None:
        self._task = task
        _ptrace(_SEIZE, task)
        _ptrace(_INTERRUPT, task)
        os.waitpid(task, _WALL)

    def resume(self) -> None:
        """Let it go on."""
        _ptrace(_DETACH, self._task)


@dataclass(frozen=True, slots=True)
class SystemCall:
    """One system call about to be made: its name, and the file that it is for."""

    name: str
    path: str
    args: tuple[int, ...]

    @property
    def file(self) -> str:
        """The file's name without its folder."""
        return self.path.rsplit("/", 1)[-1]

    def __str__(self) -> str:
        return f"{self.name}({self.file})"


@dataclass(frozen=True, slots=True)
class Fail:
    """Do not make the call: it answers this error number."""

    error: int


class Kill:
    """SIGKILL before the call is made."""


class Tear:
    """Make half of a write, and SIGKILL."""


Act = Fail | Kill | Tear | None
Decide = Callable[[SystemCall], Act]


def _filter(work: Callable[[Line], None], line: Line) -> None:
    line.hear()
    _filter_calls()
    work(line)


class Traced:
    """A worker that says on its line what it does; ``decide`` is asked before each of its calls below ``folder``.

    The worker begins with ``line.hear()``. :meth:`run` performs it to its end; a worker is traced once.
    """

    def __init__(self, folder: Path, work: Callable[[Line], None]) -> None:
        machine = (platform.system(), platform.machine())
        assert machine == ("Linux", "x86_64"), f"the tracer knows Linux on x86-64; this is {' '.join(machine)}"
        self._folder = f"{folder}/"
        self._worker = Worker(lambda line: _filter(work, line))
        self.calls: list[SystemCall] = []
        self._after: dict[int, Act] = {}  # by thread: what to do when its call returns
        self.said: list[list[str]] = []

    def run(self, decide: Decide) -> int:
        """Trace the worker to its end; its exit code (negative: the signal)."""
        pid = self._worker.pid
        _ptrace(_SEIZE, pid, 0, _SYSGOOD | _TRACECLONE | _TRACESECCOMP | _EXITKILL)
        _ptrace(_INTERRUPT, pid)
        self._memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        self._worker.tell()  # that its calls are traced, so that it may filter them
        self._worker.tell()  # the message that its work waits for
        try:
            while True:
                task, status = os.waitpid(-1, _WALL)
                if os.WIFSTOPPED(status):
                    try:
                        self._handle_stop(task, status, decide)
                    except ProcessLookupError:
                        continue
                elif task == pid:
                    return os.waitstatus_to_exitcode(status)
        finally:
            os.close(self._memory)
            self._worker.ended = True
            self.said = self._worker.rest()
            self._worker.close()

    def _handle_stop(self, task: int, status: int, decide: Decide) -> None:
        number = os.WSTOPSIG(status)
        passed_on = 0
        if status >> 16 == _EVENT_SECCOMP:
            self._at_call(task, decide)
        elif number == _SYSCALL_STOP and task in self._after:
            self._at_return(task)
        elif number != _SYSCALL_STOP and status >> 16 == 0:
            passed_on = number  # a signal on its way to the worker
        _ptrace(_SYSCALL if task in self._after else _CONT, task, 0, passed_on)

    def _at_call(self, task: int, decide: Decide) -> None:
        info = ctypes.create_string_buffer(_INFO_BYTES)
        _ptrace(_GET_SYSCALL_INFO, task, _INFO_BYTES, ctypes.addressof(info))
        call = self._call(*struct.unpack_from("=Q6q", info.raw, 24))
        if call is not None:
            self.calls.append(call)
            self._before(task, call, decide(call))

    def _at_return(self, task: int) -> None:
        match self._after.pop(task):
            case Fail(error):
                _ptrace(_POKEUSER, task, _RAX, -error)
            case _:
                os.kill(self._worker.pid, signal.SIGKILL)

    def _before(self, task: int, call: SystemCall, act: Act) -> None:
        match act:
            case None:
                return
            case Kill():
                os.kill(self._worker.pid, signal.SIGKILL)
            case Fail():
                _ptrace(_POKEUSER, task, _ORIG_RAX, -1)
                self._after[task] = act
            case Tear():
                _ptrace(_POKEUSER, task, _RDX, call.args[2] // 2)
                self._after[task] = act

    def _call(self, number: int, *args: int) -> SystemCall | None:
        name = _BY_DESCRIPTOR.get(number)
        if name is not None:
            path = self._path_of(args[0])
        elif number in _BY_PATH:
            name, path = _BY_PATH[number], self._text_at(args[0])
        elif number in _BY_PATH_AT:
            name, path = _BY_PATH_AT[number], self._text_at(args[1])
            path = path or self._path_of(args[0])  # of an open file
        elif number == _MMAP and args[4] >= 0:
            name, path = "mmap", self._path_of(args[4])
        else:
            return None
        return SystemCall(name, path, args) if path.startswith(self._folder) else None

    def _path_of(self, descriptor: int) -> str:
        try:
            return os.readlink(f"/proc/{self._worker.pid}/fd/{descriptor & 0xFFFFFFFF}")
        except OSError:
            return ""

    def _text_at(self, address: int) -> str:
        try:
            return (
                os.pread(self._memory, 512, address & 0xFFFFFFFFFFFFFFFF).split(b"\0", 1)[0].decode("utf-8", "replace")
            )
        except OSError:
            return ""
