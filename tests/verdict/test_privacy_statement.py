"""The statement says what follows from its parameters, and nothing else can be read into it."""

import json
import resource
import time
from dataclasses import replace

import pytest

from safexplain.dp import Epsilons, PrivacyStatement, Steps
from safexplain.errors import ConfigurationError, InputError

DP_SGD = PrivacyStatement(
    "DP-SGD",
    records=2000,
    delta=1e-5,
    phases=(Steps(5.5728, 0.25, 500),),
    clipping="AUTO-S",
    expected_batch_size=500,
    pretrained=True,
)
PURE = PrivacyStatement("objective perturbation", records=500, delta=0.0, pure_epsilon=0.5, pure_add_remove=0.3)


def test_both_epsilons_follow_from_the_parameters():
    assert DP_SGD.epsilons.add_remove == pytest.approx(4.476, abs=1e-3)
    assert DP_SGD.epsilons.substitute == pytest.approx(10.0, abs=1e-3)
    assert PURE.epsilons == Epsilons(0.3, 0.5, 0.3, 0.0)
    assert PrivacyStatement("x", 5, 0.0, pure_epsilon=0.5).epsilons == Epsilons(0.5, 0.5, 0.5, 0.0)


def test_a_noised_number_of_records_is_told_as_one_and_a_true_one_is_an_assumption(tmp_path):
    hidden = replace(PURE, count_noised=True)
    assert "| Records | about 500 |" in hidden.to_markdown()
    assert "| Records | 500 |" in PURE.to_markdown()
    told = [[line for line in s.assumptions if "number of records is public" in line] for s in (hidden, PURE, DP_SGD)]
    assert list(map(len, told)) == [0, 1, 1]
    assert PrivacyStatement.load(hidden.save(tmp_path / "privacy.json")) == hidden


def test_where_the_noise_comes_from_is_said_and_survives_a_file(tmp_path):
    secure = replace(PURE, generator="dice")
    assert any("noise and random batches come from dice" in line for line in secure.assumptions)
    assert PrivacyStatement.load(secure.save(tmp_path / "privacy.json")) == secure
    assert any("pseudo-random generator whose seed stays secret" in line for line in PURE.assumptions)
    assert "generator" not in PURE.to_dict()  # files of before, and of trainings elsewhere, read as they were
    seeded = replace(secure, seeded=True)
    assert any("a seed set by the user" in line for line in seeded.assumptions)
    assert not any("dice" in line for line in seeded.assumptions)


def test_an_infinite_epsilon_survives_a_file(tmp_path):
    none = PrivacyStatement("SGD", records=10, delta=1e-5, phases=(Steps(0.0, 1.0, 5, "full-batch"),))
    assert PrivacyStatement.load(none.save(tmp_path / "privacy.json")) == none
    assert "no guarantee" in none.to_markdown()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("epsilon", {"add_remove": 1.0, "substitute": 10.0, "zero_out": 4.476}, "add_remove says 1.0, but 4.47"),
        ("phases", [{"noise_multiplier": 9.0, "sample_rate": 0.25, "steps": 500, "sampling": "poisson"}], "follow"),
        ("phases", [{"noise_multiplier": 9.0}], "lacks sample_rate"),
        ("delta", "small", "delta"),
        ("records", 5000, "expected expected_batch_size / records"),
        ("extra", 1, "expected the fields"),
    ],
)
def test_a_statement_that_contradicts_itself_is_not_read(name, value, message, tmp_path):
    path = DP_SGD.save(tmp_path / "privacy.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    with pytest.raises(InputError, match=message):
        PrivacyStatement.load(path)


def test_the_sample_rate_must_come_from_the_data_trained_on():
    """Paper A's mistake: noise for 1000 of 50,000 records where 10,000 were trained on."""
    with pytest.raises(ConfigurationError, match=r"1000 / 10000 = 0\.1"):
        PrivacyStatement(
            "DP-SGD", records=10_000, delta=1e-5, phases=(Steps(1.0, 0.02, 300),), expected_batch_size=1000
        )


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"phases": (Steps(1.0, 1.0, 1),), "pure_epsilon": 1.0},
        {"pure_epsilon": 1.0},
        {"pure_epsilon": 1.0, "pure_add_remove": 2.0, "delta": 0.0},
        {"phases": (Steps(1.0, 1.0, 1),), "pure_add_remove": 0.5},
        {"phases": (Steps(1.0, 1.0, 1),), "records": 0},
        {"phases": (Steps(1.0, 1.0, 1),), "delta": 0.0},
    ],
)
def test_half_a_statement_is_none(wrong):
    with pytest.raises(ConfigurationError):
        PrivacyStatement(**{"mechanism": "x", "records": 10, "delta": 1e-5, **wrong})


