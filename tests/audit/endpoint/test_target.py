"""A service is audited as its model would be, by what it answers alone; no question is asked twice, none too many."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from safexplain import GaussianNoise, HardenedIG, HardenedSaliency, Hardening, NormClip, Relative
from safexplain.audit import AuditOptions, Dither, Policy, audit
from safexplain.audit.endpoint.payload import Payload
from safexplain.audit.endpoint.target import AnswerStore, Endpoint, EndpointError, digests_of
from safexplain.audit.queries import Queries
from safexplain.errors import CertificateError, ConfigurationError, InputError, RefusedError
from safexplain.verdict.certificate.read import load_certificate

pytestmark = pytest.mark.usefixtures("few_trees")

N, EACH, TWICE = 60, 4, 16  # examples, questions about each at the policy's patience of 3, and questions asked twice


@pytest.fixture(scope="module")
def run(world, parts):
    """`audit` of a target in the small world."""

    def call(target, population=None, **changes):
        given = {
            "member": world.member,
            "build": parts.build,
            "explainer": HardenedSaliency,
            "hardening": parts.hardening,
            "references": 4,
            "policy": parts.policy,
            "options": AuditOptions(dither=Dither()),
            "cache": parts.cache,
        }
        return audit(target, population or world.population, parts.recipe, **{**given, **changes})

    return call


@pytest.fixture(scope="module")
def of_model(world, run):
    """The audit of the model itself."""
    return run(world.model)


def endpoint(service, store=None, *, classes=3, **content):
    asking = {"rate": 1e6, "retries": 0, **content.pop("asking", {})}
    return Endpoint(service.url, Payload.from_dict({"asking": asking, **content}), classes=classes, store=store)


def as_kserve(service, world):
    def answer(path, x):
        if path.endswith(":predict"):
            return {"predictions": world.predict(x).argmax(1).tolist()}
        return {"predictions": [], "explanations": world.explain(x).tolist()}

    service.answer = answer
    return {"format": "kserve-v1"}


def as_foreign(service, world):
    names = ["no", "maybe", "yes"]

    def answer(path, x):
        (maps,), (label,) = world.explain(x).tolist(), world.predict(x).argmax(1)
        return {"result": {"why": dict(zip("abcdef", maps, strict=True)), "class": names[label]}}

    service.rows = lambda body: [list(body["input"].values())]
    service.answer = answer
    return {
        "request": {"inputs": "input", "single": True, "features": list("abcdef")},
        "answer": {
            "explanations": "result.why",
            "labels": "result.class",
            "classes": names,
            "features": list("abcdef"),
        },
    }


def as_json(service, world):
    return {}


@pytest.mark.parametrize("form", [as_json, as_kserve, as_foreign])
def test_a_service_gets_the_verdict_of_its_model_by_what_it_answers(service, world, run, of_model, form):
    found = run(endpoint(service, **form(service, world)))
    released, known = found.signals["endpoint"].values, of_model.signals["custom"].values
    for name in ("l1", "l2", "variance", "mean", "positive", "label", "kept@3", "shares@3"):
        np.testing.assert_allclose(released[name], known[name], atol=1e-5, err_msg=name)  # floating point, by processor
    assert not {n for n in released if n.split("@")[0] in ("loss", "margin", "prediction")}  # which it did not release
    assert found.verdict == of_model.verdict
    by_name = {(a.attack, a.signal): a.auc for a in of_model.result.attacks if a.level == 1}
    shared = [a for a in found.result.attacks if (a.attack, a.signal) in by_name and a.level == 1]
    assert len(shared) > 5
    assert [a.auc for a in shared] == pytest.approx([by_name[a.attack, a.signal] for a in shared], abs=1e-6)


def test_what_is_averaged_are_the_maps_that_explain_the_label_of_the_plain_query(service, world, run):
    found = run(endpoint(service)).signals["endpoint"]
    x, queries = world.population.x, Queries.of(world.population, Dither())
    label = world.predict(x.numpy()).argmax(1)
    expected = np.zeros((N, 6))
    for i in range(N):
        asked = [queries([i], number).numpy() for number in range(3)]
        kept = [world.explain(q)[0] for q in asked if world.predict(q).argmax(1)[0] == label[i]]
        expected[i] = np.mean(kept, axis=0) if kept else world.explain(x[i : i + 1].numpy())[0]
    np.testing.assert_allclose(found.values["attributions@3"][0], expected, atol=1e-6)
    changed = found.values["kept@3"][0]
    assert ((changed > 0) & (changed < 1)).any()


def test_the_certificate_is_about_the_endpoint_and_says_that_no_model_was_seen(
    service, world, run, tmp_path, monkeypatch
):
    given = service.url.replace("http://", "http://me:w0rd@") + "?key=s3cret"
    monkeypatch.setattr("sys.argv", ["safexplain", "audit", "--endpoint", given])
    target = Endpoint(given, Payload.from_dict({"asking": {"rate": 1e6}}), classes=3)
    found = run(target)
    found.save(tmp_path)
    read = load_certificate(tmp_path / "certificate.json")
    assert read.endpoint == service.url
    assert read.subject == {service.url: {"safexplainAnswersDigest": target.digest}}
    assert "The model itself was not seen" in read.limits[-1][1]
    assert "whose model was not available" in read.notes[0]
    assert read.native is None
    assert read.utility is None
    assert found.utility is None
    assert found.findings == ()
    with pytest.raises(RefusedError, match="no known native explanations"):
        _ = found.native
    with pytest.raises(CertificateError, match="whose model was not seen, so it cannot be about this model"):
        HardenedSaliency.from_certificate(world.model, tmp_path / "certificate.json")
    page = (tmp_path / "report.html").read_text()
    assert "What the endpoint answers" in page or service.url in page
    assert "Native explanation" not in page
    for path in tmp_path.iterdir():
        assert not any(secret in path.read_bytes() for secret in (b"w0rd", b"s3cret"))


def test_an_interrupted_audit_goes_on_and_asks_nothing_twice(service, run, tmp_path):
    store = tmp_path / "answers.sqlite"
    service.before = lambda path, number: (400, {}, b'{"error": "away"}') if number == 5 else None
    first = endpoint(service, store)
    with pytest.raises(EndpointError, match="'away'"):
        run(first)
    first.close()
    service.before = lambda path, number: None
    found = run(target := endpoint(service, store))
    target.close()
    assert f"{TWICE} questions were repeated at the end and got the same answers." in found.notes
    counts = service.questions
    assert (len(counts), counts.total()) == (N * EACH, N * EACH + TWICE)
    before = len(service.bodies)
    run(again := endpoint(service, store))  # and a finished one asks nothing at all
    assert len(service.bodies) == before
    assert again.digest == target.digest


def test_a_budget_that_does_not_suffice_names_the_patience_that_does(service, world, run, tmp_path):
    policy = Policy(patience=(1, 5, 200), references=4, uncounted=True)
    with pytest.raises(
        ConfigurationError, match=r"12,076 questions \(60 examples, 201 each, and 16 asked twice\)"
    ) as said:
        run(endpoint(service, asking={"budget": 1000}), policy=policy)
    assert "patience = [1, 5, 15]" in str(said.value)  # (1000 - 16) / 60 is 16 questions, one of them the plain one
    assert service.bodies == []
    plan = endpoint(service, asking={"budget": 1000}).plan(N, (1, 5, 15))
    assert (plan.questions, plan.budget) == (976, 1000)
    for budget, how in ((16 + 60, r"patience = \[1\]"), (75, "is 75: raise asking.budget")):
        with pytest.raises(ConfigurationError, match=how):
            endpoint(service, asking={"budget": budget}).plan(N, (1, 5))


def test_a_budget_holds_over_interruptions(service, run, tmp_path):
    needed = N * EACH + TWICE
    service.before = lambda path, number: (500, {}, b"") if number == 3 else None
    first = endpoint(service, tmp_path / "a", asking={"budget": needed})
    with pytest.raises(EndpointError, match="status 500"):
        run(first)
    first.close()
    second = endpoint(service, tmp_path / "a", asking={"budget": needed})
    with pytest.raises(ConfigurationError, match=r"asking.budget is 256, of which .* are spent"):
        run(second)  # what failed may have been answered, and counts
    second.close()
    run(endpoint(service, tmp_path / "a", asking={"budget": needed + 32}))
    assert service.questions.total() == needed


def test_a_store_is_of_one_endpoint_and_one_process(service, tmp_path):
    first = endpoint(service, tmp_path / "a")
    with pytest.raises(InputError, match="another audit is using"):
        endpoint(service, tmp_path / "a")
    first.close()
    with pytest.raises(InputError, match="expected answers of the payload"):
        endpoint(service, tmp_path / "a", answer={"labels": "class"})
    endpoint(service, tmp_path / "a", asking={"rate": 5}).close()
    service.url = service.url.replace("model:", "other:")
    with pytest.raises(InputError, match="expected answers of the endpoint"):
        endpoint(service, tmp_path / "a")
    (tmp_path / "b").write_bytes(b"no database" * 100)
    with pytest.raises(InputError, match="is not a store of answers"):
        endpoint(service, tmp_path / "b")


def test_equal_questions_are_one():
    x = np.array([[0.0, 1.0], [-0.0, 1.0], [1.0, 0.0]], np.float32)
    one, other, third = digests_of(x)
    assert one == other != third
    store = AnswerStore(None, {})
    store.put([one], x[:1], np.array([2]), None)
    np.testing.assert_array_equal(store.get([one, third])[one].map, x[0])
    assert store.get([one])[one].label == 2
    assert store.get([one], again=True) == {}
    assert store.answered == 1


def test_another_answer_to_the_same_question_is_said(service, world, run):
    right, draws = service.answer, np.random.default_rng(0)

    def noisy(path, x):
        body = right(path, x)
        return {**body, "explanations": (np.array(body["explanations"]) + 0.1 * draws.normal(size=x.shape)).tolist()}

    service.answer = noisy
    notes = run(endpoint(service)).notes
    assert any("16 questions were repeated, and 16 explanations and 0 labels changed" in note for note in notes)
    unasked = run(endpoint(service, asking={"twice": 0})).notes
    assert any("No question was repeated" in note for note in unasked)


def test_maps_of_another_shape_are_refused_before_anything_is_trained(service, parts, run):
    right = service.answer
    service.answer = lambda path, x: {**right(path, x), "explanations": np.zeros((len(x), 2, 2)).tolist()}

    built = iter([parts.build(0)])  # one network tells the shape, and none is trained
    with pytest.raises(EndpointError, match=r"expected explanations of shape \[6\], .* got \[2, 2\]"):
        run(endpoint(service), build=lambda seed: next(built))
    assert len(service.bodies) == 1


def test_maps_may_be_flat_or_have_other_axes_of_one(service, run):
    right = service.answer
    service.answer = lambda path, x: {
        **right(path, x),
        "explanations": np.array(right(path, x)["explanations"])[:, None].tolist(),
    }
    assert run(endpoint(service)).signals["endpoint"].shape == (6,)


def test_labels_in_another_order_are_found(service, world, run):
    right, places = service.answer, np.array([1, 2, 0])
    service.answer = lambda path, x: {**right(path, x), "labels": places[right(path, x)["labels"]].tolist()}
    with pytest.raises(InputError, match=r"for 0.0% of the members, but would for 100.0% in another order"):
        run(endpoint(service))
    found = run(endpoint(service, answer={"classes": [1, 2, 0]}))
    assert any("100.0% on members" in note for note in found.notes)


def test_a_malformed_answer_loses_nothing_that_came_before(service, world, run, tmp_path):
    right, turn = service.answer, itertools.count()
    service.answer = lambda path, x: {**right(path, x), **({"labels": [0]} if next(turn) == 2 else {})}
    first = endpoint(service, tmp_path / "a")
    with pytest.raises(EndpointError, match="expected a list of 32"):
        run(first)
    first.close()
    second = endpoint(service, tmp_path / "a")
    assert second.plan(N, (1, 3)).stored == 60  # all plain questions were answered, in two requests
    asked = len(service.bodies)
    second.ask(world.population, (1, 3), Dither())
    assert len(service.bodies) - asked == 7  # two for each of three dithered questions, and one for those asked twice


def test_listed_probabilities_are_judged_as_released(service, world, run, of_model):
    right = service.answer
    service.answer = lambda path, x: {**right(path, x), "scores": world.predict(x).tolist()}
    found = run(endpoint(service, answer={"probabilities": "scores"}))
    assert found.result.policy.release == "explanation+prediction"
    known = of_model.signals["custom"].values
    np.testing.assert_allclose(found.signals["endpoint"].values["loss"], known["loss"], rtol=1e-4, atol=1e-5)


def test_what_cannot_be_asked_of_an_endpoint_is_refused(service, world, run, parts):
    for release in ("prediction", "explanation+prediction"):
        with pytest.raises(ConfigurationError, match="release"):
            run(endpoint(service), policy=replace(parts.policy, release=release))
    with pytest.raises(InputError, match="pass one explainer"):
        run(endpoint(service), explainer=[HardenedSaliency, HardenedIG])
    with pytest.raises(InputError, match="of its predicted class"):
        run(endpoint(service), options=AuditOptions(classes=(0, 1)))
    with pytest.raises(InputError, match="got pre-training data"):
        run(endpoint(service), options=AuditOptions(subject_data="pre-training"))
    with pytest.raises(ConfigurationError, match="expected the 3 classes of the models, got 2"):
        endpoint(service, answer={"classes": ["a", "b"]})
    assert service.bodies == []


def test_references_have_noise_of_their_own_where_the_service_declares_noise(service, run):
    found = run(endpoint(service), hardening=Hardening(clip=NormClip(0.8), noise=GaussianNoise(Relative(0.3))))
    assert found.stated["noise_stream"]
    assert any("knew the hardening but not the key" in says for _, says in found.report.limits)
