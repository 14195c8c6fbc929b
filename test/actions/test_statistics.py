import json

import numpy as np
import pytest

from vla_edge_ros.actions.reading import PolicyError
from vla_edge_ros.actions.statistics import load_statistics

ACTION = {"q01": [-1.0, 0.0, 0.0], "q99": [1.0, 4.0, 1.0], "mask": [True, True, False]}


@pytest.fixture
def load(tmp_path):
    def write_and_load(content, dataset=None):
        path = tmp_path / "statistics.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return load_statistics(path, dataset)

    return write_and_load


def refusal(load, content, dataset=None) -> str:
    with pytest.raises(PolicyError) as caught:
        load(content, dataset)
    message = str(caught.value)
    assert "\n" not in message
    assert "statistics.json" in message
    return message


def test_masked_dimensions_get_units_and_others_stay_as_they_are(load):
    statistics = load({"data": {"action": ACTION}})
    units = statistics.unnormalise(np.array([[-1.0, -1.0, -1.0], [0.5, 0.5, 0.5], [1.0, 1.0, 1.0]]))
    assert units.tolist() == [[-1.0, 0.0, -1.0], [0.5, 3.0, 0.5], [1.0, 4.0, 1.0]]
    assert statistics.bounds == "q01/q99"


def test_without_a_mask_every_dimension_is_normalised_as_in_openvla(load):
    statistics = load({"data": {"action": {"q01": [0.0], "q99": [10.0]}}})
    assert statistics.unnormalise(np.array([0.0])).tolist() == [5.0]


def test_equal_quantiles_give_the_constant_exactly(load):
    statistics = load({"data": {"action": {"q01": [0.1, 0.0], "q99": [0.1, 1.0]}}})
    units = statistics.unnormalise(np.array([[-0.99608, 0.0], [0.0, 0.0], [0.99608, 0.0]]))
    assert units[:, 0].tolist() == [0.1, 0.1, 0.1]
    assert statistics.warning is None


def test_a_file_that_can_move_nothing_is_worth_a_warning(load):
    # The gripper is not normalised and moves, which does not help the arm.
    statistics = load({"data": {"action": {"q01": [1, 2, 0], "q99": [1, 2, 1], "mask": [True, True, False]}}})
    assert "equal in every normalised dimension" in statistics.warning
    assert "\n" not in statistics.warning


def test_minimum_and_maximum_are_used_where_lerobot_has_no_quantiles(load):
    extremes = {"min": [-2, 0], "max": [2, 0]}
    statistics = load({"action": extremes, "observation.state": {}})
    assert statistics.bounds == "min/max"
    assert statistics.unnormalise(np.array([0.5, 0.5])).tolist() == [1.0, 0.0]
    quantiles = load({"action": extremes | {"q01": [-1, 0], "q99": [1, 0]}})
    assert quantiles.bounds == "q01/q99"
    assert quantiles.unnormalise(np.array([0.5, 0.5])).tolist() == [0.5, 0.0]


def test_several_data_sets_want_a_name(load):
    content = {"bridge": {"action": ACTION}, "fractal": {"action": ACTION | {"q99": [2.0, 4.0, 1.0]}}}
    assert "bridge, fractal" in refusal(load, content)
    assert "no data set 'kuka', it has bridge, fractal" in refusal(load, content, "kuka")
    assert load(content, "fractal").high.tolist() == [2.0, 4.0, 1.0]
    assert load({"norm_stats": content}, "fractal").high.tolist() == [2.0, 4.0, 1.0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"q99": [1.0, float("nan"), 1.0]}, r"data.action.q99[1] is nan, wanted a finite number"),
        ({"q01": [float("-inf"), 0, 0]}, r"data.action.q01[0] is -inf"),
        ({"q01": [10**400, 0, 0]}, r"data.action.q01[0] is 1000"),
        ({"q01": [-1.0, "0", 0.0]}, r"data.action.q01[1] is '0', wanted a number"),
        ({"q01": [True, 0.0, 0.0]}, r"data.action.q01[0] is true, wanted a number"),
        ({"q01": [[-1.0], 0.0, 0.0]}, r"data.action.q01[0] is a list"),
        ({"q01": -1.0}, r"data.action.q01 is -1.0, wanted a list"),
        ({"q01": []}, r"data.action.q01 is an empty list"),
        ({"q99": [1.0, 4.0]}, r"data.action.q99 has 2 dimensions, q01 has 3"),
        ({"mask": [True]}, r"data.action.mask has 1 dimensions, q01 has 3"),
        ({"mask": [True, 1, False]}, r"data.action.mask[1] is 1, wanted true or false"),
        ({"q01": [-1.0, 5.0, 0.0]}, r"dimension 1 has q01 5 above q99 4"),
        ({"q01": [-1.7e308, 0, 0], "q99": [1.7e308, 4, 1]}, r"dimension 0: q99 - q01 is inf"),
    ],
)
def test_bad_statistics_are_refused_by_file_key_and_dimension(load, change, said):
    assert said in refusal(load, {"data": {"action": ACTION | change}})


