"""Questions are counted exactly: what was asked before is free, and at the limit exactly the limit is granted."""

from __future__ import annotations

import hashlib
import hmac
import multiprocessing
import os
import pickle
import random
import signal
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from safexplain.errors import BudgetExhausted, ConfigurationError, InputError, LedgerError
from safexplain.ledger import Ledger, Pure
from safexplain.ledger.questions import Looks, Most
from safexplain.ledger.storage.schema import MIGRATIONS
from tests.ledger.test_databases import of_version

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
FORK = multiprocessing.get_context("fork")


def named(*numbers: int) -> list[bytes]:
    """Digests of questions."""
    return [hashlib.sha256(str(n).encode()).digest() for n in numbers]


@pytest.fixture(params=["sqlite", "postgres", "memory"])
def url(request) -> str:
    return "memory:" if request.param == "memory" else request.getfixturevalue(f"{request.param}_url")


def test_distinct_questions_are_counted_and_what_was_asked_before_is_free(make):
    ledger = make(questions=3)
    assert ledger.ask("ann", named(1, 2, 1)) == 2
    assert ledger.ask("ann", named(2, 1)) == 0
    assert ledger.account("ann").questions == 2
    assert ledger.account("ann").most_questions == 3
    assert ledger.ask("bob", named(1)) == 1, "each principal counts alone"
    assert ledger.ask("ann", named(1, 3)) == 1
    with pytest.raises(BudgetExhausted) as error:
        ledger.ask("ann", named(4))
    assert (error.value.principal, error.value.requested) == ("ann", 1)
    assert (error.value.spent, error.value.budget, error.value.renews) == (3, 3, None)
    assert ledger.ask("ann", named(3, 2, 1)) == 0, "free, also where nothing is left"
    assert [(a.principal, a.questions) for a in ledger.accounts()] == [("ann", 3), ("bob", 1)]
    assert ledger.total().questions == 4
    assert ledger.verify() == 0


def test_several_are_all_counted_or_none(make):
    ledger = make(questions=3)
    ledger.ask("ann", named(1))
    with pytest.raises(BudgetExhausted, match=r"3 new questions would exceed 3 over all time, 1 being asked"):
        ledger.ask("ann", named(1, 2, 3, 4))
    assert ledger.account("ann").questions == 1
    assert ledger.ask("ann", named(2, 3)) == 2


def test_what_is_stored_of_a_question_is_its_digest_under_a_secret_of_the_ledger(make):
    ledger, digest = make(questions=3), named(1)[0]
    ledger.ask("ann", [digest])
    stored = bytes(ledger._storage.read("SELECT digest FROM ledger_questions")[0][0])
    secret = bytes(ledger._storage.read("SELECT secret FROM ledger_identity")[0][0])
    assert stored == ledger.keyed(digest) == hmac.digest(secret, digest, "sha256")
    assert len(secret) == 32
    assert Ledger("memory:", questions=3).keyed(digest) != stored, "each ledger has its own"


def test_the_question_of_an_answer_is_kept_under_the_secret_too(sqlite_url):
    with Ledger(sqlite_url, epsilon=1.0) as ledger:
        charge = ledger.answer("ann", "why?", lambda: 1, Pure(0.5)).charge
        assert charge.question == ledger.keyed(hashlib.sha256(b"text:why?").hexdigest().encode()).hex()
        assert ledger._storage.read("SELECT question FROM ledger_answers") == [(charge.question,)]


def test_digests_are_keyed_without_reading_again_in_forks_and_from_pickles(sqlite_url, monkeypatch):
    with Ledger(sqlite_url, questions=3) as ledger:
        digest = named(1)[0]
        first, again = ledger.keyed(digest), pickle.loads(pickle.dumps(ledger))
        assert again.keyed(digest) == first
        assert ledger._secret not in pickle.dumps(ledger)
        for used in (ledger, again):
            monkeypatch.setattr(used._storage, "read", None)
        child = FORK.Process(target=lambda: os._exit(ledger.keyed(digest) != first))
        child.start()
        child.join()
        assert child.exitcode == 0
        assert ledger.keyed(digest) == again.keyed(digest) == first


