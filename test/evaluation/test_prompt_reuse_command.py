import re

from vla_edge_ros.evaluation.prompt_reuse import change_by_keeping, main, switch
from vla_edge_ros.parameters import validate_all


def test_only_what_the_cache_lacks_is_written_and_going_back_asks_nothing_of_the_engine():
    _, without = switch(validate_all({}), 2)
    _, cached = switch(validate_all({"memory.prompt_slots": 256}), 2)
    n = without["alone"].tokens
    assert [cost.tokens for cost in without.values()] == [n, n, n]
    assert [cost.tokens for cost in cached.values()] == [n, n - 64, 0]
    assert cached["back"].engine_ms == [0, 0]
    assert min(without["back"].engine_ms + cached["another"].engine_ms) > 0


def test_frames_kept_from_the_instruction_before_are_an_approximation():
    by_keeping, by_staying = change_by_keeping(validate_all({}), seed=0)
    assert 0 < by_keeping < by_staying


def test_the_command_prints_every_kind_of_change_with_and_without(capsys):
    assert main(["--changes", "1", "--seeds", "1"]) == 0
    out = capsys.readouterr().out
    assert re.findall(r"prompt_slots (\d+)", out) == ["0", "256"]
    assert re.findall(r"^  (\w+) +\d+ tokens written", out, re.M) == ["alone", "another", "back"] * 2
    assert "nats from frames seen anew" in out


def test_a_parameter_that_is_not_allowed_is_one_line(capsys):
    assert main(["--param", "memory.slots=1"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
