"""Frames in, frames out: what people have, in the columns that solvers and training use, by public knowledge only."""

import copy
import math
import pickle
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.utils import get_tags

from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError
from safexplain.recourse import L1, L2, Constraints, Preprocessing, Rule

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
PEOPLE = Preprocessing(
    numeric={"age": (18, 100), "income": (0, 500_000)},
    categories={"job": ["clerk", "manager"], "owner": [0, 1]},
    ordinal={"degree": ["none", "school", "college"]},
    special={"income": [-9, -8]},
    missing=("age", "degree"),
    units={"income": "USD"},
)
FRAME = pd.DataFrame(
    {
        "job": pd.Categorical(["clerk", "manager", "clerk"]),
        "owner": [0, 1, 1],
        "age": [20, 30, np.nan],
        "income": [-9, 50_000, 0],
        "degree": ["school", None, "college"],
    },
    index=[5, 6, 7],
)


def test_a_table_has_units_levels_one_column_a_category_and_one_a_special_value():
    assert " ".join(PEOPLE.columns) == (
        "age age=missing income income=-9 income=-8 job=clerk job=manager owner=0 owner=1 degree degree=missing"
    )
    assert PEOPLE.table(FRAME[:0]).shape == (0, 11)
    assert PEOPLE.table(FRAME).tolist() == [
        [20, 0, 250_000, 1, 0, 1, 0, 1, 0, 1, 0],
        [30, 0, 50_000, 0, 0, 0, 1, 0, 1, 1, 1],
        [59, 1, 0, 0, 0, 1, 0, 0, 1, 2, 0],
    ]


def test_unchanged_values_come_back_as_they_came_and_changed_ones_in_the_type_of_their_column():
    table = PEOPLE.table(FRAME)
    table[1, 2], table[0, 5:7] = 60_000, (0, 1)
    found = PEOPLE.frame(table, FRAME)
    assert found.dtypes.equals(FRAME.dtypes)
    assert (found.loc[6, "income"], found.loc[5, "job"]) == (60_000, "manager")
    table[1, 2] = 60_000.5
    assert PEOPLE.frame(table, FRAME)["income"].dtype == float
    lists = Preprocessing(numeric={"a": (0, 9)})
    assert str(lists.frame([[3.0], [4.0]], {"a": [1, 2]})) == "{'a': [3, 4]}"
    assert str(lists.frame([[3.5], [4.0]], {"a": [1, 2]})) == "{'a': [3.5, 4.0]}"


def test_a_label_that_a_categorical_column_has_not_is_added_to_its_type():
    people = Preprocessing(ordinal={"degree": ["none", "school", "college"]})
    ordered = pd.CategoricalDtype(["none", "college"], ordered=True)
    frame = people.frame([[1], [2]], pd.DataFrame({"degree": ["none", "college"]}, dtype=ordered))
    assert frame["degree"].dtype == pd.CategoricalDtype(["none", "school", "college"], ordered=True)
    frame = people.frame(
        [[1], [2]], pl.DataFrame({"degree": pl.Series(["none", "college"], dtype=pl.Enum(["none", "college"]))})
    )
    assert frame["degree"].dtype == pl.Enum(["none", "college", "school"])
    assert frame["degree"].to_list() == ["school", "college"]


def test_a_frame_outside_of_the_public_ranges_lends_its_types_and_none_of_its_values():
    rich = FRAME.assign(income=[10**9, 5, 7])
    table = PEOPLE.table(rich, clip=True)
    assert PEOPLE.frame(table, rich)["income"].tolist() == [500_000, 5, 7]