def test_a_period_renews_the_count_and_old_questions_stay_free(make, clock):
    ledger = make(questions=2, period="day")
    ledger.ask("ann", named(1, 2))
    with pytest.raises(BudgetExhausted, match="renews at 2026-03-12 00:00 UTC") as error:
        ledger.ask("ann", named(3))
    assert error.value.renews == datetime(2026, 3, 12, tzinfo=UTC)
    clock.at += timedelta(days=1)
    assert ledger.account("ann").questions == 0
    assert ledger.ask("ann", named(1, 3, 4)) == 2
    assert ledger.account("ann").questions == 2
    clock.at -= timedelta(days=1)
    with pytest.raises(BudgetExhausted):
        ledger.ask("ann", named(5))
    clock.at += timedelta(days=40)
    assert ledger.ask("ann", named(5, 6)) == 2
    assert ledger.verify() == 0


def test_limits_of_a_call_hold_beside_the_ledgers_own(make, clock):
    ledger = make(questions=3, period="week")
    a_day = [Most(2, "day")]
    ledger.ask("ann", named(1, 2), most=a_day)
    with pytest.raises(BudgetExhausted) as error:
        ledger.ask("ann", named(3), most=a_day)
    assert error.value.renews == datetime(2026, 3, 12, tzinfo=UTC)
    clock.at += timedelta(days=1)
    ledger.ask("ann", named(3), most=a_day)
    with pytest.raises(BudgetExhausted) as error:
        ledger.ask("ann", named(4, 5), most=a_day)
    assert error.value.renews == datetime(2026, 3, 16, tzinfo=UTC), "of two limits, the one that renews last"


def test_a_grant_is_the_only_limit_on_questions(make):
    ledger = make(questions=1)
    ledger.ask("ann", named(1))
    assert ledger.grant("ann", questions=3, note="contract 7").most_questions == 3
    assert ledger.ask("ann", named(2, 3), most=[Most(1, "day")]) == 2
    ledger.grant(None, questions=2)
    assert ledger.account("ann").most_questions == 3
    assert ledger.ask("bob", named(1, 2)) == 2
    with pytest.raises(BudgetExhausted):
        ledger.ask("bob", named(3))
    assert [(g.principal, g.questions, g.note) for g in ledger.grants()] == [("ann", 3, "contract 7"), ("", 2, "")]
    for wrong in ({}, {"questions": 0}, {"questions": 2, "delta": 0.1}, {"questions": 2.5}):
        with pytest.raises(ConfigurationError):
            ledger.grant("ann", **wrong)


def test_digests_are_bytes(make):
    ledger = make(questions=3)
    for wrong in (b"one", "one", 5):
        with pytest.raises(ConfigurationError, match="digests: expected a sequence of bytes"):
            ledger.ask("ann", wrong)
    with pytest.raises(ConfigurationError, match="digests: expected bytes, got str"):
        ledger.ask("ann", ["one"])
    with pytest.raises(InputError, match="hash what is longer"):
        ledger.ask("ann", [b"x" * 65])
    assert ledger.ask("ann", []) == 0


def looks_of(digests):
    """Looks of questions whose sketches are alike if their first byte is; sketches as digests."""

    def place(positions, number, later):
        first = {}
        for seen in later:
            first.setdefault(seen.sketch[:1], seen.first)
        return [first.setdefault(digests[i][:1], number + j) for j, i in enumerate(positions)]

    return Looks("space", digests, 0, place, (Most(2, "day"), Most(3, "lifetime")))


def test_looks_at_one_thing_are_counted_by_period_and_over_all_time(make, clock):
    ledger = make(questions=100)

    def ask(*digests):
        return ledger.ask("ann", list(digests), looks=lambda: looks_of(digests))

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
    assert [s.first for s in ledger.seen("ann", "space")] == [1, 1, 3, 4, 3, 1]
    assert [s.number for s in ledger.seen("ann", "space", after=4)] == [5, 6]
    assert ledger.seen("ann", "another space") == ledger.seen("bob", "space") == []
    assert ledger.verify() == 0


