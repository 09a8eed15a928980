"""Roost's own form of workloads: what is written is read again, and mistakes are found where they are."""

import gzip
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roost.model.errors import InvalidInput
from roost.model.names import PLAIN
from roost.model.request import Constraints
from roost.traces.own_form import RESOURCES, read_own_form, types_beside, write_own_form
from roost.traces.reading import Reading
from roost.traces.times import LONGEST
from roost.traces.window import cut
from roost.traces.workload import ANY, Workload, WorkloadType

CSV = """\
time_s,tenant,vm_type,lifetime_s,cores,memory,priority,min_fault_domains,colocate
0,web,D2,600,2,8,,2,
0,web,D2,,2,8,spot,2,
5.5,db,E8,60,8,64,,,rack
"""
LENIENT = Reading(skip=True)
NAMES = st.from_regex(rf"{PLAIN}\Z", fullmatch=True).filter(lambda name: len(name) < 7)
TIMES = st.floats(0, LONGEST, allow_nan=False).map(abs)  # no -0.0


def saved(folder: Path, text: str = CSV, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def told(workload: Workload) -> list[Any]:
    """All that a workload says, however it numbers its types and priorities."""
    sizes = {
        each.name: {at: dict(zip(workload.resources, takes, strict=True)) for at, takes in each.demand.items()}
        for each in workload.types
    }
    requests = []
    for number, (time, tenant) in enumerate(zip(workload.arrival.tolist(), workload.tenants, strict=True)):
        asked = workload.request(number)
        assert asked.tenant == tenant
        vms = slice(int(workload.first[number]), int(workload.first[number + 1]))
        kinds = [(vm.type, sizes[vm.type], vm.priority) for vm in asked.vms]
        requests.append((time, tenant, kinds, workload.lifetime[vms].tolist(), asked.constraints))
    return requests


@st.composite
def constraints(draw: st.DrawFn) -> Constraints:
    few = st.integers(0, 3)
    found = Constraints(
        min_fault_domains=draw(st.integers(0, 1)),
        max_per_machine=draw(few),
        update_domain_skew=draw(few),
        colocate=draw(st.sampled_from(["", "rack", "cluster"])),
    )
    return msgspec.structs.replace(found, best_effort=bool(found.named) and draw(st.booleans()))


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    resources = draw(st.lists(st.sampled_from(list(RESOURCES)), unique=True, max_size=3))
    size = st.tuples(*[st.floats(0, 1e5).map(abs)] * len(resources))
    where = st.one_of(st.just({ANY}), st.sets(st.sampled_from([ANY, "g1", "g 2"])))
    at: st.SearchStrategy[set[str]] = where if resources else st.just(set())
    names = draw(st.lists(NAMES, unique=True, min_size=1, max_size=4))
    types = [WorkloadType(name, {each: draw(size) for each in sorted(draw(at))}) for name in names]
    priorities = ["", *draw(st.lists(NAMES, unique=True, max_size=2))]
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=6))
    arrival = sorted(
        draw(st.lists(st.one_of(st.sampled_from([0.0, 7.0]), TIMES), min_size=len(sizes), max_size=len(sizes)))
    )
    vms = sum(sizes)

    def each(what: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(what, min_size=vms, max_size=vms))

    return Workload(
        name="made up",
        types=types,
        resources=resources,
        arrival=np.array(arrival),
        first=np.cumsum([0, *sizes]),
        type=np.array(each(st.integers(0, len(types) - 1)), np.int32),
        lifetime=np.array(each(st.one_of(st.just(np.inf), TIMES))),
        tenants=draw(st.lists(st.one_of(st.just("web"), NAMES), min_size=len(sizes), max_size=len(sizes))),
        priority=np.array(each(st.integers(0, len(priorities) - 1)), np.int8),
        priorities=priorities,
        constraints=draw(st.dictionaries(st.integers(0, len(sizes) - 1), constraints(), max_size=3)),
    )


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
@settings(max_examples=40)
@given(workload=workloads())
def test_what_is_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, workload: Workload
) -> None:
    path = tmp_path_factory.getbasetemp() / f"round{suffix}"
    written = write_own_form(workload, path)
    assert told(read_own_form(path)) == told(workload)
    assert (types_beside(path) in written) == types_beside(path).exists(), "none is left of an earlier workload"


def test_a_file_says_who_asks_for_what_when_and_for_how_long(tmp_path: Path) -> None:
    workload = read_own_form(saved(tmp_path))
    assert (workload.requests, workload.vms, workload.span) == (2, 3, 5.5)
    assert workload.resources == ("cores", "memory")
    assert workload.types == (WorkloadType("D2", {ANY: (2.0, 8.0)}), WorkloadType("E8", {ANY: (8.0, 64.0)}))
    assert workload.lifetime.tolist() == [600.0, np.inf, 60.0]
    assert [vm.priority for vm in workload.request(0).vms] == ["", "spot"]
    assert workload.constraints == {0: Constraints(min_fault_domains=2), 1: Constraints(colocate="rack")}


