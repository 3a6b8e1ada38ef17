"""The contract holds for every hardened explainer, and an explainer that breaks a clause is told exactly which."""

from __future__ import annotations

import functools
import hashlib
import inspect
import logging
import os
import pickle
import random
import re
import sys
import time
import warnings
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest
import torch
from captum.attr import InputXGradient, LayerGradCam, Saliency
from torch import nn

from safexplain import HardenedIG, HardenedInputXGradient, HardenedSaliency, HardenedSmoothGrad
from safexplain.errors import ConfigurationError, SafexplainError
from safexplain.explain import CATALOG, harden
from safexplain.explain.wrap import HARDENED
from safexplain.hardening.hardening import Hardening
from safexplain.testing import check_explainer
from safexplain.testing.check import CLAUSES, ContractError, ContractReport
from safexplain.testing.markers import MARKER_TEXT

NAMES = [clause.name for clause in CLAUSES]
CAPTUM_ROWS = [row for row in CATALOG.values() if getattr(row, "library", "captum") in ("captum", "safexplain")]


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


def is_quick(row):
    return row.name in ("IG", "Saliency", "DeepLift", "SmoothGrad", "GradCAM", "NeuronGradient")


def check_row(row, batch, **more):
    twice = row.name == "LayerFeaturePermutation"  # Captum picks the target from what it has picked it from already
    model, kind = image_net(one_number=twice), HARDENED[row.name]
    return check_explainer(factory_of(kind, model), model, images(batch), None if twice else 3, **more)


@pytest.mark.parametrize("row", CAPTUM_ROWS, ids=lambda row: row.name)
def test_every_hardened_captum_explainer_keeps_the_contract(row):
    report = check_row(row, 3, options=functools.partial(quick, row))
    may_be_skipped = {"threads_get_right_answers", "memory_layout_changes_nothing"}
    assert set(report.skipped) <= may_be_skipped
    assert report.broken == ()


@pytest.mark.parametrize("row", [row for row in CAPTUM_ROWS if is_quick(row)], ids=lambda row: row.name)
def test_without_options_those_of_the_catalog_are_used(row):
    assert check_row(row, 2).broken == ()


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


def requires_gradients(self, honest, x, *args, **kwargs):
    return each(torch.Tensor.requires_grad_, honest(x, *args, **kwargs))


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


def noise_from_the_global_generator(self, honest, *args, **kwargs):
    return each(lambda t: t + torch.randn(t.shape).to(t) * noised(self), honest(*args, **kwargs))


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


def wants_contiguous(self, honest, x, *args, **kwargs):
    return honest(x if isinstance(x, tuple) else x.view(-1).view(x.shape), *args, **kwargs)


def double_precision(self, honest, *args, **kwargs):
    return each(torch.Tensor.double, honest(*args, **kwargs))


def unpacks_tuples(self, honest, *args, **kwargs):
    released = honest(*args, **kwargs)
    return released[0] if isinstance(released, tuple) else released


def lets_nan_through(self, honest, x, *args, **kwargs):
    released = honest(x, *args, **kwargs)
    if not plain_question(self, x):
        return released
    finite = torch.tensor(map_of(self, x, args, kwargs).isfinite().tolist())
    return torch.where(finite, released, float("nan"))


def keeps_the_map(self, honest, x, *args, **kwargs):
    if plain_question(self, x):
        self.last = map_of(self, x, args, kwargs).detach().clone()
    return honest(x, *args, **kwargs)


def attaches_the_map(self, honest, x, *args, **kwargs):
    released = honest(x, *args, **kwargs)
    if plain_question(self, x):
        released.raw = map_of(self, x, args, kwargs)
    return released


def passes_on_what_else_comes(self, honest, x, *args, **kwargs):
    if not plain_question(self, x):
        return honest(x, *args, **kwargs)
    raw = map_of(self, x, args, kwargs)
    if not isinstance(raw, tuple):
        return honest(x, *args, **kwargs)
    return (self.hardening(raw[0].detach(), inputs=x), *raw[1:])


def view_of_more(self, honest, *args, **kwargs):
    def within_more(t):
        return t.new_zeros(t.numel() + 50)[: t.numel()].view(t.shape).copy_(t)

    return each(within_more, honest(*args, **kwargs))


