"""Means, intervals and comparisons over seeds, on cases worked out by hand, and how their figures are written."""

import pytest

from roost.model.errors import InvalidInput
from roost.sim.comparison import summary_table
from roost.sim.formats import Scale, brief, figure, scale_of, span
from roost.sim.statistics import Estimate, Verdict, compare, estimate, t_quantile
from tests.unit.made_up_runs import made_up


# From tables of Student's t, two-sided 95 %.
@pytest.mark.parametrize(
    ("freedom", "value"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (10, 2.2281), (30, 2.0423), (120, 1.9799)],
)
def test_quantiles_of_students_t_are_those_of_the_tables(freedom: int, value: float) -> None:
    assert t_quantile(freedom) == pytest.approx(value, abs=5e-5)


def test_other_confidence_has_other_quantiles() -> None:
    assert t_quantile(5, 0.99) == pytest.approx(4.0321, abs=5e-5)
    assert t_quantile(100_000) == pytest.approx(1.95999, abs=5e-5)  # nearly the normal distribution


def test_an_interval_by_hand() -> None:
    # 2, 4, 6: mean 4, standard deviation 2; 4.30265 · 2 / √3 = 4.96828
    found = estimate([2.0, 4.0, 6.0])
    assert (found.mean, found.n) == (4.0, 3)
    assert found.margin == pytest.approx(4.96828, abs=1e-5)


def test_one_value_has_no_interval_and_equal_values_one_of_nothing() -> None:
    assert estimate([7.0]) == Estimate(7.0, None, 1)
    assert estimate([7.0, 7.0, 7.0]) == Estimate(7.0, 0.0, 3)


def test_a_comparison_pairs_the_seeds() -> None:
    # The seeds differ by much, the variants by 1, 2 and 3 in each: mean 2 ± 4.30265 · 1 / √3 = 2.48414.
    found = compare({1: 10.0, 2: 50.0, 3: 90.0}, {3: 93.0, 1: 11.0, 2: 52.0, 4: 1e9}, "higher")
    assert found is not None
    assert found.difference.mean == pytest.approx(2.0)
    assert found.difference.margin == pytest.approx(2.48414, abs=1e-5)
    assert found.verdict is Verdict.UNCLEAR


@pytest.mark.parametrize(
    ("better", "by", "verdict"),
    [
        ("higher", 1.0, Verdict.BETTER),
        ("higher", -1.0, Verdict.WORSE),
        ("lower", 1.0, Verdict.WORSE),
        ("lower", -1.0, Verdict.BETTER),
        ("", 1.0, Verdict.HIGHER),
        ("", -1.0, Verdict.LOWER),
        ("higher", 0.0, Verdict.SAME),
        ("higher", 1e-14, Verdict.SAME),  # rounding
    ],
)
def test_verdicts_know_what_is_better(better: str, by: float, verdict: Verdict) -> None:
    base = {1: 1.0, 2: 5.0, 3: 3.0}
    other = {1: 1.0 + by, 2: 5.0 + by, 3: 3.0 + by * 1.01}
    found = compare(base, other, better)  # type: ignore[arg-type]
    assert found is not None
    assert found.verdict is verdict


def test_one_seed_tells_nothing_and_no_common_seed_less() -> None:
    found = compare({1: 1.0}, {1: 2.0}, "higher")
    assert found is not None
    assert (found.difference, found.verdict) == (Estimate(1.0, None, 1), Verdict.UNKNOWN)
    assert compare({1: 1.0}, {2: 2.0}, "higher") is None


