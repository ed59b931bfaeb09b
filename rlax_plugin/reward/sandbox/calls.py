"""The system calls that tested code may make; all others are rejected, including future ones.

The list has the calls that Python, its standard library, the C library and the dynamic loader need.
The numbers are those of the kernel's public headers. Imports nothing of the project.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Processor -> the column of its numbers, and the kernel's number for it in a filter."""

# Name, number on x86_64, number on aarch64; -: there is no such call.
_ALLOWED = (
    # Files that are open.
    "read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, "
    "preadv 295 69, pwritev 296 70, preadv2 327 286, pwritev2 328 287, lseek 8 62, close 3 57, "
    "close_range 436 436, dup 32 23, dup2 33 -, dup3 292 24, fcntl 72 25, flock 73 32, "
    "fsync 74 82, fdatasync 75 83, ftruncate 77 46, fallocate 285 47, fadvise64 221 223, "
    "sendfile 40 71, splice 275 76, tee 276 77, copy_file_range 326 285, pipe 22 -, "
    "pipe2 293 59, poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72, epoll_create 213 -, "
    "epoll_create1 291 20, epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281 22, "
    "epoll_pwait2 441 441, eventfd 284 -, eventfd2 290 19, signalfd 282 -, signalfd4 289 74, "
    # Files by their names: landlock and the mount namespace decide which.
    "open 2 -, openat 257 56, creat 85 -, access 21 -, faccessat 269 48, faccessat2 439 439, "
    "stat 4 -, lstat 6 -, fstat 5 80, newfstatat 262 79, statx 332 291, statfs 137 43, "
    "fstatfs 138 44, readlink 89 -, readlinkat 267 78, getdents 78 -, getdents64 217 61, "
    "getcwd 79 17, chdir 80 49, fchdir 81 50, truncate 76 45, rename 82 -, renameat 264 38, "
    "renameat2 316 276, mkdir 83 -, mkdirat 258 34, rmdir 84 -, link 86 -, linkat 265 37, "
    "unlink 87 -, unlinkat 263 35, symlink 88 -, symlinkat 266 36, mknod 133 -, mknodat 259 33, "
    "chmod 90 -, fchmod 91 52, fchmodat 268 53, chown 92 -, fchown 93 55, lchown 94 -, "
    "fchownat 260 54, umask 95 166, utime 132 -, utimes 235 -, futimesat 261 -, "
    "utimensat 280 88, getxattr 191 8, lgetxattr 192 9, fgetxattr 193 10, listxattr 194 11, "
    "llistxattr 195 12, flistxattr 196 13, "
    # Memory.
    "brk 12 214, mmap 9 222, munmap 11 215, mprotect 10 226, mremap 25 216, madvise 28 233, "
    "msync 26 227, mincore 27 232, membarrier 324 283, "
    # Processes and threads, but no programs.
    "fork 57 -, vfork 58 -, exit 60 93, exit_group 231 94, wait4 61 260, waitid 247 95, "
    "kill 62 129, tkill 200 130, tgkill 234 131, getpid 39 172, getppid 110 173, gettid 186 178, "
    "getpgid 121 155, getpgrp 111 -, setpgid 109 154, getsid 124 156, setsid 112 157, "
    "getuid 102 174, geteuid 107 175, getgid 104 176, getegid 108 177, getresuid 118 148, "
    "getresgid 120 150, getgroups 115 158, capget 125 90, set_tid_address 218 96, "
    "set_robust_list 273 99, get_robust_list 274 100, futex 202 98, rseq 334 293, "
    "arch_prctl 158 -, sched_yield 24 124, sched_getaffinity 204 123, sched_getattr 315 275, "
    "sched_getparam 143 121, sched_getscheduler 145 120, sched_get_priority_max 146 125, "
    "sched_get_priority_min 147 126, sched_rr_get_interval 148 127, getpriority 140 141, "
    "getrlimit 97 163, setrlimit 160 164, getrusage 98 165, times 100 153, uname 63 160, "
    "sysinfo 99 179, getcpu 309 168, getrandom 318 278, "
    # Signals and time.
    "rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136, "
    "rt_sigsuspend 130 133, rt_sigtimedwait 128 137, rt_sigqueueinfo 129 138, "
    "rt_tgsigqueueinfo 297 240, sigaltstack 131 132, restart_syscall 219 128, pause 34 -, "
    "alarm 37 -, getitimer 36 102, setitimer 38 103, nanosleep 35 101, clock_nanosleep 230 115, "
    "clock_gettime 228 113, clock_getres 229 114, gettimeofday 96 169, time 201 -, "
    "timer_create 222 107, timer_settime 223 110, timer_gettime 224 108, "
    "timer_getoverrun 225 109, timer_delete 226 111, timerfd_create 283 85, "
    "timerfd_settime 286 86, timerfd_gettime 287 87, "
    # Sockets, once they are there.
    "connect 42 203, accept 43 202, accept4 288 242, bind 49 200, listen 50 201, "
    "shutdown 48 210, sendto 44 206, recvfrom 45 207, sendmsg 46 211, recvmsg 47 212, "
    "sendmmsg 307 269, recvmmsg 299 243, getsockname 51 204, getpeername 52 205, "
    "setsockopt 54 208, getsockopt 55 209"
)
# Executing; watching files, priorities, extended attributes: what shells, git and tar use.
_OF_PROGRAMS = (
    "execve 59 221, execveat 322 281, inotify_init 253 -, "
    "inotify_init1 294 26, inotify_add_watch 254 27, inotify_rm_watch 255 28, "
    "sync_file_range 277 84, setpriority 141 140, "
    "sched_setaffinity 203 122, mlock 149 228, munlock 150 229"
)
Numbers = Mapping[str, tuple[int | None, int | None]]
"""Name -> its numbers in the columns of ``ARCHITECTURES``; None: there is no such call."""


