"""Progress of long work, as a person sees it."""

import io

import pytest

from safexplain import _progress
from safexplain._progress import as_stage, show_progress, silent


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch):
    """Seconds that only the test moves on."""
    now = [1000.0]
    monkeypatch.setattr(_progress.time, "monotonic", lambda: now[0])
    return now


def lines(clock, told, **more):
    stream = io.StringIO()
    with show_progress(stream=stream, **more) as progress:
        for seconds, call in told:
            clock[0] += seconds
            progress(*call)
    return stream.getvalue().splitlines()


def test_without_a_terminal_there_is_a_line_a_minute_with_what_is_left(clock):
    told = [(30, ("training", i, 10)) for i in range(11)] + [(0, ("training", 10, 10))]
    assert lines(clock, told) == [
        "training, 20%, 4 min left",
        "training, 40%, 3 min left",
        "training, 60%, 2 min left",
        "training, 80%, 60 s left",
        "training, 100% after 5 min",
    ]
    assert lines(clock, [(1, ("attacking", i, 5)) for i in range(6)]) == [], "done within a minute"
    taken_up = [(0, ("training", 12, 16)), (120, ("training", 13, 16))]
    assert lines(clock, taken_up) == ["training, 81%, 6 min left"], "what was done before tells nothing"


def test_durations_are_in_seconds_minutes_or_hours():
    seconds = (0.4, 119, 120, 7199, 7200, 9000)
    assert list(map(_progress.duration_text, seconds)) == ["0 s", "119 s", "2 min", "120 min", "2.0 h", "2.5 h"]


def test_stages_have_clocks_of_their_own_and_notes_are_shown(clock):
    told = [(0, ("a", 0, 2)), (59, ("b", 0, 2)), (2, ("a", 1, 2)), (50, ("b", 1, 2, "x"))]
    told += [(9, ("b", 2, 2, "epsilon 1.0"))]
    assert lines(clock, told) == ["a, 50%, 61 s left", "b, 100% after 61 s (epsilon 1.0)"]
    assert lines(clock, [(0, ("a", 0, 0)), (90, ("a", 0, 0))]) == ["a, done after 90 s"]


def test_where_nothing_is_told_for_a_minute_there_is_a_line_all_the_same(clock):
    stream = io.StringIO()
    progress = _progress._Lines(stream)
    clock[0] += 59
    progress.repeat()
    clock[0] += 1
    progress.repeat()
    progress("training", 0, 4)
    clock[0] += 50
    progress("training", 1, 4, "epoch 3 of 30")
    progress.repeat()
    clock[0] += 20
    progress.repeat()
    progress.repeat()
    clock[0] += 300
    progress.repeat()
    assert stream.getvalue().splitlines() == [
        "working for 60 s",
        "training, 25%, 2 min left (epoch 3 of 30)",
        "training, 25%, 0 s left (epoch 3 of 30)",
    ]


PLAN = (("training reference models", 120), ("asking for labels", 180), ("attacking", 60))


def test_planned_stages_are_numbered_and_the_time_left_in_all_is_given(clock):
    told = [(0, ("planning", 0, 5)), (60, ("planning", 1, 5)), (0, ("training reference models", 0, 4))]
    told += [(60, ("training reference models", 1, 4)), (60, ("training reference models", 4, 4))]
    told += [(0, ("asking for labels (1 of 2)", 0, 10)), (60, ("asking for labels (1 of 2)", 0, 10))]
    told += [(60, ("asking for labels (1 of 2)", 4, 10)), (1, ("attacking", 0, 3)), (70, ("attacking", 3, 3))]
    told += [(1, ("look 2: attacking", 0, 3)), (60, ("look 2: attacking", 1, 3))]
    assert lines(clock, told, stages=PLAN) == [
        "planning, 20%, 4 min left",
        "1 of 3, training reference models, 25%, 3 min left; 7 min in all",
        "1 of 3, training reference models, 100% after 2 min; 4 min in all",
        "2 of 3, asking for labels (1 of 2), 0%, 2 min left; 3 min in all",
        "2 of 3, asking for labels (1 of 2), 40%, 3 min left; 4 min in all",
        "3 of 3, attacking, 100% after 70 s; 108 s in all",
        "look 2, 3 of 3, attacking, 33%, 2 min left",
    ]


def test_a_plan_that_comes_later_counts_from_then_on_and_quiet_shows_nothing(clock):
    for quiet, said in ((False, "3 of 3, attacking, 50%, 60 s left; 6 min in all\n"), (True, "")):
        stream = io.StringIO()
        with show_progress(quiet, stream=stream) as progress:
            progress("planning", 0, 1)
            progress.expect(PLAN)
            progress("attacking", 0, 2)
            clock[0] += 60
            progress("attacking", 1, 2)
        assert stream.getvalue() == said
    silent("a", 1, 2, "note")


def test_a_terminal_gets_a_bar_for_each_stage():
    stream = Terminal()
    with show_progress(stages=[("training", 60), ("explaining", 1)], stream=stream) as progress:
        progress("training", 1, 2, "epsilon 1.0")
        as_stage(progress, "explaining")("whatever", 1, 1)
    for text in ("1 of 2, training, 50%", "2 of 2, explaining, 100%", "epsilon 1.0", "in all"):
        assert text in stream.getvalue()
    assert "whatever" not in stream.getvalue()
