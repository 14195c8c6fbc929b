"""The recorder of a node's messages: a file that is whole, or none and the reason."""

import pytest
from std_msgs.msg import String

from vla_edge_ros.evaluation.bags import open_bag
from vla_edge_ros.nodes.bag_recorder import BagRecorder

TYPES = {"/instruction": "std_msgs/msg/String"}


def test_what_was_put_is_in_the_file(tmp_path):
    path = tmp_path / "run.mcap"
    recorder = BagRecorder(path, TYPES)
    recorder.put("/instruction", 1_000, String(data="go"))
    recorder.close()
    assert (recorder.failure, recorder.dropped) == (None, 0)
    with open_bag(path) as bag:
        assert [(said.log_ns, said.text) for said in bag.strings("/instruction")] == [(1_000, "go")]


@pytest.mark.parametrize("topic, message", [("/instruction", "no message"), ("/other", String())])
def test_a_message_that_cannot_be_written_leaves_no_file_and_says_why(tmp_path, topic, message):
    path = tmp_path / "run.mcap"
    recorder = BagRecorder(path, TYPES)
    recorder.put(topic, 1_000, message)
    recorder.put("/instruction", 2_000, String(data="go"))
    recorder.close()
    assert "the recording failed" in str(recorder.failure)
    assert recorder.dropped == 2
    assert list(tmp_path.iterdir()) == []
