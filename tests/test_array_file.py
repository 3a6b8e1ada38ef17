"""Arrays of a stranger's .npz: only what is asked for is read, and only if the file can hold what it claims."""

import io
import struct
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from memory import peak_of

from safexplain._files import ArrayFile, read_arrays
from safexplain.audit import Signals
from safexplain.errors import InputError
from safexplain.loading.data import load_data

X = np.arange(12.0).reshape(3, 4)
BOMB = 64 << 20
LITTLE = BOMB // 4
"""More than all else that a test reads; the rest is for what other threads hold."""


def npy(array=X, *, header=None):
    """Bytes of a .npy, perhaps with another header than its own."""
    file = io.BytesIO()
    np.save(file, array)
    if header is None:
        return file.getvalue()
    text = repr(header).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + array.tobytes()


def archive(entries, compression=zipfile.ZIP_DEFLATED):
    """Bytes of a zip with these (name, bytes or pieces of them)."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as zipped:
        for name, content in entries:
            with zipped.open(name, "w") as entry:
                for piece in [content] if isinstance(content, bytes) else content:
                    entry.write(piece)
    return file.getvalue()


def claims(**header):
    return archive([("a.npy", npy(header={"descr": "<f8", "fortran_order": False, "shape": (3, 4)} | header))])


def bomb(name):
    """An entry of 64 MiB of zeros, a sixteenth of a MiB long in the file: its name, and its bytes in pieces."""
    head = npy(np.zeros(0, np.uint8), header={"descr": "|u1", "fortran_order": False, "shape": (BOMB,)})
    return name, [head, *[bytes(1 << 20)] * (BOMB >> 20)]


@pytest.fixture(scope="module")
def with_bomb():
    made = archive([("x.npy", npy()), bomb("bomb.npy"), ("y.npy", npy(np.array([0, 1, 1])))])
    assert len(made) < 1 << 20
    return made


dtypes = st.sampled_from(["<f8", ">f4", "<i8", "|u1", "|b1", "<U5", "|S3", "<c16", "<M8[s]"])
shapes = arrays_of.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@settings(max_examples=30, deadline=None)
@given(
    st.dictionaries(st.text("abcä@_1 .", min_size=1, max_size=6), st.tuples(dtypes, shapes), max_size=4), st.booleans()
)
def test_what_numpy_writes_is_read_as_numpy_reads_it(tmp_path_factory, layout, packed):
    path = tmp_path_factory.mktemp("npz") / "a.npz"
    made = {
        name: np.asfortranarray(np.arange(np.prod(s)).astype("i8").reshape(s).astype(d))
        for name, (d, s) in layout.items()
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as zipped:
        for name, array in made.items():
            zipped.writestr(f"{name}.npy", npy(array))
    found = read_arrays(path)
    assert list(found) == list(made)
    with ArrayFile(path) as file:
        for name, array in made.items():
            assert file.header(name) == (array.dtype, array.shape)
            np.testing.assert_array_equal(found[name], array)
            assert found[name].dtype == array.dtype


def test_an_array_that_nobody_asks_for_costs_nothing(with_bomb, tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(with_bomb)

    def read():
        with ArrayFile(path) as file:
            assert file.names == ("x", "bomb", "y")
            assert file.header("bomb") == (np.uint8, (BOMB,))
            assert file.read("x", "y").keys() == {"x", "y"}
        assert read_arrays(path, "x").keys() == {"x"}

    assert peak_of(read) < LITTLE


def test_loaders_read_what_they_declare_and_not_the_bomb_beside_it(tmp_path):
    rows = {"x": np.zeros((6, 2)), "y": np.arange(6) % 2, "member": np.arange(6) < 3}
    entries = [(f"{name}.npy", npy(array)) for name, array in rows.items()]
    (tmp_path / "data.npz").write_bytes(archive([bomb("bomb.npy"), *entries]))
    assert peak_of(lambda: load_data(tmp_path / "data.npz")) < LITTLE


def test_a_bomb_in_signals_is_refused_unread(tmp_path):
    signals = {"membership": np.arange(8).reshape(2, 4) % 2 == 0, "l1": np.zeros((2, 4))}
    entries = [(f"{name}.npy", npy(array)) for name, array in signals.items()]
    (tmp_path / "signals.npz").write_bytes(archive([*entries, bomb("bomb.npy")]))

    def refused():
        with pytest.raises(InputError, match="array 'bomb': expected numbers of shape"):
            Signals.load(tmp_path / "signals.npz")

    assert peak_of(refused) < LITTLE


@pytest.mark.parametrize("name", ["y", "class_names"])
def test_a_declared_array_of_another_size_is_refused_unread(name, tmp_path):
    rows = {"x": npy(np.zeros((6, 2))), "y": npy(np.arange(6) % 2), "member": npy(np.arange(6) < 3)}
    rows[name] = bomb(name)[1]
    (tmp_path / "data.npz").write_bytes(archive([(f"{n}.npy", content) for n, content in rows.items()]))

    def refused():
        with pytest.raises(InputError, match=name):
            load_data(tmp_path / "data.npz")

    assert peak_of(refused) < LITTLE


DAMAGED = [
    (claims(shape=(3, 5)), r"claims dtype float64 and shape \(3, 5\), 120 bytes, but the file holds 96"),
    (claims(shape=(3, 3)), "72 bytes, but the file holds 96"),
    (claims(shape=(2**64, 2**64)), "claims dtype float64"),
    (claims(shape=(-3, -4)), "shape"),
    (claims(descr="|O"), "Python objects"),
    (claims(descr=[("f", "<f8")]), "expected plain numbers"),
    (claims(descr="<U0", shape=(10**9,)), "expected plain numbers"),
    (claims(more=1), "damaged"),
    (archive([("a.npy", b"\x93NUMPY\x01\x00" + b"\xff\xff" + b"{" * 70000)]), "damaged"),
    (archive([("a.npy", b"no array")]), "damaged"),
    (archive([("a.npy", b"")]), "damaged"),
    (archive([("../a.npy", npy())]), "path"),
    (archive([("dir\\a.npy", npy())]), "path"),
    (archive([("a.npy", npy())], zipfile.ZIP_BZIP2), "uses a compression"),
    (b"PK\x03\x04 and no more", "damaged"),
    (archive([("a.npy", npy())])[:-30], "damaged"),
    (b"", "damaged"),
]


def test_a_file_that_claims_too_much_or_is_damaged_is_one_sentence():
    def refused():
        for content, expected in DAMAGED:
            with pytest.raises(InputError, match=expected) as error, ArrayFile(content, "f.npz") as file:
                file.read("a")
            assert "\n" not in str(error.value)
            assert "f.npz" in str(error.value)

    assert peak_of(refused) < LITTLE


def test_two_arrays_of_one_name_are_refused():
    with pytest.warns(UserWarning, match="Duplicate"):
        content = archive([("a.npy", npy()), ("a.npy", npy(X + 1))])
    with pytest.raises(InputError, match="two arrays named 'a'"):
        ArrayFile(content)


def patched(content, at, value, *, kind):
    """The directory's record of the one entry, with another number."""
    where = content.rindex(b"PK\x01\x02") + at
    return content[:where] + struct.pack(kind, value) + content[where + struct.calcsize(kind) :]


