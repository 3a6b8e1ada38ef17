"""Explanations by other models tell of the private model what its labels tell, and nothing else."""

import copy
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import captum.attr
import numpy as np
import pytest
import torch
from explain_nets import quiet
from sklearn.tree import DecisionTreeClassifier
from torch import Tensor, nn

from safexplain import HardenedIG, HardenedOcclusion, Probability, model_digest
from safexplain._digest import file_sha256
from safexplain.audit import Recipe
from safexplain.errors import (
    CertificateError,
    ConfigurationError,
    ConfigurationTypeError,
    InputError,
    OpaqueModelWarning,
    RefusedError,
    SafexplainError,
    TrainingModeWarning,
)
from safexplain.explain.surrogate import PublicExplainer, StudentExplainer
from safexplain.faithfulness import faithfulness
from safexplain.verdict.certificate.read import load_guarantee
from safexplain.verdict.guarantee import Guarantee
from safexplain.verdict.stats import clopper_pearson

pytestmark = quiet

IXG = captum.attr.InputXGradient
EXPLAINERS: dict[str, Any] = {
    "native": captum.attr.IntegratedGradients,
    "with hooks": captum.attr.GuidedBackprop,
    "a function": lambda m: captum.attr.NoiseTunnel(captum.attr.Saliency(m)),
    "hardened": HardenedIG,
    "of the catalog": HardenedOcclusion.catalogued(),
}


def net(seed: int, d: int = 8, classes: int = 3, width: int = 16) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(d, width), nn.ReLU(), nn.Linear(width, classes)).eval()


def rows(n: int = 12, seed: int = 0, d: int = 8) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


class Lookup(nn.Module):
    """Another model with the labels of a first one: its scores are other numbers altogether."""

    def __init__(self, model: nn.Module, seed: int) -> None:
        super().__init__()
        self.labels = lambda x: model(x).argmax(1)
        self.seed = seed

    def forward(self, x: Tensor) -> Tensor:
        g = torch.Generator().manual_seed(self.seed)
        scores = torch.rand(len(x), 3, generator=g)
        return scores.scatter(1, self.labels(x)[:, None], 2.0 + torch.rand(len(x), 1, generator=g))


PRIVATE, PUBLIC, X = net(0), tuple(net(i) for i in (1, 2, 3)), rows()
LABELS = PRIVATE(X).argmax(1)


def student(model: Any = PRIVATE, x: Any = None, recipe: Any = None, explainer: Any = IXG, **more: Any) -> Any:
    public = rows(80, 9) if x is None else x
    recipe = recipe or Recipe(epochs=4, lr=0.01, batch_size=16)
    return StudentExplainer(model, public, lambda seed: net(seed % 1000), recipe, explainer, **more)


@pytest.mark.parametrize("name", EXPLAINERS)
def test_another_private_model_with_the_same_labels_changes_nothing_bit_for_bit(name):
    found = []
    for private in (PRIVATE, Lookup(PRIVATE, 1), Lookup(PRIVATE, 2), lambda x: PRIVATE(x).argmax(1)):
        explainer = PublicExplainer(private, PUBLIC, EXPLAINERS[name])
        torch.manual_seed(5)
        found.append(explainer.attribute(X))
    assert all(torch.equal(f, found[0]) for f in found)


def test_the_students_weights_and_maps_follow_from_the_labels_alone():
    found = [student(private) for private in (PRIVATE, Lookup(PRIVATE, 1), lambda x: PRIVATE(x).argmax(1))]
    digests = {model_digest(one.student) for one in found}
    assert len(digests) == 1
    assert all(torch.equal(one.attribute(X), found[0].attribute(X)) for one in found)
    with torch.no_grad():
        sharper = net(0)
        sharper[2].weight *= 7
        sharper[2].bias *= 7
    assert torch.equal(student(sharper).attribute(X), found[0].attribute(X))


def test_a_given_target_is_explained_as_given_and_the_private_model_is_not_asked():
    def never(x: Tensor) -> Tensor:
        raise AssertionError("asked")

    explainer = PublicExplainer(never, PUBLIC, IXG)
    for target in (1, [1] * len(X), torch.ones(len(X), dtype=torch.long)):
        expected = PublicExplainer(lambda x: torch.ones(len(x), dtype=torch.long), PUBLIC, IXG).attribute(X)
        assert torch.equal(explainer.attribute(X, target=target), expected)
        assert torch.equal(explainer.attribute(X, target), expected)


