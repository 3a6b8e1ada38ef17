"""A client's distinct questions are limited, and looks at one map more strictly; recognised by what public rows are."""

import hashlib
import math
import multiprocessing
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from safexplain.errors import BudgetExhausted, ConfigurationError, InputError, LedgerError
from safexplain.serve import budget as module
from safexplain.serve.budget import Budget, Likeness, Limits
from safexplain.serve.questions import Questions

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture(autouse=True)
def _fixed_directions(monkeypatch):
    """Every ledger draws directions of its own, under some of which two rows of no likeness are near."""
    of = Likeness.of
    monkeypatch.setattr(Likeness, "of", lambda *of_rows, **named: of(*of_rows, **named | {"seed": "directions"}))


def digests(x):
    return [hashlib.sha256(row.tobytes()).digest() for row in x]


def charge(budget, client, x):
    budget.charge(client, digests(x), x)


def granted(budget, client, x):
    """How many of these rows, asked one by one, get through."""
    through = 0
    for row in x:
        try:
            charge(budget, client, row[None])
            through += 1
        except BudgetExhausted:
            pass
    return through


def rows(n, d=32, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)


class At:
    """A clock that tests set."""

    def __init__(self):
        self.at = datetime(2026, 3, 11, 12, tzinfo=UTC)

    def __call__(self):
        return (self.at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"questions": 0}, {"questions": 2.5}, {"looks": 0}, {"period": "hour"}, {"quantile": 0.0}, {"quantile": 1.0},
    ],
)  # fmt: skip
def test_limits_are_checked(wrong):
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        Limits(**wrong)


def test_near_duplicates_are_looks_by_period_and_over_all_time():
    clock = At()
    ledger = Questions(None, clock=clock)
    budget = Budget(ledger, Limits(looks=2), public=rows(200, seed=1), most_looks=3)
    dithers = rows(1) + 1e-3 * rows(6, seed=2)
    charge(budget, "ann", dithers[:2])
    with pytest.raises(BudgetExhausted, match="2 a day about one map") as error:
        charge(budget, "ann", dithers[2:3])
    assert error.value.renews == datetime(2026, 3, 12, tzinfo=UTC)
    charge(budget, "ann", np.concatenate([dithers[:2], rows(20, seed=3)]))
    charge(budget, "bob", dithers[2:4])
    clock.at += timedelta(days=1)
    charge(budget, "ann", dithers[2:3])
    with pytest.raises(BudgetExhausted, match="3 over all time about one map") as error:
        charge(budget, "ann", dithers[3:4])
    assert error.value.renews is None
    with pytest.raises(BudgetExhausted):
        charge(budget, "eve", dithers[:4])
    assert "eve" not in ledger.counts()


def test_unless_more_is_allowed_a_client_asks_a_thousand_questions_a_day_and_five_about_one_map():
    assert Limits() == Limits(questions=1000, looks=5, period="day", quantile=0.01)


def test_without_public_rows_only_exact_questions_are_counted_and_readiness_says_so():
    budget = Budget(Questions(None), Limits(looks=1))
    assert granted(budget, "ann", rows(1) + 1e-6 * rows(30, seed=2)) == 30
    assert "no public rows" in budget.describe()["near_duplicates"]
    assert budget.describe()["looks"] is None
    with_rows = Budget(Questions(None), Limits(looks=1), public=rows(20), most_looks=7).describe()
    assert (with_rows["near_duplicates"], with_rows["looks"], with_rows["most_looks"]) == ("recognised", 1, 7)
    assert "this process" in with_rows["counted"]
    assert "a single feature" in Budget(Questions(None), Limits(), public=rows(20, d=1)).describe()["near_duplicates"]


@pytest.mark.parametrize("quantile", [0.05, 0.2])
def test_honest_questions_are_taken_for_looks_as_often_as_the_quantile_says(quantile):
    """Once a client has asked as many questions as there are public rows; before that more rarely."""
    n, public = 500, rows(500, seed=1)
    budget = Budget(Questions(None), Limits(questions=10**6, looks=10**6, quantile=quantile), public=public)
    charge(budget, "ann", rows(n, seed=2))
    fresh, taken = rows(1000, seed=3), 0
    for i in range(0, 1000, 100):
        client = f"ann {i}"
        charge(budget, client, rows(n, seed=4 + i))
        charge(budget, client, fresh[i : i + 100])
        seen = budget.questions.history(client, budget.likeness.space)
        taken += sum(q.first <= n for q in seen[n:] if q.first != q.number)
    error = 4 * math.sqrt(quantile * (1 - quantile) / 1000) + 0.02  # and the sampling error of the quantile itself
    assert quantile - error < taken / 1000 < quantile + error


