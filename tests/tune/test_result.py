"""Points, their front, and which of them is chosen."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safexplain import GaussianNoise, Hardening, RankNorm, Relative
from safexplain.errors import InputError
from safexplain.tune import Point
from safexplain.tune.result import NORMAL, choose, front_of


def point(number: int, leak: float, utility: float, error: float = 0.0) -> Point:
    return Point(number, Hardening.none(), {}, leak, error, utility, 1.0, 1.0, 1.0, 0.5, 0.5)


points = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 4), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=12
).map(lambda drawn: [point(i, leak / 4, utility / 4, error) for i, (leak, utility, error) in enumerate(drawn)])


@given(points)
def test_no_point_dominates_one_of_the_front_and_every_other_point_is_dominated_or_equal(found):
    front = front_of(found)
    assert not any(
        a.leak <= b.leak and a.utility >= b.utility and (a.leak, a.utility) != (b.leak, b.utility)
        for a in found
        for b in front
    )
    for p in found:
        assert p in front or any(f.leak <= p.leak and f.utility >= p.utility for f in front)
    assert [p.leak for p in front] == sorted({p.leak for p in front})


@given(points, st.sampled_from([0.0, 0.5, 1.5]))
def test_the_chosen_point_keeps_most_of_those_surely_within_the_allowance(found, allowance):
    front = front_of(found)
    chosen, within = choose(front, allowance)
    able = [p for p in front if p.leak + NORMAL * p.leak_error <= allowance]
    assert within == bool(able)
    assert chosen in front
    if able:
        assert chosen.utility == max(p.utility for p in able)
    else:
        assert chosen.leak == min(p.leak for p in front)


def test_of_no_points_none_can_be_chosen():
    with pytest.raises(InputError, match="got none"):
        choose((), 0.1)


def test_a_point_is_read_back_without_its_key():
    noise = GaussianNoise(Relative(0.1), key=b"secret" * 8)
    one = Point(
        3, Hardening(RankNorm(), noise=noise), {"strides": (1, (2, 3))}, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, None, 0.7
    )
    text = json.dumps(one.to_dict())
    assert "secret" not in text
    assert "key" not in text
    assert Point.from_dict(json.loads(text)) == one


def test_anything_else_is_refused():
    for broken in ({"number": 1}, {**point(0, 0, 0).to_dict(), "extra": 1}):
        with pytest.raises(InputError, match="expected a point of a search"):
            Point.from_dict(broken)
