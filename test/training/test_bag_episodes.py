"""Recordings become what the node would have lived through, or are refused in one line that says why."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from arm_bag import (
    IMAGES,
    JOINTS,
    PERIOD_NS,
    START_NS,
    floats,
    joint_state,
    moving_arm,
    picture,
    say,
    trajectory,
    write_bag,
    write_policy,
)
from recorded import pixels

from training.from_bags.command import node_parameters
from training.from_bags.episodes import MOST_STRIDES, BagEpisode, read_episodes
from training.from_bags.policy_files import statistics_of
from training.from_bags.policy_files import write_policy as write_trained_policy
from training.labels import action_rows
from vla_edge_ros.actions.policy import load_policy, load_untrained_policy
from vla_edge_ros.actions.tokens import detokenise
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.bags import open_bag
from vla_edge_ros.parameters import validate_all
from vla_edge_ros.perception.resize import Resizer

LAG_NS = 33_000_000
"""From a tick's start to the effect of its action: `control.deadline_ms`."""


def episodes_of(
    tmp_path: Path, messages, topics=(JOINTS,), kind="joint_delta", instruction=None, left_out=None
) -> list[BagEpisode]:
    policy = load_untrained_policy(write_policy(tmp_path, kind))
    parameters = validate_all(node_parameters(policy) | {"engine.model": "tiny-vla"})
    with open_bag(write_bag(tmp_path / "bag", messages)) as bag:
        return read_episodes(
            bag, topics, None, instruction, policy, parameters, Counter() if left_out is None else left_out
        )


def without(messages, topic):
    return [message for message in messages if message[0] != topic]


def seen(number: int) -> np.ndarray:
    return Resizer().resize(pixels(number), np.empty((64, 128, 3), np.uint8))


def test_differences_of_states_become_joint_deltas_by_name_in_the_policys_order(tmp_path):
    (episode,) = episodes_of(tmp_path, moving_arm())
    assert episode.instruction == "lift it"
    assert episode.ticks.tolist() == list(range(20))
    assert np.allclose(episode.actions, [0.03, -0.01, 1.0])