def test_the_private_model_is_asked_once_for_each_example_and_never_for_a_gradient():
    asked = []

    def label(x: Tensor) -> Tensor:
        asked.append((len(x), x.requires_grad, torch.is_grad_enabled()))
        return PRIVATE(x).argmax(1)

    PublicExplainer(label, PUBLIC, captum.attr.IntegratedGradients).attribute(X, n_steps=7)
    assert asked == [(len(X), False, False)]


@pytest.mark.parametrize(("name", "public"), [("with hooks", PUBLIC[0]), ("of the catalog", nn.ModuleList(PUBLIC))])
def test_maps_are_detached_in_the_shape_of_the_inputs_also_in_inference_mode(name, public):
    explainer = PublicExplainer(PRIVATE, public, EXPLAINERS[name])
    x = X.clone().requires_grad_()
    with torch.inference_mode():
        torch.manual_seed(0)
        served = explainer.attribute(rows())
    torch.manual_seed(0)
    maps = explainer.attribute(x)
    assert torch.equal(maps, served)
    assert (maps.shape, maps.dtype, maps.requires_grad, maps.grad_fn) == (x.shape, x.dtype, False, None)
    assert x.grad is None
    assert explainer.attribute(X[:0]).shape == (0, 8)
    assert explainer.attribute(X[:0], target=1).shape == (0, 8)


def test_threads_get_right_maps_and_predictions_of_the_public_models_beside_them():
    explainer, one = PublicExplainer(PRIVATE, PUBLIC, captum.attr.GuidedBackprop), PUBLIC[0]
    x = X.clone().requires_grad_()

    def both(_: int) -> tuple[Tensor, Tensor]:
        return explainer.attribute(X), torch.autograd.grad(one(x)[:, 1].sum(), x)[0]

    expected = both(0)
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(both, range(64)):
            torch.testing.assert_close(found, expected)


def test_models_in_training_mode_keep_their_statistics():
    models = [nn.Sequential(net(i), nn.BatchNorm1d(3)).train() for i in range(2)]
    before = copy.deepcopy([m.state_dict() for m in models])
    with pytest.warns(TrainingModeWarning):
        PublicExplainer(models[0], models[1], IXG).attribute(X)
    after = [m.state_dict() for m in models]
    assert all(torch.equal(a[k], b[k]) for a, b in zip(before, after, strict=True) for k in a)
    assert all(m.training for m in models)


def test_one_public_models_map_is_its_native_map():
    native = captum.attr.IntegratedGradients(PUBLIC[0]).attribute(X, target=LABELS, n_steps=9)
    explainer = PublicExplainer(PRIVATE, PUBLIC[0], captum.attr.IntegratedGradients)
    assert torch.equal(explainer.attribute(X, n_steps=9), native)


def test_of_several_public_models_it_is_the_mean_of_maps_of_unit_norm():
    expected = torch.zeros(len(X), 8)
    for model in PUBLIC:
        for i in range(len(X)):
            x = X[i : i + 1].clone().requires_grad_()
            row = IXG(model).attribute(x, target=int(LABELS[i]))[0].detach()
            expected[i] += row / row.norm() / 3
    assert torch.allclose(PublicExplainer(PRIVATE, PUBLIC, IXG).attribute(X), expected, atol=1e-6)


def test_a_map_of_zeros_stays_one_and_nan_and_infinity_are_zeros():
    class Broken(nn.Module):
        def __init__(self, numbers: list[float]) -> None:
            super().__init__()
            self.register_buffer("numbers", torch.tensor(numbers))

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([(x * self.numbers).sum(1), x[:, 0]], 1)

    bad, none = Broken([3.0, torch.nan, torch.inf, 4.0]), Broken([0.0, 0.0, 0.0, 0.0])
    x, first = torch.ones(2, 4), lambda x: torch.zeros(len(x), dtype=torch.long)
    assert PublicExplainer(first, bad, IXG).attribute(x).tolist() == [[3, 0, 0, 4]] * 2
    assert PublicExplainer(first, none, IXG).attribute(x).tolist() == [[0, 0, 0, 0]] * 2
    found = PublicExplainer(first, [bad, none], IXG).attribute(x)
    assert torch.allclose(found, torch.tensor([[0.3, 0, 0, 0.4]] * 2))


