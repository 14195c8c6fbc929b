"""The newest camera frame in shared memory: one writer that never waits, one reader that never sees a mix.

Two pixel buffers and a version word, no lock. Frame v (1, 2, 3, ...) lives in buffer v % 2, and the version
word holds the newest published v (0: none yet).

    writer of v:  fence; pixels and meta into buffer v % 2; version := v (release)
    reader:       v := version (acquire); copy buffer v % 2; fence; whole if version is still v, else again

The reader must compare for equality: once v + 1 is published, the writer of v + 2 may already be in the
buffer of v. The writer's fence keeps its stores for v + 2 behind the publication of v + 1, so that a reader
who met any of them also meets the changed version (the seqlock of H.-J. Boehm, "Can seqlocks get along with
programming language memory models?", MSPC 2012).

Layout, in bytes from the start of the mapping (native byte order, all words 64 bit):

    0     magic "VLAFRAME"              128   version word, alone on its cache lines
    8     layout version (1)            256   meta of buffer 0: index, stamp_ns, capture_ns, receipt_ns
    16    height                        384   meta of buffer 1, likewise
    24    width (3 bytes a pixel)       4096  pixels of buffer 0, (height, width, 3) uint8 RGB, rows packed
    32    offset of buffer 1's pixels         pixels of buffer 1, from the next multiple of 4096 on

The mapping begins on a page and is a whole number of pages, so an engine can page-lock all of it
(`address`, `size_bytes`), and a kernel can read version word, pixels and version word by these offsets.
"""

import ctypes
import fcntl
import mmap
import os
import struct

import numpy as np

from vla_edge_ros.perception import atomics
from vla_edge_ros.perception.frame import FrameMeta

MAGIC = b"VLAFRAME"
LAYOUT_VERSION = 1
VERSION_OFFSET = 128
META_OFFSETS = (256, 384)
PIXELS_OFFSET = 4096

MAX_ATTEMPTS = 8
"""Copies that a read tries. At 60 Hz a copy fails only if the reader slept through a publication in it, so
more than one retry means that the reader is starved, which a longer loop would not cure."""

_HEADER = struct.Struct("=8sQQQQ")
_META = struct.Struct("=qqqq")


