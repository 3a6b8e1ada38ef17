"""What `load_data`, `check_data` and `check_model_fits` promise: arrays, tables and images; one line if unusable."""

import dataclasses
import hashlib
import io
import re
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_breast_cancer, load_digits
from torch import nn

from safexplain.errors import InputError
from safexplain.loading.data import AuditData, check_data, check_model_fits, load_data
from safexplain.loading.files import is_safetensors, one_line


def message(call, *args, **options):
    with pytest.raises(InputError) as caught:
        call(*args, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text


def npz(path, **arrays):
    np.savez(path, **arrays)
    return path


def rows(n=40, width=4, classes=3):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(n, width)).astype(np.float32)
    return {"x": x, "y": np.arange(n) % classes, "member": (np.arange(n) // classes) % 2 == 0}


def data(**changes):
    made = rows()
    base = AuditData(made["x"], made["y"].astype(np.int64), made["member"], None, None, "0" * 64, "rows.npz")
    return dataclasses.replace(base, **changes)


@pytest.fixture
def pyarrow():
    """Recent versions are installed beside NumPy 1.26 but do not import with it."""
    return pytest.importorskip("pyarrow", exc_type=ImportError)


@pytest.fixture(params=["csv", "parquet"])
def suffix(request):
    if request.param == "parquet":
        request.getfixturevalue("pyarrow")
    return request.param


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """60 digits as class/number.png; the first ten are members, the next ten are not, and so on."""
    root = tmp_path_factory.mktemp("digits")
    images, labels = load_digits(return_X_y=True)
    for i in range(60):
        folder = root / ("members" if i // 10 % 2 == 0 else "non-members") / str(labels[i])
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((images[i].reshape(8, 8) * 15).astype(np.uint8)).save(folder / f"{i:03}.png")
    return root


def test_arrays_come_back_as_they_were_saved(tmp_path):
    made = rows()
    path = npz(tmp_path / "d.npz", **made)
    loaded = load_data(path)
    np.testing.assert_array_equal(loaded.x, made["x"])
    np.testing.assert_array_equal(loaded.y, made["y"])
    np.testing.assert_array_equal(loaded.member, made["member"])
    assert (loaded.x.dtype, loaded.y.dtype, loaded.member.dtype) == (np.float32, np.int64, np.bool_)
    assert (loaded.class_names, loaded.feature_names) == (None, None)
    assert loaded.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert loaded.source == str(path)
    assert check_data(loaded, num_classes=3) == ()


def test_the_rule_for_channels_is_explicit(tmp_path):
    for shape, expected in (((12, 6, 5, 3), (12, 3, 6, 5)), *(((12, c, 6, 3), (12, c, 6, 3)) for c in (1, 3))):
        assert load_data(npz(tmp_path / "d.npz", **{**rows(12), "x": np.zeros(shape)})).x.shape == expected


def test_eight_bit_images_without_channels_get_one_and_float_images_are_not_scaled(tmp_path):
    pixels = np.full((12, 6, 5), 255, dtype=np.uint8)
    grey = load_data(npz(tmp_path / "d.npz", **{**rows(12), "x": pixels}))
    assert grey.x.shape == (12, 1, 6, 5)
    assert grey.x.max() == 1
    floats = load_data(npz(tmp_path / "f.npz", **{**rows(12), "x": np.full((12, 1, 6, 5), 255.0)}))
    assert floats.x.max() == 255
    table = load_data(npz(tmp_path / "t.npz", **{**rows(12), "x": np.full((12, 5), 200, dtype=np.uint8)}))
    assert table.x.max() == 200


def test_labels_that_are_names_are_numbered_in_sorted_order(tmp_path):
    names = np.array(["dog", "cat", "dog", "ape"] * 3)
    loaded = load_data(npz(tmp_path / "d.npz", **{**rows(12), "y": names}))
    assert loaded.class_names == ("ape", "cat", "dog")
    assert loaded.y.tolist()[:4] == [2, 1, 2, 0]
    given = {"class_names": np.array(["a", "b", "c"]), "feature_names": np.array(list("wxyz"))}
    named = load_data(npz(tmp_path / "named.npz", **rows(), **given))
    assert (named.class_names, named.feature_names) == (("a", "b", "c"), ("w", "x", "y", "z"))


@pytest.mark.parametrize("name", ["groups", "person"])
def test_groups_and_slices_are_arrays_of_numbers_or_names(name, tmp_path):
    person, region = np.arange(40) // 4, np.array(["north", "south"])[np.arange(40) % 2]
    made = npz(tmp_path / "rows.npz", **rows(), **{name: person}, region=region)
    loaded = load_data(made, group=None if name == "groups" else name, slices=["region"])
    assert np.array_equal(loaded.groups, person)
    assert loaded.slices.keys() == {"region"}
    assert np.array_equal(loaded.slices["region"], region)
    assert loaded.x.shape == (40, 4)
    plain = load_data(npz(tmp_path / "plain.npz", **rows()))
    assert plain.groups is None
    assert plain.slices == {}


@pytest.mark.parametrize(
    ("options", "changes", "expected"),
    [
        ({"group": "person"}, {}, "has no array person"),
        ({"slices": ["age", "region"]}, {}, "has no array age and no array region"),
        ({}, {"groups": np.arange(39)}, r"groups of .*: expected one entry for each row of x \(40, 4\), got shape"),
        ({}, {"groups": np.where(np.arange(40) == 7, np.nan, 1.0)}, "array 'groups' of .* is empty in row 7"),
    ],
)
def test_groups_and_slices_of_no_use_are_one_line(options, changes, expected, tmp_path):
    path = npz(tmp_path / "rows.npz", **rows(), **changes)
    assert re.search(expected, message(load_data, path, **options))


def test_the_group_column_of_a_table_is_no_feature_and_a_slice_stays_one(tmp_path):
    columns = {"age": np.arange(40), "region": ["north", "south"] * 20, "person": [f"p{i // 4}" for i in range(40)]}
    path = table(tmp_path / "rows.csv", **columns, member=[0, 1] * 20, label=[0, 1, 1, 0] * 10)
    loaded = load_data(path, group="person", slices=["region", "age"])
    assert loaded.feature_names == ("age", "region=north", "region=south")
    assert list(loaded.groups[:5]) == ["p0"] * 4 + ["p1"]
    assert loaded.slices["age"].dtype == np.int64
    assert list(loaded.slices["region"][:2]) == ["north", "south"]
    assert load_data(path, group="person", slices=["region"], drop_slices=True).feature_names == ("age",)
    assert "has no group column 'patient'" in message(load_data, path, group="patient")
    assert "has no slice column 'sex'" in message(load_data, path, slices=["sex"])


def test_labels_and_membership_may_be_columns_or_floats(tmp_path):
    made = rows()
    columns = {"y": made["y"].astype(float)[:, None], "member": made["member"].astype(np.uint8)[:, None]}
    loaded = load_data(npz(tmp_path / "d.npz", x=made["x"], **columns))
    np.testing.assert_array_equal(loaded.y, made["y"])
    np.testing.assert_array_equal(loaded.member, made["member"])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"y": None}, "has no array y (it has x, member)"),
        ({"x": np.array(["a"] * 40)}, "expected numbers"),
        ({"y": np.eye(40)}, "take argmax"),
        ({"y": np.full(40, 0.5)}, "expected whole class numbers, counted from 0, got 0.5"),
        ({"member": np.arange(40)}, "expected 0/1, true/false, yes/no or in/out, got '2'"),
        ({"member": np.array(["inside"] * 40)}, "expected 0/1, true/false, yes/no or in/out, got 'inside'"),
        ({"feature_names": np.array(["a"])}, "1 feature_names"),
    ],
)
def test_arrays_of_no_use_are_one_line(changes, expected, tmp_path):
    made = {name: value for name, value in {**rows(), **changes}.items() if value is not None}
    assert expected in message(load_data, npz(tmp_path / "d.npz", **made))


