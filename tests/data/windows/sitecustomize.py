"""A stand-in for Windows: with this folder on PYTHONPATH, Python on Linux lacks or refuses what it does on Windows.

- Modules, functions, flags, signals and sockets that Windows does not have are gone.
- A folder cannot be opened. A file that this process has open, or mapped, can be neither replaced nor removed.
- Links are refused, and so are the characters that no file name has there.
- A text file's line ends become CRLF, unless its newline is chosen. /proc and /dev are not there.
- `Popen` refuses what it does for Unix only, and a killed process ends with exit code 1.
- A process's parent is the launcher of its virtual environment.

What it cannot show: drives and backslashes, code pages, and whether another process has a file open.
"""

import errno
import io
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile

MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty")
OF_OS = """
    O_ASYNC O_CLOEXEC O_DIRECT O_DIRECTORY O_DSYNC O_NOATIME O_NOCTTY O_NOFOLLOW O_NONBLOCK O_PATH O_SYNC chown chroot
    confstr ctermid eventfd fchdir fchmod fchown fdatasync fork forkpty getegid geteuid getgid getgroups getloadavg
    getpgid getpgrp getpriority getresuid getsid getuid initgroups killpg lchown memfd_create mkfifo mknod nice openpty
    pathconf pidfd_open pipe2 posix_fadvise posix_fallocate posix_spawn posix_spawnp pread preadv pwrite pwritev
    register_at_fork sched_getaffinity sched_setaffinity sched_yield sendfile setgid setpgid setpriority setsid setuid
    splice statvfs fstatvfs sync sysconf tcgetpgrp ttyname wait wait3 wait4 waitid
"""
OF_SIGNAL = """
    SIGALRM SIGBUS SIGCHLD SIGCONT SIGHUP SIGIO SIGKILL SIGPIPE SIGPROF SIGQUIT SIGSTOP SIGTSTP SIGTTIN SIGTTOU SIGUSR1
    SIGUSR2 SIGVTALRM alarm getitimer pause pthread_kill pthread_sigmask setitimer siginterrupt sigpending sigtimedwait
    sigwait sigwaitinfo
"""
OF_SOCKET = "AF_UNIX recv_fds send_fds socketpair"   # Windows has a socketpair, made of two connections
NO_NAME = frozenset('<>:"|?*')


def refused(number, path):
    return OSError(number, os.strerror(number), os.fspath(path))


def checked(path):
    """Raise for a name that Windows would refuse, and for places that only Unix has."""
    if isinstance(path, str | bytes | os.PathLike):
        text = os.fsdecode(path)
        if NO_NAME & set(text):
            raise refused(errno.EINVAL, path)
        if text.startswith(("/proc/", "/dev/")) and text != os.devnull:
            raise refused(errno.ENOENT, path)
    return path


def closed(path, real_readlink=os.readlink, real_listdir=os.listdir, real_open=open):
    """Raise for a path that this process has open or mapped."""
    held = {line.split(maxsplit=5)[5].rstrip("\n") for line in real_open("/proc/self/maps", encoding="utf-8")
            if line.count(" /")}
    for number in real_listdir("/proc/self/fd"):
        try:
            held.add(real_readlink(f"/proc/self/fd/{number}"))
        except OSError:   # the list's own
            continue
    if os.path.realpath(path) in held:
        raise refused(errno.EACCES, path)


def replace(source, target, *, real=os.replace, **more):
    checked(target)
    closed(source)
    closed(target)
    real(source, target, **more)


def rename(source, target, *, real=os.rename, **more):
    if os.path.lexists(target):
        raise refused(errno.EEXIST, target)
    closed(source)
    real(source, checked(target), **more)


def unlink(path, *, real=os.unlink, **more):
    closed(path)
    real(path, **more)


def symlink(source, target, *_, **__):
    raise refused(errno.EPERM, target)


def open_number(path, flags, *more, real=os.open, **others):
    if os.path.isdir(checked(path)):
        raise refused(errno.EACCES, path)
    return real(path, flags, *more, **others)


def open_file(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, *more, real=open, **others):
    if "b" not in mode and newline is None and set(mode) & set("wax+"):
        newline = "\r\n"
    return real(checked(file), mode, buffering, encoding, errors, newline, *more, **others)


def listed(real):
    return lambda path=".", *more: real(checked(path), *more)


def kill(pid, number, real=os.kill):
    if number == 0:
        raise RuntimeError("os.kill(pid, 0) sends CTRL_C_EVENT on Windows")
    real(pid, 9)


class Popen(subprocess.Popen):
    def __init__(self, *arguments, **options):
        for name in ("pass_fds", "preexec_fn", "start_new_session", "process_group", "user", "group", "umask"):
            assert options.get(name, -1) in (None, (), False, -1), f"{name} is not supported on Windows"
        streams = [options.get(name) for name in ("stdin", "stdout", "stderr")]
        assert not any(type(stream) is int and stream >= 0 and stat.S_ISSOCK(os.fstat(stream).st_mode)
                       for stream in streams), "a socket is no file on Windows"
        super().__init__(*arguments, **options)

    def kill(self, *, real=os.kill):
        if self.poll() is None:
            real(self.pid, 9)

    terminate = kill

    def _handle_exitstatus(self, *arguments):
        super()._handle_exitstatus(*arguments)
        self.returncode = 1 if self.returncode < 0 else self.returncode


def install():
    import asyncio  # noqa: F401  (of libraries; its part for Unix needs these modules, its part for Windows does not)

    random.seed()   # loaded before: it asks for `register_at_fork`
    for name in MODULES:
        sys.modules[name] = None
    for module, names in ((os, OF_OS), (signal, OF_SIGNAL), (socket, OF_SOCKET)):
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    os.supports_dir_fd.clear()
    shutil._use_fd_functions = shutil._USE_CP_SENDFILE = subprocess._USE_POSIX_SPAWN = False
    tempfile.TemporaryFile = tempfile.NamedTemporaryFile
    os.linesep = "\r\n"
    os.getppid = lambda: 1
    os.replace, os.rename, os.kill, os.symlink, os.open = replace, rename, kill, symlink, open_number
    os.unlink = os.remove = unlink
    os.listdir, os.scandir = listed(os.listdir), listed(os.scandir)
    io.open = __builtins__["open"] = open_file
    subprocess.Popen = Popen


install()