def copied(model: nn.Module) -> nn.Module:
    other = net(0)
    other.load_state_dict(model.state_dict())
    return other


def test_the_private_model_is_no_public_one():
    for public in (
        Probability(PRIVATE),
        nn.Sequential(PRIVATE, nn.Softmax(1)),
        nn.DataParallel(copied(PRIVATE)),
        [PUBLIC[0], PRIVATE],
    ):
        with pytest.raises(RefusedError, match="got the private model, or a model that holds it"):
            PublicExplainer(PRIVATE, public, IXG)
    with pytest.raises(RefusedError, match="got the private model, or a model that holds it"):
        PublicExplainer(lambda x: PRIVATE(x).argmax(1), PRIVATE, IXG)


def test_an_explainer_of_the_private_model_is_refused():
    with pytest.raises(RefusedError, match="explainer holds the private model"):
        PublicExplainer(PRIVATE, PUBLIC, lambda m: IXG(PRIVATE))


UNUSABLE = [
    ((PRIVATE, [], IXG), ConfigurationTypeError, "torch modules, got none"),
    ((PRIVATE, [PUBLIC[0], lambda x: x], IXG), ConfigurationTypeError, "torch modules, got function"),
    ((None, PUBLIC, IXG), ConfigurationTypeError, "module or a function"),
    ((PRIVATE, PUBLIC, "IG"), ConfigurationTypeError, "expected a class or a function"),
    ((PRIVATE, PUBLIC, lambda m: m), ConfigurationTypeError, "makes a Captum explainer"),
]


def test_what_cannot_be_used_is_said():
    for arguments, error, said in UNUSABLE:
        with pytest.raises(error, match=said):
            PublicExplainer(*arguments)


NO_LABELS = [
    (lambda x: torch.zeros(len(x)), r"got torch.float32 of shape \(12,\) for 12 inputs"),
    (lambda x: torch.zeros(len(x), 1), "turn a single logit z into two"),
    (lambda x: "yes", "got str"),
    (lambda x: torch.full((len(x),), -1), "integer labels"),
]


def test_answers_that_are_no_labels_are_said():
    for answer, said in NO_LABELS:
        with pytest.raises(InputError, match=said):
            PublicExplainer(answer, PUBLIC, IXG).attribute(X)


def test_a_scikit_learn_classifier_gives_its_labels_by_predict():
    x, y = rows(200, 6), (rows(200, 6)[:, 0] > 0).long()
    forest = DecisionTreeClassifier(max_depth=2, random_state=0).fit(x.numpy(), y.numpy())
    found = PublicExplainer(forest.predict, PUBLIC, IXG)
    labels = torch.from_numpy(forest.predict(X.numpy()))
    assert torch.equal(found.attribute(X), found.attribute(X, target=labels))
    assert student(forest.predict).measure(X).deletion is None
    with pytest.raises(InputError, match="got ndarray"):
        PublicExplainer(lambda x: np.array(["yes"] * len(x)), PUBLIC, IXG).attribute(X)


def test_a_student_learns_the_labels_of_its_teacher():
    told: list[tuple[str, float, float]] = []
    recipe = Recipe(epochs=40, lr=0.02, batch_size=32)
    explainer = student(x=rows(1000, 4), recipe=recipe, progress=lambda *a: told.append(a[:3]))
    assert explainer.measure(rows(200, 3)).agreement.value > 0.9
    assert not explainer.student.training
    assert told[:4] == [("asking for labels", asked, 1000) for asked in (256, 512, 768, 1000)]
    assert told[-1] == ("training the student", 1.0, 1.0)


def test_equal_seeds_give_equal_students_and_the_callers_random_numbers_stay():
    state = torch.random.get_rng_state()
    one, again, other = student(seed=3), student(seed=3), student(seed=4)
    assert torch.equal(state, torch.random.get_rng_state())
    assert model_digest(one.student) == model_digest(again.student)
    assert model_digest(one.student) != model_digest(other.student)