KINDS = {
    "pandas": lambda frame: frame,
    "nullable types, in another order": lambda frame: frame.convert_dtypes()[frame.columns[::-1]],
    "objects": lambda frame: frame.astype(object),
    "polars enums": lambda frame: pl.from_pandas(frame).with_columns(pl.col("job").cast(pl.Enum(["clerk", "manager"]))),
    "a dict of lists": lambda frame: frame.to_dict("list"),
    "a dict of arrays": lambda frame: {name: frame[name].to_numpy() for name in frame},
    "a list of dicts": lambda frame: frame.to_dict("records"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_frame_has_the_same_table_and_comes_back_as_its_kind(kind):
    frame = KINDS[kind](FRAME)
    table = PEOPLE.table(frame)
    assert table.tobytes() == PEOPLE.table(FRAME).tobytes()
    found = PEOPLE.frame(table, frame)
    assert type(found) is type(frame) or kind == "a dict of arrays"
    assert PEOPLE.table(found).tobytes() == table.tobytes()
    names = [list(getattr(one, "columns", one)) if kind != "a list of dicts" else 0 for one in (found, frame)]
    assert names[0] == names[1]
    if hasattr(frame, "equals"):
        assert found.equals(frame)


def test_one_person_is_a_dict_or_a_series_and_comes_back_as_a_dict():
    for person in (FRAME.iloc[1], FRAME.iloc[1].to_dict()):
        table = PEOPLE.table(person)
        assert table.tolist() == PEOPLE.table(FRAME)[1:2].tolist()
        found = PEOPLE.frame(table, person)
        assert pd.isna(found.pop("degree")), "missing, as pandas 2 or pandas 3 writes it"
        assert found == {name: value for name, value in dict(person).items() if name != "degree"}


def test_an_array_is_rows_of_the_table_itself():
    table = PEOPLE.table(FRAME)
    assert (PEOPLE.table(table) == table).all()
    assert (PEOPLE.table(table[0]) == table[:1]).all()


def test_numbers_are_read_from_every_type_of_column():
    arrays = pd.array([2, 0], dtype="int64[pyarrow]"), np.array([2, 0], dtype=np.float32), pd.Categorical([2, 0])
    for column in ([Decimal(2), Fraction(0)], *arrays, pl.Series([Decimal(2), Decimal(0)])):
        assert Preprocessing(numeric={"a": (0, 5)}).table({"a": column}).ravel().tolist() == [2, 0]
    assert not np.signbit(Preprocessing(numeric={"a": (-5, 5)}).table({"a": [-0.0]})).any()  # zeros of one sign


def test_what_is_missing_is_none_nan_or_na():
    people = Preprocessing(numeric={"a": (0, 5)}, categories={"c": ["x", "y"]}, missing=("a", "c"))
    for lost in (None, math.nan, pd.NA, pd.NaT, np.float32("nan"), Decimal("nan")):
        assert people.table({"a": lost, "c": lost}).tolist() == [[2, 1, 0, 0, 1]], lost
    assert people.frame([[2, 1, 0, 0, 1]]) == {"a": [None], "c": [None]}


def test_float32_has_the_ends_of_the_range_and_special_values_but_for_rounding():
    people = Preprocessing(numeric={"rate": (0.1, 0.7)}, special={"rate": [-7.7]})
    assert people.table({"rate": np.float32([0.1, 0.7, -7.7])}).tolist() == [[0.1, 0], [0.7, 0], [0.4, 1]]
    with pytest.raises(InputError, match=r"rate: expected the public range 0\.1 to 0\.7, got 0\.09999999 in row 0"):
        people.table({"rate": np.array([0.1 - 1e-8])})


LABELS = st.text("abcxyz", min_size=1, max_size=3)


@st.composite
def populations(draw: st.DrawFn) -> tuple[Preprocessing, dict[str, list[object]]]:
    """A preprocessing, and rows that keep to it."""
    numeric, categories, ordinal, special, lost = {}, {}, {}, {}, []
    columns: dict[str, list[object]] = {}
    n = draw(st.integers(1, 5))
    for i, kind in enumerate(
        draw(st.lists(st.sampled_from(["numeric", "category", "ordinal"]), min_size=1, max_size=4))
    ):
        name = f"{kind} {i}"
        if kind == "numeric":
            low, width = draw(st.integers(-50, 50)), draw(st.integers(1, 1000))
            numeric[name] = (low, low + width)
            values = st.floats(low, low + width) | st.integers(low, low + width)
            codes = draw(st.lists(st.integers(low - 9, low + width), max_size=3, unique=True))
        else:
            labels = draw(st.lists(LABELS, min_size=2, max_size=4, unique=True))
            (categories if kind == "category" else ordinal)[name] = labels
            values = st.sampled_from(labels)
            codes = draw(st.lists(LABELS.map(lambda label: f"? {label}"), max_size=2, unique=True))
        if codes:
            special[name] = codes
        if draw(st.booleans()):
            lost.append(name)
        every = [values, *([st.sampled_from(codes)] if codes else []), *([st.none()] if name in lost else [])]
        columns[name] = draw(st.lists(st.one_of(every), min_size=n, max_size=n))
    return Preprocessing(numeric, categories, ordinal, special, lost), columns


@settings(max_examples=60)
@given(populations())
def test_a_frame_becomes_a_table_and_comes_back(population):
    people, columns = population
    assert eval(repr(people)) == people
    table = people.table(columns)
    assert people.frame(table, columns) == columns
    plain = people.frame(table)
    assert people.table(plain).tobytes() == table.tobytes()
    for frame in (pd.DataFrame(columns), pl.DataFrame(columns, strict=False)):
        assert people.table(frame).tobytes() == table.tobytes()
        assert people.table(people.frame(table, frame)).tobytes() == table.tobytes()
    people.constraints(Constraints(people.features, reachable=people.categories)).check(table, people.held(table))


@settings(max_examples=40)
@given(populations())
def test_scaled_rows_keep_to_the_norm_bound_and_are_affine_in_the_table(population):
    people, columns = population
    scaled = people.transform(columns)
    assert np.linalg.norm(scaled, axis=1).max() <= people.norm_bound * (1 + 1e-12)
    np.testing.assert_allclose(scaled * people.scale + people.offset, people.table(columns), atol=1e-9)


def test_it_is_the_same_after_pickle_copy_and_clone():
    for other in (pickle.loads(pickle.dumps(PEOPLE)), copy.deepcopy(PEOPLE), clone(PEOPLE), eval(repr(PEOPLE))):
        assert other == PEOPLE
        assert other.columns == PEOPLE.columns


def test_it_is_a_step_of_a_pipeline_that_learns_nothing():
    pipeline = make_pipeline(PEOPLE, LogisticRegression()).fit(FRAME, [0, 1, 1])
    assert pipeline[:-1].get_feature_names_out().tolist() == list(PEOPLE.columns)
    assert list(pipeline.feature_names_in_) == list(PEOPLE.features)
    assert pipeline.n_features_in_ == 5
    tags, inputs = get_tags(PEOPLE), get_tags(PEOPLE).input_tags
    assert (tags.requires_fit, inputs.categorical, inputs.string, inputs.allow_nan) == (False, True, True, True)
    assert np.abs(PEOPLE.fit(FRAME).transform(FRAME)).max() <= 1
    named = clone(PEOPLE).set_output(transform="pandas").transform(FRAME)
    assert list(named.columns) == list(PEOPLE.columns)
    assert list(named.index) == [5, 6, 7]
    PEOPLE.set_output(transform="default")


def test_it_cannot_be_changed():
    with pytest.raises(ConfigurationError, match="make another one"):
        PEOPLE.set_params(missing=())
    with pytest.raises(ConfigurationError, match="make another one"):
        PEOPLE.numeric = {}
    with pytest.raises(TypeError):
        PEOPLE.numeric["age"] = (0, 1)  # type: ignore[index]
    for array in (PEOPLE.scale, PEOPLE.offset):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_another_declaration_has_another_digest():
    plain = {
        "numeric": {"age": (18, 100), "income": (0, 500_000)},
        "categories": {"job": ["clerk", "manager"], "owner": [0, 1]},
        "ordinal": {"degree": ["none", "school", "college"]},
        "special": {"income": [-9, -8]},
        "missing": ["age", "degree"],
        "units": {"income": "USD"},
    }
    assert Preprocessing(**plain).digest == PEOPLE.digest
    assert PEOPLE.digest == "98a20e4f1516779fa67a852951193673d285ed1c28a3c9c0cea4f1d4ea192a0e"  # that of 0.2
    others = [
        {**plain, "numeric": {**plain["numeric"], "age": [18, 101]}},
        {**plain, "categories": {**plain["categories"], "owner": [1, 0]}},
        {**plain, "categories": {**plain["categories"], "owner": ["0", "1"]}},
        {**plain, "special": {"income": [-9]}},
        {**plain, "missing": ["age"]},
        {**plain, "units": {"income": "EUR"}},
        {**plain, "describe": {"income": "yearly income"}},
        {**plain, "numeric": dict(reversed(plain["numeric"].items()))},
    ]
    assert len({PEOPLE.digest, *(Preprocessing(**other).digest for other in others)}) == 9


def test_training_reads_each_row_alone_and_takes_numbers_outside_for_the_ends():
    wide = FRAME.assign(age=[10, 200, 50], income=[1e9, -3, -8])
    table = PEOPLE.table(wide, clip=True)
    assert table[:, 0].tolist() == [18, 100, 50]
    assert table[:, 2].tolist() == [500_000, 0, 250_000]
    rows = [PEOPLE.transform(wide[i : i + 1]) for i in range(3)]
    assert (np.concatenate(rows) == PEOPLE.transform(wide)).all()


def test_special_values_are_special_wherever_they_lie():
    people = Preprocessing(numeric={"months": (0, 400)}, special={"months": [0, 99]})
    assert people.table({"months": [0, 99, 1, 400]}).tolist() == [[200, 1, 0], [200, 0, 1], [1, 0, 0], [400, 0, 0]]


def test_regular_values_begin_next_to_a_special_end_so_that_no_answer_is_special():
    people = Preprocessing(numeric={"months": (0, 400)}, special={"months": [0, 99, 400]})
    allowed = people.constraints()
    assert 0 < allowed.low[0] < 1e-300
    assert 399 < allowed.high[0] < 400
    whole = people.constraints(Constraints(("months",), integer=("months",)))
    assert (whole.low[0], whole.high[0]) == (1, 399)
    rows = np.array([[99.0, 0, 0, 0], [99.5, 0, 0, 0], [200, 0, 1, 0]])
    assert people.misread(rows).tolist() == [True, False, False]


def test_special_and_missing_states_are_held():
    table = PEOPLE.table(FRAME)
    held = PEOPLE.held(table)
    names = [[name for name, h in zip(PEOPLE.columns, row, strict=True) if h] for row in held]
    income = ["income", "income=-9", "income=-8"]
    assert names == [income, ["degree", "degree=missing"], ["age", "age=missing"]]
    states = ("age=missing", "income=-9", "income=-8", "degree=missing")
    assert set(states) <= set(PEOPLE.constraints().immutable)


def test_the_missing_category_is_one_of_its_group_that_nobody_enters_or_leaves():
    people = Preprocessing(numeric={"a": (0, 1)}, categories={"job": ["x", "y"]}, missing=("job",))
    allowed = people.constraints()
    assert allowed.one_hot == (("job=x", "job=y", "job=missing"),)
    rows = people.table({"a": [0, 0], "job": ["x", None]})
    wanted = np.array([[0, 0, 0, 9.0], [0, 9, 0, 0]])
    assert allowed.project(rows, wanted)[:, 1:].tolist() == [[1, 0, 0], [0, 0, 1]]
    assert Preprocessing(numeric={"a": (0, 1)}, categories={"job": ["x"]}).constraints().one_hot == ()


def test_constraints_of_features_are_about_their_columns_within_the_public_ranges():
    found = PEOPLE.constraints(
        Constraints(
            ("income", "age", "degree", "job", "job=manager"),
            lower={"age": 21},
            upper=90,
            immutable=("job",),
            integer=("age",),
            increasing=("age", "degree"),
            largest_change={"income": 10_000},
            step={"age": 2},
            most_changes=2,
            rules=(Rule("degree", "age", per_unit=2), Rule("job=manager", "degree")),
        )
    )
    low, high = (dict(zip(PEOPLE.columns, ends, strict=True)) for ends in (found.low, found.high))
    assert (low["age"], high["age"], low["income"], high["income"]) == (21, 90, 0, 90)
    assert (low["degree"], high["degree"], high["job=clerk"]) == (0, 2, 1)
    assert {"job=clerk", "job=manager"} <= set(found.immutable)
    assert set(found.integer) == {"age", "degree"}
    assert set(found.increasing) == {"age", "degree"}
    assert found.largest[2] == 10_000
    assert found.grid[[0, 9]].tolist() == [2, 1]
    assert found.most_changes == 2
    assert [(rule.when, rule.then) for rule in found.rules] == [("degree", "age"), ("job=manager", "degree")]
    assert found.one_hot == (("job=clerk", "job=manager"), ("owner=0", "owner=1"))


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        (lambda: Constraints(("agee",), lower=20), "unknown feature 'agee'; did you mean 'age'"),
        (lambda: Constraints(3, lower=20), "expected names among the 5 features of the preprocessing .* got 3 columns"),
        (lambda: Constraints(("job", "age"), upper={"job": 0}), "upper: expected a number, but job is a category"),
        (lambda: Constraints(("age",), upper=10), "age: upper 10 leaves nothing of the public range 18 to 100"),
    ],
)
def test_constraints_that_cannot_be_meant_are_refused_by_feature(constraints, message):
    with pytest.raises(ConfigurationError, match=message):
        PEOPLE.constraints(constraints())