def test_files_that_cannot_be_read_are_one_line(tmp_path, monkeypatch):
    whole = npz(tmp_path / "d.npz", **rows()).read_bytes()
    state = io.BytesIO()
    torch.save({"a": torch.zeros(3)}, state)
    cases = {
        "empty.npz": (b"", "is empty"),
        "cut.npz": (whole[:-300], "damaged or cut short"),
        "model.npz": (state.getvalue(), "got a zip archive without arrays"),
        "noise.csv": (bytes(range(256)), "expected .npz, CSV or Parquet data"),
        "latin.csv": ("a,b\nä,1\n".encode("latin-1"), "cannot be read as a table"),
        "header.csv": (b"a,b,member\n", "without rows"),
    }
    for name, (content, expected) in cases.items():
        (tmp_path / name).write_bytes(content)
        assert expected in message(load_data, tmp_path / name, label="b"), name
    assert "No such file" in message(load_data, tmp_path / "none.npz")
    assert "got a folder without members" in message(load_data, tmp_path)

    def refuse(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert "Permission denied" in message(load_data, tmp_path / "d.npz")


def test_messages_of_others_are_cut_to_one_line_and_files_are_told_by_their_length():
    assert [one_line("a" * n) for n in (200, 201)] == ["a" * 200, "a" * 197 + "..."]
    assert one_line(ValueError("\n  the first \nand more"), 9) == "the first"
    assert one_line(ValueError("the first"), 8) == "the f..."
    assert (one_line(ValueError()), one_line(" ")) == ("ValueError", "str")
    header = b'{"a": 1}'
    found = [is_safetensors((len(header) + more).to_bytes(8, "little") + header) for more in (-1, 0, 1)]
    assert found == [True, True, False]
    assert not is_safetensors(len(header).to_bytes(8, "little") + header[1:] + b"{")


def test_a_table_of_numbers_comes_back_column_for_column(suffix, tmp_path):
    path, cancer = tmp_path / f"cancer.{suffix}", load_breast_cancer(as_frame=True).frame
    cancer["member"] = np.arange(len(cancer)) % 2
    cancer.to_csv(path, index=False) if suffix == "csv" else cancer.to_parquet(path)
    loaded = load_data(path, label="target")
    features = load_breast_cancer()
    np.testing.assert_allclose(loaded.x, features.data, rtol=1e-6)
    assert loaded.feature_names == tuple(features.feature_names)
    np.testing.assert_array_equal(loaded.y, features.target)
    np.testing.assert_array_equal(loaded.member, cancer["member"] == 1)
    assert loaded.class_names is None
    assert check_data(loaded, num_classes=2) == ()


def table(path, **columns):
    pandas.DataFrame(columns).to_csv(path, index=False)
    return path


def test_text_becomes_one_column_a_value_and_true_false_one_column(tmp_path):
    columns = {"job": ["b", "a", "c"], "age": [3, 5, 7], "rich": [True, False, True], "kind": ["yes", "no", "yes"]}
    loaded = load_data(table(tmp_path / "t.csv", **columns, member=[1, 0, 1]), label="kind")
    assert loaded.feature_names == ("job=a", "job=b", "job=c", "age", "rich")
    assert loaded.x.tolist() == [[0, 1, 0, 3, 1], [1, 0, 0, 5, 0], [0, 0, 1, 7, 1]]
    assert loaded.class_names == ("no", "yes")
    assert loaded.y.tolist() == [1, 0, 1]


def test_membership_is_read_in_the_usual_spellings(tmp_path):
    for spelling in (["true", "false"], ["YES", "no"], [" In", "Out "]):
        path = table(tmp_path / "t.csv", a=[1, 2], label=[0, 1], member=spelling)
        assert load_data(path).member.tolist() == [True, False]


def test_nullable_columns_of_parquet_are_numbers(pyarrow, tmp_path):
    frame = pandas.DataFrame(
        {"a": pandas.array([1, None], dtype="Int64"), "b": pandas.array([True, False], dtype="boolean")}
    ).assign(y=[0, 1], member=[1, 0])
    frame.to_parquet(tmp_path / "t.parquet")
    x = load_data(tmp_path / "t.parquet", label="y").x
    np.testing.assert_array_equal(x, [[1, 1], [np.nan, 0]])


@pytest.mark.parametrize(
    ("columns", "label", "expected"),
    [
        ({}, "z", "has no label column 'z' (its columns: a, y, member)"),
        ({"member": None}, "y", "has no member column 'member'"),
        ({"member": [1, 2]}, "y", "expected 0/1, true/false, yes/no or in/out, got '2'"),
        ({"y": ["a", None]}, "y", "empty in row 1"),
        ({"a": ["x", None]}, "y", "1 empty values, the first in row 1"),
        ({"a": None}, "y", "no columns of features; add them"),
    ],
)
def test_tables_of_no_use_are_one_line(columns, label, expected, tmp_path):
    made = {"a": [1, 2], "y": [0, 1], "member": [1, 0]} | columns
    path = table(tmp_path / "t.csv", **{name: value for name, value in made.items() if value is not None})
    assert expected in message(load_data, path, label=label)


def test_identifiers_and_dates_are_refused_by_column(pyarrow, tmp_path):
    names = [f"person {i}" for i in range(300)]
    path = table(tmp_path / "t.csv", who=names, y=[0, 1] * 150, member=[1] * 300)
    assert "text column 'who'" in message(load_data, path, label="y")
    dates = pandas.DataFrame({"when": pandas.to_datetime(["2020-01-01"] * 2), "y": [0, 1], "member": [1, 0]})
    dates.to_parquet(tmp_path / "t.parquet")
    assert "column 'when'" in message(load_data, tmp_path / "t.parquet", label="y")


def test_folders_of_digits_are_the_digits(digits):
    loaded = load_data(digits)
    images, labels = load_digits(return_X_y=True)
    order = sorted(range(60), key=lambda i: (i // 10 % 2, str(labels[i]), i))
    assert loaded.x.shape == (60, 1, 8, 8)
    np.testing.assert_allclose(loaded.x.reshape(60, 64) * 17, images[order], atol=1e-5)
    np.testing.assert_array_equal(loaded.y, labels[order])
    np.testing.assert_array_equal(loaded.member, [i // 10 % 2 == 0 for i in order])
    assert loaded.class_names == tuple("0123456789")
    assert check_data(loaded, num_classes=10) == ()


def test_the_digest_of_folders_follows_content_names_and_side(digits, tmp_path):
    import shutil

    one = load_data(digits).sha256
    copy = tmp_path / "copy"
    shutil.copytree(digits, copy)
    assert load_data(copy).sha256 == one
    first = next((copy / "members").rglob("*.png"))
    first.rename(first.with_name("renamed.png"))
    renamed = load_data(copy).sha256
    first.with_name("renamed.png").rename(copy / "non-members" / first.parent.name / first.name)
    assert len({one, renamed, load_data(copy).sha256}) == 3


def image(path, size=(8, 8), mode="RGB", value=128):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode in ("L", "I;16", "I") else (value, 0, 255)).save(path)
    return path


def test_members_and_non_members_go_through_one_transform(tmp_path):
    image(tmp_path / "members" / "a" / "1.png", mode="L")
    image(tmp_path / "non-members" / "a" / "1.png", mode="RGB")
    loaded = load_data(tmp_path)
    assert loaded.x.shape == (2, 3, 8, 8)
    np.testing.assert_allclose(loaded.x[0], 128 / 255, rtol=1e-6)
    np.testing.assert_allclose(loaded.x[1, :, 0, 0], [128 / 255, 0, 1], rtol=1e-6)


def test_folders_of_no_use_are_one_line(tmp_path):
    assert "groups and slices need an .npz or a table" in message(load_data, tmp_path, group="person")
    image(tmp_path / "one side" / "members" / "a" / "1.png")
    (tmp_path / "empty" / "members" / "a").mkdir(parents=True)
    image(tmp_path / "flat" / "members" / "1.png")
    image(tmp_path / "deep" / "members" / "a" / "b" / "1.png")
    image(tmp_path / "sixteen" / "members" / "a" / "1.png", mode="I;16")
    image(tmp_path / "sizes" / "members" / "a" / "1.png", size=(16, 12))
    (tmp_path / "broken" / "members" / "a").mkdir(parents=True)
    (tmp_path / "broken" / "members" / "a" / "1.png").write_bytes(b"no image")
    (tmp_path / "cut" / "members" / "a").mkdir(parents=True)
    noise = np.random.default_rng(0).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "whole.png")
    (tmp_path / "cut" / "members" / "a" / "1.png").write_bytes((tmp_path / "whole.png").read_bytes()[:-80])
    for name, expected in {
        "empty": "holds no images",
        "flat": "is not in a class folder",
        "deep": "is not in a class folder",
        "sixteen": "expected 8 bits per channel",
        "sizes": "1.png is 8x8; resize members and non-members in the same way",
        "broken": "cannot be read",
        "cut": "cannot be read",
        "one side": "without non-members",
    }.items():
        if name != "one side":
            image(tmp_path / name / "non-members" / "a" / "1.png")
        assert expected in message(load_data, tmp_path / name), name


@pytest.mark.parametrize(
    ("changes", "num_classes", "expected"),
    [
        ({"x": np.zeros(40, np.float32)}, 3, "one row for each of at least 10 examples, got (40,)"),
        ({"x": np.zeros((0, 4), np.float32)}, 3, "one row for each of at least 10 examples, got (0, 4)"),
        ({"member": np.zeros(40, bool)}, 3, "and 10 non-members, got 0 and 40"),
        ({"member": np.arange(40) < 9}, 3, "which the model was trained on, and 10 non-members, got 9 and 31"),
        ({"member": np.arange(40) >= 9}, 3, "and 10 non-members, got 31 and 9"),
        ({"y": np.arange(40) % 3 - 1}, 3, "label -1"),
        ({}, 2, "expected labels 0 to 1, as the model has 2 outputs; got 2 in row 2"),
    ],
)
def test_data_of_no_use_is_one_line(changes, num_classes, expected):
    assert expected in message(check_data, data(**changes), num_classes=num_classes)


def test_ten_of_each_side_are_enough_and_the_number_of_classes_may_be_unknown():
    twenty = rows(20, classes=2)
    small = data(x=twenty["x"], y=twenty["y"], member=np.arange(20) < 10)
    assert check_data(small, num_classes=None) == ()


def test_values_that_are_not_finite_are_counted_and_placed(tmp_path):
    x = rows()["x"].copy()
    x[[5, 30], [2, 0]] = np.inf, np.nan
    for names, said in ((None, "column 2"), (("a", "b", "c", "d"), "column 'c'")):
        text = message(check_data, data(x=x, feature_names=names), num_classes=3)
        assert f"2 NaN or infinite values, the first in row 5 (counted from 0), {said}" in text
    images = np.zeros((40, 1, 3, 3), np.float32)
    images[4, 0, 2, 1] = np.nan
    assert "row 4 (counted from 0), position (0, 2, 1)" in message(check_data, data(x=images), num_classes=3)
    large = np.where(np.arange(160).reshape(40, 4) == 13, 1e300, 0.0)  # infinite in single precision
    assert "row 3" in message(check_data, load_data(npz(tmp_path / "d.npz", **rows() | {"x": large})), num_classes=3)


def test_classes_seen_on_one_side_only_are_a_warning():
    y = data().y.copy()
    y[np.flatnonzero(~data().member)[0]] = 3
    (warning,) = check_data(data(y=y, class_names=("a", "b", "c", "d")), num_classes=4)
    assert "only among non-members: d" in warning


def test_a_model_that_fits_gives_its_number_of_classes():
    assert check_model_fits(nn.Linear(4, 3), data()) == 3


class Returns(nn.Module):
    def __init__(self, output):
        super().__init__()
        self.output = output

    def forward(self, x):
        return self.output


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (nn.Linear(5, 3), "rows of shape (4,) from rows.npz: RuntimeError: "),
        (nn.Linear(4, 1), "got (2, 1); change its forward: of two classes and one score"),
        (Returns(torch.zeros(2, 3, 4)), "expected a tensor of scores of shape (2, classes) for 2 rows, got (2, 3, 4)"),
        (Returns(torch.zeros(1, 3)), "(2, classes) for 2 rows, got (1, 3)"),
        (Returns((torch.zeros(2, 3),)), "for 2 rows, got a tuple"),
        (Returns(torch.full((2, 3), torch.nan)), "NaN or infinite scores"),
    ],
)
def test_a_model_that_does_not_fit_is_one_line(model, expected):
    assert expected in message(check_model_fits, model.eval(), data())
