"""Commands and results between the control process and the engine's child process.

A mailbox is one end of an AF_UNIX SOCK_SEQPACKET pair. The kernel bounds its memory, delivers whole records
in order with the memory ordering that shared memory would need atomics for, and turns the death of the
peer into an end of file, so that nobody waits for a process that is gone.

A record is a fixed header, then its arrays as int32 and float32, then text. Both ends keep one buffer for
sending and one for receiving, sized once from `n_slots`.
"""

import socket
import struct
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from vla_edge_ros.engine.interface import (
    FRAME_TOKENS,
    MAX_ACTION_TOKENS,
    FrameWork,
    PromptWork,
    StageTimes,
    WorkResult,
    WorkStatus,
)
from vla_edge_ros.engine.linux import BoundedPoll
from vla_edge_ros.memory.signals import PassSignals
from vla_edge_ros.perception.frame import FrameMeta

MAX_STEPS = 16
"""K: the longest action chunk of one result."""

_HEADER = struct.Struct("=4H 4I Q 14q")
# kind, status, arrays present, steps done; four counts; work id; of a result: frame index, stamp, capture,
# receipt; copy, vision, prefill, decode; the same, remaining; started, finished; of a frame's work: deadline,
# prompt tokens; of any work: blocks to stash, blocks to restore
_MIN_PAYLOAD_BYTES = 68 * 1024
_NO_TIMES = (0,) * 14
_TOKENS, _TOP_PROBABILITY, _ENTROPY, _EMBEDDING, _SIGNALS = 1, 2, 4, 8, 16


class MailboxClosed(Exception):
    """The peer has closed its end or has died."""


class MailboxFull(Exception):
    """The peer does not read, and the kernel's buffer has no room for another record."""


class Kind(IntEnum):
    SPEC = 1
    INFO = 2
    ERROR = 3
    PROMPT = 4
    FRAME = 5
    CLOSE = 6
    RESULT = 7


@dataclass(slots=True)
class Text:
    """A record of text: the JSON of a specification or of an engine's information, or an error's one line."""

    kind: Kind
    text: str


_NO_SLOTS = np.empty(0, np.int32)
_MOVE_WORDS = 1 + FRAME_TOKENS
_NO_MOVES = np.empty((0, _MOVE_WORDS), np.int32)


@dataclass(slots=True)
class Order:
    """Forget `evicted`, (n,) int32, then do `work`: one record, since each wakes the other process.

    stashed, restored: (n, 33) int32, a place of the host ring and the 32 slots of a block: copied to the ring
        before `evicted` is forgotten, and from it afterwards.
    """

    work: PromptWork | FrameWork
    evicted: np.ndarray = field(default_factory=lambda: _NO_SLOTS)
    stashed: np.ndarray = field(default_factory=lambda: _NO_MOVES)
    restored: np.ndarray = field(default_factory=lambda: _NO_MOVES)


@dataclass(frozen=True, slots=True)
class Close:
    """End the engine; nothing is answered but the end of file."""


Message = Order | WorkResult | Close | Text


