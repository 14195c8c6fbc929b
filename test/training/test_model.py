"""What is trained is what is deployed: logits of whole sequences against the engine's passes, one by one."""

import numpy as np
import pytest
import torch

from training.batch import Part, make_batch
from training.contexts import contexts_of
from training.model import TinyVla, action_loss
from vla_edge_ros.control import settings
from vla_edge_ros.engine.interface import EngineSpec, FrameWork, PromptWork
from vla_edge_ros.engine.numpy_engine import NumpyEngine
from vla_edge_ros.engine.presets import PRESETS
from vla_edge_ros.engine.recording import NoiseFrames
from vla_edge_ros.engine.vision import vision_shapes
from vla_edge_ros.engine.weights import SeededWeights, decoder_shapes
from vla_edge_ros.parameters import validate_all

CONFIG = PRESETS["tiny"]


def seeded_model() -> TinyVla:
    """The torch model with the weights that an engine of the preset `tiny` and seed 0 has."""
    model, weights = TinyVla(CONFIG), SeededWeights(CONFIG, 0)
    shapes = decoder_shapes(CONFIG) | vision_shapes(CONFIG.hidden_size)
    state = {
        name: torch.from_numpy(weights.read(name, np.empty(shape, np.float32)))
        for name, shape in shapes.items()
    }
    model.load_state_dict(state)
    return model


class Deployed:
    """An engine and a memory that go through a sequence tick by tick."""

    def __init__(self, parameters, prompt, ticks, seed):
        frames = NoiseFrames(seed)
        engine = NumpyEngine(EngineSpec(model="tiny", n_slots=1024, action_tokens=8), frames)
        info = engine.configure()
        memory = settings.frame_memory(parameters, 8, info.embedding_size)
        engine.submit(PromptWork(0, prompt, memory.set_prompt(len(prompt))))
        engine.wait(0)
        self.results, self.evicted = [], []
        for tick in ticks:
            for line in memory.make_room(tick):
                engine.evict(line.slots)
                self.evicted.append(line.frame.index - 1)
            work = FrameWork(1, memory.context_slots(), memory.frame_slots, memory.action_slots)
            engine.submit(work)
            self.results.append(engine.wait(0))
            memory.retain(self.results[-1].frame, self.results[-1].embedding, tick)
        engine.close()
        self.frames = np.array(frames.given)
        self.labels = np.array([result.tokens[0] for result in self.results]) - CONFIG.first_action
        self.embeddings = np.array([result.embedding for result in self.results])


@pytest.mark.parametrize("policy", ["fifo", "sliding_window", "semantic"])
def test_logits_of_a_batch_equal_the_engines_pass_by_pass(policy):
    """Two sequences of different prompts; memory is small, so frames are evicted and ranks close up."""
    parameters = validate_all(
        {"memory.policy": policy, "memory.stride_ticks": 2, "memory.window_frames": 3, "memory.slots": 200}
    )
    rng = np.random.default_rng(0)
    parts, deployed, frames = [], [], []
    for seed, n_prompt in ((1, 20), (2, 33)):
        prompt = rng.integers(0, 256, n_prompt).astype(np.int32)
        ticks = np.array([1, 2, 3, 5, 6, 8, 10, 11, 12, 14, 15, 17])
        run = Deployed(parameters, prompt, ticks.tolist(), seed)
        contexts = contexts_of(ticks, n_prompt, run.embeddings, parameters)
        queried = rng.permutation(len(ticks))[:9]
        parts.append(Part(prompt, sum(map(len, frames)), contexts, run.labels, queried))
        frames.append(run.frames)
        deployed.append(run)
    assert all(len(run.evicted) >= 3 for run in deployed)

    batch = make_batch(parts, n_groups=3)
    pixels = torch.from_numpy(np.concatenate(frames)).float() / 127.5 - 1
    with torch.no_grad():
        logits = seeded_model()(batch, pixels[batch.retained.frames], pixels[batch.queries.frames])
    probability, entropy = {}, {}
    for place, frame in enumerate(batch.queries.frames.tolist()):
        log = torch.log_softmax(logits[place], -1)
        probability[frame] = log.exp().max(-1).values.numpy()
        entropy[frame] = -(log.exp() * log).sum(-1).numpy()
        assert torch.equal(logits[place].argmax(-1), batch.labels[place])
    assert len(probability) == 18
    for part, run in zip(parts, deployed, strict=True):
        for i in part.queried.tolist():
            frame = part.first_frame + i
            assert np.allclose(probability[frame], run.results[i].top_probability[0], atol=2e-5)
            assert np.allclose(entropy[frame], run.results[i].entropy[0], atol=2e-4)


def test_the_comparison_notices_a_context_that_was_not_deployed():
    parameters = validate_all({"memory.policy": "fifo", "memory.stride_ticks": 2, "memory.slots": 200})
    prompt, ticks = np.arange(20, dtype=np.int32), np.arange(1, 13)
    run = Deployed(parameters, prompt, ticks.tolist(), 1)
    contexts = contexts_of(ticks, 20, run.embeddings, parameters)
    contexts.seen[-1].pop(0)
    batch = make_batch([Part(prompt, 0, contexts, run.labels, np.array([11]))])
    pixels = torch.from_numpy(run.frames).float() / 127.5 - 1
    with torch.no_grad():
        logits = seeded_model()(batch, pixels[batch.retained.frames], pixels[batch.queries.frames])
    probability = torch.softmax(logits[0], -1).max(-1).values.numpy()
    assert not np.allclose(probability, run.results[-1].top_probability[0], atol=1e-3)


def test_the_loss_prefers_the_neighbouring_bin_to_a_far_one_and_the_gripper_is_sharp():
    labels = torch.full((1, 8), 100)

    def loss_of(joint, gripper):
        logits = torch.zeros(1, 8, 256)
        logits[:, :7, joint] = 8.0
        logits[:, 7, gripper] = 8.0
        return action_loss(logits, labels, width_bins=1.5).item()

    assert loss_of(100, 100) < loss_of(101, 100) < loss_of(104, 100)
    assert loss_of(101, 100) < loss_of(100, 101)
