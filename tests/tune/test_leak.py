"""What a search hardens, and what an explanation adds to the label, against slow versions."""

import numpy as np
import pytest
import torch
from torch import nn

from safexplain import GaussianNoise, Hardening, RankNorm, Relative, TopKMask, TopKSet
from safexplain.audit import Dither, Population
from safexplain.audit.answers import ExplainModel, Predictions, summarise
from safexplain.audit.attacks.learned import Boosted
from safexplain.audit.attacks.suite import fitting, values_of
from safexplain.audit.question import AuditOptions, Question
from safexplain.audit.signals import Signals, Store
from safexplain.errors import InputError
from safexplain.explain.hardened import HARDENED
from safexplain.tune.study import FPRS, LeakMeter, Natives, rates, resampled_rates
from safexplain.verdict.policy import Policy

M, N, D = 11, 100, 6
RNG = np.random.default_rng(0)
MEMBER = RNG.random((M, N)) < 0.5


def known(telling: float = 0.1) -> dict[str, np.ndarray]:
    """Labels that members get a little more often."""
    rng = np.random.default_rng(1)
    right = rng.random((M, N)) < np.where(MEMBER, 0.7 + telling, 0.7)
    return {"label": np.where(right, 0.0, 1.0 + (rng.random((M, N)) < 0.5))}