def test_what_is_not_protected_is_said():
    card = DP_SGD.to_markdown()
    assert "2306.01181" in card
    assert "4.476" in card
    assert "10.000" in card
    assert "several records of one person" in card
    assert not any("2306.01181" in line for line in PURE.not_protected)


def test_persons_are_the_records_where_the_statement_says_so(tmp_path):
    persons = replace(DP_SGD, unit="person", rows_per_person=4)
    card = persons.to_markdown()
    assert "| Persons | 2,000 |" in card
    assert "| Rows of a person | at most 4 |" in card
    assert "Epsilon, one person substituted | 10.000" in card
    assert "several records of one person" not in card
    assert "under two names" in card
    assert "whether a person, with all of their rows" in card
    assert "each person joined each batch" in card
    assert "record" not in "".join(persons.protects.values())
    assert "one person substituted" in str(persons)
    assert persons.epsilons == DP_SGD.epsilons
    assert PrivacyStatement.load(persons.save(tmp_path / "privacy.json")) == persons


def test_a_loop_of_its_owner_is_assumed_to_be_right_and_that_is_said():
    assert any("the owner wrote the training loop" in line for line in replace(DP_SGD, own_loop=True).assumptions)


def test_fields_that_came_later_stand_only_in_statements_that_use_them():
    """Certificates hold these bytes under a digest."""
    assert not {"unit", "rows_per_person", "own_loop"} & DP_SGD.to_dict().keys()
    assert replace(DP_SGD, own_loop=True).to_dict()["own_loop"] is True


@pytest.mark.parametrize(
    "wrong",
    [{"unit": "household"}, {"unit": "person"}, {"rows_per_person": 3}, {"unit": "person", "rows_per_person": 0}],
)
def test_a_bound_on_rows_belongs_to_persons(wrong):
    with pytest.raises(ConfigurationError):
        replace(DP_SGD, **wrong)


PHASE = {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 100, "sampling": "poisson"}


@pytest.mark.parametrize(
    "changed",
    [
        {"phases": [PHASE | {"steps": 10**300}]},
        {"phases": [PHASE | {"noise_multiplier": 1e300, "steps": 10**11}], "delta": 1e-12},
        {"phases": [PHASE | {"noise_multiplier": 1 + i * 1e-3} for i in range(400)]},
        {"phases": [PHASE] * 100_000},
        {"phases": [PHASE | {"sampling": "truncated-poisson", "records": 10**30, "largest_batch": 10**29}]},
        {"records": 10**400, "expected_batch_size": 10**399},
        {"epsilon": {}},
    ],
    ids=lambda changed: json.dumps(changed)[:60],
)
def test_a_hostile_statement_is_refused_quickly_and_clearly(changed, tmp_path):
    stated = PrivacyStatement("DP-SGD", 2000, 1e-5, phases=(Steps(1.0, 0.01, 100),)).to_dict()
    (tmp_path / "privacy.json").write_text(json.dumps(stated | changed))
    start = time.process_time()
    with pytest.raises(InputError, match="privacy statement") as refused:
        PrivacyStatement.load(tmp_path / "privacy.json")
    assert len(str(refused.value)) < 700
    assert time.process_time() - start < 10  # seconds; two on a quiet machine
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 << 20  # KiB
