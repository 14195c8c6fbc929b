"""No frame is torn, however many are published in the middle of a read, wherever the writer lives."""

import os
import socket
import subprocess
import sys
import threading
from contextlib import closing, contextmanager

import frame_publisher
import numpy as np
import pytest

from vla_edge_ros.perception.frame_buffer import MAX_ATTEMPTS, FrameBuffer


class InterruptedReader(FrameBuffer):
    """Halfway through copying the pixels, and again before the times, it lets others publish."""

    def interrupt(self) -> None:
        pass

    def _copy(self, buffer, out):
        half = self.height // 2
        out[:half] = self._pixels[buffer][:half]
        self.interrupt()
        out[half:] = self._pixels[buffer][half:]
        return super()._copy(buffer, None)


class TrustingReader(InterruptedReader):
    """The reader without its re-check."""

    def _is_newest(self, index):
        return True


@contextmanager
def same_thread(fd):
    with closing(FrameBuffer.attach(fd)) as writer:
        yield lambda count: frame_publisher.publish(writer, count)


@contextmanager
def other_thread(fd):
    here, there = socket.socketpair()
    with closing(FrameBuffer.attach(fd)) as writer, here, there:
        thread = threading.Thread(target=frame_publisher.serve, args=(writer, there))
        thread.start()
        yield request_over(here)
        here.shutdown(socket.SHUT_RDWR)
        thread.join()


@contextmanager
def other_process(fd):
    with child_channel(fd) as channel:
        yield request_over(channel)


@contextmanager
def child_channel(fd):
    here, there = socket.socketpair()
    with here:
        child = subprocess.Popen(
            [sys.executable, frame_publisher.__file__, str(fd), str(there.fileno())],
            pass_fds=(fd, there.fileno()),
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        there.close()
        yield here
        here.shutdown(socket.SHUT_RDWR)
        assert child.wait() == 0


def request_over(channel):
    def request(count):
        channel.sendall(bytes([count]))
        assert channel.recv(1) == b"."

    return request


WRITERS = (same_thread, other_thread, other_process)


def read_while_publishing(reader_type, writer, n_reads):
    """(reader, publications inside each read, whether each read was whole); in first attempts only."""
    publications = np.random.default_rng(0).integers(0, 5, n_reads).tolist()
    with closing(FrameBuffer.create()) as owner, closing(reader_type.attach(owner.fd)) as reader:
        out = np.empty((64, 128, 3), np.uint8)
        whole = []
        with writer(owner.fd) as publish:
            publish(1)
            for count in publications:
                due = [count] if count else []
                reader.interrupt = lambda due=due: due and publish(due.pop())
                meta = reader.read_into(out)
                whole.append(frame_publisher.is_whole(meta, out))
        return reader, np.array(publications), np.array(whole)


@pytest.mark.parametrize("writer", WRITERS)
def test_no_read_of_100_000_is_torn_by_publications_in_its_middle(writer):
    reader, publications, whole = read_while_publishing(InterruptedReader, writer, 100_000)
    assert np.count_nonzero(~whole) == 0
    assert reader.reads == 100_000
    assert reader.retries == np.count_nonzero(publications)
    assert reader.contended == 0


@pytest.mark.parametrize("writer", WRITERS)
def test_the_same_reads_are_torn_without_the_recheck(writer):
    _, publications, whole = read_while_publishing(TrustingReader, writer, 1_000)
    # One publication fills the other buffer; the second is the first to reach the one being read.
    assert np.array_equal(whole, publications < 2)


def test_no_read_is_torn_while_another_process_publishes_as_fast_as_it_can():
    with closing(FrameBuffer.create()) as reader, child_channel(reader.fd) as channel:
        channel.sendall(bytes([250]) * 40)
        out = np.empty((64, 128, 3), np.uint8)
        newest = 0
        while newest < 10_000:
            meta = reader.read_into(out)
            if meta is not None:
                assert frame_publisher.is_whole(meta, out)
                newest = meta.index
        assert channel.recv(40, socket.MSG_WAITALL) == b"." * 40


def test_a_writer_caught_in_the_buffer_being_read_is_noticed():
    with closing(FrameBuffer.create()) as owner, closing(InterruptedReader.attach(owner.fd)) as reader:
        frame_publisher.publish(owner, 1)
        due = [True]

        def publish_2_and_begin_3():
            if due and due.pop():
                frame_publisher.publish(owner, 1)
                owner._pixels[3 % 2][:] = 255

        reader.interrupt = publish_2_and_begin_3
        out = np.empty((64, 128, 3), np.uint8)
        meta = reader.read_into(out)
        assert meta.index == 2
        assert frame_publisher.is_whole(meta, out)


def test_a_read_that_is_overtaken_every_time_gives_up_and_counts_it():
    with closing(FrameBuffer.create()) as owner, closing(InterruptedReader.attach(owner.fd)) as reader:
        frame_publisher.publish(owner, 1)
        reader.interrupt = lambda: frame_publisher.publish(owner, 1)
        out = np.empty((64, 128, 3), np.uint8)
        assert reader.read_into(out) is None
        assert (reader.reads, reader.retries, reader.contended) == (1, MAX_ATTEMPTS - 1, 1)
        reader.interrupt = lambda: None
        assert reader.read_into(out).index == 1 + MAX_ATTEMPTS