def test_dithers_below_the_threshold_are_found_and_those_well_above_are_not():
    public = rows(1000, seed=1)
    budget = Budget(Questions(None), Limits(questions=10**6, looks=5), public=public)
    apart = budget.likeness.threshold / math.sqrt(2 * 32)  # amplitude at which two dithers are the threshold apart
    for client, amplitude, through in (("near", 0.5 * apart, {5}), ("far", 2.5 * apart, {100})):
        assert granted(budget, client, rows(1, seed=5) + amplitude * rows(100, seed=6)) in through


def test_a_chain_of_small_steps_is_about_one_map():
    budget = Budget(Questions(None), Limits(looks=3), public=rows(500, seed=1))
    step = np.zeros(32, np.float32)
    step[0] = 0.5 * budget.likeness.threshold / math.sqrt(2)
    assert granted(budget, "ann", np.stack([rows(1)[0] * 0 + i * step for i in range(6)])) == 3


def test_what_is_constant_among_public_rows_or_out_of_their_range_makes_no_other_map():
    public = rows(500, seed=1)
    public[:, 7] = 3.0
    budget = Budget(Questions(None), Limits(looks=2), public=public)
    x = np.tile(rows(1), (20, 1))
    x[:, 7] = np.arange(20) * 100.0
    assert granted(budget, "ann", x) == 2
    x[:, 3] = 50.0 + np.arange(20) * 100.0
    x[:, 7] = 3.0
    assert granted(budget, "bob", x) == 2


@pytest.mark.parametrize(("d", "sketch"), [(2, 1), (23, 11), (1024, 128), (5000, 128)])
def test_a_sketch_keeps_distances_and_not_the_input(d, sketch):
    x = rows(200, d=d, seed=3)
    like = Likeness.of(rows(300, d=d, seed=1), 0.01, seed="ledger")
    found = like.sketch(x)
    assert found.shape == (200, sketch)
    assert found.dtype == np.float32
    true, kept = (np.linalg.norm(a[::2] - a[1::2], axis=1) for a in (x * like.scale, found))
    assert np.mean(kept**2 / true**2) == pytest.approx(1.0, abs=6 * math.sqrt(2 / sketch / 100))
    assert like.space != Likeness.of(rows(300, d=d, seed=2), 0.01, seed="ledger").space
    assert like.space != Likeness.of(rows(300, d=d, seed=1), 0.01, seed="ledger", subject="model").space
    again = Likeness.of(rows(300, d=d, seed=1), 0.01, seed="ledger")
    assert (again.space, again.threshold) == (like.space, like.threshold)
    np.testing.assert_array_equal(again.sketch(x), found)


