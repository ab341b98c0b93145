"""The system calls that untrusted code may not make, as a classic BPF program for bubblewrap's `--seccomp`.

A list of what is refused rather than of what is allowed, because commands of every kind run in a session. Refused is
what no ordinary program needs and what exploits of the kernel start from, and every kind of memory that no process is
charged for. The kernel remembers which numbers are always allowed, so the length of the list costs nothing per call.
Layout of the data, and why the architecture comes first: seccomp(2); instructions: linux/bpf_common.h.
"""

from __future__ import annotations

import struct
from errno import EAFNOSUPPORT, ENOSYS, EPERM, ESOCKTNOSUPPORT

# name: (number on x86-64, number on aarch64); None where there is no such call
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    # the kernel's own machinery
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "lookup_dcookie": (212, 18),
    "vmsplice": (278, 75),
    "personality": (135, 92),
    # mounts, roots and namespaces
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "statmount": (457, 457),
    "listmount": (458, 458),
    "open_tree_attr": (467, 467),
    "unshare": (272, 97),
    "setns": (308, 268),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # the machine
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "create_module": (174, None),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "get_kernel_syms": (177, None),
    "query_module": (178, None),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "acct": (163, 89),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "ioprio_set": (251, 30),
    "vhangup": (153, 58),
    "nfsservctl": (180, 42),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "ustat": (136, None),
    "sysfs": (139, None),
    "_sysctl": (156, None),
    # memory that no process is charged for, and System V objects, which outlive their makers
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
}

# Refused by their arguments, of which the filter sees numbers only, not what they point to.
_JUDGED: dict[str, tuple[int, int]] = {
    "clone": (56, 220),
    "clone3": (435, 435),
    "ioctl": (16, 29),
    "mmap": (9, 222),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "setsockopt": (54, 208),
    "setpriority": (141, 140),
    # the first argument is a process
    "prlimit64": (302, 261),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
}
_OF_A_PROCESS = ("prlimit64", "sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr")

_NAMESPACE_FLAGS = 0x0002_0000 | 0x0200_0000 | 0x0400_0000 | 0x0800_0000 | 0x1000_0000 | 0x2000_0000 | 0x4000_0000
_SHARED_ANONYMOUS = 0x01 | 0x20
_TERMINAL_INJECTION = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: they type into the launcher's terminal
_UNIX, _INET, _INET6 = 1, 2, 10
_KIND, _STREAM = 0xF, 1  # of a socket: its other bits are flags
_SOL_SOCKET, _BUFFER_SIZES = 1, (7, 8, 32, 33)  # SO_SNDBUF, SO_RCVBUF and what forces them
_X32 = 0x4000_0000

# struct seccomp_data: the call's number, the architecture, then each argument's lower half at 16, 24, ...
_NUMBER, _ARCHITECTURE = 0, 4
_LOAD, _AND, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF_0000, 0x0005_0000, 0x8000_0000


_MACHINES = {"x86_64": (0xC000_003E, 0), "aarch64": (0xC000_00B7, 1)}  # AUDIT_ARCH_*, column of the tables


def filter_program(machine: str, session: bool) -> bytes | None:
    """The program for a machine (as `platform.machine()` names it); None where its numbers are not known.

    A foreign architecture's call kills the process. A session may open IPv4 and IPv6 sockets, of which its empty
    network has only the loopback, sockets of every kind, and map shared memory: it runs servers and databases, and
    ends with its episode.
    """
    if machine not in _MACHINES:
        return None
    audit, column = _MACHINES[machine]
    lines = [_line(_LOAD, _ARCHITECTURE), _line(_EQUAL, audit, 1), _line(_RETURN, _KILL_PROCESS)]
    lines += [_line(_LOAD, _NUMBER)]
    if machine == "x86_64":
        lines += [_line(_AT_LEAST, _X32, 0, 1), _refuse(EPERM)]
    blocks = [(number, [_refuse(EPERM)]) for number in refused_calls(machine).values()]
    blocks += [(_JUDGED[name][column], block) for name, block in _judgements(session).items()]
    for number, block in blocks:
        lines += [_line(_EQUAL, number, 0, len(block)), *block]  # a block returns
    return b"".join([*lines, _ALLOWED])


def _judgements(session: bool) -> dict[str, list[bytes]]:
    """For each judged call, the block that decides it."""
    families = (_UNIX, _INET, _INET6) if session else (_UNIX,)
    of_family = [_argument(0), *_if_one_of(families, _ALLOWED), _refuse(EAFNOSUPPORT)]
    if not session:  # a queue of datagrams holds what many senders, long closed, are charged for
        stream = [_argument(1), _line(_AND, _KIND), *_if_one_of((_STREAM,), _ALLOWED), _refuse(ESOCKTNOSUPPORT)]
        of_family = [_argument(0), _line(_EQUAL, _UNIX, 1), _refuse(EAFNOSUPPORT), *stream]
    of_itself = [_argument(0), *_if_one_of((0,), _ALLOWED), _refuse(EPERM)]  # of pid 1, it would stay for the next
    in_name = _if_one_of(_BUFFER_SIZES, _refuse(0))
    blocks = {
        "clone": [_argument(0), _line(_ANY_BIT, _NAMESPACE_FLAGS, 0, 1), _refuse(EPERM), _ALLOWED],
        "clone3": [_refuse(ENOSYS)],  # its flags are in memory; callers fall back to clone
        "ioctl": [_argument(1), *_if_one_of(_TERMINAL_INJECTION, _refuse(EPERM)), _ALLOWED],
        "socket": of_family,
        "socketpair": of_family,
        # Done in name only, as by a kernel that caps the size: what waits in a socket is memory of no process.
        "setsockopt": [
            _argument(1),
            _line(_EQUAL, _SOL_SOCKET, 1),
            _ALLOWED,
            _argument(2),
            *in_name,
            _ALLOWED,
        ],
        "setpriority": [_argument(0), _line(_EQUAL, 0, 1), _refuse(EPERM), _argument(1), *of_itself[1:]],
        **dict.fromkeys(_OF_A_PROCESS, of_itself),
    }
    if not session:
        shared = [_argument(3), _line(_AND, _SHARED_ANONYMOUS)]
        blocks["mmap"] = [*shared, *_if_one_of((_SHARED_ANONYMOUS,), _refuse(EPERM)), _ALLOWED]
    return blocks


def refused_calls(machine: str) -> dict[str, int]:
    """Name and number of every call that is refused whatever its arguments are."""
    _, column = _MACHINES[machine]
    return {name: number for name, numbers in _REFUSED.items() if (number := numbers[column]) is not None}


def _line(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """One `struct sock_filter`: a jump's targets count the instructions that are left out."""
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _refuse(errno: int) -> bytes:
    return _line(_RETURN, _ERRNO | errno)


_ALLOWED = _line(_RETURN, _ALLOW)


def _argument(index: int) -> bytes:
    """Load an argument's lower half: all that the kernel reads of an `int`."""
    return _line(_LOAD, 16 + 8 * index)


def _if_one_of(values: tuple[int, ...], outcome: bytes) -> list[bytes]:
    return [line for value in values for line in (_line(_EQUAL, value, 0, 1), outcome)]
