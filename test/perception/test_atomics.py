import ctypes

import pytest

from vla_edge_ros.perception import atomics

NO_LIBRARY = "libatomic-that-is-not-there.so"


@pytest.fixture(params=["libatomic", "plain x86-64"])
def bound(request):
    return atomics.bind() if request.param == "libatomic" else atomics.bind(NO_LIBRARY, "x86_64")


@pytest.mark.parametrize("value", [0, 1, 2**32, 2**63, 2**64 - 1])
def test_a_stored_word_is_loaded_with_all_its_bits_and_its_neighbours_stay(bound, value):
    words = (ctypes.c_uint64 * 3)(7, 7, 7)
    address = ctypes.addressof(words) + 8
    bound.store_release(address, value)
    bound.fence()
    assert bound.load_acquire(address) == value
    assert list(words) == [7, value, 7]


def test_without_libatomic_a_weakly_ordered_machine_is_told_what_to_install():
    with pytest.raises(
        ImportError, match=f"{NO_LIBRARY} was not found, and aarch64 .*apt install libatomic1"
    ):
        atomics.bind(NO_LIBRARY, "aarch64")
