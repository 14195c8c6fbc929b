"""cv_bridge gives what OpenCV gives, and one that does not work is not used."""

import sys
from types import ModuleType

import numpy as np
import pytest
from camera_messages import random_image

from vla_edge_ros.perception import cv_bridge_adapter
from vla_edge_ros.perception.cv_bridge_adapter import EXACT_ENCODINGS
from vla_edge_ros.perception.raw_image import ENCODINGS, decode_image

CHANNELS = {
    "bgr8": [2, 1, 0],
    "rgba8": [0, 1, 2],
    "bgra8": [2, 1, 0],
    "mono8": [0, 0, 0],
    "mono16": [0, 0, 0],
}


class FakeCvBridge:
    """As much of cv_bridge as is asked of it: packed rows, native order, to rgb8."""

    used_for: tuple[str, ...] = ()

    def imgmsg_to_cv2(self, message, desired_encoding):
        assert desired_encoding == "rgb8"
        assert message.step * message.height == len(message.data)
        FakeCvBridge.used_for += (message.encoding,)
        dtype = np.uint16 if message.encoding == "mono16" else np.uint8
        pixels = np.frombuffer(message.data, dtype).reshape(message.height, message.width, -1)
        rgb = pixels[..., CHANNELS[message.encoding]]
        return rgb if dtype is np.uint8 else np.rint(rgb * (255 / 65535)).astype(np.uint8)


class SwappedCvBridge:
    def imgmsg_to_cv2(self, message, desired_encoding):
        return np.frombuffer(message.data, np.uint8).reshape(message.height, message.width, 3)


class RaisingCvBridge:
    def imgmsg_to_cv2(self, message, desired_encoding):
        raise AttributeError("module 'cv_bridge.boost' has no attribute 'cv_bridge_boost'")


@pytest.fixture
def install(monkeypatch):
    """Make `import cv_bridge` give a module with that class as CvBridge, or fail for None."""

    def replace(bridge_class):
        module = None
        if bridge_class is not None:
            module = ModuleType("cv_bridge")
            module.CvBridge = bridge_class
        monkeypatch.setitem(sys.modules, "cv_bridge", module)
        cv_bridge_adapter._load.cache_clear()
        cv_bridge_adapter._load()
        FakeCvBridge.used_for = ()

    yield replace
    cv_bridge_adapter._load.cache_clear()


def decoded(message):
    return decode_image(message, "/camera").copy()


@pytest.mark.parametrize("encoding", sorted(ENCODINGS))
@pytest.mark.parametrize("padding", [0, 6])
def test_pixels_are_equal_with_cv_bridge_and_without(install, encoding, padding):
    message = random_image(encoding, 16, 24, padding)
    install(None)
    without = decoded(message)
    install(FakeCvBridge)
    assert np.array_equal(decoded(message), without)
    used_for = (encoding,) if encoding in EXACT_ENCODINGS and padding == 0 else ()
    assert FakeCvBridge.used_for == used_for


def test_big_endian_stays_with_opencv(install):
    message = random_image("mono16", 4, 6)
    message.is_bigendian = 1
    install(FakeCvBridge)
    swapped = np.frombuffer(message.data, ">u2").reshape(4, 6)
    assert np.array_equal(decoded(message)[..., 0], (swapped.astype(int) + 128) // 257)
    assert FakeCvBridge.used_for == ()


@pytest.mark.parametrize("broken", [None, object, SwappedCvBridge, RaisingCvBridge])
def test_a_cv_bridge_that_does_not_work_is_not_used(install, broken):
    message = random_image("bgr8", 4, 6)
    install(broken)
    pixels = np.frombuffer(message.data, np.uint8).reshape(4, 6, 3)
    assert np.array_equal(decoded(message), pixels[..., ::-1])
