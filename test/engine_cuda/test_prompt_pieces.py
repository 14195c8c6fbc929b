"""In what pieces the CUDA decoder writes a prompt, without a device; test_on_device.py has what they hold."""

from types import SimpleNamespace

import numpy as np
import pytest

from vla_edge_ros.engine.cuda.decoder import CudaDecoder
from vla_edge_ros.engine.presets import PRESETS


@pytest.fixture
def decoder(monkeypatch):
    """One that only tells what it would begin: (context, slots of the piece)."""
    decoder = CudaDecoder.__new__(CudaDecoder)
    driver = SimpleNamespace(cuMemcpyHtoDAsync=lambda *_: (0,))
    decoder.config, decoder.device = PRESETS["tiny"], SimpleNamespace(driver=driver)
    decoder.arena, decoder.stream, decoder.begun = {"prompt_rows": 0}, None, []
    decoder._weights = SimpleNamespace(read=lambda name, out, first_row: out)
    monkeypatch.setattr("vla_edge_ros.engine.cuda.decoder.check", lambda returned: None)
    decoder.begin = lambda context, slots, n_steps, is_frame: decoder.begun.append(
        (context.tolist(), slots.tolist())
    )
    decoder.finish = lambda: None
    return decoder


def test_each_piece_stands_behind_those_before_it_and_what_the_cache_holds(decoder):
    slots, cached = np.arange(100, 140, dtype=np.int32), np.arange(64, dtype=np.int32)
    decoder.fill_prompt(np.zeros(40, np.int32), slots, cached)
    assert decoder.begun == [
        (cached.tolist(), slots[:32].tolist()),
        (cached.tolist() + slots[:32].tolist(), slots[32:].tolist()),
    ]


def test_a_whole_prompt_begins_behind_nothing(decoder):
    slots = np.arange(20, dtype=np.int32)
    decoder.fill_prompt(np.zeros(20, np.int32), slots)
    assert decoder.begun == [([], slots.tolist())]