def _numbers(text: str) -> Numbers:
    return {
        name: (int(first), None if second == "-" else int(second))
        for name, first, second in map(str.split, text.split(","))
    }


ALLOWED = _numbers(_ALLOWED)
OF_PROGRAMS = _numbers(_OF_PROGRAMS)
"""What the second profile allows as well, which may execute programs."""
SOCKETS_OF_PROGRAMS = (int(socket.AF_INET),)
"""Families of sockets that it allows as well: its network namespace has nothing but loopback."""

_IOCTL = (
    0x5401,  # TCGETS and TCGETS2: whether a file is a terminal
    0x802C542A,
    0x5413,  # TIOCGWINSZ
    0x541B,  # FIONREAD
    0x5421,  # FIONBIO
    0x5450,  # FIONCLEX and FIOCLEX
    0x5451,
)
_PRCTL = (1, 2, 3, 15, 16, 21, 23, 30, 39)  # PDEATHSIG, NAME, and what only reads

BY_ARGUMENT: dict[str, tuple[tuple[int, int], int, tuple[int, ...]]] = {
    "ioctl": ((16, 29), 1, _IOCTL),
    "prctl": ((157, 167), 0, _PRCTL),
    "prlimit64": ((302, 261), 0, (0,)),  # the limits of this very process
    "socket": ((41, 198), 0, (int(socket.AF_UNIX),)),
    "socketpair": ((53, 199), 0, (int(socket.AF_UNIX),)),
}
"""Name -> its numbers, the position of an argument, and the allowed values of that argument."""

CLONE = (56, 220)
CLONE_REFUSED = 0x7E020080
"""Flags of clone that are rejected: CLONE_NEW*, for new namespaces."""

FIRST_OPTIONAL = 424
"""The first number of the calls whose rejection fails with ENOSYS, as on a kernel without them.

They came with Linux 5.1, and the C library works without them. Among them is clone3, whose flags no
filter can read. A rejected call of a smaller number fails with EPERM, and Python raises a
PermissionError."""
