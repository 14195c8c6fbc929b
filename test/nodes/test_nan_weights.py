"""A NaN among the weights: no action ever comes of it, and the reason is told."""

import numpy as np
import pytest

from vla_edge_ros.engine.interface import EngineError, EngineSpec, FrameWork, WorkStatus
from vla_edge_ros.engine.numpy_engine import NumpyEngine
from vla_edge_ros.engine.presets import PRESETS
from vla_edge_ros.engine.weights import SeededWeights
from vla_edge_ros.nodes import fault_engine
from vla_edge_ros.perception.frame_buffer import FrameBuffer


class OneNan:
    """The seeded weights with one NaN in one tensor."""

    def __init__(self, config, tensor):
        self.config, self._weights, self._tensor = config, SeededWeights(config, 0), tensor

    def read(self, name, out, first_row=0):
        self._weights.read(name, out, first_row)
        if name == self._tensor:
            out.flat[0] = np.nan
        return out


@pytest.fixture
def frames():
    buffer = FrameBuffer.create()
    buffer.write(np.full((64, 128, 3), 100, np.uint8), 1, 1, 1)
    yield buffer
    buffer.close()


@pytest.mark.parametrize(
    "tensor", ["model.layers.0.self_attn.q_proj.bias", "model.layers.1.mlp.down_proj.weight"]
)
def test_a_checkpoint_with_a_nan_is_refused_at_configure(start_edge, tmp_path, tensor):
    pytest.importorskip("safetensors", reason="checkpoints are written with it (the `test` extra)")
    from vla_edge_ros.engine.hugging_face import export_checkpoint

    folder = tmp_path / "model"
    folder.mkdir()
    export_checkpoint(folder, PRESETS["tiny"], OneNan(PRESETS["tiny"], tensor))
    robot = start_edge(parameters={"engine.backend": "numpy", "engine.model": str(folder)})
    assert not robot.change("configure")
    assert "first pass: the logits of decode step 0 are not finite" in robot.log()


def test_the_pass_after_a_weight_became_nan_has_failed_and_has_no_tokens(frames):
    engine = NumpyEngine(EngineSpec(model="tiny", n_slots=128), frames)
    engine.configure()
    wanted = fault_engine.Wanted()
    fault_engine.plant_in_numpy(engine, wanted)
    slots = np.arange(39, dtype=np.int32)
    work = FrameWork(1, slots[:0], slots[:32], slots[32:])
    engine.submit(work)
    assert engine.wait(0).status is WorkStatus.DONE
    wanted._on_signal(fault_engine.NAN, None)
    for _ in range(2):
        engine.submit(work)
        result = engine.wait(0)
        assert result.status is WorkStatus.FAILED and "not finite" in result.error
    engine.close()


def test_an_engine_that_nobody_knows_how_to_disturb_is_an_error(frames):
    with pytest.raises(KeyError):
        fault_engine.make_planted(EngineSpec(), frames, lambda spec, frames: object())
    with pytest.raises(EngineError):
        fault_engine.make_planted(EngineSpec(backend="none"), frames)