def test_every_tick_sees_the_newest_frame_and_none_is_seen_twice(tmp_path):
    messages = without(moving_arm(), IMAGES)
    # At 20 Hz for six pictures, then one that 250 ms are waited for.
    at_ns = [START_NS + i * PERIOD_NS // 2 for i in range(6)] + [START_NS + 5 * PERIOD_NS]
    messages += [picture(when, number) for number, when in enumerate(at_ns)]
    (episode,) = episodes_of(tmp_path, messages)
    # Ticks start 25 ms after 0, 100, 200, ... and a picture comes at 0, 50, ..., 250 and 500.
    assert episode.ticks.tolist() == [0, 1, 2, 3, 5]
    for frame, number in zip(episode.frames, [0, 2, 4, 5, 6], strict=True):
        assert np.array_equal(frame, seen(number))


def test_a_position_is_the_one_due_a_period_after_the_effect(tmp_path):
    (episode,) = episodes_of(tmp_path, moving_arm(), kind="position")
    due_s = (PERIOD_NS // 4 + np.arange(20) * PERIOD_NS + LAG_NS + PERIOD_NS) / 1e9
    assert np.allclose(episode.actions[:, 0], 0.3 * due_s)
    assert np.allclose(episode.actions[:, 1], -0.1 * due_s)


def test_arm_and_gripper_may_have_topics_of_their_own_and_a_gripper_stays(tmp_path):
    messages = without(moving_arm(), JOINTS)
    for i in range(40):
        messages.append(floats(START_NS + i * PERIOD_NS, [0.05 * i, 0.0], "/arm/commands"))
    messages += [floats(START_NS, [1.0], "/hand"), floats(START_NS + 10 * PERIOD_NS, [0.25], "/hand")]
    (episode,) = episodes_of(tmp_path, messages, ["/arm/commands", "hand"])
    assert np.allclose(episode.actions[:, :2], [0.05, 0.0])
    # The tick that starts at 925 ms has effect at 958 ms, the next one at 1058 ms.
    assert episode.actions[:, 2].tolist() == [1.0] * 10 + [0.25] * 10


def test_a_trajectory_is_followed_and_a_new_one_begins_where_the_old_one_is(tmp_path):
    messages = without(moving_arm(), JOINTS)
    messages += [
        # From 0 to 2 rad in 2 s; after one second to 0 within another second instead, and there it stays.
        trajectory(START_NS, ["lift", "pan"], [(0, [0.0, 0.0]), (2 * 10**9, [2.0, 0.0])], "/arm"),
        trajectory(START_NS + 10**9, ["pan", "lift"], [(10**9, [0.0, 0.0])], "/arm"),
        floats(START_NS, [1.0], "/hand"),
    ]
    (episode,) = episodes_of(tmp_path, messages, ["/arm", "/hand"], kind="position")
    due_s = (PERIOD_NS // 4 + np.arange(20) * PERIOD_NS + LAG_NS + PERIOD_NS) / 1e9
    assert np.allclose(episode.actions[:, 0], np.where(due_s < 1, due_s, np.maximum(0, 2 - due_s)))
    assert not episode.actions[:, 1].any()


def test_another_instruction_and_a_pause_begin_an_episode_of_whatever_length(tmp_path):
    left_out = Counter()
    messages = moving_arm(8)
    messages += [picture(START_NS - PERIOD_NS, 0)]
    messages += [say(START_NS + 3 * PERIOD_NS - 1, "lift it"), say(START_NS + 5 * PERIOD_NS - 1, "drop it")]
    messages += moving_arm(12, START_NS + 40 * PERIOD_NS, "drop it")
    found = episodes_of(tmp_path, messages, left_out=left_out)
    assert [(episode.instruction, len(episode.ticks)) for episode in found] == [
        ("lift it", 5),
        ("drop it", 3),
        ("drop it", 12),
    ]
    assert left_out["images before the first instruction"] == 1


def test_ticks_without_actions_around_them_are_left_out_and_counted(tmp_path):
    gone = range(START_NS + 5 * PERIOD_NS, START_NS + 12 * PERIOD_NS)
    messages = [m for m in moving_arm() if m[0] != JOINTS or m[2] not in gone]
    left_out = Counter()
    (episode,) = episodes_of(tmp_path, messages, left_out=left_out)
    assert left_out["ticks without an action around them"] == 20 - len(episode.ticks) > 0
    assert not set(episode.ticks.tolist()) & set(range(5, 11))


def test_a_long_episode_is_cut_so_that_a_step_can_hold_its_retained_frames(tmp_path):
    stride = round(28 / 30 * 10)
    n = MOST_STRIDES * stride + 5
    (first, second) = episodes_of(tmp_path, moving_arm(n))
    assert (len(first.ticks), len(second.ticks)) == (n - 5, 5)


STATES = moving_arm()
AT_NS = START_NS + 3 * PERIOD_NS


@pytest.mark.parametrize(
    ("messages", "options", "line"),
    [
        (without(STATES, JOINTS), {}, r"there is no action topic /joint_states; its topics are /cam/image"),
        (STATES, {"topics": ["/instruction"]}, r"/instruction is std_msgs/msg/String, wanted one of Joint"),
        (without(STATES, IMAGES), {}, "there is no image topic; its topics are"),
        (without(STATES, "/instruction"), {}, r"there is no instruction .*--instruction TEXT gives one"),
        (
            [*without(STATES, JOINTS), joint_state(START_NS, ["elbow", "pan", "hand"], [0, 0, 0])],
            {},
            "lift of the policy is not on /joint_states; the joints there are elbow, hand, pan: change",
        ),
        (
            [*STATES, joint_state(AT_NS + 1, ["lift", "lift"], [0, 0])],
            {},
            f"stamp {AT_NS + 1}: joint lift is there more than once",
        ),
        (
            [*STATES, joint_state(AT_NS + 1, ["lift", "pan"], [0.0, float("nan")])],
            {},
            f"stamp {AT_NS + 1}: pan is nan, wanted a finite number",
        ),
        (
            [*STATES, floats(AT_NS, [0.0, float("inf"), 0.0], "/a")],
            {"topics": ["/a"]},
            f"/a: message 1, stamp {AT_NS}: pan is inf",
        ),
        ([*STATES, floats(AT_NS, [0.0] * 7, "/a")], {"topics": ["/a"]}, r"7 values, wanted 3, .* 2 \(arm\)"),
        (
            [*STATES, joint_state(AT_NS + 1, ["lift", "pan"], [0.0])],
            {},
            "1 values of position for 2 names",
        ),
        (
            [*STATES, picture(AT_NS + 1, 0, AT_NS - 10**9)],
            {},
            r"/cam/image_raw: stamps go back by 1.000 s to",
        ),
        (
            [*STATES, joint_state(AT_NS + 1, ["pan", "hand", "lift"], [0, 0, 0], AT_NS - 10**9)],
            {},
            rf"stamp {AT_NS - 10**9}: stamps go back by 1.000 s: cut the recording",
        ),
        (
            [
                *without(STATES, JOINTS),
                *(
                    joint_state(START_NS + i * 3 * PERIOD_NS, ["lift", "pan", "hand"], [0, 0, 0])
                    for i in range(9)
                ),
            ],
            {},
            r"an action every 300.0 ms, slower than a frame is acted on, every 100.0 ms: set action_p",
        ),
        (
            without(STATES, JOINTS) + without(moving_arm(5, START_NS + 10**11), IMAGES),
            {},
            "there are no actions while there are frames: /joint_states and /cam/image_raw are",
        ),
        (STATES, {"kind": "velocity"}, "0 values of velocity for 3 names"),
        (
            [*STATES, trajectory(AT_NS, ["lift", "pan", "hand"], [], "/a")],
            {"topics": ["/a"]},
            "lift, pan, hand of the policy is not on /a",
        ),
        (STATES, {"kind": "ee_delta"}, "pan is ee_delta, which is read of Float64MultiArray alone"),
        (
            [*STATES, trajectory(AT_NS, ["lift"], [(5, [0.0]), (5, [0.0])], "/a")],
            {"topics": ["/a"]},
            "the points' times do not grow",
        ),
        (
            [*STATES, trajectory(AT_NS, ["pan"], [(5, [0.0])], "/a")],
            {"topics": [JOINTS, "/a"]},
            "pan is on /joint_states and on /a: name one",
        ),
        (
            [*STATES, floats(AT_NS, [0.0] * 3, "/a"), floats(AT_NS + 1, [0.0] * 2, "/a")],
            {"topics": ["/a"]},
            f"/a: message 2, stamp {AT_NS + 1}: has 2 values, wanted 3 as in the first one",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_on_is_one_line(tmp_path, messages, options, line):
    with pytest.raises(UserError, match=line) as refused:
        episodes_of(tmp_path, messages, **options)
    assert str(tmp_path / "bag") in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_given_instruction_is_that_of_the_whole_recording(tmp_path):
    messages = [*without(STATES, "/instruction"), say(AT_NS, "drop it")]
    (episode,) = episodes_of(tmp_path, messages, instruction="raise it")
    assert (episode.instruction, len(episode.ticks)) == ("raise it", 20)


def test_the_real_arms_episodes_have_the_actions_that_were_recorded_with_their_frames(shared, tmp_path):
    config = tmp_path / "widowx.yaml"
    names = ["x", "y", "z", "roll", "pitch", "yaw"]
    rows = [f"  - {{name: {name}, kind: ee_delta, min: -1, max: 1, max_velocity: 1}}" for name in names]
    rows.append("  - {name: hand, kind: gripper, min: 0, max: 1, max_velocity: 4}")
    config.write_text(
        "name: widowx\naction_period_ms: 200\ndimensions:\n" + "\n".join(rows) + "\ngroups:\n"
        f"  - {{name: arm, interface: command, joints: [{', '.join(names)}, hand]}}\n"
    )
    policy = load_untrained_policy(config)
    parameters = validate_all(node_parameters(policy) | {"engine.model": "tiny-vla"})
    with open_bag(shared / "recordings/bridge_widowx") as bag:
        found = read_episodes(bag, ["/action"], None, None, policy, parameters, Counter())
        (topic,) = (topic for topic in bag.topics() if topic.name == "/action")
        recorded = np.array([message.data for _, message in bag.messages(topic)])
    assert [len(episode.ticks) for episode in found] == [10] * 25
    assert np.array_equal(np.concatenate([episode.actions for episode in found]), recorded)


def test_statistics_let_rest_be_said_exactly_and_survive_the_policy_file(tmp_path):
    config = write_policy(tmp_path)
    policy = load_untrained_policy(config)
    rng = np.random.default_rng(0)
    actions = np.zeros((1000, 3))
    actions[::3, 0] = rng.uniform(-0.01, 0.03, 334)
    actions[:, 2] = rng.integers(0, 2, 1000)
    statistics = statistics_of(actions, policy)
    assert statistics.high[0] == -statistics.low[0] == pytest.approx(0.03, rel=0.05)
    assert (statistics.low[1], statistics.high[1]) == (0, 0)
    assert (statistics.low[2], statistics.high[2]) == (0, 1)
    rest = np.array([0.0, 0.0, 1.0])
    decoded = statistics.unnormalise(detokenise(action_rows(rest, statistics), 256))
    assert np.allclose(decoded, rest, atol=1 / 255)
    assert decoded[0] == 0
    write_trained_policy(config, statistics, policy, tmp_path)
    loaded = load_policy(tmp_path / "policy.yaml")
    assert (loaded.dimensions, loaded.groups) == (policy.dimensions, policy.groups)
    for key in ("low", "high", "mask"):
        assert np.array_equal(getattr(loaded.statistics, key), getattr(statistics, key))
