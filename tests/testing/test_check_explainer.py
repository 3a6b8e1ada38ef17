"""The contract holds for every hardened explainer, and an explainer that breaks a clause is told exactly which."""

import functools
import inspect
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from captum.attr import LayerGradCam, Saliency
from torch import nn

from safexplain import HardenedIG, HardenedInputXGradient, HardenedSaliency
from safexplain.errors import ConfigurationError
from safexplain.explain import CATALOG, harden
from safexplain.explain.hardened import HARDENED
from safexplain.explain.served import TABLE_METHODS
from safexplain.hardening.hardening import Hardening
from safexplain.testing import check_explainer
from safexplain.testing.check import CLAUSES, ContractError, ContractReport
from safexplain.testing.markers import MARKER_TEXT

PROMISES = {clause.__name__: clause.__doc__.partition("\n")[0] for clause in CLAUSES}
CAPTUM_ROWS = [row for row in CATALOG.values() if row.in_base and row.name != "TokenIG"]  # which explains texts


class Net(nn.Module):
    """A small CNN on which every method works: each ReLU a module, no module that LRP has no rule for."""

    def __init__(self, one_number=False):
        super().__init__()
        self.one_number = one_number
        self.first, self.norm, self.relu = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU()
        self.second, self.again, self.head = nn.Conv2d(3, 3, 2), nn.ReLU(), nn.Linear(27, 4)

    def forward(self, x):
        x = self.relu(self.norm(self.first(x)))
        logits = self.head(self.again(self.second(x)).flatten(1))
        return logits[:, 3] if self.one_number else logits


def image_net(seed=0, one_number=False):
    torch.manual_seed(seed)
    return Net(one_number).eval()


def images(batch=3, seed=1):
    return torch.randn(batch, 2, 6, 6, generator=torch.Generator().manual_seed(seed))


def factory_of(kind, model):
    """The class itself, with a layer for those that explain one."""
    return functools.partial(kind, layer=model.second) if "layer" in inspect.signature(kind).parameters else kind


def quick(row, inputs):
    """What the method needs, with as few passes through the model as it takes."""
    names = inspect.signature(row.native.attribute).parameters
    few = {"perturbations_per_eval": 32, "n_steps": 5, "n_samples": 4, "nt_samples": 3}
    options = row.options(inputs)
    if row.name in ("KernelShap", "ShapleyValueSampling", "ShapleyValues", "Lime"):
        few |= {"n_samples": 12 if "Shap" in row.name else 4, "perturbations_per_eval": 12}
    return {**{name: value for name, value in few.items() if name in names}, **options}


def check_row(row, batch, **more):
    twice = row.name == "LayerFeaturePermutation"  # Captum picks the target from what it has picked it from already
    model, kind = image_net(one_number=twice), HARDENED[row.name]
    return check_explainer(factory_of(kind, model), model, images(batch), None if twice else 3, **more)


@pytest.mark.parametrize("row", CAPTUM_ROWS, ids=lambda row: row.name)
def test_every_hardened_captum_explainer_keeps_the_contract(row):
    report = check_row(row, 3, options=functools.partial(quick, row))
    assert set(report.skipped) <= {"threads_get_right_answers"}
    assert report.broken == ()


def test_without_options_those_of_the_catalog_are_used():
    assert check_row(CATALOG["SmoothGrad"], 2).broken == ()


# Explainers that are broken on purpose: name -> (what it is made from, what it does instead, the clauses it breaks).


def native_map(self, *args, **kwargs):
    """What the native explainer says, run on the model that everybody uses."""
    native = object.__new__(self._native)
    native.__dict__.update({name: value for name, value in vars(self).items() if name != "hardening"})
    return native.attribute(*args, **kwargs)


def noised(self):
    return not self.hardening.is_none


def plain_question(self, x):
    """A tensor with examples, to a model in evaluation: what natively works as well and leaves nothing."""
    return not isinstance(x, tuple) and len(x) and not self.forward_func.training


def map_of(self, x, args, kwargs):
    with torch.inference_mode(False), torch.enable_grad():
        return native_map(self, x.detach().clone().requires_grad_(), *args, **kwargs)


