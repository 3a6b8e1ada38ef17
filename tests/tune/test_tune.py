"""The search as a whole: it sees a leak and goes round it, by examples that certify nothing, and can be taken up."""

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tuning import EXAMPLES, POLICY, RECIPE, TRIALS, build, figures, search, telling, world

from safexplain import HardenedInputXGradient, HardenedSaliency, Hardening
from safexplain.audit import AuditOptions, Dither, Population
from safexplain.audit.controls.splits import Splits
from safexplain.errors import ConfigurationError, InputError, MissingExtraError
from safexplain.tune import study
from safexplain.tune.result import front_of
from safexplain.tune.study import Leakage
from safexplain.verdict.certificate.read import load_certificate

pytestmark = pytest.mark.usefixtures("few_trees")


@pytest.fixture
def unconfirmed(monkeypatch):
    """Without the audit at the end."""
    monkeypatch.setattr(study, "judge", lambda question, models: None)


@pytest.fixture
def nothing_leaks(monkeypatch):
    """Attacks that take no time and find nothing."""
    monkeypatch.setattr(study.LeakMeter, "excess", lambda self, values, maps, targets: Leakage(0.0, 0.0, "", 1))


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A search whose native maps tell members by their size, in a folder, with its confirmation."""
    patch = pytest.MonkeyPatch()
    patch.setenv("SAFEXPLAIN_USES", str(tmp_path_factory.mktemp("uses") / "uses.sqlite"))
    tuned = search(telling(), folder=tmp_path_factory.mktemp("study"), policy=replace(POLICY, uncounted=False))
    patch.undo()
    return tuned


def test_a_planted_leak_is_seen_and_avoided(found):
    native = found.study.reference["native"]
    assert native.leak > 0.2
    assert native.leak > 4 * native.leak_error
    assert native.utility == pytest.approx(1)
    assert found.chosen is not None
    assert found.chosen.leak < native.leak / 4
    assert found.chosen.utility > 0.9  # the direction is left as it is
    assert found.chosen in found.front


def test_the_front_is_that_of_the_points_and_reference_points_are_among_them(found):
    assert found.front == front_of(found.study.points)
    assert found.study.reference.keys() == {"native", "recommended", "DeepLeak's best"}
    assert found.study.reference["recommended"].hardening == Hardening.recommended()
    assert found.study.reference["DeepLeak's best"].hardening == Hardening.deepleak()
    assert all(point in found.study.points for point in found.study.reference.values())
    assert found.study.trials == TRIALS == len(found.study.points) + found.study.pruned + found.study.failed


def test_the_confirmation_is_on_other_examples_and_its_certificate_tells_of_the_search(found):
    assert found.confirmed is not None
    assert found.confirmed.result.split == "certification"
    assert found.confirmed.result.uses == 1  # trials used the examples of the certification split for nothing
    assert found.confirmed.result.sizes["selection"] == found.study.sizes["selection"]
    folder = Path(found.study.path or "")
    found.save(folder)
    certificate = load_certificate(folder / "certificate.json")
    assert certificate.search == {"trials": TRIALS, "digest": found.study.digest}
    assert certificate.hardening == found.chosen.hardening.to_dict()
    assert found.exit_code == found.confirmed.exit_code
    assert Hardening.from_json((folder / "hardening.json").read_text()) == found.chosen.hardening


def test_the_digest_is_that_of_the_file_in_the_folder(found):
    text = (Path(found.study.path or "") / "study.json").read_bytes()
    assert hashlib.sha256(text).hexdigest() == found.study.digest
    assert sum("leak" in trial for trial in json.loads(text)["trials"]) == len(found.study.points)


def test_no_key_is_in_any_file_of_the_study(found):
    key = hashlib.blake2b(b"tune 0", digest_size=32).digest()  # as `Natives` makes it
    for path in Path(found.study.path or "").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert key not in content
            assert key.hex().encode() not in content
            assert path.suffix != ".json" or b'"key"' not in content


@pytest.mark.usefixtures("unconfirmed")
def test_nothing_of_the_certification_split_moves_a_trial(found):
    population, shadows = world()
    pool = study.Models(population, shadows)
    at = np.flatnonzero(~Splits.of(pool.signals(), POLICY, trains=True).selection)
    x, y = population.x.clone(), population.y.clone()
    for i in at:  # other inputs, that are not drawn into the selection split either
        for step in range(1, 50):
            x[i] = population.x[i] + 0.01 * step
            if not Splits.of(study.Models(Population(x, y), shadows).signals(), POLICY, trains=True).selection[i]:
                break
    y[at] = (y[at] + 1) % 10
    membership = shadows.membership.copy()
    membership[:, at] = ~membership[:, at]
    other = type(shadows)(shadows.models[1:], membership[1:])
    changed = search(telling(), population=Population(x, y), member=membership[0], shadows=other)
    assert len(at) > EXAMPLES / 3
    assert figures(changed) == figures(found)


@pytest.mark.usefixtures("unconfirmed")
def test_ctrl_c_keeps_what_is_there_and_a_second_run_goes_on(found, tmp_path):
    def stop(stage, done, total, note=""):
        if stage == "searching" and done == 6:
            raise KeyboardInterrupt

    ended = search(telling(), folder=tmp_path, progress=stop)
    assert ended.study.interrupted
    assert ended.study.trials == 6
    assert ended.chosen is not None
    assert ended.confirmed is None
    assert ended.exit_code == 3
    assert any("was confirmed, so nothing is proven" in note for note in ended.study.notes)
    again = search(telling(), folder=tmp_path)  # so that the same search finds the same, bit for bit
    assert figures(again) == figures(found)
    assert again.study.digest == found.study.digest


@pytest.mark.usefixtures("unconfirmed", "nothing_leaks")
def test_points_that_keep_less_than_one_that_adds_nothing_are_not_attacked():
    tuned = search(HardenedInputXGradient, trials=14)
    assert tuned.study.pruned == 5  # all that were sampled: the native map keeps everything
    assert tuned.chosen is not None
    assert tuned.chosen.name == "native"


@pytest.mark.usefixtures("unconfirmed", "nothing_leaks")
def test_options_of_the_explainer_are_searched_and_native_maps_computed_once_for_each(monkeypatch):
    asked, before = [], study.explanations_of

    def counted(*args, **options):
        asked.append(str(args[3][0].release.methods[0].arguments))
        return before(*args, **options)

    monkeypatch.setattr(study, "explanations_of", counted)
    tuned = search(HardenedSaliency, trials=13)
    assert len(asked) == len(set(asked)) == 3  # as given, and with each value of the one option
    assert all(p.options.keys() <= {"abs"} for p in tuned.study.points)


@pytest.mark.usefixtures("unconfirmed")
def test_models_of_public_data_are_a_point_to_compare_with():
    population, _ = world()
    public = RECIPE.train(build(9), population.x, population.y, torch.Generator().manual_seed(0))
    tuned = search(HardenedInputXGradient, trials=2, public_models=[public.eval()])
    point = tuned.study.reference["public models"]
    assert point.number == -1
    assert point not in tuned.study.points
    assert point.leak < 0.02 + 4 * point.leak_error
    assert 0.2 < point.utility < tuned.study.reference["native"].utility


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"trials": 0}, ConfigurationError, "trials"),
        ({"shadows": None, "references": 3, "build": lambda seed: None}, InputError, "at least 4 reference models"),
        ({"policy": replace(POLICY, selection=0.01)}, InputError, "examples to choose by"),
        (
            {"policy": replace(POLICY, release="prediction")},
            ConfigurationError,
            "expected one that releases explanations",
        ),
    ],
)
def test_what_cannot_be_searched_is_refused_in_plain_words(changes, error, says):
    with pytest.raises(error, match=says):
        search(HardenedInputXGradient, **changes)


@pytest.mark.usefixtures("unconfirmed")
def test_a_release_is_searched_for_pre_training_data_whose_labels_are_of_another_task():
    pool = replace(world()[0], y=world()[0].y + 20)
    options, policy = (
        AuditOptions(dither=Dither(), subject_data="pre-training"),
        replace(POLICY, release="explanation+prediction"),
    )
    with pytest.raises(InputError, match=r"expected labels 0 \.\. "):
        search(HardenedInputXGradient, trials=1, population=pool, policy=policy)
    assert search(HardenedInputXGradient, trials=1, population=pool, policy=policy, options=options).study.trials == 1


@pytest.mark.usefixtures("unconfirmed", "nothing_leaks")
def test_a_folder_with_another_study_is_refused_and_says_what_differs(tmp_path):
    search(HardenedInputXGradient, trials=1, folder=tmp_path)
    with pytest.raises(InputError, match=r"another study \(the explainer, the seed differ\)"):
        search(HardenedSaliency, trials=1, folder=tmp_path, seed=2)
    assert search(HardenedInputXGradient, trials=2, folder=tmp_path).study.trials == 2
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "study.json").write_text('{"setting": {}}')
    with pytest.raises(InputError, match="expected a study to resume"):
        search(HardenedInputXGradient, trials=1, folder=tmp_path / "bad")


def test_without_optuna_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtraError, match=r"safexplain\[tune\]"):
        search(HardenedInputXGradient)