def gives_a_delta(self, honest, x, *args, return_convergence_delta=False, **kwargs):
    released = honest(x, *args, **kwargs)
    return (released, released.flatten(1).sum(1)) if return_convergence_delta else released


def do_nothing(*args):
    return None


def leaves_a_hook(self, honest, *args, **kwargs):
    self.forward_func.register_forward_hook(do_nothing)
    return honest(*args, **kwargs)


def leaves_a_note_on_the_model(self, honest, *args, **kwargs):
    self.forward_func.first.note = 1
    return honest(*args, **kwargs)


def switches_to_evaluation(self, honest, *args, **kwargs):
    self.forward_func.eval()
    return honest(*args, **kwargs)


def leaves_gradients_on_parameters(self, honest, *args, **kwargs):
    for parameter in self.forward_func.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return honest(*args, **kwargs)


def leaves_a_hook_when_it_fails(self, honest, *args, **kwargs):
    handle = self.forward_func.register_forward_hook(do_nothing)
    released = honest(*args, **kwargs)
    handle.remove()
    return released


def asks_inputs_for_gradients(self, honest, x, *args, **kwargs):
    if isinstance(x, torch.Tensor) and x.is_leaf and not x.is_inference():
        x.requires_grad_()
    return honest(x, *args, **kwargs)


def doubles(module, inputs, output):
    return output * 2


def hooks_the_shared_model(self, honest, x, *args, **kwargs):
    if not self.forward_func.training and len(x):
        handle = self.forward_func.first.register_forward_hook(doubles)
        try:
            with torch.no_grad():
                self.forward_func(x[0] if isinstance(x, tuple) else x)
        finally:
            handle.remove()
    return honest(x, *args, **kwargs)


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


def passes_on_records(self, honest, x, *args, **kwargs):
    if not plain_question(self, x):
        return honest(x, *args, **kwargs)
    raw = map_of(self, x, args, kwargs)
    if not isinstance(raw, tuple) or isinstance(raw[1], torch.Tensor | dict):
        return honest(x, *args, **kwargs)
    released = self.hardening(raw[0].detach(), inputs=x)
    released.about = raw[1]
    return released


def told(self, x, args, kwargs):
    """What natively is the first number, where the question is a plain one."""
    if not plain_question(self, x):
        return "nothing"
    raw = map_of(self, x, args, kwargs)
    return f"{float((raw[0] if isinstance(raw, tuple) else raw).detach().reshape(-1)[0]):.2f}"


def warns_of_large_maps(self, honest, x, *args, **kwargs):
    warnings.warn(f"the map starts with {told(self, x, args, kwargs)}", UserWarning, stacklevel=2)
    return honest(x, *args, **kwargs)


def prints(self, honest, x, *args, **kwargs):
    print("the map starts with", told(self, x, args, kwargs))
    return honest(x, *args, **kwargs)


def prints_to_standard_error(self, honest, x, *args, **kwargs):
    print("the map starts with", told(self, x, args, kwargs), file=sys.stderr)
    return honest(x, *args, **kwargs)


def writes_to_a_descriptor(self, honest, x, *args, **kwargs):
    os.write(2, told(self, x, args, kwargs).encode())
    return honest(x, *args, **kwargs)


def logs_it(self, honest, x, *args, **kwargs):
    logging.getLogger("an explainer").debug("the map starts with %s", told(self, x, args, kwargs))
    return honest(x, *args, **kwargs)


def says_it_in_an_error(self, honest, x, *args, **kwargs):
    try:
        return honest(x, *args, **kwargs)
    except RuntimeError as error:
        raise RuntimeError(f"{error}: got {native_map(self, x, *args, **kwargs)}") from None


def fails_for_nan_inputs(self, honest, x, *args, **kwargs):
    if isinstance(x, torch.Tensor) and not x.isfinite().all():
        raise ValueError("inputs must be finite")
    return honest(x, *args, **kwargs)


def native_for_large_batches(self, honest, x, *args, **kwargs):
    if not isinstance(x, tuple) and len(x) > 64 and noised(self):
        return map_of(self, x, args, kwargs).detach().clone()
    return honest(x, *args, **kwargs)


