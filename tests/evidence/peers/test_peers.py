"""audit/benchmarks/peers: sides take turns, ratios and quartiles are right, and who cannot be asked is named."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from evidence import ROOT, run

from audit.benchmarks.peers import contests, suite, tables
from audit.benchmarks.peers.environments import Environment, Skipped, last_line
from audit.benchmarks.peers.race import LEAST_ROUNDS, Race, Run, Worker, quartiles, race
from audit.shared.run import RESULTS

RESULT = RESULTS / "peers.json"


class Recorded:
    """A side that takes the times it is given, and notes in what order it was asked."""

    def __init__(self, name, times, notes):
        self.name, self.times, self.notes = name, iter(times), notes

    def set_up(self, call):
        self.notes.append(f"{self.name} is set up")
        return 1.5

    def run(self, call):
        self.notes.append(self.name)
        took = next(self.times)
        return Run(10 * took, took)


def raced(ours, theirs, rounds, **options):
    notes = []
    found = race(
        (Recorded("A", ours, notes), "ours"),
        (Recorded("B", theirs, notes), "theirs"),
        rounds,
        **{"limit": 60} | options,
    )
    return found, notes


def test_sides_take_turns_after_one_run_that_does_not_count():
    found, notes = raced([9, 1, 2, 3, 4], [9, 2, 2, 9, 2], rounds=4)
    assert notes == ["A is set up", "B is set up", *"AB" * 5]
    assert [r.processor for r in found.ours] == [1, 2, 3, 4]
    assert [r.processor for r in found.theirs] == [2, 2, 9, 2]
    assert found.set_up == (1.5, 1.5)


def test_the_ratio_is_the_peers_time_over_ours_within_a_round():
    found, _ = raced([9, 1, 2, 3, 4], [9, 2, 2, 9, 2], rounds=4)
    assert found.ratios() == [2, 1, 3, 0.5]
    assert found.ratios(clock=True) == [2, 1, 3, 0.5]
    told = suite.figures(contests.Contest("a race", "ours", "theirs", "what"), found, lambda call, run: {"of": call})
    assert told["ratio"] == {"median": 1.5, "low": 0.875, "high": 2.25}
    assert told["ours"]["processor_seconds"] == 2.5
    assert told["theirs"]["clock_seconds"] == 20
    assert told["theirs"]["quality"] == {"of": "theirs"}
    assert told["rounds"] == 4


def test_times_are_of_a_unit_of_the_work():
    slow, quick = Run(8.0 / 4, 8.0 / 4), Run(3.0, 3.0)
    assert Race((quick,), (slow,), (0, 0)).ratios() == [pytest.approx(2 / 3)]


@pytest.mark.parametrize("seed", range(3))
def test_quartiles_are_those_of_numpy(seed):
    numbers = np.random.default_rng(seed).lognormal(size=9 + seed).tolist()
    low, median, high = np.quantile(numbers, [0.25, 0.5, 0.75])
    assert quartiles(numbers) == pytest.approx({"median": median, "low": low, "high": high})
    assert quartiles([2.0]) == {"median": 2.0, "low": 2.0, "high": 2.0}


def test_a_race_ends_when_time_is_up_but_not_before_three_rounds():
    seconds = iter(range(0, 1000, 100))
    found, _ = raced([1] * 20, [1] * 20, rounds=9, limit=60, clock=lambda: next(seconds))
    assert len(found.ours) == LEAST_ROUNDS == 3


# ------------------------------------------------------------------------------------------------- who is not there


def failing(step, said):
    """`subprocess.run` of a machine on which one step of making an environment fails."""

    def done(command, **_):
        bad = step in command
        return subprocess.CompletedProcess(command, int(bad), "", said if bad else "")

    return done


@pytest.mark.parametrize(
    ("step", "said", "reason"),
    [
        ("pip", "noise\nERROR: No matching distribution found for nothing-there\n\n[notice] new pip\n",
         "pip install: ERROR: No matching distribution found for nothing-there"),
        ("-c", "Traceback\nImportError: no such thing | here\n", "`import it`: ImportError: no such thing / here"),
        ("venv", "", "venv: it failed and said nothing"),
    ],
)  # fmt: skip
def test_an_environment_that_cannot_be_made_says_why(tmp_path, step, said, reason):
    with pytest.raises(Skipped) as skipped:
        Environment("it", ("it==1",), "import it").python(tmp_path, failing(step, said))
    assert str(skipped.value) == reason
    assert not (tmp_path / "it" / ".installed").exists()


def test_an_environment_is_made_once_and_anew_when_its_requirements_change(tmp_path):
    commands = []

    def noted(command, **_):
        commands.append(command)
        (tmp_path / "it" / "lib" / "python3" / "site-packages").mkdir(parents=True, exist_ok=True)
        return subprocess.CompletedProcess(command, 0, "", "")

    it = Environment("it", ("it==1",), "import it")
    assert it.python(tmp_path, noted) == it.python(tmp_path, noted) == tmp_path / "it" / "bin" / "python"
    assert len(commands) == 3
    behind = (tmp_path / "it" / "lib" / "python3" / "site-packages" / "zz_base.pth").read_text()
    assert str(ROOT) in behind.splitlines()
    replace(it, requirements=("it==2",)).python(tmp_path, noted)
    assert commands[-2][-1] == "it==2"
    assert Environment("here").python(tmp_path) == suite.Path(sys.executable)


def test_the_reason_names_no_folder_of_the_machine():
    home = str(suite.Path.home())
    assert home not in last_line(f"OSError: {home}/thing is missing")


@pytest.fixture
def options(tmp_path):
    return SimpleNamespace(
        quick=True, rounds=1, limit=1.0, longest=600.0, environments=tmp_path, checkout=None, data=tmp_path / "no data"
    )


BOUNDS = contests.Contest(
    "bounds", "epsilon_lower_bound, gdp", "epsilon_lower_bound, clopper-pearson", "both ours", "audit"
)


def peer(**changes):
    it = contests.Peer(
        "fake", "Fake", "MIT", "nothing", Environment("here"), ("numpy",), lambda quick: {"bounds": (BOUNDS,)}
    )
    return replace(it, **changes)


def test_a_peer_that_does_not_install_is_skipped_by_name_and_reason(monkeypatch, options, tmp_path):
    class Broken(Environment):
        def python(self, folder, run=None):
            return super().python(folder, failing("pip", "ERROR: No matching distribution found for it\n"))

    found = suite.asked(peer(environment=Broken("it", ("it==1",))), options, tmp_path)
    assert found["skipped"] == "pip install: ERROR: No matching distribution found for it"
    assert found["licence"] == "MIT"
    assert "races" not in found
    for shown in (suite.show({"fake": found}), tables.races({"results": {"fake": found}})):
        assert "skipped: pip install: ERROR: No matching distribution found for it" in shown
        assert "Fake" in shown


def test_a_peer_without_its_clone_or_with_another_one_is_skipped(options, tmp_path):
    it = peer(repository="no/such/file.py")
    assert "--checkout DIR" in suite.asked(it, options, tmp_path)["skipped"]
    options.checkout = ROOT
    assert "no/such/file.py" in suite.asked(it, options, tmp_path)["skipped"]


def test_missing_data_is_a_reason_too(options, tmp_path):
    it = peer(works=lambda quick: {"attacks": (BOUNDS,)})
    assert "cifar10.npz" in suite.asked(it, options, tmp_path)["skipped"]


def test_a_race_that_fails_is_named_and_the_others_are_run(options, tmp_path):
    wrong = replace(BOUNDS, name="wrong", theirs="nobody has this")
    found = suite.asked(peer(works=lambda quick: {"bounds": (wrong, BOUNDS)}), options, tmp_path)
    assert list(found["races"]) == ["bounds"]
    assert found["skipped_races"] == {"wrong": "nobody has this: KeyError: 'nobody has this'"}
    assert found["releases"] == {"numpy": np.__version__}
    one = found["races"]["bounds"]
    assert one["ratio"]["median"] > 0
    assert one["ours"]["quality"]["above it"].endswith("of 2")
    assert one["ours"]["set_up_seconds"] > 0
    assert "skipped: nobody has this" in tables.races({"results": {"fake": found}})


def test_a_peer_whose_environment_runs_both_is_raced_in_one_process(monkeypatch, options, tmp_path):
    started = []
    monkeypatch.setattr(suite, "Worker", lambda *given: started.append(given) or Worker(*given))
    assert "races" in suite.asked(peer(together=True), options, tmp_path)
    assert len(started) == 1
    assert "races" in suite.asked(peer(), options, tmp_path)
    assert len(started) == 3


def test_a_call_that_takes_too_long_is_given_up(tmp_path):
    np.savez(tmp_path / "work.npz", a=np.zeros(1))
    slow = Worker(suite.Path(sys.executable), "json", tmp_path / "work.npz", longest=0.0)
    with slow as side, pytest.raises(Skipped, match="call: no answer within 0 s"):
        side.set_up("call")


def test_a_process_that_dies_is_a_reason(tmp_path):
    np.savez(tmp_path / "work.npz", a=np.zeros(1))
    with (
        Worker(suite.Path(sys.executable), "json", tmp_path / "missing.npz") as side,
        pytest.raises(Skipped) as skipped,
    ):
        side.set_up("call")
    assert "FileNotFoundError" in str(skipped.value)
    with Worker(suite.Path(sys.executable), "json", tmp_path / "work.npz") as side, pytest.raises(Skipped) as skipped:
        side.set_up("call")
    assert "AttributeError" in str(skipped.value)


def test_finished_peers_are_kept_and_skipped_ones_are_asked_again(monkeypatch, tmp_path, capsys):
    asked = []

    def answered(each, options, works):
        asked.append(each.key)
        return {"title": each.title} | ({"races": {}} if each.key == "good" else {"skipped": "why not"})

    monkeypatch.setattr(suite, "PEERS", (peer(key="good"), peer(key="bad")))
    monkeypatch.setattr(suite, "asked", answered)
    given = ["--quick", "--out", str(tmp_path / "out.json"), "--cache", str(tmp_path)]
    assert suite.main(given) == suite.main(given) == 0
    assert asked == ["good", "bad", "bad"]
    assert "good: kept" in capsys.readouterr().out
    assert suite.main([*given, "--only", "good"]) == 0
    assert asked[3:] == ["good"]
    assert set(json.loads((tmp_path / "out.json").read_text())["results"]) == {"good", "bad"}


# ------------------------------------------------------------------------------------------------ what is committed


def test_every_peer_is_asked_what_its_work_can_do_and_names_a_licence():
    for each in contests.PEERS:
        assert each.licence
        for module, races in each.works(True).items():
            calls = importlib.import_module(f"audit.benchmarks.peers.work.{module}").CALLS
            assert {call for r in races for call in (r.ours, r.theirs)} <= set(calls)
            assert len({r.name for r in races}) == len(races)


@pytest.mark.skipif(not RESULT.is_file(), reason="no result yet")
def test_where_a_peer_is_faster_the_page_says_why():
    text = (ROOT / "docs" / "evidence" / "peers.md").read_text()
    for key, found in json.loads(RESULT.read_text())["results"].items():
        for name, one in found.get("races", {}).items():
            if one["ratio"]["median"] < 1:
                assert contests.notes(key)[name], f"{found['title']}, {name}: say why it is faster"
                assert contests.notes(key)[name] in text


@pytest.mark.skipif(not RESULT.is_file(), reason="no result yet")
def test_every_peer_is_in_the_result_with_its_releases_or_a_reason():
    results = json.loads(RESULT.read_text())["results"]
    assert list(results) == [each.key for each in contests.PEERS if each.key in results]
    page = tables.peers({"results": {}})
    assert all(f"| {each.title} | {each.asked_for} | skipped: not asked yet |" in page for each in contests.PEERS)
    for found in results.values():
        assert found.get("skipped") or (found["releases"] and found["hardware"])


@pytest.mark.slow
def test_a_quick_run_races_what_is_here(tmp_path):
    done, report = run(
        "audit.benchmarks.peers", "--quick", "--cache", tmp_path, "--only", "dp-accounting", "--only", "opacus",
        out=tmp_path / "out.json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for found in report["results"].values():
        assert "skipped" in found or all(r["ratio"]["median"] > 0 for r in found["races"].values())
