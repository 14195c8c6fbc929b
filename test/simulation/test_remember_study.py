"""The study of *remember*: sharing of passes, rows that are kept, and what the command says."""

import hashlib
import json
import shutil

import numpy as np
import pytest

from vla_edge_ros.engine.presets import TRAINED
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.forgetting.trial_model import weights_digest
from vla_edge_ros.share import share_directory
from vla_edge_ros.simulation import remember_study, remember_trial
from vla_edge_ros.simulation.environment import Environment
from vla_edge_ros.simulation.model_actor import DEPLOYMENT, ModelActor
from vla_edge_ros.simulation.remember_trial import Condition, RememberJob
from vla_edge_ros.simulation.taped_actor import TapedActor

TICKS = 24


@pytest.fixture(scope="module")
def environment(has_renderer):
    made = Environment(renders=False)
    yield made
    made.close()


def parameters(policy: str, slots: int = 230) -> dict:
    return DEPLOYMENT | {
        "engine.model": "tiny",
        "memory.slots": slots,
        "memory.stride_ticks": 3,
        "memory.policy": policy,
        "memory.window_frames": 6,
    }


def actions_of(actor, environment, renders: bool) -> np.ndarray:
    environment._renders = renders
    observation = environment.reset(0, "remember")
    made = []
    for _ in range(TICKS):
        made.append(actor.act(observation))
        observation = environment.step(made[-1])
    actor.close()
    environment._renders = False
    return np.array(made)


def test_memories_that_share_a_tape_act_as_those_that_do_not(environment):
    tape = {}
    for policy in ("fifo", "semantic", "random", "heavy_hitter", "novelty"):
        taped = TapedActor(parameters(policy), 5, environment, tape)
        shared = actions_of(taped, environment, renders=False)
        assert taped.n_evictions > 0
        alone = actions_of(ModelActor(parameters(policy), 5), environment, renders=True)
        assert np.array_equal(shared, alone, equal_nan=True), policy


def test_memories_that_forget_the_same_share_all_passes_but_those_that_are_retained(environment, monkeypatch):
    n_passes = []
    run_pass = ModelActor.run_pass
    monkeypatch.setattr(ModelActor, "run_pass", lambda *a: n_passes.append(1) or run_pass(*a))
    tape = {}
    actions_of(TapedActor(parameters("fifo"), 0, environment, tape), environment, renders=False)
    assert len(n_passes) == TICKS - 1
    n_passes.clear()
    # A window that is never reached forgets as fifo does.
    actions_of(TapedActor(parameters("sliding_window"), 0, environment, tape), environment, renders=False)
    assert len(n_passes) == len(range(1, TICKS, 3))


def test_the_cue_is_gone_with_the_last_frame_that_shows_it(environment):
    # One block beside the prompt: the frame of the cue goes one stride after it is over.
    alone = TapedActor(parameters("fifo", slots=150), 0, environment, {})
    environment.reset(0, "remember")
    cue_ends = environment.task.cue_ends_s * 30
    observation = environment.reset(0, "remember")
    while observation.tick < cue_ends + 6:
        alone.act(observation)
        observation = environment.step(np.array([0.0] * 7 + [np.nan]))
    alone.close()
    assert cue_ends - 3 <= alone.cue_gone_at <= cue_ends + 4


@pytest.fixture
def at_once(monkeypatch):
    """Jobs in this process, counted, without an episode."""
    jobs = []

    def run_local(wanted, function, n_workers):
        from vla_edge_ros.evaluation.forgetting.pool import Outcome

        for job in wanted:
            jobs.append(job)
            yield Outcome(job, [row_of(job, condition) for condition in job.conditions])

    monkeypatch.setattr(remember_study, "run_local", run_local)
    monkeypatch.setattr(remember_study, "weights_digest", lambda model: "0123")
    return jobs


def row_of(job: RememberJob, condition: Condition) -> dict:
    names = ("policy", "embedding", "capacity", "is_late")
    return {
        "weights": job.weights,
        "wait_every": job.wait_every,
        **dict(zip(names, remember_trial._fields(condition), strict=True)),
        "seed": job.seed,
        "has_succeeded": condition.capacity > 1,
        "is_cue_held": True,
    }


def study(out, *words) -> int:
    return remember_study.main(["--out", str(out), "--capacities", "4,8", "--episodes", "2", *words])


def test_a_second_run_computes_nothing_twice_and_a_longer_one_what_is_missing(tmp_path, at_once):
    assert study(tmp_path, "--policies", "fifo,novelty@pooled") == 0
    assert [(job.seed, len(job.conditions)) for job in at_once] == [(0, 6), (1, 6)]
    at_once.clear()
    assert study(tmp_path, "--policies", "fifo") == 0
    assert at_once == []
    assert study(tmp_path, "--policies", "fifo,novelty", "--episodes", "3") == 0
    assert [(job.seed, len(job.conditions)) for job in at_once] == [(0, 2), (1, 2), (2, 6)]


def test_the_record_names_what_was_compared_and_its_references(tmp_path, at_once):
    record = tmp_path / "forgetting.json"
    record.write_text(json.dumps({"policies": {"fifo": {}, "novelty": {}}}))
    assert study(tmp_path, "--policies", "fifo,novelty,novelty@pooled", "--into", str(record)) == 0
    document = json.loads((tmp_path / "remember.json").read_text())
    assert list(document["policies"]) == ["fifo", "novelty", "novelty@pooled"]
    assert (document["full"]["value"], document["at_once"]["value"], document["chance"]) == (1.0, 0.0, 0.25)
    assert (document["with_cue"]["episodes"], document["without_cue"]["episodes"]) == (12, 0)
    assert (document["weights"], document["stride_ticks"], document["seeds"]) == ("0123", 28, 2)
    into = json.loads(record.read_text())
    assert into["policies"]["novelty"]["remember_success"] == 1.0
    assert into["remember"]["capacities"] == [4, 8]


