"""What may be tried, points, their front, and which of them is chosen."""

import inspect
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from safexplain import GaussianNoise, Hardening, RankNorm, Relative
from safexplain.audit.question import methods_of
from safexplain.errors import InputError
from safexplain.explain.catalog import CATALOG
from safexplain.explain.hardened import HARDENED
from safexplain.hardening.hardening import SLOTS
from safexplain.tune import Point
from safexplain.tune.result import NORMAL, choose, front_of
from safexplain.tune.space import FIRST, OPTIONS_LEFT_OUT, STEPS, Space, options_of


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


SPACE = Space(64, 2.0)


class Drawing:
    """A trial that answers at random."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.asked: dict[str, object] = {}

    def suggest_float(self, name, low, high, *, log=False):
        share = self.rng.random()
        self.asked[name] = low * (high / low) ** share if log else low + (high - low) * share
        return self.asked[name]

    def suggest_int(self, name, low, high):
        self.asked[name] = int(self.rng.integers(low, high + 1))
        return self.asked[name]

    def suggest_categorical(self, name, choices):
        self.asked[name] = choices[self.rng.integers(len(choices))]
        return self.asked[name]


def test_every_step_of_a_hardening_is_searched():
    for slot, kinds in SLOTS.items():
        assert {kind.__name__ for kind in kinds} <= STEPS[slot].keys()


def test_all_that_can_be_drawn_is_a_hardening_that_is_read_back_and_works():
    seen = set()
    maps = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    for seed in range(150):
        hardening = SPACE.hardening(Drawing(seed))
        assert Hardening.from_json(hardening.to_json()) == hardening
        assert torch.isfinite(hardening.without_noise().with_key(b"k" * 32)(maps, inputs=maps)).all()
        seen |= {(slot, type(getattr(hardening, slot)).__name__) for slot in SLOTS}
    for slot, kinds in STEPS.items():
        assert {n for s, n in seen if s == slot} == {"NoneType" if kind == "none" else kind for kind in kinds}


def test_the_first_trials_are_hardenings_or_can_be_asked_for_by_their_answers():
    trials = pytest.importorskip("optuna").trial
    for name, known in FIRST.items():
        if not isinstance(known, Hardening):
            trial = trials.FixedTrial(dict(known))
            assert SPACE.hardening(trial).is_none == (name == "native")
            assert trial.params == dict(known), name


def options(method, x, **given):
    return options_of(methods_of(HARDENED[method], given), x)[method]


def test_options_of_an_explainer_are_arguments_of_its_attribute():
    x = torch.zeros(2, 3, 8, 8)
    found = options("IG", x)
    assert found["n_steps"] == (10, 25, 50, 100)
    assert "multiply_by_inputs" not in found  # of the constructor, which a certificate is not about
    assert "n_steps" not in options("IG", x, n_steps=25)
    for name, row in CATALOG.items():
        if row.in_base and row.entry == "attribute" and row.search_space:
            taken = {*inspect.signature(row.native.attribute).parameters, "n_segments", "compactness"}
            assert options(name, x).keys() <= taken - OPTIONS_LEFT_OUT.keys()


def test_options_that_do_not_fit_the_inputs_are_not_searched():
    assert options("Occlusion", torch.zeros(2, 64)) == {}
    assert options("Occlusion", torch.zeros(2, 3, 32, 32)).keys() == {"sliding_window_shapes", "strides"}
    assert "n_segments" not in options("KernelShap", torch.zeros(2, 64))
    assert options("KernelShap", torch.zeros(2, 3, 32, 32))["n_segments"] == (10, 18, 32, 56, 100)
    assert options("SmoothGrad", torch.zeros(2, 64))["stdevs"][::4] == (0.01, 2.0)


def test_options_are_drawn_from_their_values():
    steps = {"IG": {"n_steps": (10, 25, 50)}}
    one, two = Space(64, 2.0, steps), Space(64, 2.0, {**steps, "Saliency": {}})
    for space, said in ((one, lambda drawn: drawn), (two, lambda drawn: drawn["IG"])):
        assert {said(space.drawn_options(Drawing(seed)))["n_steps"] for seed in range(30)} == {10, 25, 50}


def test_the_scale_is_the_median_norm_of_maps_that_are_not_zero():
    maps = torch.zeros(1, 4, 2)
    maps[0, 0], maps[0, 1], maps[0, 2] = torch.tensor([3.0, 4.0]), torch.tensor([0.0, 2.0]), torch.tensor([0.0, 9.0])
    assert Space.of(maps, {}) == Space(2, 5.0)
    assert Space.of(torch.zeros(1, 4, 2), {}).norm == 1.0