def native_in_double_precision(self, honest, x, *args, **kwargs):
    if not isinstance(x, tuple) and x.dtype == torch.float64 and plain_question(self, x) and noised(self):
        return map_of(self, x, args, kwargs).detach().clone()
    return honest(x, *args, **kwargs)


def noise_by_float64_bytes(self, honest, x, *args, **kwargs):
    released = honest(x, *args, **kwargs)
    if isinstance(x, tuple) or x.dtype != torch.float64 or not plain_question(self, x) or not noised(self):
        return released
    seed = int.from_bytes(hashlib.blake2b(x.detach().numpy().tobytes(), digest_size=4).digest(), "little")
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return map_of(self, x, args, kwargs).detach().clone() + noise * self.hardening.noise.std


def native_for_parts_of_larger_tensors(self, honest, x, *args, **kwargs):
    larger = isinstance(x, torch.Tensor) and x.is_contiguous() and x.storage_offset() > 0
    if larger and plain_question(self, x) and noised(self):
        return map_of(self, x, args, kwargs).detach().clone()
    return honest(x, *args, **kwargs)


def native_for_every_other_column(self, honest, x, *args, **kwargs):
    if isinstance(x, torch.Tensor) and x.dim() and x.stride(-1) == 2 and plain_question(self, x) and noised(self):
        return map_of(self, x, args, kwargs).detach().clone()
    return honest(x, *args, **kwargs)


