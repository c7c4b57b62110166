"""Times in every form are the same instants as for datetime, zoneinfo and DuckDB."""

import math
import random
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from zoneinfo import ZoneInfo

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.base.errors import UsageError
from cep.columnar import times as time_forms

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe", "Pacific/Apia")
YEARS = st.datetimes(datetime(1, 1, 2), datetime(9000, 1, 1))  # noqa: DTZ001
RECENT = st.datetimes(datetime(1972, 1, 1), datetime(2200, 1, 1))  # noqa: DTZ001
ABOUT_CHANGES = st.builds(
    lambda start, minutes: start + timedelta(minutes=minutes),
    st.sampled_from([datetime(2026, 3, 29), datetime(2026, 10, 25), datetime(2026, 3, 8), datetime(2026, 4, 5)]),  # noqa: DTZ001
    st.integers(0, 400),
)


def us_of(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def read(values: Sequence[object], arrow: pa.DataType | None = None, **forms: str) -> list[int | None]:
    times: list[int | None] = time_forms.times_us(pa.array(values, arrow), **forms).to_pylist()
    return times


def written_forms(moment: datetime) -> list[str]:
    """Write a moment of UTC in the forms of TIME_FORMS."""
    iso = moment.replace(tzinfo=None).isoformat(timespec="microseconds")
    east = (moment + timedelta(hours=5, minutes=45)).replace(tzinfo=None).isoformat(timespec="microseconds")
    basic = iso.replace("-", "").replace(":", "")
    return [
        f"{iso}Z", f"{iso}z", f"{iso}Z ", f" {iso}Z", f"{iso} UTC", f"{iso}UTC", f"{iso} GMT", f"{iso}+00:00",
        f"{iso}+0000", f"{iso}+00", f"{iso} +00:00", f"{iso}-00:00:00", iso.replace("T", " ") + "Z",
        iso.replace("T", "t") + "z", iso.replace(".", ",") + "Z", f"{iso}999Z", f"{iso}000000000001Z",
        f"{iso}Z[Asia/Kathmandu]", f"{iso}+00:00[UTC]", f"{iso}[UTC]", f"{iso}[Z]", f"{iso} Etc/UTC",
        f"{east}+05:45[Asia/Kathmandu][u-ca=iso8601]", f"{east}+0545", f"{basic}Z", f"{basic}+00:00",
    ]  # fmt: skip


@given(YEARS)
def test_a_moment_is_the_same_in_each_form_alone_and_in_a_mixed_column(moment: datetime) -> None:
    moment = min(moment, datetime(8999, 12, 31)).replace(tzinfo=UTC)  # noqa: DTZ001
    texts, expected = written_forms(moment), us_of(moment)
    assert read(texts) == [expected] * len(texts)
    for text in texts:
        assert read([text]) == [expected]
        assert time_forms.has_zone(text)


@given(RECENT)
def test_a_number_is_the_same_moment_as_int_text_decimal_and_double(moment: datetime) -> None:
    us = us_of(moment.replace(tzinfo=UTC))
    for unit, ticks in (("s", 10**6), ("ms", 10**3), ("us", 1)):
        exact = Decimal(us) / ticks
        texts = [f"{exact:f}", f"{exact:.12f}", f" {exact:f} ", f"{exact:E}"]
        if exact == int(exact):
            texts.append(f"{exact:f}.0")
            assert read([int(exact)], unit=unit) == [us]
        assert read(texts, unit=unit) == [us] * len(texts)
        assert read([float(exact)], unit=unit) == [us]
        assert read([exact], pa.decimal128(38, 9), unit=unit) == [us]
    for rest in (0, 1, 999):
        assert read([us * 1_000 + rest], unit="ns") == read([str(us * 1_000 + rest)], unit="ns") == [us]
    assert read([str(us * 1_000), "9" * 19], unit="ns") == [us, None]
    if us >= 0:
        assert read([us * 1_000, 2**64 - 1], pa.uint64(), unit="ns") == [us, None]


@given(st.decimals(-(10**11), 10**11, places=9, allow_nan=False))
def test_a_number_as_text_is_cut_towards_the_past(number: Decimal) -> None:
    expected = math.floor(Fraction(number) * 10**6)
    is_time = -62_135_596_800 <= number <= 253_402_300_799
    assert read([f"{number:f}"], unit="s") == [expected if is_time else None]


def test_numbers_without_a_unit_are_milliseconds() -> None:
    ms = 1_772_359_200_123
    assert read([ms, 5, -(10**18)]) == [ms * 1_000, 5_000, None]
    assert read([float(ms), ms + 0.5, math.nan, math.inf]) == [ms * 1_000, ms * 1_000 + 500, None, None]
    assert read([Decimal(ms)], pa.decimal128(20, 1)) == [ms * 1_000]
    assert read([str(ms), f"{ms}.0", "1.772359200123E+12", "17", "20260301"]) == [ms * 1_000] * 3 + [None, None]
    assert read(["17", "99999999", "100000000"], unit="s") == [17_000_000, 99_999_999_000_000, 10**14]
    assert read([2**64 - 1, 5], pa.uint64()) == [None, 5_000]


@given(st.one_of(YEARS, ABOUT_CHANGES), st.sampled_from(ZONES))
def test_a_local_time_is_the_instant_of_zoneinfo(local: datetime, zone: str) -> None:
    expected = us_of(local.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC))
    iso = local.isoformat(timespec="microseconds")
    other = "2026-03-01T10:00:00Z"
    assert read([local], pa.timestamp("us"), zone=zone) == [expected]
    assert read([iso], zone=zone) == [expected]
    assert read([iso, other], zone=zone)[0] == expected
    assert read([f"{iso}[{zone}]"], zone="Asia/Tokyo") == [expected]
    form = "%Y-%m-%dT%H:%M:%S.%f"
    assert read([iso], form=form, zone=zone) == [expected]


