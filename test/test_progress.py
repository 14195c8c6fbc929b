"""A command says what it does where that takes long, and only there."""

import pytest

from vla_edge_ros import progress
from vla_edge_ros.progress import told


class Timer:
    """In the place of threading.Timer: time passes when a test says so."""

    def __init__(self, interval_s, function):
        self.interval_s, self.function, self.is_due = interval_s, function, True
        Timer.newest = self

    def start(self):
        pass

    def cancel(self):
        self.is_due = False

    def pass_time(self, seconds):
        if self.is_due and seconds >= self.interval_s:
            self.function()


@pytest.fixture(autouse=True)
def timers(monkeypatch):
    monkeypatch.setattr(progress.threading, "Timer", Timer)


def test_long_work_is_named_once_on_stderr(capsys):
    with told("replaying a\nbag", after_s=2.0):
        Timer.newest.pass_time(1.9)
        assert capsys.readouterr() == ("", "")
        Timer.newest.pass_time(2.0)
    assert capsys.readouterr() == ("", "replaying a bag ...\n")


def test_what_ends_or_fails_before_says_nothing(capsys):
    with told("replaying"):
        pass
    Timer.newest.pass_time(9.0)
    with pytest.raises(ValueError, match="refused"), told("replaying"):
        raise ValueError("refused")
    Timer.newest.pass_time(9.0)
    assert capsys.readouterr() == ("", "")