def connected_pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class Mailbox:
    """One end of the pair; sending and receiving use separate buffers, so a thread may do each.

    Takes slot lists of up to `n_slots` entries and results with embeddings of up to 16000 values.
    """

    def __init__(self, end: socket.socket, n_slots: int):
        self.capacity_bytes = _HEADER.size + max(_MIN_PAYLOAD_BYTES, 3 * 4 * n_slots)
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * self.capacity_bytes)
        available_bytes = end.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        if available_bytes < self.capacity_bytes + 64:
            raise ValueError(
                f"{n_slots} slots need records of {self.capacity_bytes} bytes, the kernel allows "
                f"{available_bytes}: raise net.core.wmem_max or use fewer slots"
            )
        self._socket = end
        self._poll = BoundedPoll(end.fileno())
        self._send_buffer = memoryview(bytearray(self.capacity_bytes))
        self._receive_buffer = memoryview(bytearray(self.capacity_bytes))
        self._out_ints, self._out_floats = _payload_views(self._send_buffer)
        self._in_ints, self._in_floats = _payload_views(self._receive_buffer)

    def send(self, message: Message) -> None:
        """Hand one record to the kernel; never waits.

        Raises MailboxFull, MailboxClosed, or ValueError where an array or text is larger than the mailbox.
        """
        size = self._encode(message)
        try:
            self._socket.send(self._send_buffer[:size], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError as error:
            raise MailboxFull("the peer does not read its mailbox") from error
        except OSError as error:
            raise MailboxClosed(str(error)) from error

    def receive(self, until_ns: int | None) -> Message | None:
        """The next record, or None once the steady clock reaches `until_ns` (None: wait for ever).

        Arrays are views on the receive buffer, valid until the next record is received. Raises MailboxClosed.
        """
        while self._poll.is_readable_by(until_ns):
            try:
                size = self._socket.recv_into(self._receive_buffer)
            except ConnectionResetError:
                # Reported once when the peer dies with records unread; what it sent before is still queued.
                continue
            except BlockingIOError:
                continue
            if size == 0:
                raise MailboxClosed("end of file")
            return self._decode(size)
        return None

    def close(self) -> None:
        self._socket.close()

    def _encode(self, message: Message) -> int:
        if isinstance(message, Order):
            return self._encode_order(message)
        if isinstance(message, WorkResult):
            return self._encode_result(message)
        if isinstance(message, Close):
            return self._encode_text(Text(Kind.CLOSE, ""))
        return self._encode_text(message)

    def _encode_order(self, order: Order) -> int:
        work, evicted, moves = order.work, order.evicted, (order.stashed.ravel(), order.restored.ravel())
        if isinstance(work, FrameWork):
            kind, deadline_ns, prompt_tokens = Kind.FRAME, work.deadline_ns, work.prompt_tokens
            arrays = work.context_slots, work.frame_slots, work.action_slots, evicted
        else:
            kind, deadline_ns, prompt_tokens = Kind.PROMPT, 0, 0
            arrays = work.tokens, work.slots, work.context_slots, evicted
        counts = [len(array) for array in arrays]
        n_moves = [array.size // _MOVE_WORDS for array in moves]
        self._check_fits(4 * (sum(counts) + _MOVE_WORDS * sum(n_moves)), kind)
        times = deadline_ns, prompt_tokens, *n_moves, *_NO_TIMES[4:]
        _HEADER.pack_into(self._send_buffer, 0, kind, 0, 0, 0, *counts, work.work_id, *times)
        offset = 0
        for array in (*arrays, *moves):
            np.copyto(self._out_ints[offset : offset + len(array)], array)
            offset += len(array)
        return _HEADER.size + 4 * offset

    def _encode_text(self, message: Text) -> int:
        text = message.text.encode("utf-8", "replace")
        self._check_fits(len(text), message.kind)
        _HEADER.pack_into(self._send_buffer, 0, message.kind, 0, 0, 0, 0, 0, 0, len(text), 0, *_NO_TIMES)
        self._send_buffer[_HEADER.size : _HEADER.size + len(text)] = text
        return _HEADER.size + len(text)

    def _encode_result(self, result: WorkResult) -> int:
        steps, action_tokens = (0, 0) if result.tokens is None else result.tokens.shape
        if steps > MAX_STEPS or action_tokens > MAX_ACTION_TOKENS:
            raise ValueError(
                f"tokens are {steps} x {action_tokens}, "
                f"a result takes at most {MAX_STEPS} x {MAX_ACTION_TOKENS}"
            )
        embedding_size = 0 if result.embedding is None else len(result.embedding)
        error = result.error.encode("utf-8", "replace")
        n_signals = 0 if result.signals is None else 2 * len(result.signals.frame_attention) + 2
        n_words = 3 * steps * action_tokens + embedding_size + n_signals
        self._check_fits(4 * n_words + len(error), Kind.RESULT)
        present = 0
        offset = 0
        for bit, array, view in (
            (_TOKENS, result.tokens, self._out_ints),
            (_TOP_PROBABILITY, result.top_probability, self._out_floats),
            (_ENTROPY, result.entropy, self._out_floats),
            (_EMBEDDING, result.embedding, self._out_floats),
        ):
            if array is None:
                continue
            if bit != _EMBEDDING and array.shape != (steps, action_tokens):
                raise ValueError(f"a result has tokens {steps} x {action_tokens} beside shape {array.shape}")
            present |= bit
            np.copyto(view[offset : offset + array.size].reshape(array.shape), array)
            offset += array.size
        if result.signals is not None:
            present |= _SIGNALS
            _put_signals(result.signals, self._out_floats[offset : offset + n_signals])
            offset += n_signals
        frame = result.frame
        _HEADER.pack_into(
            self._send_buffer,
            0,
            Kind.RESULT,
            result.status.value,
            present,
            result.steps_done,
            steps,
            action_tokens,
            embedding_size,
            len(error),
            result.work_id,
            *((0, 0, 0, 0) if frame is None else _frame_fields(frame)),
            *_stage_fields(result.stages),
            *_stage_fields(result.remaining),
            result.started_ns,
            result.finished_ns,
        )
        text_start = _HEADER.size + 4 * offset
        self._send_buffer[text_start : text_start + len(error)] = error
        return text_start + len(error)

    def _check_fits(self, payload_bytes: int, kind: Kind) -> None:
        if _HEADER.size + payload_bytes > self.capacity_bytes:
            raise ValueError(
                f"a {kind.name} record of {payload_bytes} bytes is larger than the mailbox "
                f"({self.capacity_bytes - _HEADER.size} bytes)"
            )

    def _decode(self, size: int) -> Message:
        kind, status, present, steps_done, *rest = _HEADER.unpack_from(self._receive_buffer)
        counts, work_id, times = rest[:4], rest[4], rest[5:]
        kind = Kind(kind)
        if kind is Kind.RESULT:
            return self._decode_result(size, status, present, steps_done, counts, work_id, times)
        if kind is Kind.CLOSE:
            return Close()
        if kind in (Kind.SPEC, Kind.INFO, Kind.ERROR):
            return Text(kind, str(self._receive_buffer[_HEADER.size : size], "utf-8"))
        arrays = []
        offset = 0
        for count in counts:
            arrays.append(self._in_ints[offset : offset + count])
            offset += count
        *given, evicted = arrays
        moves = []
        for n_moves in times[2:4]:
            end = offset + _MOVE_WORDS * n_moves
            moves.append(self._in_ints[offset:end].reshape(n_moves, _MOVE_WORDS))
            offset = end
        if kind is Kind.FRAME:
            work = FrameWork(work_id, *given, deadline_ns=times[0], prompt_tokens=times[1])
        else:
            work = PromptWork(work_id, *given)
        return Order(work, evicted, *moves)

    def _decode_result(self, size, status, present, steps_done, counts, work_id, times) -> WorkResult:
        steps, action_tokens, embedding_size, _ = counts
        shape = (steps, action_tokens)
        offset = 0
        arrays = []
        for bit in (_TOKENS, _TOP_PROBABILITY, _ENTROPY, _EMBEDDING):
            if not present & bit:
                arrays.append(None)
                continue
            count = embedding_size if bit == _EMBEDDING else steps * action_tokens
            view = self._in_ints if bit == _TOKENS else self._in_floats
            array = view[offset : offset + count]
            arrays.append(array if bit == _EMBEDDING else array.reshape(shape))
            offset += count
        signals = None
        if present & _SIGNALS:
            signals = _take_signals(self._in_floats[offset:])
            offset += 2 * len(signals.frame_attention) + 2
        return WorkResult(
            work_id=work_id,
            status=WorkStatus(status),
            error=str(self._receive_buffer[_HEADER.size + 4 * offset : size], "utf-8"),
            frame=FrameMeta(*times[:4]) if times[0] else None,
            tokens=arrays[0],
            top_probability=arrays[1],
            entropy=arrays[2],
            embedding=arrays[3],
            signals=signals,
            stages=StageTimes(*times[4:8]),
            steps_done=steps_done,
            remaining=StageTimes(*times[8:12]),
            started_ns=times[12],
            finished_ns=times[13],
        )


def _payload_views(buffer: memoryview) -> tuple[np.ndarray, np.ndarray]:
    n_words = (len(buffer) - _HEADER.size) // 4
    return (
        np.frombuffer(buffer, np.int32, n_words, _HEADER.size),
        np.frombuffer(buffer, np.float32, n_words, _HEADER.size),
    )


def _put_signals(signals: PassSignals, out: np.ndarray) -> None:
    """n, value norm, then both attentions (n,) each."""
    n = len(signals.frame_attention)
    out[0], out[1] = n, signals.value_norm
    out[2 : 2 + n] = signals.frame_attention
    out[2 + n :] = signals.action_attention


def _take_signals(words: np.ndarray) -> PassSignals:
    n = int(words[0])
    return PassSignals(words[2 : 2 + n], words[2 + n : 2 + 2 * n], float(words[1]))


def _frame_fields(frame: FrameMeta) -> tuple[int, int, int, int]:
    return frame.index, frame.stamp_ns, frame.capture_ns, frame.receipt_ns


def _stage_fields(stages: StageTimes) -> tuple[int, int, int, int]:
    return stages.copy_ns, stages.vision_ns, stages.prefill_ns, stages.decode_ns