def test_students_may_be_trained_by_any_function_and_made_under_inference_mode():
    seen: dict[str, Any] = {}

    def train(x: Tensor, y: Tensor, generator: torch.Generator) -> nn.Module:
        seen.update(x=x, y=y, draw=torch.rand(1, generator=generator), free=torch.rand(1))
        return net(8).train()

    with torch.inference_mode():
        explainer = StudentExplainer(PRIVATE, rows(80, 9).numpy(), None, train, IXG)
        assert explainer.attribute(X).shape == X.shape
    assert torch.equal(seen["x"], rows(80, 9))
    assert torch.equal(seen["y"], PRIVATE(rows(80, 9)).argmax(1))
    assert not explainer.student.training
    first = dict(seen)
    StudentExplainer(PRIVATE, rows(80, 9), None, train, IXG)
    assert torch.equal(first["draw"], seen["draw"])
    assert torch.equal(first["free"], seen["free"])


NOTHING_TO_LEARN = [
    ({"x": rows(1)}, InputError, "at least 2"),
    ({"x": torch.zeros(5)}, InputError, r"inputs \(n, ...\)"),
    ({"x": torch.zeros(9, 8)}, InputError, "got 9 with the label"),
    ({"recipe": "adam"}, ConfigurationTypeError, r"Recipe and build\(seed\), or a function"),
    ({"recipe": lambda x, y, g: None}, ConfigurationTypeError, "module as the student, got NoneType"),
    ({"recipe": lambda x, y, g: copied(PRIVATE)}, RefusedError, "is, copies or holds the private"),
    ({"seed": -1}, ConfigurationError, "seed"),
]


def test_what_no_student_learns_from_is_said():
    for arguments, error, said in NOTHING_TO_LEARN:
        with pytest.raises(error, match=said):
            student(**arguments)


def test_a_recipe_needs_a_build_that_does_not_start_from_the_teacher():
    with pytest.raises(ConfigurationTypeError, match=r"build\(seed\), or a function"):
        StudentExplainer(PRIVATE, rows(80), None, Recipe(epochs=1), IXG)
    with pytest.raises(RefusedError, match="expected an untrained student"):
        StudentExplainer(PRIVATE, rows(80), lambda seed: copied(PRIVATE), Recipe(epochs=1), IXG)
    with pytest.raises(InputError, match="diverged"):
        student(recipe=Recipe(optimizer="sgd", lr=1e30, epochs=2))


def test_agreement_and_faithfulness_are_those_of_the_models():
    x, private = rows(60, 2), Probability(PRIVATE)
    explainer = PublicExplainer(private, [Probability(p) for p in PUBLIC], IXG)
    measured = explainer.measure(x, fraction=0.25, batch_size=17)
    labels = PRIVATE(x).argmax(1)
    together = torch.stack([p(x).softmax(1) for p in PUBLIC]).mean(0).argmax(1)
    agree = int((together == labels).sum())
    assert (measured.examples, measured.agreement.value) == (60, agree / 60)
    assert (measured.agreement.low, measured.agreement.high) == clopper_pearson(agree, 60)
    native = IXG(private).attribute(x.clone().requires_grad_(), target=labels).detach()
    ours = faithfulness(private, x, labels, explainer.attribute(x), fraction=0.25)
    theirs = faithfulness(private, x, labels, native, fraction=0.25)
    for found, values in (
        (measured.deletion, ours.deletion),
        (measured.insertion, ours.insertion),
        (measured.native_deletion, theirs.deletion),
        (measured.native_insertion, theirs.insertion),
        (measured.deletion_difference, ours.deletion - theirs.deletion),
    ):
        assert found is not None
        assert found.value == pytest.approx(values.mean(), abs=1e-5)
        assert found.low < found.value < found.high


def test_the_guarantee_names_the_models_and_is_frozen():
    stated = PublicExplainer(PRIVATE, PUBLIC, HardenedIG).guarantee
    assert stated == Guarantee("public models", "IntegratedGradients", tuple(model_digest(p).hex() for p in PUBLIC))
    assert stated.kind == stated.to_dict()["kind"] == "by construction"
    with pytest.raises(AttributeError):
        stated.method = "other"  # type: ignore[misc]
    taught = student().guarantee
    assert (taught.source, taught.labels_asked, len(taught.public_inputs)) == ("student", 80, 64)
    assert taught.public_inputs != student(x=rows(80, 10)).guarantee.public_inputs
    assert Guarantee.from_dict(json.loads(json.dumps(taught.to_dict()))) == taught


