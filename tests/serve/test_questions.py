"""Questions are counted exactly: what was asked before is free, and at the limit exactly the limit is granted."""

import hashlib
import hmac
import itertools
import multiprocessing
import os
import random
import signal
import time
from datetime import UTC, datetime, timedelta

import pytest

from safexplain.errors import BudgetExhausted, ConfigurationError, LedgerError
from safexplain.serve.questions import Limit, NearDuplicates, Questions
from tests.ledger.conftest import SetClock, postgres_server, postgres_url, sqlite_url  # noqa: F401

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
FORK = multiprocessing.get_context("fork")
EVER = Limit(10**6, "lifetime")


def named(*numbers: int) -> list[bytes]:
    """Digests of questions."""
    return [hashlib.sha256(str(n).encode()).digest() for n in numbers]


@pytest.fixture
def clock():
    return SetClock()


@pytest.fixture
def asked(request, clock):
    """In memory, or `in_each_database`."""
    database = getattr(request, "param", "memory")
    url = None if database == "memory" else request.getfixturevalue(f"{database}_url")
    with Questions(url, clock=clock) as made:
        yield made


in_each_database = pytest.mark.parametrize("asked", ["memory", "sqlite", "postgres"], indirect=True)


@in_each_database
def test_distinct_questions_are_counted_and_what_was_asked_before_is_free(asked):
    three = Limit(3, "lifetime")
    assert asked.ask("ann", named(1, 2, 1), three) == 2
    assert asked.ask("ann", named(2, 1), three) == 0
    assert asked.ask("bob", named(1), three) == 1, "each client counts alone"
    with pytest.raises(BudgetExhausted, match=r"2 new questions would exceed 3 over all time, with 2 asked already"):
        asked.ask("ann", named(1, 3, 4), three)
    assert asked.ask("ann", named(1, 3), three) == 1, "all of several are counted or none"
    with pytest.raises(BudgetExhausted, match="1 new question would exceed 3 over all time, with 3 asked") as error:
        asked.ask("ann", named(4), three)
    assert (error.value.principal, error.value.requested) == ("ann", 1)
    assert (error.value.spent, error.value.budget, error.value.renews) == (3, 3, None)
    assert asked.ask("ann", named(3, 2, 1), three) == 0, "free, also where nothing is left"
    assert asked.ask("ann", [], three) == 0
    assert asked.counts() == {"ann": 3, "bob": 1}
    assert asked.verify() == 4


def test_several_are_all_counted_or_none(asked):
    three = Limit(3, "lifetime")
    asked.ask("ann", named(1), three)
    with pytest.raises(BudgetExhausted, match=r"3 new questions would exceed 3 over all time, with 1 asked already"):
        asked.ask("ann", named(1, 2, 3, 4), three)
    assert asked.counts() == {"ann": 1}
    assert asked.ask("ann", named(2, 3), three) == 2


def test_what_is_stored_of_a_question_is_its_digest_under_a_secret_of_the_ledger(asked):
    digest = named(1)[0]
    asked.ask("ann", [digest], EVER)
    stored = bytes(asked._storage.read("SELECT digest FROM ledger_questions")[0][0])
    secret = bytes(asked._storage.read("SELECT secret FROM ledger_identity")[0][0])
    assert stored == asked.keyed(digest) == hmac.digest(secret, digest, "sha256")
    assert len(secret) == 32
    assert Questions(None).keyed(digest) != stored, "each ledger has its own"


def test_a_period_renews_the_count_and_old_questions_stay_free(asked, clock):
    two = Limit(2, "day")
    asked.ask("ann", named(1, 2), two)
    with pytest.raises(BudgetExhausted, match="renews at 2026-03-12 00:00 UTC") as error:
        asked.ask("ann", named(3), two)
    assert error.value.renews == datetime(2026, 3, 12, tzinfo=UTC)
    clock.at += timedelta(days=1)
    assert asked.ask("ann", named(1, 3, 4), two) == 2
    clock.at -= timedelta(days=1)
    with pytest.raises(BudgetExhausted):
        asked.ask("ann", named(5), two)
    clock.at += timedelta(days=40)
    assert asked.ask("ann", named(5, 6), two) == 2
    assert asked.verify() == 6


@in_each_database
def test_a_grant_takes_the_place_of_the_limit(asked):
    one = Limit(1, "day")
    asked.ask("ann", named(1), one)
    asked.grant("ann", 3, "contract 7")
    assert asked.ask("ann", named(2, 3), one) == 2
    asked.grant(None, 2)
    assert asked.grants() == {"ann": 3, "": 2}
    assert asked.ask("bob", named(1, 2), one) == 2
    for who, number in itertools.product(("ann", "bob"), (8, 9)):
        with pytest.raises(BudgetExhausted):
            asked.ask(who, named(number), one)
    for wrong in (0, 2.5, True):
        with pytest.raises(ConfigurationError, match="questions"):
            asked.grant("ann", wrong)


def looks_of(digests):
    """NearDuplicates of questions whose sketches are alike if their first byte is; sketches as digests."""

    def assign(positions, number, later):
        first = {}
        for seen in later:
            first.setdefault(seen.sketch[:1], seen.first)
        return [first.setdefault(digests[i][:1], number + j) for j, i in enumerate(positions)]

    return NearDuplicates("space", digests, 0, assign, (Limit(2, "day"), Limit(3, "lifetime")))


