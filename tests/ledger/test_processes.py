"""Threads, processes, forks and kill -9: nothing acknowledged is lost, and no budget is overspent."""

import multiprocessing
import os
import pickle
import random
import signal
import threading
import time
from multiprocessing.connection import wait

import pytest

from safexplain.errors import LedgerError
from safexplain.ledger import BudgetExhausted, Ledger, Pure
from safexplain.ledger.accounts import Entry
from tests.ledger.conftest import in_each_database

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
FORK = multiprocessing.get_context("fork")  # starts in no time, and is the harder case


def charge_until_refused(url, pipe, begin):
    ledger, done = Ledger(url), 0
    begin.wait()
    try:
        while True:
            ledger.charge("ann", epsilon=0.05)
            done += 1
    except BudgetExhausted:
        pipe.send(done)


def charge_for_ever(url, pipe, begin, name, number):
    """Tells the number of each charge once it is acknowledged."""
    ledger, i = Ledger(url), 0
    begin.wait()
    while True:
        i += 1
        if i % 3:
            charge = ledger.charge(name, epsilon=0.01)
        else:
            charge = ledger.answer(name, f"{name} {number} {i} {os.getpid()}", lambda: 1, Pure(0.01)).charge
        os.write(pipe.fileno(), f"{charge.id}\n".encode())


def start(work, count, url, *arguments):
    """Processes that begin together, and the ends of their pipes."""
    begin, started = FORK.Barrier(count + 1), []
    for i in range(count):
        here, there = FORK.Pipe(duplex=False)
        process = FORK.Process(target=work, args=(url, there, begin, *(a[i] for a in arguments)), daemon=True)
        process.start()
        there.close()
        started.append((process, here))
    begin.wait()
    return started


@in_each_database
def test_processes_together_never_overspend(url):
    Ledger(url, epsilon=5.0).close()
    started = start(charge_until_refused, 3, url)
    done = [here.recv() for _, here in started if here.poll(60)]
    with Ledger(url) as ledger:
        assert sum(done) == 100
        assert ledger.spent("ann") == 5.0
        assert ledger.verify() == 100
    assert len(done) == 3
    assert min(done) > 0, f"somebody starved: {done}"


@in_each_database
def test_an_account_that_another_is_just_opening_is_seen(url):
    """What a writer waited for is what it decides on, also where there was no row when it began to wait."""
    with Ledger(url, epsilon=1.0) as ledger, Ledger(url) as other:
        refused = []

        def charge():
            try:
                ledger.charge("ann", epsilon=0.5)
            except BudgetExhausted as error:
                refused.append(error)

        thread, entries = threading.Thread(target=charge), [Entry(Pure(0.75))]
        with other._storage.transaction() as execute:
            balances = other._locked_balances(execute, "ann").after_charging(entries)
            thread.start()
            time.sleep(0.2)
            balances.record(execute, entries)
        thread.join()
        assert [e.spent for e in refused] == [0.75]
        assert ledger.verify() == 1


def killed_round(url, number, seed):
    """Kill three writers at a random moment; what they had been told was recorded, and how many they were."""
    started = start(charge_for_ever, 3, url, ("ann", "bob", "ann"), (number,) * 3)
    assert wait([here for _, here in started], timeout=60), "nobody was told anything"
    time.sleep(random.Random(seed).uniform(0.1, 0.5))
    for process, _ in started:
        os.kill(process.pid, signal.SIGKILL)
    told = []
    for process, here in started:
        process.join()
        while part := os.read(here.fileno(), 1 << 16):
            told.append(part.decode())
    return {int(line) for line in "".join(told).splitlines()}, len(started)


@in_each_database
def test_nothing_acknowledged_is_lost_to_kill_9(url):
    with Ledger(url, epsilon=1e4) as ledger:
        before = 0
        for i in range(2):
            acknowledged, writers = killed_round(url, i, seed=i)
            recorded = {c.id for c in ledger.charges()}
            assert acknowledged, "the round was too short to test anything"
            assert acknowledged <= recorded, "a charge that was acknowledged is gone"
            assert len(recorded) - before <= len(acknowledged) + writers, "charges that nobody asked for"
            assert ledger.verify() == len(recorded), "sums, charges and answers agree"
            before = len(recorded)
        ledger.charge("ann", epsilon=0.01)


def die_inside_a_transaction(url, pipe, begin):
    begin.wait()
    with Ledger(url)._storage.transaction() as execute:
        execute("INSERT INTO ledger_answers VALUES ('q', '1', '{}')", ())
        execute("UPDATE ledger_accounts SET charges = 7", ())
        os.kill(os.getpid(), signal.SIGKILL)


@in_each_database
def test_a_writer_killed_inside_a_transaction_leaves_nothing_and_blocks_nobody(url):
    with Ledger(url, epsilon=1.0, timeout=5.0) as ledger:
        ledger.charge("ann", epsilon=0.25)
        [(process, _)] = start(die_inside_a_transaction, 1, url)
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert ledger.charge("ann", epsilon=0.25).id == 2
        assert ledger.verify() == 2


def in_child(ledger, pipe):
    ledger.charge("ann", epsilon=0.25)
    pipe.send(ledger.spent("ann"))


@in_each_database
def test_a_fork_while_another_thread_writes_does_not_hang(url):
    with Ledger(url, epsilon=1e6) as ledger:
        stop = threading.Event()

        def write():
            while not stop.is_set():
                ledger.charge("ann", epsilon=0.01)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            for _ in range(5):
                here, there = FORK.Pipe()
                child = FORK.Process(target=in_child, args=(ledger, there), daemon=True)
                child.start()
                assert here.poll(20), "the child hangs"
                child.join()
        finally:
            stop.set()
            thread.join()
        assert ledger.verify() == ledger.account("ann").charges


def hold(url, pipe, begin):
    with Ledger(url)._storage.transaction():
        begin.wait()
        time.sleep(60)


def test_waiting_for_a_writer_ends_with_an_error(sqlite_url):
    with Ledger(sqlite_url, epsilon=1.0, timeout=0.3) as ledger:
        [(process, _)] = start(hold, 1, sqlite_url)
        with pytest.raises(LedgerError, match=r"held it for 0\.3 s"):
            ledger.charge("ann", epsilon=0.1)
        assert ledger.spent("ann") == 0.0, "reading does not wait"
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        ledger.charge("ann", epsilon=0.1)


def test_what_one_process_is_charged_after_a_fork_survives_the_other_closing(sqlite_url):
    """SQLite's record of locks goes over a fork and its locks do not: an open connection would lose the log."""
    ledger = Ledger(sqlite_url, epsilon=100.0)
    ledger.charge("a", epsilon=1.0)
    ready, go = FORK.Event(), FORK.Event()

    def child() -> None:
        ledger.charge("a", epsilon=1.0)
        ready.set()
        go.wait(30)
        for _ in range(5):
            ledger.charge("a", epsilon=1.0)

    process = FORK.Process(target=child)
    process.start()
    assert ready.wait(30)
    ledger.close()
    go.set()
    process.join(30)
    with Ledger(sqlite_url) as again:
        assert (again.spent("a"), again.verify()) == (7.0, 7)


def test_a_pickled_ledger_is_the_same_file_from_another_folder(tmp_path, monkeypatch):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    kept = pickle.dumps(Ledger("sqlite:///budget.db", epsilon=1.0))
    monkeypatch.chdir(tmp_path / "there")
    pickle.loads(kept).charge("a", epsilon=0.5)
    assert list((tmp_path / "there").iterdir()) == []
    assert Ledger(f"sqlite:///{tmp_path}/here/budget.db").spent("a") == 0.5