@pytest.mark.parametrize("missing", [["q01"], ["q99"], ["q01", "q99"]])
def test_openvla_statistics_without_quantiles_are_refused_even_where_extremes_are_there(load, missing):
    action = ACTION | {"min": [-1.0, 0.0, 0.0], "max": [1.0, 4.0, 1.0]}
    for key in missing:
        del action[key]
    assert f"data.action has no '{missing[0]}'" in refusal(load, {"data": {"action": action}})


def test_one_quantile_alone_is_refused_in_lerobot_statistics_too(load):
    assert "action has no 'q99'" in refusal(load, {"action": {"q01": [0.0], "min": [0.0], "max": [1.0]}})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "cannot be parsed"),
        ("{", "cannot be parsed"),
        ("[" * 100_000, "cannot be parsed"),
        ("[]", "holds an empty list, wanted a mapping"),
        ("null", "holds nothing"),
        ({"hidden_size": 896}, "has no action statistics"),
        ({"norm_stats": []}, "norm_stats holds an empty list"),
        ({"data": {"proprio": {}}}, "has no action statistics"),
        ({"action": [1.0]}, "action holds a list, wanted a mapping"),
    ],
)
def test_files_of_another_kind_are_refused(load, content, said):
    assert said in refusal(load, content)


def test_a_named_data_set_without_actions_is_refused(load):
    assert "data has no 'action', it has proprio" in refusal(load, {"data": {"proprio": {}}}, "data")


def test_a_data_set_named_for_a_file_of_one_is_refused(load):
    assert "leave dataset: data out" in refusal(load, {"action": {"min": [0], "max": [1]}}, "data")


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(PolicyError, match=r"none\.json: cannot be read: No such file"):
        load_statistics(tmp_path / "none.json")
    with pytest.raises(PolicyError, match="cannot be read"):
        load_statistics(tmp_path)


def test_a_binary_file_is_refused(tmp_path):
    path = tmp_path / "statistics.json"
    path.write_bytes(b"\x80\x81\xfe")
    with pytest.raises(PolicyError, match="cannot be parsed"):
        load_statistics(path)


def test_the_25_data_sets_of_a_vla_adapter_config(shared):
    path = shared / "policies" / "vla_adapter_qwen25_0_5b" / "config.json"
    stored = json.loads(path.read_text())["norm_stats"]
    assert len(stored) == 25
    with pytest.raises(PolicyError, match=r"name one of its data sets with dataset: .*bridge_orig"):
        load_statistics(path)
    normalised = np.linspace(-1, 1, 21)[:, np.newaxis] * np.ones(7)
    constants = 0
    for name, entry in stored.items():
        statistics = load_statistics(path, name)
        assert statistics.warning is None
        low, high = np.array(entry["action"]["q01"]), np.array(entry["action"]["q99"])
        mask = np.array(entry["action"]["mask"])
        # The formula of OpenVLA's predict_action.
        expected = np.where(mask, 0.5 * (normalised + 1) * (high - low) + low, normalised)
        units = statistics.unnormalise(normalised)
        assert np.array_equal(units, expected)
        assert np.isfinite(units).all()
        constants += int((low == high).sum())
        assert (units[:, mask & (low == high)] == low[mask & (low == high)]).all()
    assert constants == 21


def test_the_lerobot_statistics_of_an_arm_that_never_moved(shared):
    path = shared / "policies" / "so101_wrist_stats" / "stats.json"
    statistics = load_statistics(path)
    stored = json.loads(path.read_text())["action"]
    assert statistics.bounds == "q01/q99"
    assert statistics.unnormalise(np.linspace(-1, 1, 6)).tolist() == stored["q01"]
    assert "constant" in statistics.warning


def test_a_language_model_config_has_no_statistics(shared):
    with pytest.raises(PolicyError, match="has no action statistics"):
        load_statistics(shared / "policies" / "qwen2_5_1_5b_instruct" / "config.json")