def test_rows_may_be_in_any_order_and_a_column_splits_requests(tmp_path: Path) -> None:
    text = "vm_type,lifetime_s,time_s,tenant,request\nb,,9,x,1\na,,2,x,1\na,,2,x,2\na,,2,y,1\na,,2,x,1\n"
    workload = read_own_form(saved(tmp_path, text))
    assert workload.arrival.tolist() == [2, 2, 2, 9]
    assert list(workload.tenants) == ["x", "x", "y", "x"]
    assert workload.sizes.tolist() == [2, 1, 1, 1]


def test_sizes_by_generation_stand_in_a_file_beside_or_in_one_that_is_given(tmp_path: Path) -> None:
    path = saved(tmp_path, "time_s,tenant,vm_type,lifetime_s\n0,a,t,5\n")
    other = saved(tmp_path, "vm_type,generation,cores\nt,g1,2\nt,g2,1.5\nu,,9\n", "sizes.csv")
    assert read_own_form(path).types == (WorkloadType("t", {}),), "the zone has to know it"
    assert read_own_form(path, types=other).types == (WorkloadType("t", {"g1": (2.0,), "g2": (1.5,)}),)
    other.rename(types_beside(path))
    assert read_own_form(path).types == (WorkloadType("t", {"g1": (2.0,), "g2": (1.5,)}),)


def test_windows_are_cut_by_time_and_number(tmp_path: Path) -> None:
    text = "time_s,tenant,vm_type,lifetime_s,max_per_machine\n0,a,t,5,\n10,b,t,5,1\n10,b,t,5,1\n20,c,t,5,\n30,d,t,5,\n"
    workload = read_own_form(saved(tmp_path, text))
    part = cut(workload, 10, 30)
    assert part.arrival.tolist() == [0, 10]
    assert (list(part.tenants), part.vms) == (["b", "c"], 3)
    assert part.constraints == {0: Constraints(max_per_machine=1)}
    assert list(cut(workload, 5, first=1).tenants) == ["b"]
    with pytest.raises(InvalidInput, match="has no request from 31 s"):
        cut(workload, 31)


HEAD = "time_s,tenant,vm_type,lifetime_s,cores,min_fault_domains,colocate\n"
GOOD = "0,a,t,5,2,,\n"
WRONG_ROWS = {
    "-1,a,t,5,2,,": "trace.csv:3: time_s: is negative: -1; give seconds",
    "nan,a,t,5,2,,": "trace.csv:3: time_s: is no number: nan",
    "inf,a,t,5,2,,": "trace.csv:3: time_s: is no number: inf",
    "soon,a,t,5,2,,": "trace.csv:3: time_s: is no number: soon",
    ",a,t,5,2,,": "trace.csv:3: time_s: is empty",
    "1,a,t,-5,2,,": "trace.csv:3: lifetime_s: is negative: -5",
    "1,a,t,inf,2,,": "trace.csv:3: lifetime_s: is no number: inf; give seconds from 0 up, or nothing",
    "1,,t,5,2,,": "trace.csv:3: tenant: is empty",
    "1,a,,5,2,,": "trace.csv:3: vm_type: is empty",
    "1,a,t,5,3,,": "trace.csv:3: cores: differs from an earlier row of the same vm_type: 3.0",
    "1,a,t,5,1e9,,": "trace.csv:3: cores: is above 2,147,483: 1e9",
    "1,a,t,5,2,1.5,": "trace.csv:3: min_fault_domains: is no whole number: 1.5",
    "1,a,t,5,2,2,rack": "trace.csv:3: colocate: asks for one rack while min_fault_domains asks for several",
    "1,a,t,5,2,,room": "trace.csv:3: colocate: no place to keep VMs together in is called 'room'; known are",
    "0,a,t,5,2,2,": "trace.csv:3: min_fault_domains: differs from an earlier row of the same request: 2.0",
    "1,a,t,5,2": "trace.csv:3: has too few cells; each row has 7 cells",
    "1,a,t,5,2,,,": "trace.csv:3: has too many cells",
}


@pytest.mark.parametrize("row", WRONG_ROWS)
def test_a_wrong_row_is_named_or_left_out_and_counted(tmp_path: Path, row: str) -> None:
    path = saved(tmp_path, f"{HEAD}{GOOD}{row}\n\n7,b,t,5,2,,\n")
    with pytest.raises(InvalidInput) as caught:
        read_own_form(path)
    assert WRONG_ROWS[row] in str(caught.value)
    workload = read_own_form(path, LENIENT)
    assert workload.vms == 2
    assert list(workload.skipped.values()) == [1]