def test_a_certificate_loads_the_explainer_that_it_is_about(tmp_path):
    made = PublicExplainer(PRIVATE, PUBLIC, IXG)
    weights = tmp_path / "model.pt"
    torch.save(PRIVATE.state_dict(), weights)
    path = made.certificate(tmp_path / "g.json", name="credit", file=weights, measured=made.measure(X), notes=["small"])
    found = load_guarantee(path)
    assert (found.guarantee, found.measured, found.notes) == (made.guarantee, made.measure(X), ("small",))
    assert found.subject == {
        "credit": {"safexplainModelDigest": model_digest(PRIVATE).hex(), "sha256": file_sha256(weights)}
    }
    again = PublicExplainer.from_certificate(copied(PRIVATE), PUBLIC, path, captum.attr.InputXGradient, file=weights)
    assert torch.equal(again.attribute(X), made.attribute(X))
    assert again.guarantee == made.guarantee


def test_other_models_explainers_and_files_are_refused(tmp_path):
    made = PublicExplainer(PRIVATE, PUBLIC, IXG)
    weights = tmp_path / "model.pt"
    torch.save(PRIVATE.state_dict(), weights)
    path, load = made.certificate(tmp_path / "g.json"), PublicExplainer.from_certificate
    with pytest.raises(CertificateError, match="is about another model"):
        load(net(9), PUBLIC, path, IXG)
    with pytest.raises(CertificateError, match="other explaining models"):
        load(PRIVATE, [*PUBLIC[:2], net(9)], path, IXG)
    with pytest.raises(CertificateError, match="other explaining models"):
        load(PRIVATE, PUBLIC[:2], path, IXG)
    with pytest.raises(CertificateError, match=r"expected InputXGradient of .* got IntegratedGradients of"):
        load(PRIVATE, PUBLIC, path, HardenedIG)
    with pytest.raises(CertificateError, match="names no SHA-256"):
        load(PRIVATE, PUBLIC, path, IXG, file=weights)
    with pytest.raises(CertificateError, match="use PublicExplainer"):
        StudentExplainer.from_certificate(PRIVATE, PUBLIC, path, IXG)
    with pytest.raises(CertificateError, match=r"by construction.*PublicExplainer\.from_certificate"):
        HardenedIG.from_certificate(PRIVATE, path)
    with pytest.raises(InputError, match="training mode"):
        load(PRIVATE, [*PUBLIC[:2], net(3).train()], path, IXG)
    with pytest.raises(InputError, match="training mode"):
        load(net(0).train(), PUBLIC, path, IXG)


def test_a_loaded_explainer_refuses_models_that_change(tmp_path):
    for changing in (0, 1):
        models = [net(0), net(1)]
        path = PublicExplainer(models[0], models[1], IXG).certificate(tmp_path / "g.json")
        explainer = PublicExplainer.from_certificate(models[0], models[1], path, IXG)
        explainer.attribute(X)
        with torch.no_grad():
            models[changing][0].weight += 1
        with pytest.raises(RefusedError, match="model has changed"):
            explainer.attribute(X)


def test_a_model_in_which_nothing_is_seen_is_named_by_its_owner(tmp_path):
    class Client:
        def __call__(self, x: Tensor) -> Tensor:
            return (x[:, 0] > 0).long()

    explainer = PublicExplainer(Client(), PUBLIC, IXG)
    with pytest.warns(OpaqueModelWarning), pytest.raises(RefusedError, match="give model_digest="):
        explainer.certificate(tmp_path / "g.json")
    named = {"model_digest": b"credit scoring model, version 17"}
    path = PublicExplainer(Client(), PUBLIC, IXG, **named).certificate(tmp_path / "g.json")
    assert PublicExplainer.from_certificate(Client(), PUBLIC, path, IXG, **named).attribute(X).shape == X.shape
    with pytest.raises(SafexplainError, match="another model"):
        PublicExplainer.from_certificate(Client(), PUBLIC, path, IXG, model_digest=b"some other model....")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu():
    private, publics = copied(PRIVATE).cuda(), [net(i).cuda() for i in (1, 2)]
    maps = PublicExplainer(private, publics, IXG).attribute(X.cuda())
    assert maps.is_cuda
    assert torch.allclose(maps.cpu(), PublicExplainer(PRIVATE, PUBLIC[:2], IXG).attribute(X), atol=1e-5)
    taught = student(private)
    assert next(taught.student.parameters()).is_cuda
    assert taught.measure(X.cuda()).examples == len(X)
