"""Hardened Alibi explainers: drop-in, repeatable, right in threads, and plain about what is missing or refused."""

import importlib
import inspect
import logging
import pickle
import sys
import warnings
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from safexplain import GaussianNoise, Hardening, NormClip, RangeClip, RankNorm, ThresholdMask, TopKMask
from safexplain.errors import ConfigurationError, ConfigurationTypeError, MissingExtraError, RefusedError
from safexplain.explain import alibi as explainers
from safexplain.explain import harden
from safexplain.explain import libraries as library
from safexplain.explain.alibi import (
    REFUSED,
    HardenedAnchorImage,
    HardenedAnchors,
    HardenedAnchorTabular,
    HardenedAnchorText,
    anchor_hardening,
)
from safexplain.explain.libraries import AlibiLicenceWarning, quiet_failed_searches

pytest.importorskip("alibi", reason='Alibi is not installed: pip install "safexplain[alibi]"')

pytestmark = pytest.mark.filterwarnings("ignore::safexplain.errors.OpaqueModelWarning")

KEY = b"a noise key of thirty-two bytes."
NAMES = list("abcdef")
ROWS_OF_DATA = np.random.default_rng(0).normal(size=(300, 6))
FAST = {"coverage_samples": 500, "binary_cache_size": 100}
IMAGE = np.random.default_rng(1).random((16, 16, 3)).astype(np.float32)
TEXT = "This is a good book ."
PUBLIC = {
    "AnchorTabular": HardenedAnchorTabular,
    "AnchorImage": HardenedAnchorImage,
    "AnchorText": HardenedAnchorText,
}


def import_alibi() -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # spaCy's, about typer
        module: ModuleType = pytest.importorskip("alibi.explainers")
    return module


@pytest.fixture(scope="module")
def alibi():
    return import_alibi()


@pytest.fixture
def unloaded():
    """As in a process that has not used alibi; afterwards as before."""
    library.load.cache_clear()
    yield
    library.load.cache_clear()


def label(x):
    return (x[:, 0] + x[:, 1] > 0).astype(int)


def label_of_image(x):
    return (x[:, :8, :8].mean((1, 2, 3)) > 0.5).astype(int)


def label_of_text(texts):
    return np.array([int("good" in text.split()) for text in texts])


def pipeline():
    spacy = pytest.importorskip("spacy")
    nlp = spacy.blank("en")
    nlp.vocab.lookups.add_table("lexeme_prob", {})  # alibi would load it; replacing words by UNK does not need it
    return nlp


def arguments(kind):
    """Arguments of the constructor, of `fit` (None: there is none) and of `explain`."""
    return {
        "AnchorTabular": ((label, NAMES), (ROWS_OF_DATA,), ROWS_OF_DATA[0]),
        "AnchorImage": ((label_of_image, IMAGE.shape), None, IMAGE),
        "AnchorText": ((label_of_text, "unknown", pipeline() if kind == "AnchorText" else None), None, TEXT),
    }[kind]


def made(kind, hardening, *, cls=None):
    """A hardened anchor explainer and what to ask it."""
    constructor, fit, asked = arguments(kind)
    explainer = (cls or PUBLIC[kind])(*constructor, hardening=hardening)
    return (explainer if fit is None else explainer.fit(*fit)), asked


def native(kind):
    constructor, fit, asked = arguments(kind)
    explainer = getattr(import_alibi(), kind)(*constructor)
    if fit is not None:
        explainer.fit(*fit)
    return explainer, asked


def same(a, b):
    return a.data.keys() == b.data.keys() and all(np.array_equal(a.data[k], b.data[k]) for k in a.data)


def stub(name, data, **attributes):
    """An object whose class says that it was defined in alibi, and that returns an explanation of these fields."""

    def explain(self, X, features=None):
        interfaces = importlib.import_module("alibi.api.interfaces")
        return interfaces.Explanation(meta={"name": name, "params": {}}, data=dict(data))

    namespace = {"__module__": "alibi.explainers.stub", "explain": explain, "predictor": staticmethod(label)}
    return type(name, (), {**namespace, **attributes})()


def test_without_alibi_constructing_names_the_extra(unloaded, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "alibi"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "alibi", None)
    for make in (*PUBLIC.values(), lambda predictor: harden(stub("AnchorText", {}))):
        with pytest.raises(MissingExtraError, match=r'pip install "safexplain\[alibi\]"'):
            make(label)
    assert list(inspect.signature(HardenedAnchorTabular).parameters) == ["args", "hardening", "model_digest", "kwargs"]