class FrameBuffer:
    """One writer and one reader, in one process or in two that share `fd`.

    is_locked: whether the pages are locked in memory (mlock); a finite memlock limit may refuse it.
    reads, retries, contended: calls of `read_into` and `peek` on this object, further copies that they
        needed, and calls that gave up after MAX_ATTEMPTS.
    """

    def __init__(self, fd: int):
        """Map the buffer behind `fd`, which this object then owns; use `create` or `attach`."""
        self.fd = fd
        self.reads = self.retries = self.contended = 0
        self._map = mmap.mmap(fd, os.fstat(fd).st_size)
        _, _, self.height, self.width, second = _HEADER.unpack_from(self._map)
        self.size_bytes = len(self._map)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._pixels = tuple(
            np.ndarray((self.height, self.width, 3), np.uint8, self._bytes, offset)
            for offset in (PIXELS_OFFSET, second)
        )
        self.address = self._bytes.ctypes.data
        self._version_address = self.address + VERSION_OFFSET
        self.is_locked = _lock_pages(self.address, self.size_bytes)

    @classmethod
    def create(cls, height: int = 64, width: int = 128) -> "FrameBuffer":
        """A new buffer for RGB frames of that size, in memory without a name. Raises ValueError."""
        if height < 1 or width < 1:
            raise ValueError(f"a frame buffer of {width}x{height} pixels: both must be at least 1")
        second = _round_up(PIXELS_OFFSET + height * width * 3, PIXELS_OFFSET)
        size_bytes = _round_up(second + height * width * 3, mmap.PAGESIZE)
        fd = os.memfd_create("vla_edge_frames", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size_bytes)
            # Sealed, because a mapping that another process cuts short ends its reader with SIGBUS.
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            os.pwrite(fd, _HEADER.pack(MAGIC, LAYOUT_VERSION, height, width, second), 0)
            return cls(fd)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def attach(cls, fd: int) -> "FrameBuffer":
        """The buffer behind `fd`, in another process or the same; the caller keeps its `fd`.

        Raises ValueError if `fd` is no frame buffer of this layout.
        """
        _check_header(fd)
        own_fd = os.dup(fd)
        try:
            return cls(own_fd)
        except BaseException:
            os.close(own_fd)
            raise

    @property
    def next_index(self) -> int:
        """The index that the next `write` returns; for the one writer."""
        return atomics.load_acquire(self._version_address) + 1

    def write(self, pixels: np.ndarray, stamp_ns: int, capture_ns: int, receipt_ns: int) -> int:
        """Publish `pixels` (height, width, 3) uint8 RGB and return its index; never waits for a reader.

        Raises ValueError for another shape or type, or after `close`; nothing is published then.
        """
        self._check(pixels)
        index = self.next_index
        atomics.fence()
        np.copyto(self._pixels[index % 2], pixels)
        _META.pack_into(self._map, META_OFFSETS[index % 2], index, stamp_ns, capture_ns, receipt_ns)
        atomics.store_release(self._version_address, index)
        return index

    def clear(self) -> None:
        """Have no frame again, and count from 1; for the one writer, while nobody reads."""
        self._check_open()
        atomics.store_release(self._version_address, 0)

    def read_into(self, out: np.ndarray) -> FrameMeta | None:
        """Copy the newest frame into `out` (height, width, 3) uint8; allocates no array.

        None if there is no frame, or if MAX_ATTEMPTS copies were overtaken (then `contended` grows and
        `out` holds nothing of use). Raises ValueError for another shape or type, or after `close`.
        """
        self._check(out)
        return self._read(out)

    def peek(self) -> FrameMeta | None:
        """What is known of the newest frame, without its pixels; None as for `read_into`."""
        self._check_open()
        return self._read(None)

    def close(self) -> None:
        """Unmap and close; safe to call twice. The other process keeps its own mapping."""
        if self._map.closed:
            return
        self._pixels = ()
        del self._bytes
        self._map.close()
        os.close(self.fd)

    def _read(self, out: np.ndarray | None) -> FrameMeta | None:
        self.reads += 1
        for attempt in range(MAX_ATTEMPTS):
            index = atomics.load_acquire(self._version_address)
            if index == 0:
                return None
            self.retries += attempt > 0
            meta = self._copy(index % 2, out)
            atomics.fence()
            if self._is_newest(index):
                return FrameMeta(*meta)
        self.contended += 1
        return None

    def _copy(self, buffer: int, out: np.ndarray | None) -> tuple[int, int, int, int]:
        if out is not None:
            np.copyto(out, self._pixels[buffer])
        return _META.unpack_from(self._map, META_OFFSETS[buffer])

    def _is_newest(self, index: int) -> bool:
        return atomics.load_acquire(self._version_address) == index

    def _check(self, pixels: np.ndarray) -> None:
        self._check_open()
        wanted = (self.height, self.width, 3)
        if pixels.shape != wanted or pixels.dtype != np.uint8:
            raise ValueError(f"frame of {pixels.dtype} {pixels.shape}: the buffer holds uint8 {wanted}")

    def _check_open(self) -> None:
        # The atomics take a bare address: after munmap they would end the process, not raise.
        if self._map.closed:
            raise ValueError("the frame buffer is closed")


def _check_header(fd: int) -> None:
    size_bytes = os.fstat(fd).st_size
    header = os.pread(fd, _HEADER.size, 0)
    if len(header) < _HEADER.size or header[: len(MAGIC)] != MAGIC:
        raise ValueError(f"file descriptor {fd} is not a frame buffer: it does not begin with {MAGIC!r}")
    _, layout, height, width, second = _HEADER.unpack(header)
    if layout != LAYOUT_VERSION:
        raise ValueError(f"frame buffer of layout {layout}, wanted {LAYOUT_VERSION}: run one version of both")
    if second < PIXELS_OFFSET + height * width * 3 or size_bytes < second + height * width * 3:
        raise ValueError(f"frame buffer of {size_bytes} bytes is too small for two frames {width}x{height}")


def _lock_pages(address: int, size_bytes: int) -> bool:
    mlock = ctypes.CDLL(None, use_errno=True).mlock
    mlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return mlock(address, size_bytes) == 0


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