def wrong_numbers(self, honest, x, *args, **kwargs):
    return each(lambda t: t * (1.0 if noised(self) else 1.001), honest(x, *args, **kwargs))


def never_answers(self, honest, x, *args, **kwargs):
    raise RuntimeError("out of order")


def keeps_the_graph(self, honest, x, *args, **kwargs):
    released = honest(x, *args, **kwargs)
    if not plain_question(self, x) or not torch.is_grad_enabled():
        return released
    raw = map_of(self, x, args, kwargs)
    return released + torch.where(raw.isfinite(), raw, 0.0) * 0


def entropy(shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(int.from_bytes(os.urandom(4), "little")))


def each(function, result):
    return tuple(map(function, result)) if isinstance(result, tuple) else function(result)


def fresh_noise(self, honest, *args, **kwargs):
    return each(lambda t: t + entropy(t.shape).to(t) * noised(self), honest(*args, **kwargs))


def noise_by_place(self, honest, x, *args, **kwargs):
    released = honest(x, *args, **kwargs)
    if not plain_question(self, x) or self.hardening.clip is not None:
        return released
    raw = map_of(self, x, args, kwargs).nan_to_num(0.0, 0.0, 0.0).detach().as_subclass(torch.Tensor)
    return raw + (released - raw) * (-1.0) ** torch.arange(len(x)).view(-1, 1, 1, 1).to(raw)


def one_noise_for_all(self, honest, x, *args, **kwargs):
    released = honest(x, *args, **kwargs)
    if self.hardening.noise is None or self.hardening.clip is not None or not plain_question(self, x):
        return released
    noise = torch.randn(x.shape[1:], generator=torch.Generator().manual_seed(5)) * self.hardening.noise.std
    numbers = map_of(self, x, args, kwargs).detach().float().tolist()
    return (torch.tensor(numbers).nan_to_num(0.0, 0.0, 0.0) + noise).to(released.dtype)


def noise_where_unmasked(self, honest, x, *args, **kwargs):
    released = honest(x, *args, **kwargs)
    if self.hardening.mask is None:
        return released
    masked = Hardening(clip=self.hardening.clip, mask=self.hardening.mask)(native_map(self, x, *args, **kwargs))
    return torch.where(masked == 0, 0.0, released)


def batch_of_none_fails(self, honest, x, *args, **kwargs):
    if not isinstance(x, tuple) and not len(x):
        raise IndexError("index 0 is out of bounds")
    return honest(x, *args, **kwargs)


def attaches_the_map(self, honest, x, *args, **kwargs):
    released = honest(x, *args, **kwargs)
    if plain_question(self, x):
        released.raw = map_of(self, x, args, kwargs)
    return released


def gives_a_delta(self, honest, x, *args, return_convergence_delta=False, **kwargs):
    released = honest(x, *args, **kwargs)
    return (released, released.flatten(1).sum(1)) if return_convergence_delta else released


def do_nothing(*args):
    return None


def leaves_a_hook_when_it_fails(self, honest, *args, **kwargs):
    handle = self.forward_func.register_forward_hook(do_nothing)
    released = honest(*args, **kwargs)
    handle.remove()
    return released


def keeps_the_question_on_itself(self, honest, x, *args, **kwargs):
    self.question = x
    if not self.forward_func.training and len(x):
        with torch.no_grad():
            self.forward_func(x[0] if isinstance(x, tuple) else x)
    return honest(self.question, *args, **kwargs)


def fails_in_inference_mode(self, honest, *args, **kwargs):
    if torch.is_inference_mode_enabled():
        raise RuntimeError("element 0 of tensors does not require grad")
    return honest(*args, **kwargs)


