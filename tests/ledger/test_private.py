"""Other users of the machine can neither read a ledger nor stop it: real files, and a real other user for root."""

import logging
import os
import stat
from pathlib import Path

import pytest

from safexplain.errors import LedgerError
from safexplain.ledger import Ledger

fcntl = pytest.importorskip("fcntl", reason="Windows has no such modes, and nothing is checked there")
NOBODY = 65534
ENDINGS = ("", "-wal", "-shm", "-queue")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="another user's files are not tested: only root can make them")


@pytest.fixture
def umask():
    """Sets it for one test."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def modes(path: Path) -> dict[str, int]:
    """Of each file that there is, by its ending."""
    files = {ending: Path(f"{path}{ending}") for ending in ENDINGS}
    return {ending: stat.S_IMODE(file.stat().st_mode) for ending, file in files.items() if file.exists()}


def make_public(path: Path) -> None:
    """As safexplain 0.2 left its files."""
    for ending in modes(path):
        Path(f"{path}{ending}").chmod(0o644)


@pytest.mark.parametrize("mask", [0o000, 0o277])
def test_all_files_are_of_mode_0600_whatever_the_umask(path, sqlite_url, umask, mask):
    umask(mask)
    with Ledger(sqlite_url, epsilon=9.0) as ledger:
        ledger.charge("ann", epsilon=1.0)
        assert modes(path) == dict.fromkeys(ENDINGS, 0o600)
        ledger.backup(path.parent / "backup.db")
        ledger.export(path.parent / "charges.csv", format="csv")
    assert modes(path.parent / "backup.db") == modes(path.parent / "charges.csv") == {"": 0o600}


def test_a_ledger_that_others_could_read_is_closed_to_them_once_with_one_warning(path, sqlite_url, caplog):
    with Ledger(sqlite_url, epsilon=9.0) as old:
        old.charge("ann", epsilon=1.0)
        make_public(path)
        with caplog.at_level(logging.WARNING, "safexplain.ledger"), Ledger(sqlite_url) as ledger:
            assert ledger.charge("ann", epsilon=1.0).id == 2
            assert modes(path) == dict.fromkeys(ENDINGS, 0o600)
        with Ledger(sqlite_url) as again:
            assert again.spent("ann") == 2.0
        assert old.charge("ann", epsilon=1.0).id == 3, "also while a process holds it open"
    assert [record.message.split("; ")[1] for record in caplog.records] == ["its files now have mode 0600"]


def test_a_lock_that_was_taken_while_others_could_read_the_queue_stops_nobody(path, sqlite_url):
    Ledger(sqlite_url, epsilon=9.0).close()
    make_public(path)
    with Path(f"{path}-queue").open() as queue:
        fcntl.flock(queue, fcntl.LOCK_EX)
        with Ledger(sqlite_url, timeout=0.5) as ledger:
            assert ledger.charge("ann", epsilon=1.0)


def test_a_folder_in_which_every_user_may_rename_files_is_refused(path, sqlite_url):
    path.parent.chmod(0o777)
    with pytest.raises(LedgerError, match=rf"found mode 0777, .*: chmod o-w {path.parent}"):
        Ledger(sqlite_url, epsilon=9.0)
    assert not path.exists()
    path.parent.chmod(0o1777)  # as /tmp: there only the owner of a file may rename it
    Ledger(sqlite_url, epsilon=9.0).close()
    path.parent.chmod(0o777)
    with pytest.raises(LedgerError, match="found mode 0777"):
        Ledger(sqlite_url)


@pytest.mark.parametrize("ending", ["", "-wal"])
def test_a_link_is_no_file_of_a_ledger(path, sqlite_url, ending):
    Ledger(sqlite_url, epsilon=9.0).close()
    file, elsewhere = Path(f"{path}{ending}"), path.with_name("elsewhere")
    if file.exists():
        file.rename(elsewhere)
    else:
        elsewhere.write_bytes(b"")
    elsewhere.chmod(0o644)
    file.symlink_to(elsewhere)
    with pytest.raises(LedgerError, match=rf"expected a file at {file}, found"):
        Ledger(sqlite_url)
    assert modes(elsewhere) == {"": 0o644}


@as_root
@pytest.mark.parametrize("ending", ["", "-queue"])
def test_a_file_of_another_user_is_refused_with_the_command_that_mends_it(path, sqlite_url, ending):
    Ledger(sqlite_url, epsilon=9.0).close()
    file = Path(f"{path}{ending}")
    file.touch()
    os.chown(file, NOBODY, NOBODY)
    mends = f"rm {file}" if ending == "-queue" else f"chown 0 {file}"
    with pytest.raises(LedgerError, match=rf"user of this process \(uid 0\), found uid {NOBODY}.* sudo {mends}$"):
        Ledger(sqlite_url)
    assert os.system(mends) == 0
    with Ledger(sqlite_url) as ledger:
        assert ledger.charge("ann", epsilon=1.0)
