"""audit/suites/paper_d: the two artefacts come from the evaluation, both searches do what they say, and the fast
arithmetic is right."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from captum.attr import InputXGradient, Saliency
from captum.metrics import sensitivity_max
from evidence import DATA, needs, twice

from audit.suites.paper_d import nothing_to_leak as paper_d
from audit.suites.paper_d import search, tables
from audit.suites.paper_d.settings import EXPLAINERS, HARDENING
from safexplain import GaussianNoise, Hardening, RangeClip, ThresholdMask
from safexplain.verdict.stats import tpr_at_fpr


@pytest.fixture
def images():
    return np.random.default_rng(0).integers(1, 256, (12, 32, 32, 3), dtype=np.uint8)


def test_every_crop_and_both_directions_come_out_and_nothing_else():
    images = np.random.default_rng(0).integers(1, 256, (200, 32, 32, 3), dtype=np.uint8)
    moved = paper_d.crop_and_flip(images, np.random.default_rng(1))
    found = []
    for image, got in zip(images, moved, strict=True):
        padded = np.pad(image, ((4, 4), (4, 4), (0, 0)))
        places = [(i, j, f) for i in range(9) for j in range(9) for f in (1, -1)]
        found += [(i, j, f) for i, j, f in places if np.array_equal(got, padded[i : i + 32, j : j + 32][:, ::f])]
    assert len(found) == len(images), "each is a window of its own padded image, once"
    down, right, direction = (set(values) for values in zip(*found, strict=True))
    assert (down, right, direction) == (set(range(9)), set(range(9)), {1, -1})
    assert 70 < sum(f == -1 for _, _, f in found) < 130


def test_maps_are_those_of_captum_on_the_true_label(images):
    model, labels = paper_d.untrained(3), np.arange(12) % 10
    got = paper_d.explain(model, images, labels)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (paper_d.MEAN, paper_d.STD))
    x = ((torch.from_numpy(images).permute(0, 3, 1, 2) / 255 - mean) / std).requires_grad_()
    for name, method in (("InputXGradient", InputXGradient(model)), ("Saliency", Saliency(model))):
        expected = method.attribute(x, target=torch.from_numpy(labels))
        assert torch.allclose(got[name], expected, rtol=1e-4, atol=1e-6 * float(expected.detach().abs().max()))


def test_untrained_networks_follow_from_their_seed_alone(images):
    state = torch.random.get_rng_state()
    labels = np.zeros(12, dtype=np.int64)
    first, again, other = (paper_d.explain(paper_d.untrained(s), images, labels)["Saliency"] for s in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


@pytest.mark.parametrize("planted", [True, False])
def test_the_attack_finds_a_planted_difference_and_nothing_else(planted):
    generator, member = torch.Generator().manual_seed(0), np.arange(600) < 300
    maps = [torch.randn(600, 3, 32, 32, generator=generator) for _ in range(2)]
    if planted:
        for m in maps:
            m[:300, :, :4] *= 0.2
    attack = paper_d.Attack(paper_d.convolutional, maps[0], member, 0, 3)
    low, high = paper_d.figures(attack(maps[1]), member)["AUC"][1:]
    assert low > 0.9 if planted else low < 0.5 < high


@pytest.mark.parametrize("n", [300, 1000, 2000])
def test_simulated_rates_are_distributed_as_those_of_independent_scores(n):
    rng = np.random.default_rng(2)
    member = np.arange(2 * n) < n
    slow = np.array([tpr_at_fpr(rng.random(2 * n), member, fpr=0.001).tpr for _ in range(2000)])
    fast = paper_d.chance_rates(n, (50_000,), rng)
    error = 4 * slow.std() / np.sqrt(len(slow))
    assert fast.mean() == pytest.approx(slow.mean(), abs=error)
    assert fast.std() == pytest.approx(slow.std(), rel=0.15)
    assert paper_d.chance_rates(2 * n, (50_000,), rng).std() < 0.9 * slow.std(), "another number is another spread"


@pytest.mark.parametrize("examples", [4000, 9000])
def test_reshuffled_rates_are_those_that_the_library_reads(examples):
    n = 2000
    scores = np.random.default_rng(3).normal(size=(3, examples))
    fast = paper_d.reshuffled_rates(scores, n, 5, np.random.default_rng(4))
    rng = np.random.default_rng(4)
    for row in fast:
        chosen = rng.permutation(examples)[: 2 * n]
        slow = [tpr_at_fpr(s[chosen], np.arange(2 * n) < n, fpr=0.001).tpr for s in scores]
        assert row.tolist() == pytest.approx(slow)


def test_the_best_of_many_is_far_above_what_it_shows_on_fresh_examples():
    rates = paper_d.chance_rates(1500, (4000, 20), np.random.default_rng(5))
    found = paper_d.selection(rates)
    assert found["best"] == pytest.approx(0.0046, abs=2e-4)
    assert found["best, 97.5 %"] == pytest.approx(0.008, abs=1e-3)
    assert found["fresh"] == pytest.approx(2 / 1501, rel=0.1)


def test_one_seed_has_nothing_to_gain_by_being_chosen():
    found = paper_d.selection(paper_d.chance_rates(1500, (4000, 1), np.random.default_rng(6)))
    assert found["best"] == pytest.approx(found["fresh"])


def test_a_missed_target_of_paper_d_is_named():
    def at(auc, low, high):
        return {"AUC": [auc, auc, auc], "at 0.1%": [low, low, low], "at 1.0%": [high, high, high]}

    chance = {"same": at(0.5, 0.001, 0.01), "another": at(0.5, 0.001, 0.01)}
    leak = {"same": at(0.97, 0.4, 0.8), "another": at(0.84, 0.05, 0.2)}
    rows = {e: {paper_d.THEIRS: leak, "neither": chance, "both": chance} for e in ("InputXGradient", "Saliency")}
    best = {str(n): {k: {"best": v, "fresh": v / 3} for k in ("simulated", "classifiers")}
            for n, v in paper_d.BEST_OF.items()}  # fmt: skip
    assert paper_d.failures(rows, best) == []
    off = {"same": at(0.53, 0.001, 0.01), "another": chance["another"]}
    weak = {"same": leak["same"], "another": at(0.84, 0.001, 0.2)}
    assert "Saliency, both, same" in paper_d.failures(rows | {"Saliency": rows["Saliency"] | {"both": off}}, best)[0]
    changed = rows | {"InputXGradient": rows["InputXGradient"] | {paper_d.THEIRS: weak}}
    assert "members only, another" in paper_d.failures(changed, best)[0]
    same = {n: {"simulated": kinds["simulated"], "classifiers": {"best": 0.001, "fresh": 0.001}}
            for n, kinds in best.items()}  # fmt: skip
    assert len(paper_d.failures(rows, same)) == len(best)


@pytest.fixture(scope="module")
def data():
    """Forty groups of three images, whose brightness tells the class."""
    rng = np.random.default_rng(0)
    labels = np.arange(120) // 3 % 2
    images = (rng.integers(0, 120, (120, 32, 32, 3)) + 120 * labels[:, None, None, None]).astype(np.uint8)
    return search.Data(images, labels, np.arange(120) // 3, 0.5, 0.25)


SMALL = replace(search.QUICK, sides=(24, 16, 12), pools=(40, 30, 20), trials=(3, 2, 1), sensitivity=8)


@pytest.mark.parametrize("sizes", [(30, 20, 10), (200, 100, 60), (1, 1, 1)])
def test_parts_are_disjoint_and_hold_whole_groups(data, sizes):
    parts = data.parts(*sizes, seed=3)
    rows = np.concatenate(parts)
    assert len(np.unique(rows)) == len(rows)
    groups = [set(data.groups[part].tolist()) for part in parts]
    assert sum(map(len, groups)) == len(set().union(*groups)), "a track is on one side only"
    if sum(sizes) <= len(data.labels):
        assert all(abs(len(part) - size) <= 3 for part, size in zip(parts, sizes, strict=True))
    assert [p.tolist() for p in parts] == [p.tolist() for p in data.parts(*sizes, seed=3)]


def test_the_honest_pool_has_one_image_of_each_track(data):
    rows = data.one_a_group(1000)
    assert len(rows) == len(set(data.groups[rows].tolist())) == 40
    assert len(data.one_a_group(25)) == 25


@pytest.mark.parametrize("name", EXPLAINERS)
def test_trials_start_with_the_default_and_are_drawn_from_what_the_paper_searches(name):
    explainer = EXPLAINERS[name]
    trials = explainer.trials(6, seed=0)
    assert trials[0] == (explainer.default, Hardening.none())
    assert trials == explainer.trials(6, seed=0) != explainer.trials(6, seed=1)
    assert len(trials) == 7
    for options, hardening in trials[1:]:
        if explainer.draw is None:
            assert options == explainer.default
            drawn = {"clip_low": hardening.clip.low, "clip_high": hardening.clip.high,
                     "mask": hardening.mask.threshold, "noise": hardening.noise.std}  # fmt: skip
            assert all(low <= drawn[k] <= high for k, (low, high) in HARDENING.items())
        else:
            assert hardening == Hardening.none()
            assert options != explainer.default
            assert options.keys() == explainer.default.keys()


@pytest.mark.parametrize("name", EXPLAINERS)
def test_every_explainer_gives_a_map_of_each_image_under_every_trial(data, name):
    model = search.network(0, 2).eval()
    x, y = data.x(data.images[:4]), torch.from_numpy(data.labels[:4])
    for options, _ in EXPLAINERS[name].trials(2, seed=0):
        maps = search.explained(model, x, y, name, options)
        assert maps.shape[0] == 4
        assert maps.shape[1] in (1, 3)
        assert maps.shape[2:] == (32, 32)
        assert torch.isfinite(maps).all()
        assert maps.abs().sum() > 0


@pytest.mark.parametrize(
    "hardening",
    [Hardening(clip=RangeClip(-0.5, 1.0)), Hardening(mask=ThresholdMask(0.3)), Hardening(noise=GaussianNoise(0.2)),
     Hardening(RangeClip(-0.5, 1.0), ThresholdMask(0.3), GaussianNoise(0.2))],
)  # fmt: skip
def test_hardening_is_clip_then_mask_then_fresh_noise(hardening):
    maps = torch.randn(50, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    expected = maps.clone()
    if hardening.clip:
        expected = expected.clamp(-0.5, 1.0)
    if hardening.mask:
        expected[expected.abs() < 0.3] = 0.0
    first, again, other = (search.hardened(maps, hardening, seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    if hardening.noise is None:
        assert torch.equal(first, other)
        assert torch.allclose(first, expected)
    else:
        for noise in (first - expected, (first - other) / 2**0.5):
            assert noise.std() == pytest.approx(0.2, rel=0.03)
            assert abs(noise.mean()) < 0.01


@pytest.mark.parametrize(("non_members", "expected"), [(2000, 0.1), (1000, 0.1), (700, 0.1), (400, 0.0)])
def test_the_published_rate_is_read_at_the_first_point_with_the_nearest_false_positive_rate(non_members, expected):
    top = non_members - 1.0
    members = np.repeat([top + 0.5, top - 0.5, 0.5], [100, 200, 700])
    scores = np.concatenate([np.arange(float(non_members)), members])
    assert search.tpr_nearest(scores, np.arange(len(scores)) >= non_members) == pytest.approx(expected)


def test_sensitivity_of_maps_that_are_there_is_that_of_captum():
    generator = torch.Generator().manual_seed(0)
    weights, x, noise = (torch.randn(*size, generator=generator) for size in ((5,), (6, 5), (6, 5)))

    def explanation(inputs):
        (given,) = inputs if isinstance(inputs, tuple) else (inputs,)
        return (given.sin() * weights,)

    expected = sensitivity_max(explanation, x, perturb_func=lambda given: given + noise, n_perturb_samples=1)
    got = search.relative_change(explanation(x)[0], explanation(x + noise)[0])
    assert got == pytest.approx(expected.numpy())


def test_noise_that_is_the_same_in_each_call_gains_utility_by_the_metric_and_fresh_noise_loses_it():
    maps = torch.randn(20, 3, 8, 8, generator=torch.Generator().manual_seed(8))
    moved = maps + 0.3 * torch.randn(maps.shape, generator=torch.Generator().manual_seed(9))
    loud = Hardening(noise=GaussianNoise(5.0))
    native = search.relative_change(maps, moved).mean()
    same = search.relative_change(*(search.hardened(m, loud, 0) for m in (maps, moved))).mean()
    fresh = search.relative_change(*(search.hardened(m, loud, i) for i, m in enumerate((maps, moved)))).mean()
    assert same < 0.3 * native
    assert fresh == pytest.approx(2**0.5, rel=0.05)


def test_rates_are_shares_of_members_above_the_allowed_non_members():
    rng = np.random.default_rng(0)
    member = rng.random(4000) < 0.5
    scores = rng.normal(size=4000) + member
    slow = []
    for rate in search.RATES:
        cut = np.sort(scores[~member])[::-1][int(rate * (~member).sum())]
        slow.append((scores[member] > cut).mean())
    assert search.rates(scores, member) == pytest.approx(np.mean(slow))
    assert search.rates(np.zeros(4000), member) == 0.0, "what tells nothing finds nothing"


@pytest.fixture(scope="module")
def honest(data):
    return search.Honest(data, SMALL)


def test_the_halves_that_choose_and_report_share_no_example(honest):
    choose, report = honest.halves(40)
    assert sorted([*choose.tolist(), *report.tolist()]) == list(range(40))


@pytest.mark.parametrize("planted", [True, False])
def test_the_honest_protocol_finds_a_planted_leak_and_none_in_random_maps(planted):
    size, n = replace(SMALL, models=8, targets=2), 250
    rng = np.random.default_rng(0)
    blank = search.Data(np.zeros((n, 32, 32, 3), np.uint8), np.arange(n) % 2, np.arange(n), 0.5, 0.25)
    whole = search.Honest(blank, replace(size, pools=(n, n, n)))
    member = rng.random((8, n)) < 0.5
    whole.__dict__.update(labels=torch.zeros(8, n, dtype=torch.long), shadows=type("S", (), {"membership": member})())
    maps = [torch.from_numpy(rng.normal(size=(n, 3, 4, 4)) * (1 - 0.9 * planted * m[:, None, None, None])).float()
            for m in member]  # fmt: skip
    scores = whole.leak(maps)
    found = search.excesses(scores, member[:2], np.arange(n))
    assert max(found.values()) > 0.5 if planted else max(found.values()) < 0.05
    reported = whole.reported({"default": (scores, max(found, key=found.get), None)}, member[:2], np.arange(n))
    low, high = reported["default"]["leak"][1:]
    assert low > 0.4 if planted else low <= 0 <= high + 1e-9


def test_the_reduction_against_itself_is_none_and_against_a_leak_all_of_it():
    rng, member = np.random.default_rng(0), np.random.default_rng(1).random((2, 400)) < 0.5
    known, nothing = member + 0.1 * rng.normal(size=(2, 400)), rng.normal(size=(2, 400))
    label, kept = rng.normal(size=(2, 400)), np.ones((2, 400))
    both = {"default": ({"label": label, "a": known}, "a", kept), "same": ({"label": label, "a": known}, "a", kept),
            "hardened": ({"label": label, "a": nothing}, "a", kept / 2)}  # fmt: skip
    blank = search.Data(np.zeros((4, 32, 32, 3), np.uint8), np.arange(4) % 2, np.arange(4), 0.5, 0.25)
    found = search.Honest(blank, replace(SMALL, resamples=100)).reported(both, member, np.arange(400))
    assert found["same"]["reduction"] == found["same"]["faithfulness lost"] == [0.0, 0.0, 0.0]
    value, low, high = found["hardened"]["share"]
    assert 0.85 < low < value < high < 1.15
    assert found["hardened"]["faithfulness lost"] == [0.5, 0.5, 0.5]


@needs("gtsrb.npz")
def test_a_track_is_on_one_side_of_the_published_evaluation():
    data, _ = search.Data.of("gtsrb", DATA)
    published = search.Published(data, replace(search.QUICK, sides=(300, 300, 300)))
    tracks = [set(data.groups[rows].tolist()) for rows in published.rows]
    assert not tracks[0] & tracks[1]
    assert not tracks[0] & tracks[2]
    assert not tracks[1] & tracks[2]


def test_a_result_without_a_search_says_so():
    assert {make({"results": {"evaluation": {}}}) for name, make in tables.TABLES.items()
            if name.removeprefix("paper_d: ") not in ("untrained", "best of seeds")} == {
        "*There is no result yet.*"
    }  # fmt: skip


@pytest.mark.slow
@needs("cifar10.npz")
def test_the_evaluation_runs_and_resumes(tmp_path):
    first, again = twice("audit.suites.paper_d", tmp_path, "--part", "evaluation")
    assert first["quick"]
    ran = first["results"]["evaluation"]
    assert ran["run"]["command"].startswith("python -m audit.suites.paper_d")
    assert again["results"]["evaluation"]["untrained_networks"] == ran["untrained_networks"]


@pytest.mark.slow
@needs("cifar10.npz")
def test_the_search_runs_resumes_and_keeps_the_other_parts(tmp_path):
    first, again = twice("audit.suites.paper_d", tmp_path, "--part", "search", "--task", "cifar10")
    assert again["results"]["search cifar10"]["cells"] == first["results"]["search cifar10"]["cells"]
    for cell in first["results"]["search cifar10"]["cells"].values():
        assert cell["published"]["trials"][0]["tpr"] == max(cell["published"]["trials"][0]["tpr of each seed"])
        assert cell["honest"]["which"]["published best"] == cell["published"]["best"]
    assert "| cifar10 | InputXGradient |" in tables.left_of_the_claim(first)