def test_no_number_of_unknown_zones_hides_a_known_one() -> None:
    texts = [f"2026-03-01T11:00:00[{name}]" for name in (*(f"X{i}/Y" for i in range(1_001)), "Europe/Berlin", "+01:00")]
    assert read([*texts, "2026-03-01T11:00:00"], zone="Asia/Tokyo") == [
        *[None] * 1_001, 1_772_359_200_000_000, 1_772_359_200_000_000, 1_772_330_400_000_000
    ]  # fmt: skip


def test_local_times_that_clocks_skip_keep_their_order() -> None:
    texts = ["2026-03-29T01:59:00", "2026-03-29T02:10:00", "2026-03-29T02:50:00", "2026-03-29T03:00:00"]
    local = pa.array(texts).cast(pa.timestamp("us"))
    minutes = [us // 60_000_000 % (24 * 60) for us in time_forms.times_us(local, zone="Europe/Berlin").to_pylist()]
    assert minutes == [59, 70, 110, 60]


@given(st.lists(RECENT, min_size=1, max_size=5))
def test_timestamps_of_each_unit_are_as_duckdb_reads_them(moments: list[datetime]) -> None:
    for unit in ("s", "ms", "us", "ns"):
        for zone in (None, "UTC", "Asia/Kathmandu", "+02:00"):
            column = pa.array(moments, pa.timestamp("us")).cast(pa.timestamp(unit), safe=False)
            column = column.cast(pa.timestamp(unit, tz=zone)) if zone else column
            frame = pa.table({"t": column.cast(pa.timestamp(unit))})  # noqa: F841 DuckDB sees it by its name
            rows = duckdb.execute("select epoch_us(t) from frame").fetchall()
            assert time_forms.times_us(column).to_pylist() == [us for (us,) in rows]


def test_dates_are_midnight_of_the_zone() -> None:
    for arrow in (pa.date32(), pa.date64()):
        days = pa.array([date(2026, 7, 1), date(9999, 12, 31), None], arrow)
        berlin = us_of(datetime(2026, 7, 1, tzinfo=ZoneInfo("Europe/Berlin")))
        assert time_forms.times_us(days, zone="Europe/Berlin").to_pylist()[0] == berlin
        assert time_forms.times_us(days).to_pylist()[1:] == [us_of(datetime(9999, 12, 31, tzinfo=UTC)), None]
        stored = pa.array([1, 2**31 - 1], pa.int32()) if arrow == pa.date32() else pa.array([86_400_000, 2**63 - 1])
        assert time_forms.times_us(stored.cast(arrow)).to_pylist() == [86_400_000_000, None]


FORMS = ("%Y-%m-%d %H:%M:%S.%f", "%d.%m.%Y %H:%M:%S", "%d/%m/%y %I:%M %p", "%d %b %Y %H:%M", "%B %d, %Y %H:%M:%S",
         "%Y%m%d%H%M%S%f", "%a, %d %b %Y %H:%M:%S %z", "%Y-%jT%H", "%d.%m.%Y", "%F %T",
         "%A %Y-%m-%d 100%%")  # fmt: skip


@given(RECENT.map(lambda moment: moment.replace(year=1970 + moment.year % 60, day=moment.day % 28 + 1)), st.data())
def test_a_form_reads_what_strptime_reads(moment: datetime, data: st.DataObject) -> None:
    form = data.draw(st.sampled_from(FORMS))
    text = moment.replace(tzinfo=UTC).strftime(form)
    python_form = form.replace("%F", "%Y-%m-%d").replace("%T", "%H:%M:%S")
    parsed = datetime.strptime(text, python_form)  # noqa: DTZ007
    expected = us_of(parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC))
    assert read([text, text.upper(), f"{text} "], form=form) == [expected] * 3
    assert read([f"{text}x", "", f"x{text}"], form=form) == [None] * 3


@given(st.text("0123456789 .:", max_size=20))
def test_a_form_reads_no_text_that_strptime_refuses(text: str) -> None:
    form = "%d.%m.%Y %H:%M"
    try:
        expected = us_of(datetime.strptime(text.strip(), form).replace(tzinfo=UTC))
    except ValueError:
        expected = None
    assert read([text], form=form) == [expected]


