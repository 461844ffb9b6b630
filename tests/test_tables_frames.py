"""Real frames: ids, text, dates, booleans, whole numbers, heavy tails, many categories; what came comes back."""

from __future__ import annotations

import datetime
import decimal
import warnings

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning

from jointenergy import InputError, JointEnergyClassifier, JointEnergyDetector, JointEnergyImputer, JointEnergyRegressor
from jointenergy.tables import imputer as imputer_module
from jointenergy.tables.reading import read
from jointenergy.tables.rows import merged, weighted_quantile
from tests.small_tables import Quick, QuickDetector, blobs

N = 120


def customers(n=N):
    g = np.random.default_rng(0)
    born = pd.Timestamp("1990-01-01") + pd.to_timedelta(g.integers(0, 9000, n), unit="D")
    return pd.DataFrame(
        {
            "customer_id": [f"c{k:05d}" for k in g.permutation(n)],
            "children": g.poisson(2.0, n),
            "income": np.exp(g.normal(10, 1.5, n)),
            "born": born,
            "seen": pd.to_datetime(born).tz_localize("Europe/Berlin") + pd.to_timedelta(g.integers(0, 86400, n), "s"),
            "member": g.random(n) < 0.4,
            "color": pd.Categorical(g.choice(["red", "green"], n), categories=["red", "green", "blue"], ordered=True),
            "town": pd.array(g.choice(["Ulm", "Jena", "Kiel"], n), dtype="string"),
            "visits": pd.array(g.integers(1, 9, n), dtype="Int64"),
            "same": 7.0,
        }
    )


FRAME = customers()
Y = (FRAME["income"] > FRAME["income"].median()).to_numpy().astype(int)
TYPED = [name for name in FRAME if name != "customer_id"]


@pytest.fixture(scope="module")
def model():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Quick().fit(FRAME, Y)


def gaps(frame, share=0.3):
    holes, g = frame.copy(), np.random.default_rng(1)
    for name in TYPED:
        hidden = g.random(len(frame)) < share
        column = holes[name]
        if column.dtype.kind == "b":
            column = column.astype("boolean")
        holes[name] = column.mask(hidden)
    return holes


def test_an_id_is_named_and_left_out_and_passes_through(model):
    with pytest.warns(UserWarning, match=r"'customer_id' has another value in each row, as ids have: it is left"):
        Quick().fit(FRAME, Y)
    other = FRAME.assign(customer_id="nobody")
    np.testing.assert_array_equal(model.score_samples(FRAME), model.score_samples(other))
    assert model.impute(FRAME[:3], n_draws=2).X["customer_id"].tolist() == FRAME["customer_id"][:3].tolist()
    assert model.sample(3, random_state=0)[0]["customer_id"].isna().all()