@pytest.mark.parametrize(
    ("at", "value", "kind", "expected"),
    [
        (8, 1, "<H", "encrypted"),
        (24, 2**32 - 2, "<L", "more than it can hold"),
        (20, 2**31, "<L", "ends beyond the file"),
        (16, 12345, "<L", "damaged"),  # the checksum
    ],
)
def test_a_directory_that_lies_is_refused(at, value, kind, expected):
    content = patched(archive([("a.npy", npy())]), at, value, kind=kind)
    with pytest.raises(InputError, match=expected), ArrayFile(content) as file:
        file.read("a")


def test_entries_that_share_their_bytes_are_refused():
    """As in the zip bombs of Fifield (2019), where each file is read out of the next."""
    content = archive([("a.npy", npy()), ("b.npy", npy())])
    content = patched(content, 42, 0, kind="<L")
    with pytest.raises(InputError, match="overlaps another one"):
        ArrayFile(content)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_no_change_of_a_byte_gives_anything_but_the_arrays_or_one_error(data):
    content = bytearray(archive([("a.npy", npy()), ("b.npy", npy(np.arange(5)))]))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        with ArrayFile(bytes(content)) as file:
            found = file.read(*file.names)
    except InputError:
        return
    for array in found.values():
        assert array.nbytes <= 1 << 20


def test_more_than_the_machine_has_is_refused_before_it_is_read(monkeypatch, with_bomb):
    monkeypatch.setattr("safexplain._files.machine_memory", lambda: 25 << 20)
    with pytest.raises(InputError, match="64 MiB of arrays, but this machine has 25 MiB"), ArrayFile(with_bomb) as file:
        file.read("bomb")