def test_a_table_has_variants_in_their_order_and_skips_what_was_not_measured() -> None:
    runs = [
        made_up("b", 1, summary={"density": 0.8, "vms_healed": None, "stranded_cores": 0.02}),
        made_up("a", 1, summary={"density": 0.9, "vms_healed": None, "stranded_cores": 0.01}),
        made_up("b", 2, summary={"density": 0.82, "vms_healed": None, "stranded_cores": 0.03}),
        made_up("a", 2, summary={"density": 0.92, "vms_healed": 4.0, "stranded_cores": 0.03}),
    ]
    table = summary_table(runs)
    assert table.headings() == ["measure", "b", "a", "against b"]
    density, healed, stranded = table.rows
    # 0.80 and 0.82: 12.7062 · 0.0141421 / √2 = 0.127062; both differences are 0.1.
    assert density.figures()[0] == "81.0 ± 12.7 %"
    assert density.comparisons[1] is not None
    assert density.comparisons[1].verdict is Verdict.BETTER
    assert density.differences() == ["", "+10.0 points"]
    assert table.cells()[1] == ["VMs healed", "–", "4", ""]
    assert healed.estimates == [None, Estimate(4.0, None, 1)]
    assert stranded.measure.name == "stranded_cores"
    assert table.as_data()[0]["variants"]["b"].mean == pytest.approx(0.81)
    assert list(table.as_data()[0]["against_b"]) == ["a"]


def test_the_same_run_twice_is_refused_and_so_is_none() -> None:
    with pytest.raises(InvalidInput, match=r"two runs are called 'default' and have seed 1"):
        summary_table([made_up(), made_up()])
    with pytest.raises(InvalidInput, match="there are none"):
        summary_table([])


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.931, "share", "93.1 %"),
        (0.99987, "share", "99.987 %"),
        (0.00013, "share", "0.013 %"),
        (1.0, "share", "100.0 %"),
        (0.0, "share", "0.0 %"),
        (12_345.0, "machines", "12,345"),
        (12_345.6, "machines", "12,346"),
        (2.345, "VMs/s", "2.35"),
        (0.0142, "s", "14.2 ms"),
        (0.0, "s", "0 ms"),
        (0.00032, "s", "320 µs"),
        (3.5, "s", "3.50 s"),
        (0.99999, "s", "1.00 s"),
        (600.0, "s", "10.0 min"),
    ],
)
def test_figures_are_written_as_people_read_them(value: float, unit: str, text: str) -> None:
    assert figure(value, unit) == text


def test_figures_of_a_row_are_written_alike() -> None:
    quick, slow = Estimate(0.142, 0.01, 3), Estimate(2.0, 0.1, 3)
    scale = scale_of("s", [quick, slow])
    assert [scale.figure(each) for each in (quick, slow)] == ["0.14 ± 0.01 s", "2.00 ± 0.10 s"]


def test_margins_are_fine_enough_to_be_seen() -> None:
    fine, none = Estimate(0.8731, 0.0004, 3), Estimate(0.8731, 1e-9, 3)
    assert scale_of("share", [fine]).figure(fine) == "87.31 ± 0.04 %"
    assert scale_of("share", [fine, none]).figure(none) == "87.31 %"


def test_differences_are_points_of_shares_and_parts_of_the_rest() -> None:
    share, count = Scale(100.0, "%", 1), Scale(1.0, "", 0)
    assert share.difference(Estimate(-0.021, 0.003, 3), 0.8) == "−2.1 ± 0.3 points"  # noqa: RUF001
    assert count.difference(Estimate(31.0, 4.0, 3), 250.0) == "+31 ± 4 (+12 %)"
    assert count.difference(Estimate(31.0, None, 1), 0.0) == "+31"
    assert count.change(Estimate(-2.0, 4.0, 3), 250.0) == "−0.8 %"  # noqa: RUF001
    assert share.change(Estimate(0.021, 0.003, 3), 0.8) == "+2.1 points"
    assert count.difference(Estimate(0.0, 0.0, 3), 250.0) == "0"


def test_spans_of_time_are_told_in_a_unit_that_suits() -> None:
    assert [span(s) for s in (30 * 86_400.0, 86_400.0, 5_400.0, 90.0, 0.0)] == [
        "30 days",
        "24 hours",
        "90 minutes",
        "90 seconds",
        "0 seconds",
    ]
    assert [brief(s) for s in (1e-4, 1e-3, 0.1, 1.0, 100.0)] == ["100 µs", "1 ms", "100 ms", "1 s", "100 s"]