@pytest.mark.parametrize(
    ("column", "left"),
    [
        (np.arange(N)[::-1], True),  # counts rows
        (np.random.default_rng(0).permutation(10 * N)[:N], False),  # another number in each row, which may be an amount
        (np.random.default_rng(0).choice(50, N), False),
        ([f"name {k % 115}" for k in range(N)], True),
        ([f"town {k % 60}" for k in range(N)], False),
    ],
)
def test_only_columns_that_say_nothing_of_other_rows_are_left_out(column, left):
    frame = pd.DataFrame({"amount": column, "x": np.random.default_rng(0).normal(size=N)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert QuickDetector().fit(frame)._columns.left_out == ((0,) if left else ())


def test_a_number_that_is_called_an_id_is_one():
    g = np.random.default_rng(0)
    frame = pd.DataFrame({"account_id": g.permutation(10 * N)[:N], "paid": g.permutation(10 * N)[:N]})
    with pytest.warns(UserWarning, match="column 'account_id'"):
        assert QuickDetector().fit(frame)._columns.numbers == (1,)
    with pytest.raises(InputError, match="no column to learn from"), pytest.warns(UserWarning, match="left out"):
        QuickDetector().fit(frame[["account_id"]])


@pytest.mark.parametrize(
    "name",
    ["ID", "Id", "CUSTOMER_ID", "customerId", "UUID", "Index", "Unnamed: 0", "customer_no", "order number", "rowNr"],
)
def test_an_id_is_known_by_its_name_in_any_spelling(name):
    frame = pd.DataFrame({name: np.random.default_rng(0).permutation(10 * N)[:N], "x": FRAME["income"]})
    with pytest.warns(UserWarning, match="as ids have"):
        assert read(JointEnergyDetector(), frame, reset=True).left_out == (0,)
    for other in ("paid", "humid", "piano", "number"):
        assert read(JointEnergyDetector(), frame.rename(columns={name: other}), reset=True).left_out == ()


@pytest.mark.parametrize("step", [1, 7])
def test_numbers_of_rows_are_ids_also_after_a_split(step):
    rows = np.random.default_rng(0).permutation(2 * N)[:N]
    frame = pd.DataFrame({"order": 10**18 + step * rows, "x": FRAME["income"]})  # too large for floats
    with pytest.warns(UserWarning, match="'order' has another value in each row, as ids have"):
        assert read(JointEnergyDetector(), frame, reset=True).left_out == (0,)


def test_numbers_and_dates_as_text_are_named_with_the_remedy():
    g = np.random.default_rng(0)
    days = pd.Series(pd.to_datetime("2020-01-01") + pd.to_timedelta(g.integers(0, 100, N), "D"))
    frame = pd.DataFrame({"price": [f"{v:.4f}" for v in g.normal(size=N)], "day": days.dt.strftime("%Y-%m-%d")})
    frame["code"] = [f"{k % 30:03d}" for k in range(N)]
    with pytest.warns(UserWarning, match="as text") as said:
        read(JointEnergyDetector(), frame, reset=True)
    assert [str(w.message) for w in said] == [
        "column 'price' holds numbers as text and is left out of the model: convert it with pd.to_numeric, or name it "
        "in categorical_features",
        "column 'day' holds dates as text and is read as a category: convert it with pd.to_datetime, or name it in "
        "categorical_features",
    ]
    exact = pd.DataFrame({"price": [decimal.Decimal(v) for v in frame["price"]]})
    assert read(JointEnergyDetector(), exact, reset=True).kinds == ("number",)


def test_known_integers_and_dates_are_copied_to_the_last_digit():
    g = np.random.default_rng(0)
    large = 2**60 + g.integers(0, 2**58, N)
    nano = 1_500_000_000_000_000_001 + g.permutation(N) * 10**15
    frame = pd.DataFrame({"large": large, "same": 2**60 + 1, "at": nano.view("M8[ns]"), "took": nano.view("m8[ns]")})
    frame["maybe"] = pd.array(large, dtype="Int64")
    frame["row_no"] = pd.array(large + 1, dtype="Int64")
    frame["utc"] = frame["at"].dt.tz_localize("UTC")
    plain = {name: frame[name].to_numpy() for name in frame if name != "utc"}
    for whole in (frame, pl.DataFrame(plain).with_columns(utc=pl.col("at").dt.replace_time_zone("UTC"))):
        with pytest.warns(UserWarning, match="as ids have"):
            imputer = JointEnergyImputer(max_iter=1, random_state=0, n_draws=2).fit(whole)
        holes = whole.clone() if isinstance(whole, pl.DataFrame) else whole.set_index(np.zeros(N, dtype=int))
        if isinstance(holes, pd.DataFrame):
            holes.iloc[0, [2, 4, 5]] = None
        found = imputer.impute(holes, n_draws=2)
        for filled in (found.X, found.draws[1]):
            if whole is frame:
                pd.testing.assert_frame_equal(filled[1:], holes[1:])
                assert filled[["at", "maybe"]].notna().all().all()
                assert filled["row_no"].isna().tolist() == [True] + [False] * (N - 1)
            else:
                assert filled.equals(holes)


def test_a_row_whose_number_is_none_misses_it():
    frame = pd.DataFrame({"age": FRAME["children"] + 0.5, "kids": FRAME["children"], "born": FRAME["born"]})
    model = Quick().fit(frame, Y)
    row = pd.DataFrame([{"age": 3.5, "kids": None, "born": None}])
    known = row.astype({"kids": float, "born": "M8[us]"})
    np.testing.assert_array_equal(model.predict_proba(row), model.predict_proba(known))
    assert JointEnergyDetector.of(model).decision_function(row).shape == (1,)


def test_text_is_refused_with_a_remedy():
    text = [f"the parcel number {k} came late and was wet" for k in range(N)]
    with pytest.raises(InputError, match=r"column 'said' holds text \(9 words a row.*TfidfVectorizer"):
        QuickDetector().fit(FRAME[["income"]].assign(said=text))
    with pytest.raises(InputError, match="column 'tags' holds list values"):
        QuickDetector().fit(FRAME[["income"]].assign(tags=[[1]] * N))
    with pytest.raises(InputError, match="lazy frame: pass"):
        QuickDetector().fit(pl.DataFrame({"a": [1.0, 2.0]}).lazy())


def test_types_survive_in_samples_draws_and_fillings(model):
    holes = gaps(FRAME)
    found = model.impute(holes, n_draws=4, random_state=0)
    rows, _ = model.sample(50, random_state=0)
    for table in (found.X, found.draws[0], rows):
        assert list(table.columns) == list(FRAME.columns)
        for name in TYPED:
            assert table[name].dtype == FRAME[name].dtype, name
            assert not table[name].isna().any(), name
        for name in ("children", "visits"):
            assert table[name].between(FRAME[name].min(), FRAME[name].max()).all()
        assert (table["born"].dt.normalize() == table["born"]).all()  # days, as they came
        assert table["born"].between(FRAME["born"].min(), FRAME["born"].max()).all()
        assert (table["seen"].dt.microsecond == 0).all()
        assert set(table["same"]) == {7.0}
    known = holes["children"].notna()
    assert (found.X["children"][known] == FRAME["children"][known]).all()
    assert (found.X["born"][holes["born"].notna()] == FRAME["born"][holes["born"].notna()]).all()
    assert found.X.index.equals(holes.index)
    assert {str(v) for v in found.X["town"]} <= {"Ulm", "Jena", "Kiel"}


def test_polars_frames_come_and_go_as_polars_frames():
    frame = pl.DataFrame(
        {
            "age": FRAME["children"].to_numpy(),
            "income": FRAME["income"].to_numpy(),
            "day": [datetime.date(2020, 1, 1) + datetime.timedelta(days=int(d)) for d in range(0, 2 * N, 2)],
            "at": pl.Series(FRAME["born"].to_numpy()).dt.replace_time_zone("UTC"),
            "color": pl.Series(FRAME["color"].astype(str).tolist(), dtype=pl.Enum(["red", "green", "blue"])),
            "town": FRAME["town"].tolist(),
            "member": FRAME["member"].tolist(),
        }
    )
    model = Quick().fit(frame, pl.Series(Y))
    assert list(model.feature_names_in_) == frame.columns
    holes = frame.with_columns(
        pl.when(pl.arange(0, N) % 3 == 0).then(None).otherwise(pl.col(c)).alias(c) for c in frame.columns
    )
    found = model.impute(holes, n_draws=3)
    for table in (found.X, found.draws[1], model.sample(5, random_state=0)[0]):
        assert table.schema == frame.schema
        assert sum(table.null_count().row(0)) == 0


def test_files_keep_the_types(tmp_path, model):
    again = JointEnergyClassifier.load(model.save(tmp_path / "a.safetensors"))
    pd.testing.assert_frame_equal(again.sample(9, random_state=1)[0], model.sample(9, random_state=1)[0])
    frame = pl.DataFrame({"a": FRAME["income"].to_numpy(), "b": pl.Series(FRAME["born"].to_numpy())})
    detector = QuickDetector().fit(frame)
    loaded = JointEnergyDetector.load(detector.save(tmp_path / "b.safetensors"))
    assert loaded.sample(3, random_state=0).equals(detector.sample(3, random_state=0))


def test_many_categories_share_a_state_and_come_back_by_their_frequencies():
    g = np.random.default_rng(0)
    n = 600
    zipf = np.minimum(g.zipf(1.4, n), 150)
    frame = pd.DataFrame({"code": [f"k{z}" for z in zipf], "x": g.normal(size=n)})
    detector = QuickDetector().fit(frame)
    rare = detector._columns.rare[0]
    assert len(rare) > 10
    assert len(detector._columns.categories[0]) == 31
    rows = detector.sample(400, random_state=0)
    assert set(rows["code"]) <= set(frame["code"])
    assert 0.3 < rows["code"].isin(rare).mean() / frame["code"].isin(rare).mean() < 3.0
    # The densities of the values that share a state add up to that of the state.
    row = pd.concat([frame[:1]] * len(rare), ignore_index=True).assign(code=list(rare))
    shares = np.exp(detector.score_samples(row))
    counts = np.array(list(rare.values()))
    np.testing.assert_allclose(shares / shares.sum(), counts / counts.sum())
    assert detector.impute(row[:2], n_draws=2).X["code"].tolist() == list(rare)[:2]


def test_heavy_tails_are_bent_and_densities_stay_in_the_columns_own_units():
    g = np.random.default_rng(0)
    x = np.c_[np.exp(g.normal(0, 2, 800)), g.normal(size=800)]
    detector = JointEnergyDetector(max_iter=100, random_state=0).fit(x)
    scaling = detector._columns.scaling
    assert (scaling.bend > 0).tolist() == [True, False]
    np.testing.assert_allclose(scaling.restored(scaling.scaled(x)), x)
    # A density of x is one of the scaled number times how fast that changes with x.
    at = np.c_[np.exp(np.linspace(-2, 4, 7)), np.zeros(7)]
    slope = (scaling.scaled(at + 1e-6) - scaling.scaled(at - 1e-6)) / 2e-6
    np.testing.assert_allclose(np.log(slope), -scaling.log_volume(at), atol=1e-6)
    z = torch.from_numpy(scaling.scaled(at))
    own = detector._density.log_density(z, torch.empty(7, 0, dtype=torch.int64)).numpy()
    np.testing.assert_allclose(detector.score_samples(at), own + np.log(slope).sum(1), atol=1e-5)
    assert (detector.predict(at[:6]) == 1).all()


def test_numbers_that_never_change_are_no_part_of_the_model():
    x, y = blobs()
    wide = np.c_[x, np.full(len(x), 3.0)]
    model = Quick().fit(wide, y)
    np.testing.assert_array_equal(model.predict_proba(wide), Quick().fit(x, y).predict_proba(x))
    assert (model.sample(4, random_state=0)[0][:, 3] == 3.0).all()
    strange = wide[:1] + np.eye(4)[3]
    assert model.score_samples(wide[:1]) - model.score_samples(strange) == pytest.approx(np.log(91))


def test_every_fit_that_is_not_finished_or_not_healthy_says_so_and_has_a_health():
    x, y = blobs()
    for made in (Quick(max_iter=5), QuickDetector(), JointEnergyImputer(max_iter=1)):
        with pytest.warns(ConvergenceWarning, match=r"Likely cause: max_iter is small.*health_"):
            assert made.fit(x, y).health_ is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        JointEnergyClassifier(max_iter=120, random_state=0).fit(x, y)
        Quick().partial_fit(x, y)


@pytest.mark.parametrize(
    ("columns", "cause"),
    [
        ({"zeros": np.where(np.arange(200) % 4 == 0, 5.0, 0.0) * np.arange(200)}, "76% of column 'zeros' are 0"),
        ({"a": np.arange(200) ** 0.5, "b": 3 * np.arange(200) ** 0.5}, "columns 'a' and 'b' are nearly identical"),
    ],
)
def test_the_likely_cause_names_the_column(columns, cause):
    from jointenergy.tables.columns import Columns
    from jointenergy.tables.diagnosis import likely_cause

    frame = pd.DataFrame({**columns, "x": np.random.default_rng(0).normal(size=200)})
    table = read(JointEnergyDetector(), frame, reset=True)
    found = Columns.fit(table, np.ones(200), n_rows=200)
    assert cause in likely_cause(found, found.encode(table)[0], short=False)


def test_the_imputer_is_a_transformer_that_keeps_types():
    holes = gaps(FRAME).drop(columns="customer_id")
    imputer = JointEnergyImputer(max_iter=5, random_state=0, n_draws=5).fit(holes)
    filled = imputer.transform(holes)
    assert not filled.isna().any().any()
    assert filled["children"].dtype == holes["children"].dtype
    assert (filled["children"] == filled["children"].round()).all()
    x = np.where(np.random.default_rng(0).random((90, 3)) < 0.2, np.nan, blobs()[0])
    plain = JointEnergyImputer(max_iter=5, random_state=0).fit_transform(x)
    named = JointEnergyImputer(max_iter=5, random_state=0).set_output(transform="pandas").fit_transform(x)
    assert list(named.columns) == ["x0", "x1", "x2"]
    np.testing.assert_array_equal(named.to_numpy(), plain)
    known = ~np.isnan(x)
    np.testing.assert_array_equal(plain[known], x[known])
    drawn = JointEnergyImputer(max_iter=5, random_state=0, sample_posterior=True).fit_transform(x)
    assert (drawn != plain)[~known].all()


def test_a_frame_that_cannot_become_one_of_polars_is_named(monkeypatch):
    monkeypatch.setattr(imputer_module, "find_spec", lambda name: None)
    imputer = JointEnergyImputer(max_iter=1, random_state=0, n_draws=2).set_output(transform="polars")
    with pytest.raises(InputError, match="column 'visits' of a pandas frame without pyarrow: install pyarrow, or pass"):
        imputer.fit_transform(FRAME[["income", "visits"]])
    assert isinstance(imputer.fit_transform(FRAME[["income"]]), pl.DataFrame)


def test_rows_that_repeat_are_rows_that_weigh():
    g = np.random.default_rng(0)
    cells, times = g.normal(size=(6, 3)), np.array([1, 3, 2, 1, 4, 1])
    cells[0, 0] = np.nan
    first, weight, n_rows = merged(cells.repeat(times, 0), np.ones(12))
    other, weighed, n_weighed = merged(cells, times.astype(float))
    np.testing.assert_array_equal(cells.repeat(times, 0)[first], cells[other])
    assert weight.tolist() == weighed.tolist()
    assert n_rows == n_weighed == 12
    values = g.normal(size=6)
    for share in (0.05, 0.31, 0.5):
        wanted = np.quantile(values.repeat(times), share)
        assert weighted_quantile(values, times.astype(float), share) == pytest.approx(wanted)


def test_the_limit_of_auto_leaves_clean_data_nearly_whole():
    x = np.random.default_rng(0).normal(size=(400, 3))
    detector = JointEnergyDetector(max_iter=50, random_state=0, contamination="auto").fit(x)
    assert (detector.predict(x) == -1).mean() < 0.03
    assert detector.predict([[6.0, 6.0, 6.0]]) == [-1]


def test_other_integers_than_the_two_of_training_are_told():
    """Fails if a known number of such a column is replaced without a word, or a first piece decides what is one."""
    g = np.random.default_rng(0)
    seen = pd.DataFrame({"visits": [0, 1] * 20, "z": g.normal(size=40)})
    new = pd.DataFrame({"visits": [6, 0, 1], "z": [0.1, 0.2, 0.3]})
    imputer = JointEnergyImputer(max_iter=1, random_state=0).fit(seen)
    with pytest.warns(UserWarning, match="'visits' holds 6, but only 0 and 1 in training.*categorical_features=None"):
        imputer.transform(new)
    pieces = Quick().partial_fit(seen, [0, 1] * 20)
    assert pieces._columns.kinds == ("whole", "number")


def test_masked_entries_of_arrays_are_missing():
    """Fails if what a mask hides is used, in X or in y."""
    x, y = blobs()
    hidden = np.random.default_rng(0).random(x.shape) < 0.2
    masked = np.ma.masked_array(np.where(hidden, 99.0, x), mask=hidden)
    whole = JointEnergyImputer(max_iter=1, random_state=0).fit(masked).transform(masked)
    assert whole[hidden].max() < 50
    assert np.array_equal(whole[~hidden], x[~hidden])
    some = np.arange(len(y)) % 2 == 0
    labels = np.ma.masked_array(np.where(some, 7, y), mask=some)
    model = Quick().fit(x, labels)
    assert 7 not in model.classes_
    assert model.score(x, labels) == model.score(x[~some], y[~some])
    targets = np.ma.masked_array(np.where(some, 1e9, x[:, 0]), mask=some)
    assert JointEnergyRegressor(max_iter=1, random_state=0).fit(x[:, 1:], targets).predict(x[:5, 1:]).max() < 1e3
    with pytest.raises(InputError, match=r"y holds words, .*: use JointEnergyClassifier"):
        JointEnergyRegressor(max_iter=1).fit(x, np.where(some, "yes", "no"))