@in_each_database
def test_looks_at_one_thing_are_counted_by_period_and_over_all_time(asked, clock):
    def ask(*digests):
        return asked.ask("ann", list(digests), EVER, lambda: looks_of(digests))

    assert ask(b"a1", b"a2", b"b1") == 3
    with pytest.raises(BudgetExhausted, match=r"too close to earlier ones would exceed 2 a day") as error:
        ask(b"a3")
    assert error.value.renews == datetime(2026, 3, 12, tzinfo=UTC)
    with pytest.raises(BudgetExhausted):
        ask(b"c1", b"c2", b"c3")
    assert ask(b"a1", b"c1", b"b2") == 2
    clock.at += timedelta(days=1)
    assert ask(b"a3") == 1
    with pytest.raises(BudgetExhausted, match=r"3 over all time about one map.* never renews") as error:
        ask(b"a4")
    assert error.value.renews is None
    assert [s.first for s in asked.history("ann", "space")] == [1, 1, 3, 4, 3, 1]
    assert [s.number for s in asked.history("ann", "space", after=4)] == [5, 6]
    assert asked.history("ann", "another space") == asked.history("bob", "space") == []
    assert asked.verify() == 6


def ask_until_refused(url, pipe, begin):
    asked, done = Questions(url), 0
    begin.wait()
    try:
        while True:
            done += asked.ask("ann", named(random.getrandbits(60)), Limit(60, "lifetime"))
    except BudgetExhausted:
        pipe.send(done)


def ask_for_ever(url, pipe, begin):
    asked = Questions(url)
    begin.wait()
    while True:
        digest = os.urandom(16)
        asked.ask("ann", [digest, digest[:8]], EVER)
        os.write(pipe.fileno(), digest)


def started(work, count, url):
    begin, processes = FORK.Barrier(count + 1), []
    for _ in range(count):
        here, there = FORK.Pipe(duplex=False)
        process = FORK.Process(target=work, args=(url, there, begin), daemon=True)
        process.start()
        there.close()
        processes.append((process, here))
    begin.wait()
    return processes


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_processes_that_ask_at_the_limit_are_granted_exactly_the_limit(database, request):
    url = request.getfixturevalue(f"{database}_url")
    Questions(url).close()
    random.seed(None)
    done = [here.recv() for _, here in started(ask_until_refused, 3, url) if here.poll(60)]
    with Questions(url) as asked:
        assert sum(done) == 60 == asked.counts()["ann"] == asked.verify()


def test_no_question_that_was_acknowledged_is_lost_to_kill_9(sqlite_url):  # noqa: F811
    url = sqlite_url
    Questions(url).close()
    told = 0
    for _ in range(3):
        processes = started(ask_for_ever, 2, url)
        time.sleep(random.uniform(0.05, 0.2))
        for process, _ in processes:
            os.kill(process.pid, signal.SIGKILL)
        acknowledged = b""
        for process, here in processes:
            process.join()
            while part := os.read(here.fileno(), 65536):
                acknowledged += part
        digests = [acknowledged[i : i + 16] for i in range(0, len(acknowledged), 16)]
        with Questions(url) as asked:
            assert asked.ask("ann", [d for whole in digests for d in (whole, whole[:8])], EVER) == 0
            asked.verify()
        told += len(digests)
    assert told


def test_a_process_forgets_what_is_on_the_disk_before_it_fills_memory(sqlite_url, monkeypatch):  # noqa: F811
    monkeypatch.setattr("safexplain.serve.questions.MAX_CACHED_CLIENTS", 3)
    with Questions(sqlite_url) as asked:
        for i in range(10):
            assert asked.ask(f"client {i}", named(1), EVER) == 1
            assert len(asked._durable) <= 3
        assert [asked.ask(f"client {i}", named(1), EVER) for i in range(10)] == [0] * 10


def test_free_questions_are_synced_unless_this_process_knows_that_they_are(sqlite_url, monkeypatch):  # noqa: F811
    synced, real = [], os.fdatasync
    with Questions(sqlite_url) as asked, Questions(sqlite_url) as other:
        monkeypatch.setattr("safexplain.ledger.storage.os.fdatasync", lambda file: synced.append(real(file)))
        for asks, syncs in ((asked, 1), (asked, 1), (other, 2), (other, 2)):
            asks.ask("ann", named(1), EVER)
            assert len(synced) == syncs


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM ledger_questions WHERE number = 1",
        "UPDATE ledger_questions SET number = 5 WHERE number = 2",
        "UPDATE ledger_questions SET first = 9",
        "UPDATE ledger_questions SET first = 0",
    ],
)
def test_verify_finds_questions_that_were_taken_out(asked, damage):
    asked.ask("ann", named(1, 2), EVER)
    assert asked.verify() == 2
    with asked._storage.transaction() as execute:
        execute(damage, ())
    with pytest.raises(LedgerError, match=r"the ledger is damaged: .*questions"):
        asked.verify()


def test_a_backup_counts_on(sqlite_url, tmp_path):  # noqa: F811
    with Questions(sqlite_url) as asked:
        asked.ask("ann", named(1), EVER)
        asked.backup(tmp_path / "copy.db")
    with Questions(f"sqlite:///{tmp_path}/copy.db") as copy:
        assert copy.ask("ann", named(1, 2), EVER) == 1
        assert copy.verify() == 2
