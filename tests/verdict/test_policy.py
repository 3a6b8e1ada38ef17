"""A policy says what it means, is read from TOML, and refuses what makes no sense."""

import json
from dataclasses import fields

import pytest

from safexplain.errors import ConfigurationError, ConfigurationTypeError
from safexplain.verdict.policy import Policy


def written(tmp_path, text):
    path = tmp_path / "policy.toml"
    path.write_text(text)
    return path


def test_by_default_explanations_may_add_two_points_to_the_labels_of_the_same_queries_at_any_patience():
    p = Policy()
    assert (p.fpr, p.max_tpr, p.confidence, p.release, p.claim) == (0.01, 0.03, 0.95, "explanation", "excess")
    assert (p.patience, p.references, p.uncounted, p.suite) == ((1, 32), 8, False, ())
    assert p.risk == pytest.approx(0.05)
    assert p.limit == p.tolerated_excess == pytest.approx(0.02)


def test_the_limit_of_an_excess_is_what_is_tolerated_above_chance_or_what_is_said():
    assert Policy(max_excess=0.1).limit == 0.1
    assert Policy(claim="whole", max_excess=0.1).limit == 0.03
    assert Policy(claim="whole", max_excess=0.1).tolerated_excess == 0.1


def test_where_predictions_alone_are_released_nothing_is_compared_whatever_the_claim():
    for claim in ("excess", "whole"):
        policy = Policy(release="prediction", claim=claim)
        assert (policy.claim, policy.limit) == ("whole", 0.03)
        assert Policy.from_dict(policy.to_dict()) == policy
    assert Policy(release="prediction", max_tpr=0.01).limit == 0.01  # no excess that would have to be tolerated
    with pytest.raises(ConfigurationError, match=r"release: expected one of .*, prediction, got 'label'"):
        Policy(release="label")


def test_levels_of_patience_are_in_order_and_each_is_there_once():
    assert Policy(patience=[200, 1, 5, 5]).patience == (1, 5, 200)
    assert Policy.from_dict({"patience": [3]}).patience == (3,)


def test_a_policy_is_read_from_toml_with_defaults_for_what_is_left_out(tmp_path):
    text = 'fpr = 0.05\nmax_tpr = 0.15\nrelease = "explanation+prediction"\nsuite = ["Threshold"]\nselection = 0.2\n'
    text += 'patience = [1]\nreferences = 4\nuncounted = true\nreason = "a pilot"\nclaim = "whole"\n'
    assert Policy.from_toml(written(tmp_path, text)) == Policy(
        fpr=0.05,
        max_tpr=0.15,
        release="explanation+prediction",
        suite=("Threshold",),
        selection=0.2,
        patience=(1,),
        references=4,
        uncounted=True,
        reason="a pilot",
        claim="whole",
    )
    assert Policy.from_toml(written(tmp_path, "")) == Policy()


@pytest.mark.parametrize(
    "policy", [Policy(), Policy(suite=("Threshold", "RMIA"), claim="excess", max_excess=0.2, training=0.0)], ids=repr
)
def test_what_to_dict_wrote_is_read_back_the_same(policy):
    plain = json.loads(json.dumps(policy.to_dict()))
    assert plain.keys() == {f.name for f in fields(Policy)} - {"look", "looks"}
    assert Policy.from_dict(plain) == policy


def test_looks_share_the_risk_and_together_take_no_more_than_all_of_it():
    for looks in (1, 2, 3, 7):
        policies = [Policy(confidence=0.9, look=look, looks=looks) for look in range(1, looks + 1)]
        assert sum(policy.risk for policy in policies) == pytest.approx(0.1)
        assert [Policy.from_dict(policy.to_dict()) for policy in policies] == policies
    with pytest.raises(ConfigurationError, match="expected at most looks = 2, got 3"):
        Policy(look=3, looks=2)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"claim": "auc"}, "claim: expected one of whole, excess"),
        ({"fpr": float("nan")}, "fpr must be finite"),
        ({"fpr": 0.1, "max_tpr": 0.05}, "which guessing alone reaches"),
        ({"max_tpr": 0.01}, "needs a limit above 0"),
        ({"patience": [0]}, "patience: expected a whole number of at least 1"),
        ({"references": 0}, "references: expected a whole number of at least 1"),
        ({"selection": 1.0}, "selection: expected a share in"),
        ({"training": -0.1}, "training: expected a share in"),
        ({"selection": 0.5, "training": 0.45}, "so that enough examples are left"),
    ],
    ids=str,
)
def test_values_out_of_range_are_refused(values, says):
    with pytest.raises(ConfigurationError, match=f"policy: .*{says}"):
        Policy(**values)


@pytest.mark.parametrize(
    "values",
    [{"fpr": "0.1"}, {"suite": "Threshold"}, {"patience": 200}, {"patience": []}, {"uncounted": 1}, {"reason": None}],
    ids=str,
)
def test_values_of_the_wrong_type_are_refused(values):
    with pytest.raises(ConfigurationTypeError, match=r"policy: "):
        Policy(**values)


@pytest.mark.parametrize(
    ("name", "least", "most", "beyond"),
    [
        ("fpr", 1e-5, 0.2, (0.99e-5, 0.201)),
        ("max_tpr", 0.0101, 0.9, (0.99e-5, 0.901)),
        ("confidence", 0.8, 1 - 1e-6, (0.799, 1 - 0.9e-6)),
        ("max_excess", 1e-4, 0.9, (0.99e-4, 0.901)),
        ("patience", [1], [1_000_000], ([1_000_001],)),
    ],
)
def test_the_ends_of_each_range_are_in_it_and_what_lies_just_beyond_is_not(name, least, most, beyond):
    for value in (least, most):
        Policy(**({"max_tpr": 0.3} | {name: value}))
    for value in beyond:
        with pytest.raises(ConfigurationError, match=f"policy: {name}"):
            Policy(**({"max_tpr": 0.3} | {name: value}))


def test_in_which_ways_a_policy_asks_for_less_is_said():
    assert Policy().weaker == Policy(patience=(1, 32, 200), references=16, fpr=0.005, max_tpr=0.025).weaker == ()
    less = Policy(fpr=0.05, max_tpr=0.15, confidence=0.9, patience=(1,), references=1, suite=("RMIA",))
    said = ("excess 10 points", "5% false positives", "90% confidence", "asked once only", "1 reference", "only RMIA")
    assert less.weaker == said
    assert Policy(claim="whole", max_tpr=0.031, patience=(2, 40), references=7).weaker == (
        "3.1% of members", "not asked once", "7 references",
    )  # fmt: skip
    assert Policy(claim="whole", fpr=0.02, max_tpr=0.06).weaker == ("2% false positives",)
    assert Policy(patience=(1, 31)).weaker == ("asked 31 times at most",)


def test_guessing_itself_may_be_the_limit():
    assert Policy(fpr=0.01, max_tpr=0.01, claim="whole").limit == 0.01
    assert Policy(fpr=0.01, max_tpr=0.01, max_excess=0.02).limit == 0.02


def test_a_misspelt_name_is_refused_and_not_ignored(tmp_path):
    with pytest.raises(ConfigurationError, match=r"policy .*: unknown \['max_tprr'\]; known are \["):
        Policy.from_toml(written(tmp_path, "max_tprr = 0.5\n"))
