"""Counted work: a plain line now and then where there is no terminal."""

import pytest

from minigpt import progress
from minigpt.progress import Count


def test_a_line_says_how_many_how_fast_and_how_long_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    count = Count(300, "generating", "samples")
    now += 5
    count.add(50)
    assert capsys.readouterr().err == ""
    now += 15
    count.add(50)
    count.add(1)
    count.close()
    assert capsys.readouterr().err == "generating: 100/300 samples, 5.0 a second, 0:40 left\n"