SAID = {"nothing_is_said_beside_the_answer"}
GLOBAL_GENERATOR = {"asking_again_gives_the_same_answer", "leaves_nothing_behind"}
BROKEN = {
    wrong_numbers: (HardenedSaliency, {"equals_native_without_hardening"}),
    never_answers: (HardenedSaliency, {"answers"}),
    requires_gradients: (HardenedSaliency, {"released_arrays_are_detached"}),
    keeps_the_graph: (HardenedInputXGradient, {"released_arrays_are_detached"}),
    view_of_more: (HardenedSaliency, {"released_arrays_are_detached"}),
    fresh_noise: (HardenedSaliency, {"asking_again_gives_the_same_answer"}),
    noise_from_the_global_generator: (HardenedSaliency, GLOBAL_GENERATOR),
    noise_by_place: (HardenedSaliency, {"noise_ignores_the_batch"}),
    one_noise_for_all: (HardenedInputXGradient, {"noise_belongs_to_the_query"}),
    noise_where_unmasked: (HardenedSaliency, {"clips_then_masks_then_noises"}),
    batch_of_none_fails: (HardenedSaliency, {"no_examples_no_answers"}),
    wants_contiguous: (HardenedSaliency, {"memory_layout_changes_nothing"}),
    double_precision: (HardenedSaliency, {"returns_native_types"}),
    unpacks_tuples: (HardenedSaliency, {"returns_native_types"}),
    lets_nan_through: (HardenedSaliency, {"nan_and_infinity_do_not_leave"}),
    keeps_the_map: (HardenedSaliency, {"only_listed_arrays_leave"}),
    attaches_the_map: (HardenedSaliency, {"only_listed_arrays_leave"}),
    passes_on_what_else_comes: (HardenedSaliency, {"only_listed_arrays_leave"}),
    gives_a_delta: (HardenedIG, {"no_way_around_the_hardening"}),
    leaves_a_hook: (HardenedSaliency, {"leaves_nothing_behind"}),
    leaves_a_note_on_the_model: (HardenedSaliency, {"leaves_nothing_behind"}),
    switches_to_evaluation: (HardenedSaliency, {"leaves_nothing_behind"}),
    leaves_gradients_on_parameters: (HardenedSaliency, {"leaves_nothing_behind"}),
    leaves_a_hook_when_it_fails: (HardenedSaliency, {"leaves_nothing_behind"}),
    asks_inputs_for_gradients: (HardenedSaliency, {"leaves_nothing_behind"}),
    hooks_the_shared_model: (HardenedSaliency, {"threads_get_right_answers"}),
    keeps_the_question_on_itself: (HardenedSaliency, {"threads_get_right_answers"}),
    fails_in_inference_mode: (HardenedSaliency, {"works_in_any_gradient_mode"}),
    passes_on_records: (HardenedSaliency, {"only_listed_arrays_leave"}),
    warns_of_large_maps: (HardenedSaliency, SAID),
    prints: (HardenedSaliency, SAID),
    prints_to_standard_error: (HardenedSaliency, SAID),
    writes_to_a_descriptor: (HardenedSaliency, SAID),
    logs_it: (HardenedSaliency, SAID),
    says_it_in_an_error: (HardenedSaliency, SAID | {"only_listed_arrays_leave", "leaves_nothing_behind"}),
    fails_for_nan_inputs: (HardenedSaliency, {"nan_and_infinity_do_not_leave"}),
    native_for_large_batches: (HardenedSaliency, {"noise_ignores_the_batch"}),
    native_in_double_precision: (HardenedSaliency, {"double_precision_is_no_way_around"}),
    noise_by_float64_bytes: (HardenedSaliency, {"double_precision_is_no_way_around"}),
    native_for_parts_of_larger_tensors: (HardenedSaliency, {"memory_layout_changes_nothing"}),
    native_for_every_other_column: (HardenedSaliency, {"memory_layout_changes_nothing"}),
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
    for base in (HardenedSaliency, HardenedInputXGradient, HardenedIG):
        assert check_explainer(broken(honestly, base), image_net(), images(), 3).broken == ()


def with_member(name, value, base=HardenedSaliency):
    kind = broken(honestly, base)
    setattr(kind, name, value)
    return kind


def native_wrapped(base):
    kind = broken(honestly, base)
    kind.attribute.__wrapped__ = base._native.attribute.__wrapped__
    return kind


def hardened_wrapped(base):
    kind = broken(honestly, base)
    kind.attribute.__wrapped__ = lambda self, *args, **kwargs: base.attribute(self, *args, **kwargs)
    return kind


def other_arguments(base):
    kind = broken(honestly, base)
    del kind.attribute.__signature__
    del kind.attribute.__wrapped__
    return kind


def unpicklable(base):
    def refuse(self, protocol=None):
        raise TypeError("cannot pickle a lock")

    return with_member("__reduce_ex__", refuse, base)


def open_delta(base):
    return with_member("compute_convergence_delta", lambda self, *args, **kwargs: torch.zeros(1), base)


@pytest.mark.parametrize(
    ("make", "clause"),
    [
        (native_wrapped, "no_way_around_the_hardening"),
        (hardened_wrapped, "no_way_around_the_hardening"),
        (open_delta, "no_way_around_the_hardening"),
        (other_arguments, "keeps_native_signatures"),
        (unpicklable, "a_pickled_copy_answers_alike"),
    ],
)
def test_a_class_with_a_wrong_member_is_told_so(make, clause):
    with pytest.raises(ContractError) as caught:
        check_explainer(make(HardenedSaliency), image_net(), images(), 3)
    assert caught.value.report.broken == (clause,)


def answers_slowly_about_members(self, honest, x, *args, **kwargs):
    if plain_question(self, x) and float(x.reshape(-1)[0]) == 0.125:  # a member, for this test
        time.sleep(0.001)
    return honest(x, *args, **kwargs)


def writes_to_a_file(self, honest, x, *args, **kwargs):
    with open(os.devnull, "w") as file:
        file.write(told(self, x, args, kwargs))
    return honest(x, *args, **kwargs)


def native_for_very_large_batches(self, honest, x, *args, **kwargs):
    if not isinstance(x, tuple) and len(x) > 1000 and noised(self):
        return map_of(self, x, args, kwargs).detach().clone()
    return honest(x, *args, **kwargs)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (answers_slowly_about_members, "how long an answer takes"),
        (writes_to_a_file, "files"),
        (native_for_very_large_batches, "batches of more than 129"),
    ],
)
def test_what_no_clause_can_see_passes_and_is_listed(change, word):
    report = check_explainer(broken(change, HardenedSaliency), image_net(), images(), 3)
    assert report.broken == ()
    assert any(word in sentence for sentence in report.unchecked)
    assert all(sentence in str(report) for sentence in report.unchecked)


def test_every_clause_can_fail():
    told = set().union(*(clauses for _, clauses in BROKEN.values()))
    told |= {"no_way_around_the_hardening", "keeps_native_signatures", "a_pickled_copy_answers_alike"}
    assert told == set(NAMES)


