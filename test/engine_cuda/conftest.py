"""What the gate's tests share: seeded weights, and passes through a small memory."""

import pytest

from vla_edge_ros.engine.weights import SeededWeights


@pytest.fixture(scope="module")
def tensors():
    torch = pytest.importorskip("torch", reason="the gate's references run in torch (the `test` extra)")
    from emulated import CONFIG

    from vla_edge_ros.engine.cuda.gate_weights import read_tensors

    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the products are small, and threads that wait for others are slower than none
    yield read_tensors(CONFIG, SeededWeights(CONFIG, 0), "cpu")
    torch.set_num_threads(n_threads)


@pytest.fixture(scope="module")
def passes():
    pytest.importorskip("torch", reason="the gate's references run in torch (the `test` extra)")
    from emulated import CONFIG, N_PASSES, N_SLOTS

    from vla_edge_ros.engine.cuda.gate_passes import Passes

    return Passes.draw(CONFIG, N_SLOTS, N_PASSES, seed=0)