def test_a_trace_of_wrong_rows_only_is_an_error(tmp_path: Path) -> None:
    path = saved(tmp_path, f"{HEAD}-1,a,t,5,2,,\n,a,t,5,2,,\n-3,a,t,5,2,,\n")
    with pytest.raises(InvalidInput, match=r"no row can be used \(2: time_s is negative, 1: time_s is empty\)"):
        read_own_form(path, LENIENT)


def test_rows_are_counted_by_reason_and_quotes_change_no_number(tmp_path: Path) -> None:
    rows = '0,"a, the ""first""\nof all",t,5\n-1,a,t,5\n-2,a,t,5\nx,a,t,5\n3,b,t\n4,"b",t,5\n'
    path = saved(tmp_path, f"time_s,tenant,vm_type,lifetime_s\n{rows}")
    with pytest.raises(InvalidInput, match=r"trace\.csv:7: has too few cells"):
        read_own_form(path)
    workload = read_own_form(path, LENIENT)
    assert list(workload.tenants) == ["b"]
    left_out = {"has too few cells": 1, "tenant is no name": 1, "time_s is no number": 1}
    assert workload.skipped == {"time_s is negative": 2, **left_out}


def test_parquet_mistakes_name_their_row(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    frame = pl.DataFrame({"time_s": [0, -3], "tenant": ["a", "b"], "vm_type": ["t", "t"], "lifetime_s": [None, 5]})
    frame.write_parquet(path)
    with pytest.raises(InvalidInput, match=r"trace\.parquet: row 2: time_s: is negative: -3"):
        read_own_form(path)
    assert read_own_form(path, LENIENT).vms == 1
    frame.with_columns(time_s=pl.lit([1])).write_parquet(path)
    with pytest.raises(InvalidInput, match=r"trace\.parquet: time_s: is a column of List"):
        read_own_form(path)


TYPES_WRONG = {
    "vm_type,generation,cores\nu,,2\n": "trace.csv:2: vm_type: no VM type is called 't'; known are u",
    "vm_type,generation,cores\nt,,2\nt,,3\n": "trace.types.csv:3: vm_type: is there twice for one generation: t",
    "vm_type,generation,cores\nt,,-2\n": "trace.types.csv:2: cores: is negative: -2",
    "vm_type,generation,core\nt,,2\n": "trace.types.csv: no column is called 'core'; did you mean cores",
}


@pytest.mark.parametrize("text", TYPES_WRONG)
def test_a_mistake_in_the_file_of_types_is_found(tmp_path: Path, text: str) -> None:
    path = saved(tmp_path, "time_s,tenant,vm_type,lifetime_s\n0,a,t,5\n")
    saved(tmp_path, text, "trace.types.csv")
    with pytest.raises(InvalidInput) as caught:
        read_own_form(path)
    assert TYPES_WRONG[text] in str(caught.value)


def test_rows_of_unknown_types_can_be_left_out(tmp_path: Path) -> None:
    path = saved(tmp_path, "time_s,tenant,vm_type,lifetime_s\n0,a,t,5\n0,b,v,5\n")
    saved(tmp_path, "vm_type,cores\nt,2\n", "trace.types.csv")
    assert read_own_form(path, LENIENT).skipped == {"vm_type is unknown": 1}


def test_sizes_are_in_one_place(tmp_path: Path) -> None:
    path = saved(tmp_path)
    saved(tmp_path, "vm_type,cores\nD2,2\n", "trace.types.csv")
    with pytest.raises(InvalidInput, match="gives cores, memory, and so does"):
        read_own_form(path)


def damaged(folder: Path) -> dict[str, tuple[str, bytes]]:
    """Files that are wrong as a whole: name and bytes, by what is said about them."""
    text = CSV.encode()
    whole = folder / "whole.parquet"
    write_own_form(read_own_form(saved(folder)), whole)
    return {
        "has no column lifetime_s; needed are time_s": ("a.csv", b"time_s,tenant,vm_type\n0,a,t\n"),
        "no column is called 'lifetme_s'": ("a.csv", b"time_s,tenant,vm_type,lifetime_s,lifetme_s\n0,a,t,,\n"),
        "the column 'tenant' is there twice": ("a.csv", b"tenant,tenant\n1,2\n"),
        "is empty; the first row names": ("a.csv", b""),
        "has no rows": ("a.csv", b"time_s,tenant,vm_type,lifetime_s\n"),
        "a.csv:3: is not valid UTF-8": ("a.csv", text.replace(b"spot", b"sp\xf6t")),
        "is not valid CSV": ("a.csv", text + b'9,"web'),
        "is cut off or damaged": ("a.csv.gz", gzip.compress(text)[:-9]),
        "is cut off or damaged: Not a gzipped": ("a.csv.gz", text),
        "is cut off or no Parquet file": ("a.parquet", whole.read_bytes()[:-9]),
        "is cut off or no Parquet file: ": ("a.parquet", b""),
        "is no table": ("a.txt", text),
    }


@pytest.mark.parametrize("which", range(12))
@pytest.mark.parametrize("how", [Reading(), LENIENT])
def test_a_damaged_file_is_refused_whatever_the_user_said(tmp_path: Path, which: int, how: Reading) -> None:
    said, (name, data) = list(damaged(tmp_path).items())[which]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InvalidInput) as caught:
        read_own_form(tmp_path / name, how)
    assert said in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize("missing", range(1, len("5.5,db,E8,60,8,64,,,rack\n")))