def test_a_ledger_has_a_budget_of_epsilon_or_of_questions_or_both(make, sqlite_url, tmp_path):
    counting = make(questions=5)
    assert counting.account("ann").epsilon == 0.0
    with pytest.raises(ConfigurationError, match="counts questions and has no budget of epsilon"):
        counting.charge("ann", epsilon=0.5)
    with Ledger(f"sqlite:///{tmp_path}/weighs.db", epsilon=1.0) as weighing:
        with pytest.raises(ConfigurationError, match="no limit on questions"):
            weighing.ask("ann", named(1))
        assert weighing.ask("ann", named(1), most=[Most(1, "day")]) == 1
        assert weighing.account("ann").most_questions is None
    with Ledger(f"sqlite:///{tmp_path}/both.db", epsilon=1.0, questions=2) as both:
        both.ask("ann", named(1))
        both.charge("ann", epsilon=0.25)
        both.ask("ann", named(2))
        account = both.account("ann")
        assert (account.spent, account.charges, account.questions) == (0.25, 1, 2)
        assert both.verify() == 1
        with pytest.raises(ConfigurationError, match="questions: this ledger was made with 2, not 3"):
            Ledger(f"sqlite:///{tmp_path}/both.db", questions=3)
    for wrong in ({"questions": 2, "total_epsilon": 1.0}, {"questions": 0}, {"questions": True}, {"delta": 0.1}):
        with pytest.raises(ConfigurationError):
            Ledger(f"sqlite:///{tmp_path}/wrong.db", **wrong)