@pytest.mark.parametrize(("name", "hour"), [("EST", 15), ("EDT", 14), ("CET", 9), ("CEST", 8), ("UTC", 10), ("z", 10)])
def test_the_name_of_a_zone_in_a_form_counts(name: str, hour: int) -> None:
    form = "%Y-%m-%d %H:%M %Z"
    assert name.upper() in time_forms.ZONE_NAMES
    assert read([f"2026-03-01 10:00 {name}"], form=form) == [us_of(datetime(2026, 3, 1, hour, tzinfo=UTC))]
    assert read(["2026-03-01 10:00 IST"], form=form) == [None]
    assert time_forms.form_has_zone(form)


@pytest.mark.parametrize(
    "form", ["%H:%M", "%d.%m. %H:%M", "%Y-%m", "%Y %d", "%Y-%m-%d %q", "%Y-%m-%d %I:%M", "%d%d%m%Y"]
)
def test_a_form_that_leaves_the_moment_open_is_refused(form: str) -> None:
    with pytest.raises(UsageError):
        time_forms.check_form(form)


@pytest.mark.parametrize(
    "text",
    ["2026-02-30T10:00:00Z", "2026-13-01T10:00:00Z", "2026-03-01T25:00:00Z", "2026-03-01T10:60:00Z", "yesterday", "",
     "2026-03-01T10:00:00+25:00", "2026-03-01T10:00:00[Europe/Nowhere]", "0000-01-01T00:00:00Z", "9" * 19, "1e400"],
)  # fmt: skip
def test_a_text_that_is_no_time_is_null_and_spoils_no_other(text: str) -> None:
    assert read(["2026-03-01T10:00:00Z", text, None, "2026-03-01T10:00:00z"]) == [1_772_359_200_000_000, None, None,
                                                                                 1_772_359_200_000_000]  # fmt: skip


def test_times_that_name_no_zone_are_told_from_others() -> None:
    assert [time_forms.has_zone(text) for text in ("2026-03-01T10:00:00", "2026-03-01", "20260301T1000")] == [False] * 3
    assert time_forms.has_zone("17.03.2026") is None


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
@pytest.mark.parametrize("year", [2026, 2037, 2061])
@pytest.mark.parametrize("kind", ["texts", "naive", "own zones"])
def test_local_times_that_clocks_skip_are_counted(kind: str, year: int, zone: str) -> None:
    rng, place = random.Random(7), ZoneInfo(zone)
    starts = [datetime.fromisoformat(f"{year}-01-01") + timedelta(days=day) for day in range(365)] * 2
    moments = [start + timedelta(minutes=rng.randrange(240)) for start in starts]
    moments += map(datetime.fromisoformat, ("2026-03-29T02:30", "2026-03-08T02:59", "2026-10-04T02:15"))
    there = [moment.replace(tzinfo=place).astimezone(UTC).astimezone(place).replace(tzinfo=None) for moment in moments]
    expected = sum(a != b for a, b in zip(moments, there, strict=True))
    assert expected
    others = (None, "2026-03-29 02:30:00+01:00", "no time", "9999-12-31 23:50:00")
    texts = [*(moment.isoformat(sep=" ") for moment in moments), *others]
    with time_forms.counting_skipped() as counts:
        if kind == "naive":
            time_forms.times_us(pa.array(moments, pa.timestamp("us")), zone=zone)
        elif kind == "texts":
            time_forms.times_us(pa.array(texts), zone=zone)
        else:
            time_forms.times_us(
                pa.array([None if text is None else f"{text}[{zone}]" for text in texts]), zone="Asia/Tokyo"
            )
    assert sum(counts) == expected
    time_forms.times_us(pa.array(moments, pa.timestamp("us")), zone=zone)
    assert sum(counts) == expected, "outside of the block"


BASE = datetime(2013, 9, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize("unit", time_forms.UNITS_US)
def test_random_numbers_of_each_unit(unit: str) -> None:
    rng = random.Random(1)
    numbers = [rng.randrange(0, 10**5) for _ in range(100)]
    expected = [BASE + timedelta(microseconds=number * time_forms.UNITS_US[unit]) for number in numbers]
    for form in (numbers, [str(n) for n in numbers], [float(n) for n in numbers], [Decimal(n) for n in numbers]):
        assert time_forms.moments_since(pa.array(form), "2013-09-01T04:00:00+02:00", unit).to_pylist() == expected


def test_what_is_no_number_or_no_time_is_null() -> None:
    texts = pa.array(["1.5", "x", "", None, "1e300", "-5", " 7 "])
    moments = time_forms.moments_since(texts, "2013-09-01T02:00:00Z", "").to_pylist()
    assert moments == [BASE + timedelta(seconds=s) if s is not None else None for s in (1.5, *[None] * 4, -5, 7)]
    large = pa.array([2**64 - 1], pa.uint64())
    for column in (pa.array([True]), pa.array([{"a": 1}]), pa.array([1], pa.time32("s")), pa.array([2**53 + 1]), large):
        assert time_forms.moments_since(column, "2013-09-01T02:00:00Z", "").to_pylist() == [None]
