"""Progress: plain lines where there is no terminal, and readable times."""

import pytest

from minigpt.progress import clock
from minigpt.training import progress
from minigpt.training.progress import Progress


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (61, "1:01"), (3599.6, "1:00:00"), (3725, "1:02:05")]
)
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_a_pipe_gets_lines_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Progress(first_step=0, max_steps=100, shown=True)
    assert not shown.due()
    monkeypatch.setattr(progress, "PLAIN_INTERVAL", 0.0)
    assert shown.due()
    shown.step(50, loss=1.25, tokens_per_second=1234.0)
    shown.close()
    text = capsys.readouterr().err
    assert text.startswith("step 50/100: loss 1.2500, 1,234 tokens/s, ")
    assert "\r" not in text


def test_silence_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Progress(first_step=0, max_steps=100, shown=False)
    shown.line("x")
    assert not shown.due()
    assert capsys.readouterr().err == ""