def test_the_threshold_is_the_quantile_of_distances_to_the_nearest_other_row_in_floored_units():
    """Features that vary less than the upper quartile of all deviations are divided by that."""
    units = np.array([1.0, 2.0, 4.0, 8.0, 0.0])
    public = rows(101, d=5, seed=1) * units
    like = Likeness.of(public, 0.2, seed="ledger")
    deviation = public.astype(np.float64).std(0)
    floor = np.sort(deviation[:4])[2]
    assert like.scale == pytest.approx([1 / floor, 1 / floor, 1 / floor, 1 / deviation[3], 0.0])
    directions = like.project(np.eye(5))
    np.testing.assert_allclose(directions.T @ directions, np.eye(2) * 5 / 2, atol=1e-9)
    middle = (np.clip(public, public.min(0), public.max(0)) - public.mean(0)) * like.scale
    np.testing.assert_allclose(like.sketch(public), middle @ directions, atol=1e-5)
    apart = np.linalg.norm(like.sketch(public)[:, None] - like.sketch(public)[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    assert like.threshold == pytest.approx(np.quantile(apart.min(0), 0.2), rel=1e-4)


def test_duplicates_among_public_rows_do_not_make_everything_new():
    public = np.repeat(rows(100, seed=1), 5, axis=0)
    assert Likeness.of(public, 0.01).threshold == Likeness.of(rows(100, seed=1), 0.01).threshold > 0


def test_unusable_public_rows_and_inputs_are_named():
    for wrong in (np.zeros((5, 3)), np.zeros(5), np.zeros((0, 3)), np.full((5, 3), math.nan), np.array([["a", "b"]])):
        with pytest.raises(InputError, match="public: expected"):
            Budget(Questions(None), Limits(), public=wrong)
    budget = Budget(Questions(None), Limits(), public=rows(20))
    for wrong in (rows(1, d=31), np.full((1, 32), math.inf), rows(2)):
        with pytest.raises(InputError, match="x: expected"):
            budget.charge("ann", [b"1"], wrong)
    with pytest.raises(ConfigurationError, match="most_looks"):
        Budget(Questions(None), Limits(), most_looks=0)


def test_models_and_public_rows_of_their_own_have_looks_of_their_own():
    ledger, dithers = Questions(None), rows(1) + 1e-3 * rows(8, seed=2)
    for public, subject in ((1, "one"), (1, "two"), (2, "one")):
        budget = Budget(ledger, Limits(looks=2), public=rows(100, seed=public), subject=subject)
        fresh = dithers + public + len(subject) * (subject == "two")
        assert granted(budget, "ann", fresh) == 2


def test_inputs_are_not_stored(tmp_path):
    x = rows(1)
    with Questions(f"sqlite:///{tmp_path}/budget.db") as ledger:
        budget = Budget(ledger, Limits(), public=rows(100, seed=1))
        charge(budget, "ann", x)
        (question,) = ledger.history("ann", budget.likeness.space)
    assert len(question.sketch) == 4 * 16, "half as many numbers as the input has"
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert not any(number.tobytes() in stored for number in x[0])


def test_histories_are_read_as_they_grow_and_forgotten_when_there_is_no_room(monkeypatch):
    monkeypatch.setattr(module, "HISTORY_BYTES", 2000)
    budget = Budget(Questions(None), Limits(looks=2, quantile=1e-6), public=rows(100, seed=1))
    read, seen = [], budget.questions.history
    monkeypatch.setattr(
        budget.questions, "history", lambda client, space, after: read.append(after) or seen(client, space, after)
    )
    for row in rows(4):
        budget.charge("ann", digests(row[None]), row[None])
    assert read == [0, 0, 1, 2], "what was asked last is read at the next question"
    budget.charge("bob", digests(rows(40, seed=5)), rows(40, seed=5))
    budget.charge("bob", digests(rows(1, seed=6)), rows(1, seed=6))
    near = rows(4)[:1] + 1e-4
    assert granted(budget, "ann", np.concatenate([near, near + 1e-4])) == 1, "read again"


def _ask(url, seed, pipe, begin):
    budget = Budget(Questions(url), Limits(looks=5, questions=7), public=rows(100, seed=1))
    begin.wait()
    near = granted(budget, "ann", rows(1) + 1e-3 * rows(12, seed=seed))
    pipe.send((near, granted(budget, "ann", rows(12, seed=seed + 100))))


def test_processes_get_exactly_the_limits(tmp_path):
    url, fork = f"sqlite:///{tmp_path}/budget.db", multiprocessing.get_context("fork")
    Questions(url).close()
    begin, pipes, processes = fork.Barrier(2), [], []
    for seed in (10, 20):
        here, there = fork.Pipe(duplex=False)
        processes.append(fork.Process(target=_ask, args=(url, seed, there, begin), daemon=True))
        processes[-1].start()
        pipes.append(here)
    done = [pipe.recv() for pipe in pipes if pipe.poll(60)]
    assert np.sum(done, axis=0).tolist() == [5, 2]


def test_a_ledger_that_is_away_refuses_everything(tmp_path):
    path = tmp_path / "budget.db"
    budget = Budget(Questions(f"sqlite:///{path}"), Limits(), public=rows(100, seed=1))
    x = rows(2)
    charge(budget, "ann", x[:1])
    budget.questions.ping()
    path.rename(tmp_path / "away.db")
    for use in (lambda: budget.charge("ann", digests(x), x), budget.questions.ping):
        with pytest.raises(LedgerError):
            use()
    with pytest.raises(LedgerError):
        budget.charge("ann", digests(x[:1]), x[:1])
    (tmp_path / "away.db").rename(path)
    charge(budget, "ann", x)
    assert budget.questions.counts() == {"ann": 2}
    budget.questions.close()