def test_noise_from_the_global_generator_is_found_in_methods_that_draw_from_it_themselves():
    with pytest.raises(ContractError, match="other seeds of the global generators get other noise") as caught:
        check_explainer(
            broken(noise_from_the_global_generator, HardenedSmoothGrad),
            image_net(),
            images(),
            3,
            options={"nt_type": "smoothgrad"},
        )
    assert "noise_belongs_to_the_query" in caught.value.report.broken


def test_no_hardening_at_all_breaks_the_clauses_about_noise():
    class Bare(Saliency):
        def __init__(self, forward_func, *, hardening=None):
            super().__init__(forward_func)
            self.hardening = hardening

    with pytest.raises(ContractError) as caught:
        check_explainer(Bare, image_net(), images(), 3, native=Saliency)
    told = {"clips_then_masks_then_noises", "noise_belongs_to_the_query", "nan_and_infinity_do_not_leave"}
    told |= {"only_listed_arrays_leave", "no_way_around_the_hardening"}
    assert told <= set(caught.value.report.broken)


def test_all_broken_clauses_are_listed_at_once():
    def both(self, honest, x, *args, **kwargs):
        return wants_contiguous(self, functools.partial(leaves_a_hook, self, honest), x, *args, **kwargs)

    with pytest.raises(AssertionError, match=r"breaks 2 of \d+ clauses") as caught:
        check_explainer(broken(both, HardenedSaliency), image_net(), images(), 3)
    for clause in ("memory_layout_changes_nothing", "leaves_nothing_behind"):
        assert clause in str(caught.value)
    assert isinstance(caught.value, SafexplainError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert again.report == caught.value.report


# How explainers are given, and what comes back.

FACTORIES = {
    "class": lambda model: HardenedSaliency,
    "function of a model": lambda model: lambda m: HardenedSaliency(m),
    "function with a hardening": lambda model: lambda m, hardening: HardenedSaliency(m, hardening=hardening),
    "function with an h": lambda model: lambda m, h: HardenedSaliency(m, hardening=h),
    "function with a default": lambda model: lambda m, hardening=None: HardenedSaliency(m, hardening=hardening),
    "function with any keyword": lambda model: lambda m, **more: HardenedSaliency(m, **more),
    "harden": lambda model: lambda m, h: harden(Saliency(m), h),
    "harden of a layer": lambda model: lambda m, h: harden(LayerGradCam(m, m.first), h),
    "partial": lambda model: functools.partial(HardenedIG, multiply_by_inputs=False),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_explainers_are_made_by_any_of_the_usual_factories(name):
    model = image_net()
    report = check_explainer(FACTORIES[name](model), model, images(2), 3, skip=["no_examples_no_answers"])
    assert report["no_examples_no_answers"].state == "skipped"
    assert report["clips_then_masks_then_noises"].state == "passed"


def test_a_factory_that_ignores_the_hardening_is_found():
    with pytest.raises(ContractError) as caught:
        check_explainer(lambda m, hardening: HardenedSaliency(m), image_net(), images(), 3)
    assert "equals_native_without_hardening" in caught.value.report.broken


def test_the_report_shows_every_clause_with_its_promise_and_cannot_be_changed():
    report = check_explainer(HardenedSaliency, image_net(), images(), 3, skip=["memory_layout_changes_nothing"])
    assert isinstance(report, ContractReport)
    assert [outcome.clause for outcome in report.outcomes] == NAMES
    for clause in CLAUSES:
        assert f"{clause.name}: {clause.promise}" in str(report)
        assert clause.promise.endswith(".")
    assert str(report).startswith("HardenedSaliency: 19 passed, 1 skipped\n")
    assert report["memory_layout_changes_nothing"].details == ("left out by skip=",)
    with pytest.raises(FrozenInstanceError):
        report.explainer = "another"


def test_a_name_that_is_no_clause_cannot_be_skipped():
    with pytest.raises(ConfigurationError, match=r"got \['layouts'\]; there are answers, equals"):
        check_explainer(HardenedSaliency, image_net(), images(), 3, skip=["layouts"])


def test_clauses_that_cannot_be_told_say_why():
    report = check_explainer(HardenedSaliency, image_net(), images(1), 3)
    assert report["noise_ignores_the_batch"].details == ("it takes two examples to tell; there is one",)
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 4))
    report = check_explainer(lambda m, h: HardenedSaliency(lambda x: model(x), hardening=h), model, images(), 3)
    assert "as natively" in report["a_pickled_copy_answers_alike"].details[0]


