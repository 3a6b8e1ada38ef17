"""Every explainer of Captum is covered by a row, taken by `harden` outside the catalog, or refused with a reason."""

import captum.attr
import pytest
import torch
from captum.attr import Attribution
from explain_nets import NOISY, TORCH_ROWS, image_net, images, net_for, quiet, run

from safexplain import HardenedIG
from safexplain.errors import RefusedError
from safexplain.explain import CATALOG, harden
from safexplain.explain.catalog import REFUSED
from safexplain.explain.hardened import HARDENED
from safexplain.hardening.hardening import Hardening

pytestmark = quiet
OUTSIDE = {"LimeBase", "NoiseTunnel"}
"""What `harden` takes without a row of its own."""


def public(namespace=captum.attr):
    return {name: getattr(namespace, name) for name in namespace.__all__}


def explainers(things):
    return {name: kind for name, kind in things.items() if isinstance(kind, type) and issubclass(kind, Attribution)}


def complaints(kinds):
    """What is wrong with the account of these classes, in words that say what to do."""
    rows = {row.native.__name__: row for row in TORCH_ROWS if row.nt_type is None}
    found = []
    for name, kind in kinds.items():
        covered = name in rows and rows[name].native is kind
        places = [covered, name in REFUSED, name in OUTSIDE]
        if sum(places) == 0:
            found.append(
                f"captum.attr.{name} is new: add a row to safexplain/explain/catalog.py; or, if it cannot be hardened,"
                " its reason to REFUSED there"
            )
        if sum(places) > 1:
            found.append(f"captum.attr.{name} has {sum(places)} places among rows, REFUSED and OUTSIDE: keep one")
    return found


def test_every_explainer_of_captum_has_exactly_one_place():
    assert len(explainers(public())) > 40
    assert complaints(explainers(public())) == []


def test_nothing_is_refused_that_captum_does_not_have():
    assert set(REFUSED) <= set(explainers(public()))
    assert set(explainers(public())) >= OUTSIDE


def refused_instance(name):
    """An instance as a user would have it; of explainers of language models, without the language model."""
    kind, model = getattr(captum.attr, name), image_net()
    if "LLM" in name:
        return object.__new__(kind)
    if name == "DataLoaderAttribution":
        return kind(captum.attr.FeatureAblation(model))
    return kind(model, model[3]) if name in ("LayerAttribution", "NeuronAttribution") else kind(model)


def test_what_is_refused_is_refused_with_its_reason():
    for name, reason in REFUSED.items():
        with pytest.raises(RefusedError) as refused:
            harden(refused_instance(name), NOISY)
        assert str(refused.value) == f"{name} cannot be hardened: {reason}"


def test_an_explainer_of_a_row_gets_the_public_class_of_the_row():
    for row in TORCH_ROWS:
        kind = type(harden(row.explainer(net_for(row)), NOISY))
        assert kind.__name__ == "HardenedNoiseTunnel" if row.nt_type else kind is HARDENED[row.name]


@pytest.mark.parametrize(
    ("nt_type", "inner"),
    [("smoothgrad_sq", "DeepLift"), ("vargrad", "Occlusion")],
)
def test_a_noise_tunnel_is_taken_with_every_aggregate(nt_type, inner):
    model, x = image_net(), images(2)
    row = CATALOG[inner]
    options = {"target": 1, "nt_type": nt_type, "nt_samples": 3, **row.options(x)}
    tunnel = captum.attr.NoiseTunnel(row.explainer(model))

    def ask(explainer):
        torch.manual_seed(0)
        return explainer.attribute(x, **options)

    native = ask(tunnel)
    assert torch.equal(ask(harden(tunnel, Hardening.none())), native)
    noise = ask(harden(tunnel, NOISY)) - native
    assert 0.03 < noise.std() < 0.07


def test_a_subclass_of_a_row_gets_a_class_of_its_own_and_keeps_what_it_adds():
    class Doubled(captum.attr.IntegratedGradients):
        """Twice the attributions."""

        def attribute(self, inputs, target=None):
            return 2 * captum.attr.IntegratedGradients.attribute.__wrapped__(self, inputs, target=target)

    model, x = image_net(), images(2)
    plain = run(HardenedIG(model, hardening=Hardening.none()), CATALOG["IG"], x)
    hardened = harden(Doubled(model), Hardening.none())
    assert isinstance(hardened, Doubled)
    torch.testing.assert_close(hardened.attribute(x, target=1), 2 * plain)