def of_version(version):
    return lambda name: SimpleNamespace(__version__=version, explainers=None)


@pytest.mark.parametrize(("version", "expected"), [("0.9.5", 1), ("0.10.0", 1), ("0.9.4", 0), ("0.8.0", 0)])
def test_the_business_source_licence_is_said_once(unloaded, monkeypatch, version, expected):
    monkeypatch.setattr(library, "import_module", of_version(version))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            library.load("alibi")
    assert [w.category for w in caught] == [AlibiLicenceWarning] * expected
    assert all(f"alibi {version} is under the Business Source Licence 1.1" in str(w.message) for w in caught)


@pytest.mark.parametrize("kind", PUBLIC)
def test_without_hardening_the_allowed_fields_are_the_native_ones(alibi, kind):
    explainer, asked = native(kind)
    hardened = HardenedAnchors(explainer, hardening=Hardening.none())
    np.random.seed(0)  # noqa: NPY002 - alibi draws from the global generator
    expected = explainer.explain(asked, **FAST)
    np.random.seed(0)  # noqa: NPY002
    released = hardened.explain(asked, **FAST)
    assert set(released.data) == set(expected.data) - {"raw"}
    for name, value in released.data.items():
        assert np.array_equal(value, expected.data[name]), name
        assert type(value) is type(expected.data[name]), name


def test_hardened_fractions_lie_in_the_unit_interval_on_the_grid_and_have_native_types(alibi):
    kind = "AnchorTabular"
    explainer, asked = made(kind, anchor_hardening(KEY))
    released, theirs = explainer.explain(asked, **FAST), native(kind)[0].explain(asked, **FAST)
    for name in ("precision", "coverage"):
        value = getattr(released, name)
        assert type(value) is type(getattr(theirs, name))
        assert 0.0 <= value <= 1.0
        assert value / 0.05 == pytest.approx(round(value / 0.05))
    assert type(released) is type(theirs)
    assert released.to_json() == type(theirs).from_json(released.to_json()).to_json()


@pytest.mark.parametrize("kind", PUBLIC)
def test_asking_again_gives_the_same_answer_also_from_a_new_or_pickled_explainer(alibi, kind):
    explainer, asked = made(kind, anchor_hardening(KEY))
    first = explainer.explain(asked, **FAST)
    copies = [explainer, made(kind, anchor_hardening(KEY))[0], pickle.loads(pickle.dumps(explainer))]
    for seed, other in enumerate(copies):
        np.random.seed(seed)  # noqa: NPY002 - natively it would change the answer
        assert same(other.explain(asked, **FAST), first)


def test_options_that_only_re_estimate_share_their_noise(alibi):
    """Otherwise averaging over them would take the noise away."""
    hardening = Hardening(noise=GaussianNoise(0.05, key=KEY), grid=1e-9)
    explainer, asked = made("AnchorTabular", hardening)
    seen, queries = [], [{"tau": 0.15}, {"tau": 0.2}, {"batch_size": 50}, {"threshold": 0.9}]

    def remembered(explanation, *args):
        seen.append(explanation.precision)
        return released(explanation, *args)

    released = explainers.release
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(explainers, "release", remembered)
        answers = [explainer.explain(asked, **FAST, **query).precision for query in queries]
    inside = [0.0 < a < 1.0 for a in answers]
    noise = [a - s for a, s, ok in zip(answers, seen, inside, strict=True) if ok]
    assert len(noise) >= 2
    assert np.ptp(noise) < 1e-8
    assert abs(noise[0]) > 1e-4


def test_numpys_global_generator_is_neither_read_nor_moved(alibi):
    kind = "AnchorImage"
    np.random.seed(3)  # noqa: NPY002
    before = np.random.get_state()  # noqa: NPY002
    explainer, asked = made(kind, anchor_hardening(KEY))
    explainer.explain(asked, **FAST)
    after = np.random.get_state()  # noqa: NPY002
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    native(kind)[0].explain(asked, **FAST)
    moved = np.random.get_state()  # noqa: NPY002
    assert not all(np.array_equal(a, b) for a, b in zip(before, moved, strict=True))


