"""Predicted against actual time, over a run's records."""

import xml.etree.ElementTree as ElementTree

from vla_edge_ros.evaluation.calibration import calibration_plot, predicted_and_actual_ms


def record(tick: int, predicted_ms: float | None, ended: dict[int, float]) -> dict:
    work = [
        {"work_id": work_id, "submitted_ns": 0, "finished_ns": int(ms * 1e6)} for work_id, ms in ended.items()
    ]
    return {"tick": tick, "predicted_ms": predicted_ms, "submitted_work": tick, "work": work}


def test_a_late_pass_is_matched_with_what_was_predicted_of_it():
    records = [
        record(1, 20.0, {1: 21.0}),
        record(2, 20.5, {}),
        record(3, None, {2: 80.0, 3: 19.0}),
        record(4, 30.0, {}),
    ]
    predicted, actual = predicted_and_actual_ms({"records": records})
    assert predicted.tolist() == [20.0, 20.5]
    assert actual.tolist() == [21.0, 80.0]


def test_it_is_drawn_for_many_for_one_and_for_none():
    many = [record(tick, 20.0, {tick: 19.0 + tick % 7}) for tick in range(4000)]
    for records in (many, many[:1], []):
        svg = calibration_plot({"records": records})
        ElementTree.fromstring(svg[svg.index("<svg") :])
        assert ("no pass was predicted" in svg) == (not records)
        assert len(svg) < 400_000