def released(shift: float, seed: int = 2) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Maps whose first number tells members."""
    maps = np.random.default_rng(seed).normal(size=(M, N, D)).astype(np.float32)
    maps[..., 0] += shift * MEMBER
    values = summarise(torch.from_numpy(maps).flatten(0, 1))
    return {name: v.reshape(M, N).numpy() for name, v in values.items()}, maps


def slow_rates(scores: np.ndarray, member: np.ndarray) -> float:
    """Mean TPR at the rates: go down the thresholds one by one, and by a straight line between two of them."""
    found = []
    for fpr in FPRS:
        before = (0.0, 0.0)
        for threshold in sorted(set(scores), reverse=True):
            now = ((scores[~member] >= threshold).mean(), (scores[member] >= threshold).mean())
            if now[0] > fpr:
                share = (fpr - before[0]) / (now[0] - before[0])
                found.append(before[1] + share * (now[1] - before[1]))
                break
            before = now
    return float(np.mean(found))


def slow_scores(row, signals: Signals, read: int) -> np.ndarray:
    """By a plain call of the attack, with all other models as references."""
    others = np.arange(M) != read
    values = values_of(signals, row.reads)
    return row.attack(values[read], values[others], MEMBER[others])


def slow_excess(meter: LeakMeter, values: dict, maps: np.ndarray, targets: list[int]) -> float:
    """Each attack that is no tree and no classifier, stacked with the label: fit on the players, and go by target."""
    signals = Signals(MEMBER, {**known(), **values}, maps, {})
    rows = fitting(signals, Policy(patience=(1,)))

    def columns(row):
        kept = []
        for column in row.columns:
            if isinstance(column.attack, Boosted) or column.learns:
                continue
            if column.columns:
                kept.append({read: stacked(column)[0][read] for read in [*meter.players, *targets]})
            else:
                kept.append({read: slow_scores(column, signals, read) for read in [*meter.players, *targets]})
        return kept

    def stacked(row, always=False):
        kept = columns(row)
        features = {read: np.stack([column[read] for column in kept], axis=-1) for read in kept[0]}
        players = np.stack([features[read] for read in meter.players])
        fitted = row.attack.fit(players, MEMBER[meter.players], always=always)
        return {read: fitted.scores(of) for read, of in features.items()}, fitted.adds

    base, _ = stacked(next(row for row in rows if row.baseline))
    best = 0.0
    for row in rows:
        if row.baseline or row.role != "explanation+label" or len(columns(row)) < 2:
            continue
        scores, adds = stacked(row, always=row.name == "Stacked")
        if adds:
            excess = [slow_rates(scores[t], MEMBER[t]) - slow_rates(base[t], MEMBER[t]) for t in targets]
            best = max(best, float(np.mean(excess)))
    return best


@pytest.fixture(scope="module")
def meter():
    return LeakMeter(MEMBER, known(), Policy(), seed=4)


@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_the_leak_is_that_of_the_slow_version(meter, shift):
    values, maps = released(shift)
    targets = meter.targets[:3]
    assert meter.excess(values, maps, targets).excess == pytest.approx(slow_excess(meter, values, maps, targets))


def test_a_random_map_adds_about_nothing_and_a_telling_one_is_found(meter):
    none = [meter.excess(*released(0.0, seed), meter.targets) for seed in range(3)]
    assert np.mean([one.excess for one in none]) < 0.02
    assert all(one.excess <= 4 * one.error for one in none)
    found = meter.excess(*released(3.0), meter.targets)
    assert found.excess > 0.2
    assert found.excess > 4 * found.error
    assert found.attack


def test_what_the_label_tells_is_no_leak():
    telling = {"label": np.where(RNG.random((M, N)) < 0.9, ~MEMBER, MEMBER).astype(float)}
    labels = np.stack([telling["label"]] * D, axis=-1).astype(np.float32) + 1
    values = {n: v.reshape(M, N).numpy() for n, v in summarise(torch.from_numpy(labels).flatten(0, 1)).items()}
    meter = LeakMeter(MEMBER, telling, Policy())
    found = meter.excess(values, labels, meter.targets)
    assert found.excess < max(0.02, 2 * found.error)


def test_rates_are_those_of_the_slow_version_and_of_repeated_examples():
    rng = np.random.default_rng(5)
    for _ in range(20):
        member = rng.random(80) < 0.5
        scores = np.round(rng.normal(size=80) + member, 1)
        assert rates(scores, member) == pytest.approx(slow_rates(scores, member))
        weights = rng.integers(0, 4, size=(3, 80))
        for fast, weight in zip(resampled_rates(scores, member, weights.astype(float)), weights, strict=True):
            assert fast == pytest.approx(slow_rates(np.repeat(scores, weight), np.repeat(member, weight)))


def test_the_standard_error_is_that_of_other_examples():
    excesses, errors = [], []
    for seed in range(16):
        rng = np.random.default_rng(100 + seed)
        member = rng.random((9, 200)) < 0.5
        maps = rng.normal(size=(9, 200, 4)).astype(np.float32)
        maps[..., 0] += 2 * member
        values = {"l2": np.linalg.norm(maps, axis=-1)}
        label = {"label": (rng.random((9, 200)) < 0.3).astype(float)}
        found = LeakMeter(member, label, Policy(), seed=seed).excess(values, maps, [0, 1, 2, 3])
        excesses.append(found.excess)
        errors.append(found.error)
    assert 0.5 < np.std(excesses, ddof=1) / np.mean(errors) < 1.7


def test_the_audited_model_is_a_target_and_no_target_fits_the_stacks():
    for seed in range(10):
        meter = LeakMeter(MEMBER, known(), Policy(), seed=seed)
        assert meter.targets[0] == 0
        assert not set(meter.players) & set(meter.targets)
        assert sorted([*meter.players, *meter.targets]) == list(range(M))


def test_too_few_models_and_one_sided_examples_are_refused():
    with pytest.raises(InputError, match="at least 4 reference models"):
        LeakMeter(MEMBER[:4], {"label": known()["label"][:4]}, Policy())
    member = MEMBER.copy()
    member[2] = True
    with pytest.raises(InputError, match=r"one kind only for models \[2\]"):
        LeakMeter(member, known(), Policy())


X = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([[0, 1, 2, 0, 1, 2], [2, 2, 1, 1, 0, 0]])


def net(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(64, 3)
        ).eval()


MODELS = [net(1), net(2)]


def natives(method: str, arguments: dict | None = None, store: Store | None = None, seed: int = 0) -> Natives:
    pool = Population(X, torch.arange(6) % 3)
    asked = Predictions({1: {"label": LABELS.double().numpy()}}, Dither(), 3)
    question = Question(
        MODELS[0], pool, member=np.arange(6) < 3, explainer=HARDENED[method], arguments=arguments, output="logit",
        hardening=Hardening.none(), options=AuditOptions(batch_size=4), seed=seed,
    )  # fmt: skip
    return Natives(question, MODELS, pool, asked, store or Store())


SET, RANKS = Hardening(TopKSet(fraction=0.2)), Hardening(RankNorm(), TopKMask(0.3))


@pytest.mark.parametrize(
    ("method", "arguments", "hardening"),
    [
        ("InputXGradient", {}, RANKS),
        ("Occlusion", {"sliding_window_shapes": (3, 3, 3), "strides": (3, 2, 2)}, SET),
        ("FeatureAblation", {}, RANKS),
        ("FeatureAblation", {"n_segments": 4, "compactness": 1.0}, SET),
        ("GradCAM", {}, RANKS),
    ],
)
def test_hardened_native_maps_are_what_the_hardened_class_releases(method, arguments, hardening):
    if "n_segments" in arguments:
        pytest.importorskip("skimage")
    asked = natives(method, arguments)
    (released,) = asked.release(asked.maps({}), hardening)
    for model, label, maps in zip(MODELS, LABELS, released, strict=True):
        assert torch.allclose(maps, asked.methods[0](model, hardening, X, label), atol=1e-6)


def test_maps_are_hardened_before_they_are_enlarged():
    asked = natives("GradCAM", {"interpolate_mode": "nearest"})
    assert asked.maps({})[0].values.shape == (2, 6, 1, 8, 8)  # the layer's own size, here that of the input
    assert torch.equal(asked.maps({})[0].values, natives("GradCAM").maps({})[0].values)


def test_noise_is_the_same_each_time_and_another_one_for_each_model_and_example():
    asked, noisy = natives("Saliency"), Hardening(RankNorm(), noise=GaussianNoise(Relative(0.5)))
    one, two = (asked.release(asked.maps({}), noisy)[0] for _ in range(2))
    assert torch.equal(one, two)
    assert torch.equal(asked.release(asked.maps({}), noisy, [1])[0][0], one[1])
    quiet = asked.release(asked.maps({}), noisy.without_noise())[0]
    drawn = (one - quiet).flatten(0, 1).flatten(1)
    assert (torch.corrcoef(drawn) - torch.eye(12)).abs().max() < 0.4
    assert not torch.equal(natives("Saliency", seed=1).release(asked.maps({}), noisy)[0], one)


def test_explainers_that_draw_at_random_draw_the_same_again_and_leave_the_generator_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    one, two = (natives("SmoothGrad", {"nt_samples": 3, "stdevs": 0.5}).maps({})[0].values for _ in range(2))
    assert torch.equal(one, two)
    assert torch.equal(torch.get_rng_state(), before)


def test_maps_are_read_again_from_the_folder(tmp_path, monkeypatch):
    one = natives("InputXGradient", store=Store(tmp_path)).maps({})[0].values
    monkeypatch.setattr(ExplainModel, "__call__", lambda *asked, **_: pytest.fail("asked again"))
    assert torch.equal(natives("InputXGradient", store=Store(tmp_path)).maps({})[0].values, one)
    with pytest.raises(pytest.fail.Exception):
        natives("InputXGradient", {"multiply_by_inputs": False}, store=Store(tmp_path)).maps({})
