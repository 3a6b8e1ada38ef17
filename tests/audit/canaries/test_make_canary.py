"""Canaries against loops over one record's gradient at a time, random search, and the paper's own loss."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from safexplain._privacy_loss import Steps
from safexplain.audit.canaries import canary as similarity
from safexplain.audit.canaries import run as module
from safexplain.audit.canaries.canary import (
    FAR,
    OUTLIER_SCORES,
    Reference,
    Target,
    far_record,
    gradients,
    make_canary,
    margins,
    outlier_scores,
    probe_rows,
    record_scores,
)
from safexplain.audit.canaries.probe import ModuleNetwork
from safexplain.audit.canaries.run import LinearHead, reference, true_class_probability
from safexplain.dp.heads import HeadRecipe
from safexplain.dp.sgd.clipping import FlatClipping
from safexplain.errors import InputError
from safexplain.verdict.canaries.result import Claim, Scores, judge

N, D, CLASSES = 60, 12, 4
HEAD = LinearHead(D, CLASSES)
NETWORKS = [HEAD, LinearHead(D, 2, bias=False, one_logit=True)]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def records(classes: int, seed: int = 1, n: int = N) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.arange(n) % classes
    means = torch.randn(classes, D, generator=seeded(99), dtype=torch.float64)
    return means[y] + torch.randn(n, D, generator=seeded(seed), dtype=torch.float64), y


def trained(network, clip: float = 1.0) -> tuple[torch.Tensor, torch.Tensor, Reference]:
    x, y = records(network.classes)
    recipe = HeadRecipe(
        network.classes, 20, 1.0, N, FlatClipping(clip), lr=0.2, bias=network.bias, one_logit=network.one_logit
    )
    return x, y, reference(network, x, y, recipe, generator=seeded())


def slow_gradient(network, theta, x, y) -> torch.Tensor:
    """Of one record, by autograd."""
    leaf = theta.clone().requires_grad_()
    logits = network.logits(leaf[None], x[None])[0]
    if logits.shape[1] == 1:
        value = nn.functional.binary_cross_entropy_with_logits(logits[0, 0], torch.tensor(float(y)).to(logits))
    else:
        value = nn.functional.cross_entropy(logits, torch.tensor([int(y)]))
    return torch.autograd.grad(value, leaf)[0]


def slow_cosine(network, theta, z, other) -> float:
    a, b = slow_gradient(network, theta, *z), slow_gradient(network, theta, *other)
    return float(nn.functional.cosine_similarity(a, b, 0))


@pytest.mark.parametrize("network", NETWORKS)
def test_similarity_is_that_of_autograd_gradients(network, monkeypatch):
    x, y, found = trained(network)
    target = Target(network, found.theta, x[3], int(y[3]))
    monkeypatch.setattr(similarity, "_NUMBERS", 7 * network.parameters)  # in pieces
    fast = target.to_all(x[:20], y[:20])
    gradients = torch.stack([slow_gradient(network, found.theta, x[i], y[i]) for i in range(20)])
    torch.testing.assert_close(fast.norm, gradients.norm(dim=1))
    torch.testing.assert_close(fast.cosine, nn.functional.cosine_similarity(gradients, gradients[3:4]))
    assert target.norm == pytest.approx(float(gradients[3].norm()))


@pytest.mark.parametrize("network", NETWORKS)
def test_a_crafted_input_opposes_its_target_within_the_range_of_the_data(network):
    x, y, found = trained(network)
    canary = make_canary("crafted", network, x, y, found, generator=seeded())
    z = x[found.target], y[found.target]
    random = [slow_cosine(network, found.theta, z, (x[i], z[1])) for i in range(N)]
    assert canary.y == int(z[1])
    assert canary.cosine == pytest.approx(slow_cosine(network, found.theta, z, (canary.x, canary.y)))
    assert canary.cosine < min(random) - 0.1
    assert canary.cosine < -0.7
    assert (x.amin(0) <= canary.x).all()
    assert (canary.x <= x.amax(0)).all()
    assert canary.norms[1] == pytest.approx(max(canary.norms[0], 1.0), rel=0.15)
    assert canary.norms[1] > 0.9  # fills the clipping bound


@pytest.mark.parametrize("network", NETWORKS)
def test_a_mislabelled_canary_has_the_label_that_a_loop_finds(network):
    x, y, found = trained(network)
    for row in (found.target, 7, 20):
        canary = make_canary("mislabelled", network, x, y, replace(found, target=row))
        z = x[row], y[row]
        cosines = {c: slow_cosine(network, found.theta, z, (x[row], c)) for c in range(network.classes) if c != y[row]}
        assert canary.y == min(cosines, key=cosines.get)
        assert canary.cosine == pytest.approx(min(cosines.values()))
        assert torch.equal(canary.x, x[row])


@pytest.mark.parametrize("network", NETWORKS)
def test_a_natural_canary_is_the_auxiliary_record_that_a_loop_finds(network, monkeypatch):
    x, y, found = trained(network)
    auxiliary = records(network.classes, seed=2, n=50)
    monkeypatch.setattr(similarity, "_NUMBERS", 9 * network.parameters)
    canary = make_canary("natural", network, x, y, found, auxiliary=auxiliary)
    z = x[found.target], y[found.target]
    cosines = [slow_cosine(network, found.theta, z, other) for other in zip(*auxiliary, strict=True)]
    best = min(range(50), key=cosines.__getitem__)
    assert torch.equal(canary.x, auxiliary[0][best])
    assert canary.y == int(auxiliary[1][best])
    assert canary.cosine == pytest.approx(cosines[best])


def test_a_gradient_canary_is_at_the_parameter_that_moves_least():
    x, y, found = trained(HEAD)
    canary = make_canary("gradient", HEAD, x, y, found)
    assert (canary.target, canary.coordinate) == (found.target, int(found.movement.argmin()))
    assert canary.drift is found.drift


def test_half_precision_crafts_in_single_precision():
    x, y = records(CLASSES)
    x, recipe = x.half(), HeadRecipe(CLASSES, 20, 1.0, N, FlatClipping(1.0), lr=0.2)
    canary = make_canary("crafted", HEAD, x, y, reference(HEAD, x, y, recipe, generator=seeded()))
    assert canary.x.dtype == torch.float32
    assert canary.cosine < -0.7


def reference_of(network, x, y) -> Reference:
    confidence = true_class_probability(network, network.theta[None], x, y)
    return Reference(network.theta, int(confidence.argmin()), confidence)


def test_images_get_crafted_canaries():
    torch.manual_seed(0)
    network = ModuleNetwork(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3)), 3)
    x, y = torch.rand(30, 1, 6, 6, generator=seeded()), torch.arange(30) % 3
    found = reference_of(network, x, y)
    canary = make_canary("crafted", network, x, y, found, generator=seeded())
    assert canary.x.shape == (1, 6, 6)
    z = x[found.target], y[found.target]
    assert canary.cosine < min(slow_cosine(network, found.theta, z, (one, z[1])) for one in x) - 0.1


@pytest.mark.parametrize(
    ("scenario", "arguments", "error", "says"),
    [
        ("natural", {}, InputError, r"give auxiliary=\(x, y\)"),
        ("natural", {"auxiliary": (torch.zeros(2, 13), torch.zeros(2).long())}, InputError, r"auxiliary: .*\(n, 12\)"),
        ("natural", {"auxiliary": (torch.zeros(2, D), torch.full((2,), CLASSES))}, InputError, "labels 0 to 3"),
    ],
)
def test_what_cannot_be_crafted_is_named(scenario, arguments, error, says):
    x, y, found = trained(HEAD)
    with pytest.raises(error, match=says):
        make_canary(scenario, HEAD, x, y, found, **arguments)


def test_inputs_that_are_no_real_numbers_cannot_be_crafted_but_mislabelled():
    model = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(9, 2))
    x, y = torch.randint(5, (8, 3), generator=seeded()), torch.arange(8) % 2
    network = ModuleNetwork(model, 2)
    found = reference_of(network, x, y)
    with pytest.raises(InputError, match="craft it on embeddings"):
        make_canary("crafted", network, x, y, found)
    assert make_canary("mislabelled", network, x, y, found).y == 1 - int(y[found.target])


def test_a_margin_is_the_log_odds_of_the_label():
    found = torch.randn(5, 4, dtype=torch.float64)
    p = found.softmax(1)[:, 2]
    torch.testing.assert_close(margins(found, 2), (p / (1 - p)).log())


def test_a_margin_of_a_sure_model_is_finite():
    assert margins(torch.tensor([[2000.0, 0.0, -10.0]]), 0).isfinite().all()


@pytest.mark.parametrize(("scenario", "y"), [("crafted", 0), ("natural", 1), ("mislabelled", 1)])
def test_one_logit_scores_as_two_of_which_one_is_0(scenario, y):
    z, c = torch.randn(2, 5, 1, dtype=torch.float64)
    both = [torch.cat([torch.zeros_like(t), t], 1) for t in (z, c)]
    other = y if scenario == "crafted" else 1 - y
    torch.testing.assert_close(record_scores(z, c, y, other, scenario), record_scores(*both, y, other, scenario))


def test_a_mislabelled_canary_is_scored_by_two_logits_at_one_input():
    z = torch.tensor([[1.0, 5.0, 2.0]])
    assert record_scores(z, torch.full_like(z, torch.nan), 1, 2, "mislabelled").tolist() == [3.0]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda z: record_scores(z, z, 0, 3, "natural"), "0 to 2"),
        (lambda z: record_scores(z, z, 1, 1, "mislabelled"), "another label"),
    ],
)
def test_what_cannot_be_scored_is_named(call, says):
    with pytest.raises(InputError, match=says):
        call(torch.zeros(2, 3))


def clouds(n=30, shape=(4,), seed=0):
    g = torch.Generator().manual_seed(seed)
    y = torch.tensor([0] * (n // 2) + [1] * (n // 3) + [2] * (n - n // 2 - n // 3))
    return torch.randn(n, *shape, generator=g) + y.view(-1, *[1] * len(shape)), y


@pytest.mark.parametrize(("shape", "unit"), [((4,), 1e-3), ((1, 3, 3), 255.0)])
def test_an_outlier_is_as_far_away_in_any_unit_and_of_the_rarest_other_class(shape, unit):
    x, y = clouds(shape=shape)
    far, label = far_record(unit * x, y, target=0)
    mean = (unit * x).mean(0)
    typical = (unit * x - mean).flatten(1).norm(dim=1).square().mean().sqrt()
    assert float((far - mean).norm() / typical) == pytest.approx(FAR, rel=1e-4)
    assert torch.cosine_similarity((far - mean).flatten(), (unit * x[0] - mean).flatten(), 0) == pytest.approx(1.0)
    assert label == 2
    assert far_record(x, y, target=len(x) - 1)[1] == 1, "the rarest but its own"


def test_where_all_records_are_equal_there_is_still_one_far_away():
    x, y = torch.ones(6, 3), torch.arange(6) % 2
    far, _ = far_record(x, y, 0)
    assert bool(far.isfinite().all())
    assert not torch.equal(far, x[0])


def test_tokens_and_bytes_get_a_record_that_the_training_can_take():
    tokens = torch.tensor([[1, 2, 2, 5], [1, 2, 2, 1], [2, 1, 1, 2]])
    far, label = far_record(tokens, torch.tensor([0, 1, 1]), 1)
    assert far.tolist() == [5, 5, 5, 5]
    assert label == 0
    image, _ = far_record(torch.randint(0, 255, (9, 2, 2), dtype=torch.uint8), torch.arange(9) % 2, 0)
    assert image.dtype == torch.uint8


@pytest.mark.parametrize(
    ("y", "says"),
    [(torch.zeros(6), "at least two classes, got one"), (torch.tensor([0, 1, -1, 0, 1, 0]), "class indices")],
)
def test_labels_without_another_class_are_an_error_that_says_so(y, says):
    with pytest.raises(InputError, match=says):
        far_record(torch.randn(6, 3), y, 0)


def test_the_adversary_never_looks_at_the_record_that_is_replaced():
    assert probe_rows(5, 2) == [0, 1, 3, 4]
    for n in (70, 1000):
        for target in (0, 5, n - 1):
            assert len(probe_rows(n, target)) == 64
            assert target not in probe_rows(n, target)


def test_the_first_score_is_the_papers_and_all_are_numbers_whatever_the_model_says():
    g = torch.Generator().manual_seed(0)
    pair, others, labels = torch.randn(3, 2, 4, generator=g), torch.randn(3, 5, 4, generator=g), torch.arange(5) % 4
    found = outlier_scores(pair, others, 1, 2, labels)
    assert found.shape == (3, len(OUTLIER_SCORES))
    assert torch.allclose(found[:, 0], record_scores(pair[:, 0], pair[:, 1], 1, 2, "crafted").double())
    expected = [torch.nn.functional.cross_entropy(logits, labels) for logits in others.double()]
    assert torch.allclose(found[:, 3], torch.stack(expected))
    for bad in (torch.nan, torch.inf, -torch.inf):
        assert not bool(outlier_scores(torch.full_like(pair, bad), others, 1, 2, labels).isnan().any())
        assert not bool(outlier_scores(pair, torch.full_like(others, bad), 1, 2, labels).isnan().any())


def test_one_logit_says_what_two_say():
    g = torch.Generator().manual_seed(0)
    pair, others, labels = torch.randn(3, 2, 1, generator=g), torch.randn(3, 5, 1, generator=g), torch.arange(5) % 2
    two = [torch.cat([torch.zeros_like(logits), logits], -1) for logits in (pair, others)]
    assert torch.equal(outlier_scores(pair, others, 1, 0, labels), outlier_scores(*two, 1, 0, labels))


def test_a_score_that_no_run_could_have_chosen_shows_nothing():
    """Of scores that say nothing, the best is no better than any; of one that says all, D may be high or low."""
    rng = np.random.default_rng(0)
    noise = [rng.normal(size=(1, 100, 20)) for _ in range(2)]
    names = tuple(f"s{i}" for i in range(20))
    claim = Claim(Steps(4.0, 0.5, 20), 1e-5)
    bounds = [
        judge(Scores((20,), *noise, names), claim, scenario="outlier", seed=seed).epsilon_lower for seed in range(5)
    ]
    assert max(bounds) < 1
    noise[0][..., 7] -= 20
    found = judge(Scores((20,), *noise, names), claim, scenario="outlier")
    assert found.setting["score"] == "s7, low on D"
    assert found.epsilon_lower == found.ceiling
    assert found.runs == 200
    assert (found.errors[0].positives, found.errors[0].negatives) == (70, 70)


def test_models_that_diverge_on_one_data_set_alone_are_told_apart():
    rng = np.random.default_rng(0)
    d, d_prime = rng.normal(size=(1, 60, 2)), np.full((1, 60, 2), -np.inf)
    found = judge(Scores((20,), d, d_prime, ("a", "b")), Claim(Steps(4.0, 0.5, 20), 1e-5), scenario="outlier")
    assert found.epsilon_lower == found.ceiling
    assert np.isfinite(found.errors[0].threshold)


ROWS, WIDTH, THREE, STEPS = 14, 4, 3, 12
RECIPE = HeadRecipe(THREE, STEPS, 1.0, float(ROWS), FlatClipping(0.7), lr=0.3, momentum=0.5)
HEADS = [LinearHead(WIDTH, THREE), LinearHead(WIDTH, THREE, bias=False)]


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(ROWS, WIDTH, generator=seeded(1), dtype=torch.float64)
    return x, torch.arange(ROWS) % THREE


def slow_losses(network, theta, x, y):
    """The head written out, from its flat layout."""
    weight = theta.view(THREE, -1)
    logits = x @ weight[:, :WIDTH].T + (weight[:, WIDTH] if network.bias else 0)
    return nn.functional.cross_entropy(logits, y, reduction="none")


def slow_training(network, x, y, start, *, clip=None, left_out=None, optimizer="sgd"):
    """Parameters before the first and after each step of full-batch training, by torch.optim."""
    theta = start.clone().requires_grad_()
    made = torch.optim.Adam([theta], RECIPE.lr) if optimizer == "adam" else torch.optim.SGD([theta], 0.3, momentum=0.5)
    found = [start]
    for _ in range(STEPS):
        total = torch.zeros_like(start)
        for row in range(ROWS):
            if row != left_out:
                loss = slow_losses(network, theta, x[row : row + 1], y[row : row + 1]).sum()
                gradient = torch.autograd.grad(loss, theta)[0]
                total += gradient * (1.0 if clip is None else min(1.0, clip / float(gradient.norm())))
        theta.grad = total / ROWS
        made.step()
        found.append(theta.detach().clone())
    return found


@pytest.mark.parametrize(("network", "optimizer"), [(HEADS[0], "adam"), (HEADS[1], "sgd")])
def test_the_target_is_the_record_that_the_training_is_least_sure_of(network, optimizer):
    x, y = rows()
    recipe = replace(RECIPE, optimizer=optimizer, momentum=0.0 if optimizer == "adam" else 0.5)
    start = network.initial(1, seeded(), x.device, x.dtype)[0]
    found = reference(network, x, y, recipe, generator=seeded(), initial=start)
    path = slow_training(network, x, y, start, optimizer=optimizer)[1:]
    confidence = torch.stack([(-slow_losses(network, theta, x, y)).exp() for theta in path]).mean(0)
    torch.testing.assert_close(found.confidence, confidence)
    torch.testing.assert_close(found.theta, path[-1])
    assert found.target == int(confidence.argmin())
    assert found.bound == 0.7


@pytest.mark.parametrize("network", HEADS)
def test_movement_and_drift_are_those_of_a_clipped_training_without_the_target(network):
    x, y = rows()
    start = network.initial(1, seeded(), x.device, x.dtype)[0]
    found = reference(network, x, y, RECIPE, generator=seeded(), initial=start)
    path = torch.stack(slow_training(network, x, y, start, clip=0.7, left_out=found.target))
    movement = path.diff(dim=0).abs().sum(0)
    torch.testing.assert_close(found.movement, movement)
    assert found.least_moving == int(movement.argmin())
    torch.testing.assert_close(found.drift, path[:, found.least_moving] - start[found.least_moving])
    with_target = torch.stack(slow_training(network, x, y, start, clip=0.7)).diff(dim=0).abs().sum(0)
    assert (found.movement - with_target).abs().max() > 1e-3


def test_one_logit_gives_the_confidence_of_both_classes(monkeypatch):
    monkeypatch.setattr(module, "_READS", 1)
    x, y = rows()
    recipe = replace(RECIPE, classes=2, one_logit=True)
    found = reference(LinearHead(WIDTH, 2, one_logit=True), x, y % 2, recipe, generator=seeded())
    p = (x @ found.theta[:WIDTH] + found.theta[WIDTH]).sigmoid()
    torch.testing.assert_close(found.confidence, torch.where(y % 2 == 1, p, 1 - p))


def test_adam_has_no_drift_to_take_off():
    x, y = rows()
    recipe = replace(RECIPE, optimizer="adam", momentum=0.0)
    found = reference(LinearHead(WIDTH, THREE), x, y, recipe, generator=seeded())
    assert found.movement is not None
    assert found.drift is None


class Branching(nn.Module):
    """Reads a number out of its input, which vmap refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, THREE).double()

    def forward(self, x):
        return self.inner(x if float(x.detach().sum()) > 1e9 else x.tanh())