def test_what_is_there_is_summed_up_without_a_run(tmp_path, at_once):
    assert study(tmp_path, "--policies", "fifo", "--first-seed", "7") == 0
    at_once.clear()
    assert study(tmp_path, "--policies", "fifo", "--episodes", "20", "--so-far") == 0
    assert at_once == []
    assert json.loads((tmp_path / "remember.json").read_text())["seeds"] == 2


def test_a_late_cue_is_another_condition(tmp_path, at_once):
    assert study(tmp_path, "--policies", "fifo") == 0
    at_once.clear()
    assert study(tmp_path, "--policies", "fifo", "--late") == 0
    assert all(condition.is_late for job in at_once for condition in job.conditions)
    assert len(at_once) == 2


@pytest.mark.parametrize(
    "words, said",
    [
        (("--policies", "fifo,lru"), "'lru' is no policy: known are fifo,"),
        (("--policies", "novelty@colour"), "'colour' is no embedding: known are pooled,"),
    ],
)
def test_an_unknown_name_is_refused_with_the_known_ones(words, said, capsys):
    with pytest.raises(SystemExit):
        remember_study.main(list(words))
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("tiny", "--model tiny: its weights are seeded: a model that was not trained remembers nothing"),
        ("none", "model 'none' is neither a preset"),
    ],
)
def test_a_model_without_trained_weights_is_refused(model, said, tmp_path, capsys):
    assert study(tmp_path, "--model", model) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"remember_study: {said}") and line.count("\n") == 1


def test_a_ruined_model_is_refused_before_an_episode_is_run(tmp_path, capsys):
    model = tmp_path / "model"
    shutil.copytree(share_directory() / TRAINED["tiny-vla"], model)
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert study(tmp_path, "--model", str(model)) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"remember_study: {weights} (1000 bytes)") and line.count("\n") == 1


def test_rows_are_known_again_by_the_digest_of_the_committed_weights(tmp_path, at_once, monkeypatch):
    monkeypatch.setattr(remember_study, "weights_digest", weights_digest)
    assert study(tmp_path, "--policies", "fifo") == 0
    weights = (share_directory() / TRAINED["tiny-vla"] / "model.safetensors").read_bytes()
    assert {job.weights for job in at_once} == {hashlib.sha256(weights).hexdigest()[:12]}


def test_what_cannot_be_written_or_added_to_is_said_before_an_episode_is_run(tmp_path, at_once, capsys):
    assert study("/proc/none") == 2
    assert study(tmp_path, "--into", str(tmp_path / "none.json")) == 2
    unwritable, missing = capsys.readouterr().err.splitlines()
    assert unwritable.startswith("remember_study: /proc/none/rows.jsonl: cannot be written")
    assert missing.startswith(
        f"remember_study: --into {tmp_path}/none.json: no figures of `vla-edge evaluate`"
    )
    assert at_once == []


def test_ctrl_c_keeps_the_episodes_that_were_done(tmp_path, at_once, monkeypatch, capsys):
    run_local = remember_study.run_local

    def interrupted(*words):
        yield next(run_local(*words))
        raise KeyboardInterrupt

    monkeypatch.setattr(remember_study, "run_local", interrupted)
    assert study(tmp_path, "--policies", "fifo") == 130
    line = capsys.readouterr().err
    assert line == (
        f"remember_study: interrupted; {tmp_path}/rows.jsonl has the episodes that were done: the same "
        "command goes on from there\n"
    )
    monkeypatch.setattr(remember_study, "run_local", run_local)
    at_once.clear()
    assert study(tmp_path, "--policies", "fifo") == 0
    assert [job.seed for job in at_once] == [1]


@pytest.mark.parametrize("option", ["--episodes", "--workers", "--wait-every"])
def test_a_number_below_one_is_refused(option, capsys):
    with pytest.raises(SystemExit) as ended:
        remember_study.main([option, "0"])
    assert ended.value.code == 2
    assert f"{option}: 0 must be at least 1" in capsys.readouterr().err


def test_a_row_says_what_became_of_the_episode(environment, monkeypatch):
    monkeypatch.setattr(remember_trial, "_environment", lambda: environment)
    monkeypatch.setattr(TapedActor, "act", lambda actor, observation: environment.expert_action())
    early, late = remember_trial.run_job(
        RememberJob("tiny", "0", 1, 1, (Condition("fifo", "auto", 4), Condition("fifo", "auto", 4, True)))
    )
    assert early["has_succeeded"] and late["has_succeeded"]
    assert not early["has_left_early"]
    assert 4.0 <= late["lamp_s"] - early["lamp_s"] <= 8.0
    assert early["cue_age_s"] == pytest.approx(late["cue_age_s"])
    assert remember_trial.key_of(early)[2:] == ("fifo", "pooled", 4, False, 1)


@pytest.mark.parametrize("content", ["{", "[]", "{}", None])
def test_figures_to_add_to_that_are_none_are_refused_in_one_line(tmp_path, content):
    path = tmp_path / "figures.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=r"figures.json: no figures of `vla-edge evaluate`"):
        remember_study._with_success(path, {"policies": {}})