def test_a_cost_without_a_scale_counts_in_public_ranges_and_a_category_as_a_whole_range():
    clerk, manager = np.zeros(11), np.zeros(11)
    clerk[5], manager[6] = 1, 1
    across = {"age": 82, "income": 500_000, "degree": 2}
    for cost in (L1(), L2()):
        priced = PEOPLE.cost(cost)
        for name, room in across.items():
            change = np.eye(11)[PEOPLE.columns.index(name)] * room
            assert priced.distance(change) == pytest.approx(1)
        assert priced.distance(manager - clerk) == pytest.approx(1)


def test_scales_are_given_by_feature_and_those_that_are_not_named_have_their_range():
    priced = PEOPLE.cost(L1({"age": 1.0}, rise={"income": 3.0}))
    assert priced.distance(np.eye(11)[0] * 5) == pytest.approx(5)
    assert priced.distance(np.eye(11)[2] * 500_000) == pytest.approx(3)
    assert priced.distance(-np.eye(11)[2] * 500_000) == pytest.approx(1)
    by_column = PEOPLE.cost(L2([1, 1, 10, *np.ones(8)]))
    assert by_column.distance(np.eye(11)[2] * 30) == pytest.approx(3)
    with pytest.raises(ConfigurationError, match="expected 11 numbers, one for each column"):
        PEOPLE.cost(L1([1, 2]))
    with pytest.raises(ConfigurationError, match="unknown feature 'aeg'; did you mean 'age'"):
        PEOPLE.cost(L1({"aeg": 1.0}))


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({}, "no features"),
        ({"numeric": {"a": (1, 1)}}, "a needs a public range with least < greatest, both finite, got 1 to 1"),
        ({"numeric": {"a": 5}}, "a needs two numbers .least, greatest."),
        ({"numeric": ["a"]}, "numeric: expected a mapping"),
        ({"numeric": {1: (0, 1)}}, "names of features, as text, got {1:"),
        ({"categories": {"a": []}}, "a needs at least 1 labels, got 0"),
        ({"categories": {"a": [1, True]}}, "a lists True twice"),
        ({"categories": {"a": [None, "b"]}}, r"declare missing=\('a',\)"),
        ({"categories": {"a": [1, "1"]}}, "two columns of the table would get this name"),
        ({"numeric": {"a": (0, 1)}, "categories": {"a": ["x", "y"]}}, "a: declared more than once"),
        ({"numeric": {"a": (0, 1)}, "special": {"a": ["x"]}}, "a is numeric and needs numbers, got 'x'"),
        ({"categories": {"a": ["x", "y"]}, "special": {"a": ["x"]}}, "a has 'x' as a regular label too"),
        ({"categories": {"a": ["x", "y"]}, "units": {"a": "m"}}, "units: expected a unit of a numeric feature"),
    ],
)
def test_declarations_that_cannot_be_meant_are_refused_by_feature(declared, message):
    with pytest.raises((ConfigurationError, ConfigurationTypeError), match=message):
        Preprocessing(**declared)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (FRAME.assign(job="clark"), r"job: .* got the unknown category 'clark' in row 0.*; did you mean 'clerk'"),
        (FRAME.assign(income=[1, 2, 6e5]), r"income: expected the public range 0 to 500000 USD, got 600000 in row 2"),
        (FRAME.assign(income=[1, 2, np.nan]), r"income: missing in row 2.*missing=\('income',\)"),
        (FRAME.assign(income=[1, 2, np.inf]), "income: expected finite numbers, got infinity in row 2"),
        (FRAME.assign(income=["1", "2", "3"]), "income: expected numbers, got '1' in row 0"),
        (FRAME.rename(columns={"age": "Age"}), "but age is missing; did you mean 'Age'"),
        (FRAME[["age", *FRAME.columns]], "got age more than once"),
        (
            {"age": [1, 2], "income": [1], "job": ["x"], "owner": [0], "degree": ["none"]},
            "columns of one length, got .*'income': 1",
        ),
        (np.zeros((2, 7)), r"expected a frame with the columns age, income, job, owner, degree"),
        (np.full((2, 11), 0.5), "exactly one category or state"),
    ],
)
def test_frames_that_cannot_be_read_are_refused_by_feature_and_row(frame, message):
    with pytest.raises(InputError, match=message):
        PEOPLE.table(frame)


def test_rows_that_are_none_of_the_table_have_no_frame():
    table = PEOPLE.table(FRAME)
    for column, value, message in ((0, 17, "18 to 100, got 17"), (9, 0.5, "degree"), (5, 0.5, "job"), (1, 2.0, "age")):
        wrong = table.copy()
        wrong[0, column] = value
        with pytest.raises(InputError, match=message):
            PEOPLE.frame(wrong)
