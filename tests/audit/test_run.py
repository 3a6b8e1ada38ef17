"""The whole way in Python: what the command runs, with any explainer, and files that say the same."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from safexplain import (
    GaussianNoise,
    HardenedIG,
    HardenedSaliency,
    Hardening,
    NormClip,
    RankNorm,
    Relative,
    TopKMask,
    TopKSet,
)
from safexplain.audit import (
    AuditOptions,
    Dither,
    FineTune,
    Policy,
    Population,
    Recipe,
    Shadows,
    Signals,
    audit,
    certify,
    fine_tune,
    train_shadows,
)
from safexplain.audit.answers import ExplainModel
from safexplain.errors import CertificateError, ConfigurationError, InputError
from safexplain.verdict.certificate.read import load_certificate

RECIPE = Recipe(optimizer="sgd", lr=0.1, epochs=5, batch_size=20)
POLICY = Policy(fpr=0.1, max_tpr=0.8, suite=("Threshold", "LikelihoodRatio"), patience=(1, 3))
HARDENING = Hardening(clip=NormClip(0.8), mask=TopKMask(0.5))
NOISY = Hardening(clip=RankNorm(), noise=GaussianNoise(Relative(0.3)))


def build(seed):
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


@pytest.fixture(scope="module")
def case():
    """A population, a trained model and its members."""
    rng = np.random.default_rng(0)
    population = Population.of(rng.normal(size=(80, 6)), rng.integers(0, 3, 80))
    shadows = train_shadows(population, RECIPE, build=build, models=1, seed=5)
    return population, shadows.models[0], shadows.membership[0]


@pytest.fixture
def run(case):
    """`audit` of the case with few and small everything."""
    population, model, member = case
    given = {
        "build": build,
        "member": member,
        "explainer": HardenedSaliency,
        "hardening": HARDENING,
        "references": 4,
        "policy": POLICY,
        "options": AuditOptions(dither=Dither()),
    }

    def call(recipe=RECIPE, population=population, **changes):
        return audit(model, population, recipe, **{**given, **changes})

    return call


UNDECIDED = Policy(fpr=0.2, max_tpr=0.21, references=2, patience=(1,))


@pytest.fixture
def growing(run, monkeypatch, tmp_path):
    """`audit` with 2, then 4 and 8 references, about 20, 40 and all examples; and what of it was told."""
    monkeypatch.setattr("safexplain.audit.question.examples_needed", lambda policy: 20)
    told = []

    def found(**changes):
        options = changes.pop("options", AuditOptions())
        changes = {"references": (2, 4, 8), "policy": UNDECIDED, "cache": tmp_path / "models", **changes}
        return run(options=options, progress=lambda stage, done, total, note="": told.append(stage), **changes)

    return found, told


def test_an_undecided_audit_looks_again_at_more_with_more_references_and_all_looks_share_the_risk(growing, tmp_path):
    audited, told = growing
    result = audited().result
    assert result.too_wide, str(result)
    assert (result.policy.look, result.policy.looks, result.references) == (3, 3, 8)
    assert result.members + result.non_members == 80
    shares = [replace(result.policy, look=look).risk for look in (1, 2, 3)]
    assert shares == pytest.approx([0.025, 0.0125, 0.0125])
    assert "95% confidence over all 3 looks (this is number 3)" in str(result)
    assert {stage.partition(":")[0] for stage in told if stage.startswith("look")} == {"look 2", "look 3"}
    assert len([*(tmp_path / "models").glob("*.pt")]) == 8  # those of the looks before among them
    assert not [*(tmp_path / "models" / "explained").glob("*.npz")]
    again = audited().result  # the same audit is the same use
    assert (result.uses, again.uses, again.bound) == (1, 1, result.bound)


def test_a_decided_audit_looks_once(growing, monkeypatch):
    audited, told = growing
    monkeypatch.setattr("safexplain.audit.question.examples_needed", lambda policy: 70)
    assert audited(policy=replace(UNDECIDED, max_tpr=0.9)).result.policy.look == 1
    assert not any(stage.startswith("look") for stage in told)


def test_an_audit_whose_next_look_would_take_too_long_names_it(growing):
    audited, _ = growing
    late = audited(options=AuditOptions(seconds=0.0))
    assert (late.result.policy.look, late.result.references) == (1, 2)
    references, scored, seconds = late.next_look
    assert (references, scored) == (4, 40)
    assert seconds > 0
    assert late.to_dict()["next_look"]["references"] == 4


def test_native_maps_are_hardened_again_and_give_what_explaining_again_gives(run, monkeypatch):
    asked = []
    for again in (True, False):
        if not again:
            monkeypatch.setattr("safexplain.explain.hardened.AuditExplainer.hardens_again", False)
        found = run(explainer=HardenedIG, arguments={"n_steps": 4}, policy=replace(POLICY, suite=()))
        asked.append({name: signals.attributions for name, signals in found.signals.items()})
        asked[-1] |= {"l1": found.signals["custom"].values["l1@3"], "bound": found.result.bound}
    assert asked[0].keys() == asked[1].keys()
    for name, values in asked[0].items():
        np.testing.assert_array_equal(values, asked[1][name])


def test_references_that_would_train_on_fewer_rows_than_the_target_are_refused_before_they_train(run):
    with pytest.raises(InputError, match=r"was trained on 60 rows .* would train on only 40"):
        run(recipe=replace(RECIPE, examples=60), progress=lambda *_: pytest.fail("something was begun"))


class OwnExplainer:
    """Gradient times input, which knows nothing of this package but the hardening that it is given."""

    def __init__(self, model, *, hardening):
        self.model, self.hardening = model, hardening

    def attribute(self, x, *, target, scale=1.0):
        x = x.clone().requires_grad_(True)
        chosen = self.model(x).gather(1, target[:, None]).sum()
        return self.hardening(scale * x * torch.autograd.grad(chosen, x)[0])


def test_any_class_with_attribute_is_audited_under_its_own_name(run, tmp_path):
    result = run(explainer=OwnExplainer, arguments={"scale": 2.0})
    folder = result.save(tmp_path / "run")
    said = json.loads((folder / "certificate.json").read_text())["predicate"]["explainer"]
    shape = said.pop("shape")
    assert said == {"method": "OwnExplainer", "output": "probability", "softmax": True, "options": {"scale": 2.0}}
    assert shape == [6]
    assert result.utility is not None
    assert Signals.load(folder / "signals.npz").meta["hardening"] == HARDENING.to_json()
    assert "hardening" not in Signals.load(folder / "native-signals.npz").meta


def test_a_release_is_measured_on_the_model_and_said_in_words(run):
    result = run(hardening=Hardening(clip=TopKSet(k=2)))
    kept = result.utility
    assert (kept.sign_errors, kept.sign_errors_top) == (0, 0)
    assert None not in (kept.deletion, kept.insertion, kept.native_deletion, kept.native_insertion)
    assert result.to_dict()["utility"] == kept.to_dict()
    assert result.judged.says == "the 2 features that count most for the class, unranked"
    assert result.judged.description == "Hardening(clip=TopKSet(k=2, positive=True))"
    assert result.findings == ()
    assert result.to_dict()["native_maps"] == []


def test_utility_is_measured_on_a_sample_where_maps_are_not_kept(run, monkeypatch):
    kept = run().utility
    monkeypatch.setattr("safexplain.audit.run.LARGEST_MAPS", 0)
    monkeypatch.setattr("safexplain.audit.run.free_space", lambda folder: 0)
    found = run()
    assert found.utility.to_dict() == pytest.approx(kept.to_dict())  # the sample is all of these few examples
    assert any("attack on whole maps was left out" in note and "has 0 GiB free" in note for note in found.notes)
    assert not any(r.signal.startswith("attributions") for r in found.result.attacks)


def test_an_interrupted_audit_explains_no_model_again_and_large_maps_go_to_disk(run, tmp_path, monkeypatch):
    monkeypatch.setattr("safexplain.audit.run.LARGEST_MAPS", 0)
    given = {"hardening": NOISY, "explainer": (HardenedIG, HardenedSaliency), "cache": tmp_path}
    expected, whole, calls = run(**{**given, "cache": None}), ExplainModel.__call__, []

    def counted(self, *args, **kwargs):
        if calls[:1] == ["model 0"] and len(calls) == 7:
            raise KeyboardInterrupt
        found = whole(self, *args, **kwargs)
        calls.append(self.name)
        return found

    monkeypatch.setattr(ExplainModel, "__call__", counted)
    with pytest.raises(KeyboardInterrupt):
        run(**given)
    assert calls == [f"model {i}" for i in (0, 1, 2, 3, 4, 0, 1)]
    calls.clear()
    found = run(**given)
    missing = ["model 2", "model 3", "model 4"]  # of what is released; the native ones were done
    assert calls == missing
    assert found.to_dict() == expected.to_dict()
    assert [note for note in found.notes if "attacked on disk" in note]
    assert not any((tmp_path / "explained").iterdir())


class Broken(OwnExplainer):
    """As LRP on a network that it has no rules for."""

    def attribute(self, x, *, target, scale=1.0):
        maps = super().attribute(x, target=target)
        return self.hardening(torch.where(x.abs() > 2, torch.nan, 1e12 * maps) if self.hardening.is_none else x)


def test_native_maps_that_cannot_be_right_are_in_the_notes_the_report_and_the_json(run, tmp_path, caplog):
    result = run(explainer=Broken)
    assert [(f.kind, f.method, f.of) for f in result.findings] == [("not finite", "Broken", 80), ("huge", "Broken", 80)]
    assert 0 < result.findings[0].maps < 80
    said = [note for note in result.notes if "cannot be right" in note]
    assert len(said) == 2
    assert result.to_dict()["native_maps"][1]["kind"] == "huge"
    assert "over a million times as large" in (result.save(tmp_path / "run") / "report.html").read_text()
    assert not [r for r in caplog.records if r.name.startswith("safexplain")]
    with pytest.raises(InputError, match="expected finite explanations"):
        run(explainer=Broken, hardening=Hardening.none())


def test_target_and_references_answer_with_keys_of_their_own(run):
    seen = set()

    class Watched(OwnExplainer):
        def __init__(self, model, *, hardening):
            super().__init__(model, hardening=Hardening.none())
            seen.add(hardening.noise and hardening.noise.key)

    run(explainer=Watched, hardening=Hardening.recommended())
    assert seen == {None}  # nothing is keyed without noise
    run(explainer=Watched, hardening=NOISY)
    assert None in seen  # natively
    assert len(seen) == 3  # patient or not
    again = set(seen)
    run(explainer=Watched, hardening=NOISY)
    assert seen == again
    run(explainer=Watched, hardening=NOISY, seed=1)
    assert len(seen) == 5


class Plain(OwnExplainer):
    """Another explainer, which answers with the input itself."""

    def attribute(self, x, *, target, shift=0.0):
        return self.hardening(x + shift)


def test_several_explainers_are_one_release_under_all_their_names(run, tmp_path):
    result = run(explainer=[OwnExplainer, Plain], arguments={"Plain": {"shift": 1.0}})
    folder = result.save(tmp_path / "run")
    said = json.loads((folder / "certificate.json").read_text())["predicate"]["explainer"]
    assert said["method"] == "OwnExplainer+Plain"
    assert said["options"] == {"Plain": {"shift": 1.0}}
    assert result.signals["custom"].values["attributions@3"].shape == (5, 80, 12)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"explainer": [OwnExplainer, OwnExplainer]}, "explainer: expected different ones"),
        ({"explainer": [OwnExplainer, Plain], "arguments": {"shift": 1.0}}, "expected the names of explainers as keys"),
    ],
)
def test_explainers_that_are_no_release_are_refused(run, changes, says):
    with pytest.raises(ConfigurationError, match=says):
        run(**changes)


def test_a_sample_is_scored_and_references_train_on_everything(case, run):
    population, _model, member = case
    result = run(options=AuditOptions(scored=40, slices={"region": np.arange(80) % 3}))
    found, rows = result.signals["custom"], population.sample(member, 40)
    assert np.array_equal(found.membership[0], member[rows])
    assert np.array_equal(found.membership[1:], population.flip(4, seed=0)[:, rows])
    assert np.array_equal(found.slices["region"], rows % 3)
    everything = run().signals["custom"]
    np.testing.assert_allclose(found.values["l1"], everything.values["l1"][:, rows], rtol=1e-6)
    assert any("40 of 80 examples were scored" in note for note in result.notes)
    with pytest.raises(ConfigurationError, match="scored"):
        AuditOptions(scored=1)


def test_copies_of_members_among_non_members_are_refused_before_anything_is_trained(case, run):
    population, _, member = case
    x = population.x.clone()
    x[np.flatnonzero(member)[0]] = x[np.flatnonzero(~member)[0]]
    with pytest.raises(InputError, match="cop"):
        run(recipe=lambda x, y, generator: pytest.fail("trained"), population=replace(population, x=x))


def test_reference_models_may_be_trained_beforehand(case, run):
    population, _, _ = case
    shadows = train_shadows(population, RECIPE, build=build, models=4, seed=0)
    assert run(recipe=None, shadows=shadows).result.to_dict()["attacks"] == run().result.to_dict()["attacks"]


def test_without_references_nothing_is_certified_and_the_notes_say_why(run):
    result = run(recipe=None)
    assert result.verdict != "certified"
    assert any("No reference models" in note for note in result.notes)
    assert any(note.startswith("Accuracy of the model:") for note in result.notes)
    assert any("Only 4 reference models" in note for note in run().notes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"references": 1}, "expected 0 or at least 2, got 1"),
        ({"references": (4, 4)}, "increasing ones such as"),
        ({"references": ()}, "increasing ones such as"),
        ({"member": np.ones(79, dtype=bool)}, "expected member .bool. of shape"),
        ({"member": np.ones(80, dtype=bool)}, "expected members and non-members"),
        ({"arguments": {"no_such": 1}}, "Saliency cannot explain this model: .*no_such"),
    ],
)
def test_what_cannot_be_audited_is_refused(run, changes, says):
    with pytest.raises(InputError, match=says):
        run(**changes)


def test_a_model_in_training_mode_is_refused(case):
    population, _, member = case
    with pytest.raises(InputError, match=r"model\.eval"):
        audit(build(0), population, member=member, explainer=HardenedSaliency, hardening=HARDENING)


@pytest.fixture(scope="module")
def fine_tuned():
    """Digits with labels from 20 on, and models that were pre-trained on halves of them and fine-tuned to parity."""
    x, y = load_digits(return_X_y=True)
    x = x[np.random.default_rng(0).permutation(len(y))].reshape(-1, 1, 8, 8) / 16
    y = y[np.random.default_rng(0).permutation(len(y))]
    pool, other = Population.of(x[:240], y[:240]), Population.of(x[240:640], y[240:640] % 3)

    def backbone(seed):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    recipe = Recipe(lr=3e-3, epochs=20)
    pretrained = train_shadows(pool, recipe, build=backbone, models=6, seed=1)
    return replace(pool, y=pool.y + 20), fine_tune(pretrained, FineTune(other, replace(recipe, epochs=5))), recipe


def of_pre_training(fine_tuned, **changes):
    pool, shadows, _ = fine_tuned
    given = {
        "member": shadows.membership[0],
        "shadows": Shadows(shadows.models[1:], shadows.membership[1:]),
        "explainer": OwnExplainer,
        "hardening": HARDENING,
        "policy": replace(POLICY, suite=("JointLikelihoodRatio", "LikelihoodRatio")),
        "options": AuditOptions(subject_data="pre-training"),
    }
    return audit(shadows.models[0], pool, **{**given, **changes})


def test_the_pre_training_data_of_a_fine_tuned_model_is_audited_natively_and_hardened(fine_tuned, tmp_path):
    run = of_pre_training(fine_tuned)
    assert set(run.signals) == {"native", "custom"}
    for signals in run.signals.values():
        assert signals.values["prediction"].shape == (6, 240, 3)
        assert not [name for name in signals.values if name.startswith(("loss", "margin"))]
        assert signals.slices["class"].min() >= 20
        assert signals.meta["labels"] == "foreign"
    released = run.signals["custom"]
    assert released.values["predictions@3"].shape == (6, 240, 9)
    assert released.meta["dither"]["kind"] == "crop-flip"
    assert (run.result.claim, run.exit_code) == ("excess", {"certified": 0, "leak": 1, "inconclusive": 3}[run.verdict])
    found = {(a.attack, a.signal): run.result.is_judged(a) for a in run.result.attacks}
    assert found["JointLikelihoodRatio", "prediction"] is found["JointLikelihoodRatio", "prediction@3"] is False
    assert found["Stacked", "explanation@3+label"]
    assert any("10 classes) belong to another task than the model's" in note for note in run.notes)
    assert not any("Accuracy" in note or "guessing" in note for note in run.notes)
    assert run.report.root_cause
    run.save(tmp_path)
    certificate = load_certificate(tmp_path / "certificate.json")
    assert (certificate.subject_data, certificate.verdict) == ("pre-training", run.verdict)
    assert "pre-training" in (tmp_path / "report.html").read_text()
    again = certify(Signals.load(tmp_path / "signals.npz"), replace(run.result.policy, uncounted=True))
    assert [e.to_dict() for e in again.evidence] == [e.to_dict() for e in run.result.evidence]


def test_a_certificate_of_predictions_alone_serves_no_explanation(fine_tuned, tmp_path):
    loose = Policy(0.2, 0.9, patience=(1,), suite=(), references=1, uncounted=True, release="prediction")
    run = of_pre_training(fine_tuned, policy=loose, explainer=HardenedSaliency)
    assert run.result.policy.claim == "whole"
    assert [c.name for c in run.configurations] == ["native"]
    assert set(run.signals["native"].values) == {"label", "prediction"}
    assert run.result.verdict == "certified", run.result.sentence
    run.save(tmp_path)
    with pytest.raises(CertificateError, match="about predictions alone, and certifies no explanation"):
        HardenedSaliency.from_certificate(fine_tuned[1].models[0], tmp_path / "certificate.json")


def test_one_recipe_makes_no_reference_models_that_were_fine_tuned(fine_tuned):
    *_, recipe = fine_tuned
    with pytest.raises(ConfigurationError, match="expected fine-tuned reference models, got one recipe; pass shadows="):
        of_pre_training(fine_tuned, shadows=None, recipe=recipe)
    pretrained = Shadows(tuple(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)) for _ in range(5)), np.eye(5, 240) > 0)
    with pytest.raises(InputError, match="expected models of one task, got 3 classes for the first and 10 for model 1"):
        of_pre_training(
            fine_tuned, shadows=pretrained, options=AuditOptions(subject_data="pre-training", dither=Dither())
        )
