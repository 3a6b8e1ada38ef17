"""What a certificate loads in production is what was audited, to the bit; anything else is not loaded."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from explain_nets import certificate, image_net, images, quiet
from torch import nn

from safexplain import HardenedIG, HardenedSaliency, Hardening, RankNorm
from safexplain._digest import file_sha256
from safexplain.errors import CertificateError, InputError, RefusedError
from safexplain.explain import certified
from safexplain.explain.hardened import HARDENED
from safexplain.hardening.noise import KEY_VARIABLE, STREAM
from safexplain.outputs import Probability

pytestmark = quiet

KEY = "the key of the service, as text!"


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, KEY)


def released(explainer: Any, *args: Any, **options: Any) -> torch.Tensor:
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - captum's GradientShap draws from it
    answer: torch.Tensor = explainer(*args, **options)
    return answer


def test_the_certified_explainer_is_the_one_that_the_configuration_makes_by_hand(tmp_path):
    model, x = image_net(), images()
    loaded = HardenedIG.from_certificate(model, certificate(tmp_path, model))
    by_hand = HardenedIG(Probability(model), hardening=Hardening.ranked())
    assert type(loaded) is HardenedIG
    assert loaded.hardening == by_hand.hardening
    assert torch.equal(loaded.attribute(x, target=1), by_hand.attribute(x, target=1, n_steps=7))
    assert not torch.equal(loaded.attribute(x, target=2), loaded.attribute(x, target=1))
    assert not torch.equal(
        HardenedIG.from_certificate(model, certificate(tmp_path, model, hardening=Hardening.none())).attribute(
            x, target=1
        ),
        HardenedIG(Probability(model), hardening=Hardening.none()).attribute(x, target=1),
    ), "n_steps=7 makes a difference, so that it was used above"


def test_superpixels_are_those_of_each_image(tmp_path):
    pytest.importorskip("skimage")
    model, x = image_net(), images()
    options = {"n_segments": 6, "compactness": 5.0, "n_samples": 20}
    explainer = {"method": "Lime", "output": "probability", "options": options}
    loaded = HARDENED["Lime"].from_certificate(model, certificate(tmp_path, model, explainer=explainer))
    target = torch.tensor([1, 0, 2, 1])
    asked = HARDENED["Lime"].catalogued()(Probability(model), hardening=Hardening.ranked())
    audited = released(asked.attribute, x, target=target, **options)
    assert torch.equal(released(loaded.attribute, x, target=target), audited)
    with pytest.raises(RefusedError, match="feature_mask"):
        loaded.attribute(x, target=target, feature_mask=torch.zeros(1, 3, 8, 8, dtype=torch.long))


def test_a_model_of_probabilities_is_explained_as_it_is_where_the_certificate_says_so(tmp_path, monkeypatch):
    model, x = nn.Sequential(image_net(), nn.Softmax(1)).eval(), images()
    explainer = {"method": "IG", "output": "probability", "options": {}, "softmax": False}
    loaded = HardenedIG.from_certificate(model, certificate(tmp_path, model, explainer=explainer))
    asked = HardenedIG.catalogued()(model, hardening=Hardening.ranked())
    audited = asked.attribute(x, target=torch.tensor([1] * 4))
    assert torch.equal(loaded.attribute(x, target=1), audited)
    of_scores = HardenedIG.from_certificate(model[0], certificate(tmp_path, model[0], explainer=explainer))
    with pytest.raises(RefusedError, match="expected probabilities, which the audited model returned"):
        of_scores.attribute(x, target=1)
    monkeypatch.setattr(certified, "are_probabilities", None)  # which the first call asked
    assert torch.equal(loaded.attribute(x, target=1), audited)


def test_a_pickled_explainer_is_the_same_and_still_certified(tmp_path):
    model, x = image_net(), images()
    loaded = HardenedIG.from_certificate(model, certificate(tmp_path, model))
    again = pickle.loads(pickle.dumps(loaded))
    assert torch.equal(again.attribute(x, target=1), loaded.attribute(x, target=1))
    with pytest.raises(RefusedError, match="n_steps"):
        again.attribute(x, target=1, n_steps=8)


OTHER_OPTIONS = [
    ({"n_steps": 50}, "n_steps"),
    ({"method": "riemann_left"}, "method"),
    ({"baselines": torch.ones(1, 3, 8, 8)}, r"baselines: expected None, .* got a tensor of shape \(1, 3, 8, 8\)"),
    ({"return_convergence_delta": True}, "convergence_delta"),
]


def test_another_option_is_refused_by_name(tmp_path):
    for options, name in OTHER_OPTIONS:
        model = image_net()
        loaded = HardenedIG.from_certificate(model, certificate(tmp_path, model))
        with pytest.raises(RefusedError, match=name):
            loaded.attribute(images(), target=1, **options)


def test_the_audited_option_may_be_said_again_and_by_place(tmp_path):
    model, x = image_net(), images()
    loaded = HardenedIG.from_certificate(model, certificate(tmp_path, model))
    plain = loaded.attribute(x, target=1)
    assert torch.equal(loaded.attribute(x, target=1, n_steps=7, baselines=None, return_convergence_delta=False), plain)
    assert torch.equal(loaded.attribute(x, None, 1, None, 7), plain)
    with pytest.raises(RefusedError, match="n_steps"):
        loaded.attribute(x, None, 1, None, 8)


def test_only_one_tensor_was_audited(tmp_path):
    model = image_net()
    loaded = HardenedIG.from_certificate(model, certificate(tmp_path, model))
    for inputs in ((images(),), [1.0], None, torch.tensor(1.0)):
        with pytest.raises(InputError, match="one tensor"):
            loaded.attribute(inputs, target=1)


OF_SOMETHING_ELSE = [
    ({"digest": "ab" * 32}, "is about another model"),
    ({"references": 0}, "certifies nothing"),
    ({"environment": {"safexplain": "0.0.9"}}, "safexplain 0.0.9"),
    ({"environment": {"captum": "0.1"}}, "captum 0.1"),
    ({"environment": {"release_format": "1"}}, "release format 1, here"),
    ({"explainer": {"method": "IG+Tarot"}}, "not in the catalog of this version"),
    ({"explainer": {"method": "Anchors"}}, r"use HardenedAnchors\.from_certificate, not HardenedIG"),
    ({"explainer": {"options": {"steps": 3}}}, "'steps' is not an option"),
    ({"explainer": {"options": {"target": 3}}}, "'target' is not an option"),
]


def test_a_certificate_of_something_else_is_refused(tmp_path):
    for changes, said in OF_SOMETHING_ELSE:
        model = image_net()
        path = certificate(tmp_path, model, **changes)
        with pytest.raises(CertificateError, match=said):
            HardenedIG.from_certificate(model, path)


def test_a_library_of_another_version_is_refused_with_what_to_install(tmp_path):
    model = image_net()
    made_with = {"libraries": {"lime": "0.0.1"}}
    for options in ({"made_with": made_with}, {"IG": {"made_with": made_with}}):
        path = certificate(tmp_path, model, explainer={"options": options})
        with pytest.raises(CertificateError, match=r'made with lime 0\.0\.1, .*pip install "lime==0\.0\.1"'):
            HardenedIG.from_certificate(model, path)


def test_noise_of_another_stream_is_refused_where_there_is_noise(tmp_path):
    model = image_net()
    with pytest.raises(CertificateError, match=r"stream aes256ctr.* of this version, got shake256-v2"):
        HardenedIG.from_certificate(model, certificate(tmp_path, model, noise_stream="shake256-v2"))
    HardenedIG.from_certificate(model, certificate(tmp_path, model, noise_stream=None))
    set_only = Hardening.recommended()
    HardenedIG.from_certificate(model, certificate(tmp_path, model, hardening=set_only))
    with pytest.raises(CertificateError, match=r"noise_stream: .* the hardening has no noise"):
        HardenedIG.from_certificate(model, certificate(tmp_path, model, hardening=set_only, noise_stream=STREAM))


def test_a_model_with_one_other_weight_is_another_model(tmp_path):
    model = image_net()
    path = certificate(tmp_path, model)
    with pytest.raises(CertificateError, match="another model"):
        HardenedIG.from_certificate(image_net(seed=1), path)
    loaded = HardenedIG.from_certificate(model, path)
    loaded.attribute(images(), target=1)
    with torch.no_grad():
        model[0].weight[0, 0, 0, 0] += 1e-3
    with pytest.raises(RefusedError, match="model has changed"):
        loaded.attribute(images(), target=1)


def test_a_model_of_which_a_part_is_in_training_mode_is_not_the_audited_one(tmp_path):
    model = nn.Sequential(image_net(), nn.Dropout(0.5)).eval()
    path = certificate(tmp_path, model)
    loaded = HardenedIG.from_certificate(model, path)
    model[1].train()
    with pytest.raises(RefusedError, match="training mode"):
        loaded.attribute(images(), target=1)
    with pytest.raises(InputError, match=r"model\.eval\(\)"):
        HardenedIG.from_certificate(model, path)
    with pytest.raises(InputError, match="function"):
        HardenedIG.from_certificate(lambda x: model(x), path)


@pytest.mark.parametrize(
    ("wrap", "output"),
    [
        (Probability, "logit"),
        (nn.DataParallel, "probability"),
        (nn.Sequential, "logit"),
        (lambda model: Probability(Probability(model)), "probability"),
    ],
)
def test_a_known_wrapper_is_the_audited_model_whatever_its_own_mode(wrap, output, tmp_path):
    model, x = image_net().eval(), images()
    wrapped = wrap(model).train()
    model.eval()
    path = certificate(tmp_path, model, explainer={"output": output})
    served = HardenedIG.from_certificate(wrapped, path).attribute(x, target=1)
    assert torch.equal(served, HardenedIG.from_certificate(model, path).attribute(x, target=1))


def test_a_model_without_the_softmax_that_the_audited_one_had_is_refused(tmp_path):
    model, x = image_net().eval(), images()
    path = certificate(tmp_path, model, explainer={"softmax": False})
    served = HardenedIG.from_certificate(Probability(model), path)
    assert served.attribute(x, target=1).shape == x.shape
    with pytest.raises(RefusedError, match=r"Probability\(model\)"):
        HardenedIG.from_certificate(model, path).attribute(x, target=1)


def test_the_models_file_must_be_the_audited_one(tmp_path):
    model = image_net()
    file = tmp_path / "model.pt"
    torch.save(model.state_dict(), file)
    audited = file_sha256(file)
    path = certificate(tmp_path, model, named={"sha256": audited})
    x = images()
    loaded = HardenedIG.from_certificate(model, path, file=file)
    assert torch.equal(loaded.attribute(x, target=1), HardenedIG.from_certificate(model, path).attribute(x, target=1))
    file.write_bytes(file.read_bytes() + b"!")
    with pytest.raises(
        CertificateError, match=f"expected the file in the certificate, with SHA-256 {audited}, got {file_sha256(file)}"
    ):
        HardenedIG.from_certificate(model, path, file=file)
    with pytest.raises(InputError, match="cannot be read"):
        HardenedIG.from_certificate(model, path, file=tmp_path / "none.pt")
    with pytest.raises(CertificateError, match="names no SHA-256"):
        HardenedIG.from_certificate(model, certificate(tmp_path, model), file=file)


def test_each_of_several_explainers_takes_their_common_certificate(tmp_path):
    model, x = image_net(), images()
    joint = {"method": "IG+Saliency", "options": {"IG": {"n_steps": 7}}}
    path = certificate(tmp_path, model, explainer=joint)
    both = [kind.from_certificate(model, path).attribute(x, target=1) for kind in (HardenedIG, HardenedSaliency)]
    alone = certificate(tmp_path, model)
    assert torch.equal(both[0], HardenedIG.from_certificate(model, alone).attribute(x, target=1))
    with pytest.raises(RefusedError, match="n_steps"):
        HardenedIG.from_certificate(model, certificate(tmp_path, model, explainer=joint)).attribute(
            x, target=1, n_steps=8
        )
    with pytest.raises(CertificateError, match=r"use HardenedIG\.from_certificate or HardenedSaliency"):
        HARDENED["Occlusion"].from_certificate(model, certificate(tmp_path, model, explainer=joint))


def test_a_signature_is_asked_for_where_a_key_is_given(tmp_path):
    model = image_net()
    public = Ed25519PrivateKey.generate().public_key()
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(CertificateError, match="is not signed"):
        HardenedIG.from_certificate(model, certificate(tmp_path, model), public_key=pem)


def test_without_a_key_no_noise_is_served(tmp_path, monkeypatch):
    monkeypatch.delenv(KEY_VARIABLE)
    model = image_net()
    with pytest.raises(RefusedError, match=KEY_VARIABLE):
        HardenedIG.from_certificate(model, certificate(tmp_path, model))


@pytest.mark.parametrize("hardening", [Hardening.recommended(), Hardening(clip=RankNorm())], ids=repr)
def test_without_noise_no_key_is_needed(hardening, tmp_path, monkeypatch):
    monkeypatch.delenv(KEY_VARIABLE)
    model, x = image_net(), images()
    path = certificate(tmp_path, model, hardening=hardening)
    loaded = HardenedIG.from_certificate(model, path)
    by_hand = HardenedIG(Probability(model), hardening=hardening)
    assert torch.equal(loaded.attribute(x, target=1), by_hand.attribute(x, target=1, n_steps=7))
    assert HardenedIG.from_certificate(model, path, key_file=tmp_path / "not there").hardening == hardening


def test_a_key_file_goes_before_the_environment(tmp_path, monkeypatch):
    model, x = image_net(), images()
    path = certificate(tmp_path, model)
    (tmp_path / "key").write_text("another key of thirty-two bytes!\n")
    from_file = HardenedIG.from_certificate(model, path, key_file=tmp_path / "key").attribute(x, target=1)
    assert not torch.equal(from_file, HardenedIG.from_certificate(model, path).attribute(x, target=1))
    monkeypatch.setenv(KEY_VARIABLE, "another key of thirty-two bytes!")
    assert torch.equal(from_file, HardenedIG.from_certificate(model, path).attribute(x, target=1))
    with pytest.raises(InputError, match="cannot be read"):
        HardenedIG.from_certificate(model, path, key_file=tmp_path / "nope")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ValueError, match="non-empty"):
        HardenedIG.from_certificate(model, path, key_file=tmp_path / "empty")


def test_a_key_that_can_be_guessed_is_refused(tmp_path, monkeypatch):
    for key in ("fifteen bytes!!", "ab" * 32):
        model = image_net()
        path = certificate(tmp_path, model)
        (tmp_path / "key").write_text(key)
        with pytest.raises(RefusedError, match=r"bytes.*openssl rand -hex 32"):
            HardenedIG.from_certificate(model, path, key_file=tmp_path / "key")
        monkeypatch.setenv(KEY_VARIABLE, key)
        with pytest.raises(RefusedError, match=KEY_VARIABLE):
            HardenedIG.from_certificate(model, path)