BROKEN = {
    never_answers: (HardenedSaliency, {"answers"}),
    wrong_numbers: (HardenedSaliency, {"equals_native_without_hardening"}),
    batch_of_none_fails: (HardenedSaliency, {"no_examples_no_answers"}),
    fresh_noise: (HardenedSaliency, {"asking_again_gives_the_same_answer"}),
    noise_where_unmasked: (HardenedSaliency, {"clips_then_masks_then_noises"}),
    one_noise_for_all: (HardenedInputXGradient, {"noise_belongs_to_the_query"}),
    noise_by_place: (HardenedSaliency, {"noise_ignores_the_batch"}),
    attaches_the_map: (HardenedSaliency, {"only_listed_arrays_leave"}),
    keeps_the_graph: (HardenedInputXGradient, {"released_arrays_are_detached"}),
    gives_a_delta: (HardenedIG, {"no_way_around_the_hardening"}),
    leaves_a_hook_when_it_fails: (HardenedSaliency, {"leaves_nothing_behind"}),
    keeps_the_question_on_itself: (HardenedSaliency, {"threads_get_right_answers"}),
    fails_in_inference_mode: (HardenedSaliency, {"works_in_any_gradient_mode"}),
}
MADE = {}


def remake(name):
    return object.__new__(MADE[name])


def broken(change, base):
    """A subclass whose `attribute` is `change`, and which is like its base in everything else."""

    def attribute(self, *args, **kwargs):
        return change(self, functools.partial(base.attribute, self), *args, **kwargs)

    attribute.__signature__ = inspect.signature(base.attribute)
    attribute.__wrapped__ = base.attribute.__wrapped__
    name = f"Broken_{change.__name__}"
    members = {"attribute": attribute, "__reduce__": lambda self: (remake, (name,), vars(self))}
    MADE[name] = type(name, (base,), members)
    return MADE[name]


def honestly(self, honest, *args, **kwargs):
    return honest(*args, **kwargs)


@pytest.mark.parametrize("change", BROKEN, ids=lambda change: change.__name__)
def test_a_broken_explainer_is_told_exactly_what_it_breaks(change):
    base, clauses = BROKEN[change]
    model, x = image_net(), images()
    with pytest.raises(ContractError) as caught:
        check_explainer(broken(change, base), model, x, 3)
    assert set(caught.value.report.broken) == clauses
    for clause in clauses:
        assert f"broken  {clause}: " in str(caught.value)
    assert torch.equal(x, images())
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), image_net().parameters(), strict=True))
    assert not model.training
    assert not model._forward_hooks


def test_the_same_subclass_with_nothing_broken_passes():
    report = check_explainer(broken(honestly, HardenedSaliency), image_net(), images(), 3)
    assert report.broken == ()
    assert any("files" in sentence for sentence in report.unchecked)
    assert all(sentence in str(report) for sentence in report.unchecked)


def test_a_way_to_the_native_method_is_found():
    kind = broken(honestly, HardenedSaliency)
    kind.attribute.__wrapped__ = Saliency.attribute.__wrapped__
    with pytest.raises(ContractError, match="__wrapped__ is the native method") as caught:
        check_explainer(kind, image_net(), images(), 3)
    assert caught.value.report.broken == ("no_way_around_the_hardening",)


def test_every_clause_can_fail():
    assert set().union(*(clauses for _, clauses in BROKEN.values())) == set(PROMISES)