def normed_convolution() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(12, THREE)]
    return nn.Sequential(*layers).double()


@pytest.mark.parametrize(("make", "shape"), [(normed_convolution, (1, 4, 4)), (Branching, (WIDTH,))])
def test_gradients_of_a_module_are_those_of_one_record_at_a_time(make, shape):
    model = make()
    x, y = torch.randn(5, *shape, dtype=torch.float64), torch.arange(5) % THREE
    x.requires_grad_()
    network = ModuleNetwork(model, THREE)
    found = gradients(network, network.theta, x, y)
    model.eval()
    for row in range(5):
        loss = nn.functional.cross_entropy(model(x[row : row + 1]), y[row : row + 1])
        one = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        torch.testing.assert_close(found[row], torch.cat([g.flatten() for g in one]))
    wanted = torch.autograd.grad(torch.cat([g.flatten() for g in one]).square().sum(), x)[0][-1]
    torch.testing.assert_close(torch.autograd.grad(found[-1].square().sum(), x)[0][-1], wanted)


def test_a_module_is_left_as_it_was_and_frozen_parameters_are_no_part_of_theta():
    model = normed_convolution().train()
    model[0].requires_grad_(False)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    x, y = torch.randn(6, 1, 4, 4, dtype=torch.float64), torch.arange(6) % THREE
    network = ModuleNetwork(model, THREE)
    assert network.theta.shape == (3 + 3 + 12 * THREE + THREE,)
    assert gradients(network, network.theta, x, y).shape == (6, network.parameters)
    assert model.training
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def test_a_training_that_diverges_is_named():
    recipe = replace(RECIPE, lr=1e300, clipping=None, l2=1e9)
    with pytest.raises(InputError, match="lower the learning rate"):
        reference(LinearHead(WIDTH, THREE), *rows(), recipe, generator=seeded(), movement=False)


def test_a_module_of_other_outputs_or_nothing_to_train_is_refused():
    x, y = rows()
    network = ModuleNetwork(nn.Linear(WIDTH, 2).double(), THREE)
    with pytest.raises(InputError, match="expected logits of shape"):
        gradients(network, network.theta, x, y)
    with pytest.raises(InputError, match="requires_grad"):
        ModuleNetwork(nn.Linear(WIDTH, 2).requires_grad_(False), 2)
