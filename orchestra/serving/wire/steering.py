"""New connections of a port that several processes share, all for the one that takes it over.

Linux deals connections out among the sockets of a port (SO_REUSEPORT), and resets those that one holds as it closes.
A rule of the port's sockets (SO_ATTACH_REUSEPORT_CBPF) sends all to the newest before the old one closes.
"""

import contextlib
import ctypes
import socket

from orchestra.system.processes import listeners

SO_ATTACH_REUSEPORT_CBPF = 51
"""Python has no name for it."""
RETURN = 0x06
"""BPF_RET | BPF_K: the filter's answer, here the number of a socket, in the order in which they began to listen."""


class _Instruction(ctypes.Structure):
    """struct sock_filter."""

    _fields_ = (("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32))


class _Filter(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction)))


def take_all(listening: socket.socket) -> bool:
    """Have this socket, the last that began to listen on its port, get every new connection; whether the system does.

    The rule ends when one of the port's sockets closes: the number is then that of none, and Linux deals out again.
    """
    number = _sharing(listening) - 1
    if number < 1:
        return False
    instruction = _Instruction(RETURN, 0, 0, number)
    rule = _Filter(1, ctypes.pointer(instruction))
    with contextlib.suppress(OSError):
        listening.setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, bytes(rule))
        return True
    return False


def _sharing(listening: socket.socket) -> int:
    """How many sockets listen on the address and port of this one."""
    own = listening.getsockname()[:2]
    return sum(one.laddr == own for one in listeners())