FACTORIES = {
    "function of a model": lambda model: lambda m: HardenedSaliency(m),
    "harden of a layer": lambda model: lambda m, h: harden(LayerGradCam(m, m.first), h),
    "partial": lambda model: functools.partial(HardenedIG, multiply_by_inputs=False),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_explainers_are_made_by_any_of_the_usual_factories(name):
    model = image_net()
    report = check_explainer(FACTORIES[name](model), model, images(2), 3, skip=["no_examples_no_answers"])
    assert report["no_examples_no_answers"].state == "skipped"
    assert report["clips_then_masks_then_noises"].state == "passed"


def test_the_report_shows_every_clause_with_its_promise():
    report = check_explainer(HardenedSaliency, image_net(), images(), 3, skip=["no_examples_no_answers"])
    assert isinstance(report, ContractReport)
    assert [outcome.clause for outcome in report.outcomes] == list(PROMISES)
    for name, promise in PROMISES.items():
        assert f"{name}: {promise}" in str(report)
        assert promise.endswith(".")
    assert str(report).startswith("HardenedSaliency: 12 passed, 1 skipped\n")
    assert report["no_examples_no_answers"].details == ("skipped by skip=",)


def test_a_name_that_is_no_clause_cannot_be_skipped():
    with pytest.raises(ConfigurationError, match=r"expected some of equals_native.*got \['layouts'\]"):
        check_explainer(HardenedSaliency, image_net(), images(), 3, skip=["layouts"])


def test_clauses_that_cannot_be_told_say_why():
    report = check_explainer(HardenedSaliency, image_net(), images(1), 3)
    assert report["noise_ignores_the_batch"].details == ("expected two or more examples, got 1",)


def test_two_inputs_targets_for_each_example_and_options_for_each_example_work():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second = nn.Linear(6, 5), nn.Linear(4, 5)

        def forward(self, a, b):
            return self.first(a).tanh() * self.second(b)

    x = tuple(torch.randn(3, n, generator=torch.Generator().manual_seed(n)) for n in (6, 4))
    options = {"baselines": tuple(torch.randn_like(t) for t in x), "n_steps": 5}
    report = check_explainer(HardenedIG, Two(), x, torch.tensor([0, 3, 1]), options=options)
    assert report.skipped == ()


class Explanation:
    """As explanation objects of other libraries are: what is asked for among much else."""

    def __init__(self, scores, **more):
        self.scores = scores
        self.__dict__.update(more)


class Weights:
    """A native explainer that keeps its training rows."""

    def __init__(self, predict, rows):
        self.predict, self.rows = predict, rows

    def explain(self, x):
        return Explanation(self.predict(x)[:, None] * x, params={"background": self.rows})


class Adapter:
    _entry = "explain"
    _native = Weights

    def __init__(self, predict, hardening=None):
        self.native, self.hardening = Weights(predict, np.zeros((5, 3))), hardening

    def explain(self, x):
        found = self.native.explain(x)
        return Explanation(self.hardening(torch.tensor(found.scores), inputs=torch.tensor(x)).numpy().copy())


def total(x):
    return x.sum(1)


def mark_background(result, explainer):
    result.params["background"] = [MARKER_TEXT]
    return result


def check_adapter(kind, **more):
    return check_explainer(kind, total, np.random.default_rng(0).random((4, 3)), plant=mark_background, **more)


def test_an_adapter_of_another_library_is_checked_where_clauses_apply():
    report = check_adapter(Adapter)
    told = {"only_listed_arrays_leave", "asking_again_gives_the_same_answer", "leaves_nothing_behind"}
    assert told | {"threads_get_right_answers"} <= set(report.passed)
    assert "native_factory=" in report["equals_native_without_hardening"].details[0]
    report = check_adapter(Adapter, native_factory=lambda predict: Weights(predict, np.zeros((5, 3))))
    assert report["equals_native_without_hardening"].details == ("results: expected tensors, got Explanation",)


@pytest.mark.parametrize(("library", "kind"), [("lime", "LimeTabular"), ("aix360", "ProtoDash")])
@pytest.mark.filterwarnings("ignore::safexplain.errors.OpaqueModelWarning")
def test_explainers_of_other_libraries_keep_the_clauses_that_apply(library, kind):
    pytest.importorskip(library)
    rows, model = np.random.default_rng(0).normal(size=(60, 4)), nn.Sequential(nn.Linear(4, 2), nn.Softmax(1)).eval()

    def predict(x):
        return model(torch.tensor(x).float()).detach().double().numpy()

    asked, options = (
        (rows[0], {"predict_fn": predict, "num_samples": 40}) if library == "lime" else (rows[:1], {"m": 3})
    )
    report = check_explainer(lambda _, h: TABLE_METHODS[kind](rows, hardening=h), model, asked, options=options)
    told = {"asking_again_gives_the_same_answer", "leaves_nothing_behind", "threads_get_right_answers"}
    assert told <= set(report.passed), str(report)


def test_an_adapter_that_never_runs_the_native_method_cannot_pass():
    class Own(Adapter):
        def explain(self, x):
            return Explanation(self.hardening(torch.tensor(x), inputs=torch.tensor(x)).numpy().copy())

    with pytest.raises(ContractError, match=r"Weights\.explain was never run"):
        check_adapter(Own)


def test_the_documentation_lists_every_clause_with_its_promise():
    page = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
    assert re.findall(r"^\| `(\w+)` \| (.*\.) \|$", page, re.MULTILINE) == list(PROMISES.items())