def test_a_last_line_that_is_cut_anywhere_is_noticed(tmp_path: Path, missing: int) -> None:
    path = saved(tmp_path, CSV[:-missing])
    with pytest.raises(InvalidInput, match=r"trace\.csv:4: .*may be cut off"):
        read_own_form(path)
    assert read_own_form(path, LENIENT).vms == 2


def test_it_says_what_cannot_be_written(tmp_path: Path) -> None:
    workload = read_own_form(saved(tmp_path))
    with pytest.raises(InvalidInput, match=r"let it end in \.csv"):
        write_own_form(workload, tmp_path / "trace.xlsx")
    with pytest.raises(InvalidInput, match="cannot be written: No such file"):
        write_own_form(workload, tmp_path / "nowhere" / "trace.csv")
    with pytest.raises(InvalidInput, match="no such file"):
        read_own_form(tmp_path / "nowhere.csv")


def test_without_polars_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "polars", None)
    with pytest.raises(InvalidInput, match=r"pip install 'roost\[data\]'"):
        read_own_form(saved(tmp_path))


# ---------------------------------------------------------------------------------------------------- times and names


def at_times(folder: Path, *times: float) -> Path:
    """A trace with a VM at each of these times."""
    rows = "".join(f"{time:.15g},t{i},D2,60,2,8\n" for i, time in enumerate(times))
    return saved(folder, f"time_s,tenant,vm_type,lifetime_s,cores,memory\n{rows}")


def test_unix_seconds_count_from_the_first_one_and_that_is_said(tmp_path: Path) -> None:
    found = read_own_form(at_times(tmp_path, 1_700_086_400, 1_700_000_000, 1_700_000_060.5))
    assert found.arrival.tolist() == [0.0, 60.5, 86_400.0]
    assert found.notice.endswith(
        "trace.csv: times start at 1700000000: taken as Unix seconds (2023-11-14 22:13:20 UTC), "
        "counted from the first one; the last comes 1 days later"
    )


def test_times_from_the_beginning_stay_as_they_are_and_nothing_is_said(tmp_path: Path) -> None:
    found = read_own_form(at_times(tmp_path, 5_000, 90_000))
    assert (found.arrival.tolist(), found.notice) == ([5_000.0, 90_000.0], "")


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ((1_700_000_000_000, 1_700_000_060_000), "as milliseconds since 1970 .* 2023-11-14 .*: divide it by 1,000$"),
        ((1_700_000_000e6, 1_700_000_060e6), "as microseconds since 1970 .* 2023-11-14 .*: divide it by 1,000,000$"),
        ((1_700_000_000e9, 1_700_000_060e9), "as nanoseconds since 1970 .* 2023-11-14 .*: divide it by 1,000,000,000$"),
        ((1e30, 1e30), "is 1e\\+30; give seconds from the beginning of the workload, or since 1970$"),
        (
            (0, 2_592_000_000),
            ":3: .* 82.2 years after the beginning; 3 are .*if these are milliseconds, divide by 1,000$",
        ),
        ((1_600_000_000, 1_700_000_000), ":3: .* 3.17 years after the beginning"),
        ((0, 1_700_000_000), ":3: time_s: is 1700000000, 53.9 years after the beginning"),
    ],
)
def test_times_in_another_unit_are_refused_with_what_they_would_be(
    tmp_path: Path, times: tuple[float, float], words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        read_own_form(at_times(tmp_path, *times))


@pytest.mark.parametrize("column", ["tenant", "vm_type"])
@pytest.mark.parametrize("name", ["a/b", "D=4", "D@4", "-x", "a b"])
def test_names_that_nothing_could_address_are_refused_or_left_out(tmp_path: Path, column: str, name: str) -> None:
    text = CSV.replace("db,E8" if column == "tenant" else "E8,60", f"{name},E8" if column == "tenant" else f"{name},60")
    with pytest.raises(InvalidInput, match=f"trace.csv:4: {column}: is no name: {name}; use letters, digits"):
        read_own_form(saved(tmp_path, text))
    assert read_own_form(saved(tmp_path, text), LENIENT).skipped == {f"{column} is no name": 1}