class Interrupted:
    """A predictor in whose third call another question is asked of the same explainer, as another thread might."""

    def __init__(self):
        self.explainer = None
        self.calls = 0

    def __call__(self, x):
        self.calls += self.explainer is not None
        if self.calls == 3:
            self.calls += 1  # once
            self.explainer.explain(-ROWS_OF_DATA[0], **FAST)
        return label(x)


def test_a_call_within_a_call_changes_nothing_because_each_runs_on_a_private_copy(alibi):
    predictor = Interrupted()
    hardened = HardenedAnchorTabular(predictor, NAMES, hardening=anchor_hardening(KEY)).fit(ROWS_OF_DATA)
    alone = hardened.explain(ROWS_OF_DATA[0], **FAST)
    predictor.explainer = hardened
    assert same(hardened.explain(ROWS_OF_DATA[0], **FAST), alone)


def test_harden_gives_the_public_class_where_there_is_one(alibi):
    for kind, cls in PUBLIC.items():
        explainer, asked = native(kind)
        hardened = harden(explainer, anchor_hardening(KEY))
        assert type(hardened) is cls
        assert same(hardened.explain(asked, **FAST), made(kind, anchor_hardening(KEY))[0].explain(asked, **FAST))


def test_defaults_are_chosen_by_kind(alibi):
    assert HardenedAnchorTabular(label, NAMES).hardening == anchor_hardening()
    assert harden(stub("KernelShap", {})).hardening == Hardening.recommended(ordered=True)
    assert anchor_hardening(KEY).noise.key == KEY


def test_a_hardening_that_weighs_precision_against_coverage_is_refused(alibi):
    ranks = Hardening(clip=RankNorm())
    for hardening in (ranks, Hardening(clip=NormClip(1.0)), Hardening(mask=TopKMask(0.5))):
        with pytest.raises(ConfigurationError, match=r"RangeClip\(0\.0, 1\.0\)") as caught:
            HardenedAnchorTabular(label, NAMES, hardening=hardening)
        assert "anchor_hardening(key)" in str(caught.value)
    HardenedAnchorTabular(label, NAMES, hardening=Hardening(RangeClip(0.0, 1.0), ThresholdMask(0.01)))
    harden(stub("KernelShap", {}), ranks)


def test_explanations_of_a_whole_data_set_are_refused_and_it_is_said_why(alibi):
    for name in (name for name in REFUSED if not name.startswith("plot_")):
        derived = type("Mine", (getattr(alibi, name),), {})
        for native in (object.__new__(getattr(alibi, name)), object.__new__(derived)):
            with pytest.raises(RefusedError, match="is refused: it describes the model over a data set"):
                harden(native)


def test_an_explainer_that_has_no_rule_is_refused():
    for name in ("CEM", "IntegratedGradients", "Brandnew"):
        with pytest.raises(RefusedError, match=f"{name} is refused: no rule lists the fields that may be released"):
            harden(stub(name, {}))


def test_anchors_that_keep_their_rows_in_other_processes_are_refused(alibi):
    distributed = type("DistributedAnchorTabular", (alibi.AnchorTabular,), {"__module__": "alibi.explainers"})
    with pytest.raises(RefusedError, match="DistributedAnchorTabular is refused"):
        harden(distributed(label, NAMES))


def test_what_is_no_native_explainer_is_a_type_error(alibi):
    hardened = HardenedAnchorTabular(label, NAMES, hardening=anchor_hardening(KEY))
    with pytest.raises(ConfigurationTypeError, match="already hardened"):
        harden(hardened)
    for other in (hardened, label):
        with pytest.raises(ConfigurationTypeError, match="expected an alibi explainer"):
            HardenedAnchors(other)
    with pytest.raises(ConfigurationTypeError, match="harden"):
        HardenedAnchors(stub("KernelShap", {}))
    with pytest.raises(ConfigurationTypeError, match="must be a Hardening"):
        HardenedAnchorTabular(label, NAMES, hardening=0.05)


def test_an_audit_of_anchors_does_not_log_each_search_that_failed_and_nothing_else_is_hidden(caplog):
    log = logging.getLogger("alibi.explainers.anchors.anchor_base")
    failed = "Could not find an anchor satisfying the 0.95 precision constraint."
    with quiet_failed_searches():
        log.warning(failed)
        log.warning("something else")
    log.warning(failed)
    assert [record.getMessage() for record in caplog.records] == ["something else", failed]