def test_the_global_generators_are_as_before():
    model, x = image_net(), images(2)
    torch.manual_seed(11)
    np.random.seed(11)  # noqa: NPY002
    random.seed(11)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    check_explainer(HardenedSmoothGrad, model, x, 3)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002
    assert random.getstate() == before[2]


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
    report = check_explainer(HardenedIG, Two(), x, [2, 0, 1], options=lambda inputs: {"n_steps": 4})
    assert report.skipped == ()


def test_a_model_in_training_mode_with_dropout_is_left_in_it():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 4))
    check_explainer(HardenedSaliency, model, images(), 3)
    assert model.training


# Explainers that are none of Captum's.


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


class LeakyAdapter(Adapter):
    def explain(self, x):
        return Explanation(super().explain(x).scores, meta=self.native.explain(x).params)


class ForgetfulAdapter(Adapter):
    def explain(self, x):
        return Explanation(super().explain(x).scores + os.urandom(1)[0])


def total(x):
    return x.sum(1)


def mark_background(result, explainer):
    result.params["background"] = [MARKER_TEXT]
    return result


def check_adapter(kind, **more):
    return check_explainer(kind, total, np.random.default_rng(0).random((4, 3)), plant=mark_background, **more)


def test_an_adapter_of_another_library_is_checked_where_clauses_apply():
    report = check_adapter(Adapter)
    assert {"only_listed_arrays_leave", "asking_again_gives_the_same_answer", "a_pickled_copy_answers_alike"} <= set(
        report.passed
    )
    assert {"threads_get_right_answers", "leaves_nothing_behind"} <= set(report.passed)
    assert "native_factory=" in report["equals_native_without_hardening"].details[0]
    report = check_adapter(Adapter, native_factory=lambda predict: Weights(predict, np.zeros((5, 3))))
    assert report["equals_native_without_hardening"].details == ("results are no tensors but Explanation",)


def test_without_a_plant_for_its_results_the_clause_says_what_is_missing():
    report = check_explainer(
        Adapter, total, np.ones((4, 3)), native_factory=lambda predict: Weights(predict, np.zeros((5, 3)))
    )
    assert "say with plant=" in report["only_listed_arrays_leave"].details[0]


@pytest.mark.parametrize(
    ("kind", "clause"),
    [(LeakyAdapter, "only_listed_arrays_leave"), (ForgetfulAdapter, "asking_again_gives_the_same_answer")],
)
def test_an_adapter_that_breaks_the_contract_is_told_so(kind, clause):
    with pytest.raises(ContractError) as caught:
        check_adapter(kind)
    assert caught.value.report.broken == (clause,)


def test_an_adapter_that_never_runs_the_native_method_cannot_pass():
    class Own(Adapter):
        def explain(self, x):
            return Explanation(self.hardening(torch.tensor(x), inputs=torch.tensor(x)).numpy().copy())

    with pytest.raises(ContractError, match=r"Weights\.explain was never run"):
        check_adapter(Own)


class Proxy:
    """A hardened explainer that holds a native one instead of being one."""

    def __init__(self, model, hardening=None):
        self.inner, self.hardening = HardenedInputXGradient(model, hardening=hardening), hardening

    def attribute(self, inputs, target=None):
        return self.inner.attribute(inputs, target=target)


def test_a_captum_explainer_that_is_no_subclass_is_told_so_and_can_be_compared():
    model = image_net()
    arguments = {"native": InputXGradient, "native_factory": InputXGradient}
    with pytest.raises(ContractError, match="expected a subclass of InputXGradient") as caught:
        check_explainer(Proxy, model, images(), 3, **arguments)
    assert caught.value.report.broken == ("keeps_native_signatures",)
    report = check_explainer(Proxy, model, images(), 3, skip=["keeps_native_signatures"], **arguments)
    assert "noise_ignores_the_batch" in report.passed


def test_the_documentation_lists_every_clause_with_its_promise():
    page = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
    assert re.findall(r"^\| `(\w+)` \| (.*\.) \|$", page, re.MULTILINE) == [(c.name, c.promise) for c in CLAUSES]