def test_a_ledger_in_memory_counts_questions_alone_and_stays_in_its_process(clock):
    for wrong in ({"epsilon": 1.0}, {"epsilon": 1.0, "questions": 2}, {}):
        with pytest.raises(ConfigurationError, match="in memory would forget what was spent"):
            Ledger("memory:", **wrong)
    ledger = Ledger("memory:", questions=2)
    ledger.ask("ann", named(1))
    ledger.close()
    assert ledger.account("ann").questions == 1, "there is nothing to open again"
    with pytest.raises(ConfigurationError, match="cannot go to another process"):
        pickle.dumps(ledger)
    child = os.fork()
    if not child:
        os._exit(0 if ledger.ask("ann", named(1, 2)) == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ledger.account("ann").questions == 1


def ask_until_refused(url, pipe, begin):
    ledger, done = Ledger(url), 0
    begin.wait()
    try:
        while True:
            done += ledger.ask("ann", named(random.getrandbits(60)))
    except BudgetExhausted:
        pipe.send(done)


def ask_for_ever(url, pipe, begin):
    ledger = Ledger(url)
    begin.wait()
    while True:
        digest = os.urandom(16)
        ledger.ask("ann", [digest, digest[:8]])
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
    Ledger(url, questions=60).close()
    random.seed(None)
    done = [here.recv() for _, here in started(ask_until_refused, 3, url) if here.poll(60)]
    with Ledger(url) as ledger:
        assert sum(done) == 60 == ledger.account("ann").questions
        assert ledger.verify() == 0


def test_threads_that_ask_the_same_are_charged_once(url):
    ledger, done = Ledger(url, questions=10), []

    def work(seed):
        order = random.Random(seed).sample(range(10), 10)
        done.extend(ledger.ask("ann", named(n)) for n in order)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(done) == 10 == ledger.account("ann").questions
    ledger.close()


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_no_question_that_was_acknowledged_is_lost_to_kill_9(database, request):
    url = request.getfixturevalue(f"{database}_url")
    Ledger(url, questions=10**6).close()
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
        with Ledger(url) as ledger:
            assert ledger.ask("ann", [d for whole in digests for d in (whole, whole[:8])]) == 0
            assert ledger.verify() == 0
        told += len(digests)
    assert told


def test_a_process_forgets_what_is_on_the_disk_before_it_fills_memory(sqlite_url, monkeypatch):
    monkeypatch.setattr("safexplain.ledger.ledger.MOST_REMEMBERED", 3)
    with Ledger(sqlite_url, questions=9) as ledger:
        for i in range(10):
            assert ledger.ask(f"client {i}", named(1)) == 1
            assert len(ledger._durable) <= 3
        assert [ledger.ask(f"client {i}", named(1)) for i in range(10)] == [0] * 10


def test_free_questions_are_synced_unless_this_process_knows_that_they_are(sqlite_url, monkeypatch):
    synced, real = [], os.fdatasync
    with Ledger(sqlite_url, questions=9) as ledger, Ledger(sqlite_url) as other:
        monkeypatch.setattr("safexplain.ledger.storage.sqlite.os.fdatasync", lambda file: synced.append(real(file)))
        for asks, syncs in ((ledger, 1), (ledger, 1), (other, 2), (other, 2)):
            asks.ask("ann", named(1))
            assert len(synced) == syncs


def test_a_ledger_of_an_older_version_counts_questions_once_opened(tmp_path):
    for version in range(1, len(MIGRATIONS)):
        url = f"sqlite:///{tmp_path}/{version}.db"
        of_version(url, version)
        with Ledger(url) as ledger:
            assert ledger.ask("ann", named(1), most=[Most(1, "day")]) == 1
            assert ledger.verify() == 1
            ledger.grant(None, questions=2)
            assert (ledger.ask("ann", named(2)), ledger.spent("ann")) == (1, 0.25)


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM ledger_questions WHERE number = 1",
        "DELETE FROM ledger_questions WHERE number = 2",
        "UPDATE ledger_accounts SET questions = 1 WHERE principal = 'ann'",
        "UPDATE ledger_accounts SET questions = 1 WHERE principal = ''",
        "UPDATE ledger_questions SET principal = 'eve'",
        "UPDATE ledger_questions SET first = 9",
    ],
)
def test_verify_finds_questions_that_were_taken_out(make, damage):
    ledger = make(questions=5)
    ledger.ask("ann", named(1, 2))
    assert ledger.verify() == 0
    with ledger._storage.transaction() as execute:
        execute(damage, ())
    with pytest.raises(LedgerError, match=r"the ledger is damaged: .*questions"):
        ledger.verify()


def test_a_backup_and_a_pickle_count_on(sqlite_url, tmp_path):
    with Ledger(sqlite_url, questions=2) as ledger:
        ledger.ask("ann", named(1))
        ledger.backup(tmp_path / "copy.db")
        again = pickle.loads(pickle.dumps(ledger))
        assert again.ask("ann", named(1, 2)) == 1
        again.close()
    with Ledger(f"sqlite:///{tmp_path}/copy.db") as copy:
        assert copy.ask("ann", named(1, 2)) == 1
        assert copy.verify() == 0


def test_a_server_that_goes_away_refuses_and_counts_on_when_it_is_back(tmp_path):
    """Stopped at once, as by a crash; the same `Ledger` works again."""
    pytest.importorskip("psycopg", reason="PostgreSQL is not tested: psycopg is not installed")
    pgserver = pytest.importorskip("pgserver", reason="PostgreSQL is not tested: pgserver is not installed")
    from pgserver._commands import pg_ctl

    server = pgserver.get_server(tmp_path / "pg", cleanup_mode="stop")
    try:
        with Ledger(server.get_uri(), questions=3, timeout=2.0) as ledger:
            ledger.ask("ann", named(1))
            pg_ctl(["-w", "-m", "immediate", "stop"], pgdata=server.pgdata, user=server.system_user)
            for digests in (named(2), named(1)):
                with pytest.raises(LedgerError, match="look at the URL, at the server"):
                    ledger.ask("ann", digests)
            server.ensure_postgres_running()
            assert ledger.ask("ann", named(1, 2)) == 1
            assert ledger.account("ann").questions == 2
            assert ledger.verify() == 0
    finally:
        server.cleanup()
