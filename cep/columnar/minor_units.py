"""Amounts in minor units → units of a decimal field, by the currency of the event.

    1050 JPY, 1050 EUR, 1050 KWD   →  1050, 10.50, 1.050     ISO 4217 has the digits of each currency

Tested by: tests/columnar/test_number_texts.py
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cep.base.schema import Kind, Type
from cep.columnar.batch import TEXT, slot_values
from cep.columnar.convert import Converted, convert

_BY_DIGITS = {
    0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF",
    2: "AED AFN ALL AMD ANG AOA ARS AUD AWG AZN BAM BBD BDT BGN BMD BND BOB BOV BRL BSD BTN BWP BYN BZD CAD CDF CHE "
    "CHF CHW CNY COP COU CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GTQ GYD HKD HNL HRK "
    "HTG HUF IDR ILS INR IRR JMD KES KGS KHR KPW KYD KZT LAK LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR "
    "MWK MXN MXV MYR MZN NAD NGN NIO NOK NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP "
    "SLE SLL SOS SRD SSP STN SVC SYP SZL THB TJS TMT TOP TRY TTD TWD TZS UAH USD USN UYU UZS VED VES WST XCD XCG YER "
    "ZAR ZMW ZWG ZWL",
    3: "BHD IQD JOD KWD LYD OMR TND",
    4: "CLF UYW",
}
_CODES = [code for codes in _BY_DIGITS.values() for code in codes.split()]
_DIGITS = np.array([digits for digits, codes in _BY_DIGITS.items() for _ in codes.split()] + [0], np.int64)
_INT64_MAX = 2**63 - 1


def in_currencies(amounts: Converted, type_: Type, source: pa.Array | None) -> Converted:
    """Convert amounts in minor units to units of the field, by the currency of each amount in `source`.

    An amount without a currency of ISO 4217, or with more digits than the field has, is a bad value.
    """
    minor, is_valid = slot_values(amounts.values), np.asarray(pc.is_valid(amounts.values))
    codes = pa.nulls(len(minor), TEXT) if source is None else convert(source, Type(Kind.STRING)).values
    places = pc.index_in(pc.utf8_upper(pc.utf8_trim_whitespace(codes)), value_set=pa.array(_CODES, TEXT))
    shift = type_.scale - _DIGITS[slot_values(places.cast(pa.int64()).fill_null(-1))]
    up, down = 10 ** np.maximum(shift, 0), 10 ** np.maximum(-shift, 0)
    fits = np.asarray(pc.is_valid(places)) & (minor % down == 0) & (np.abs(minor) <= _INT64_MAX // up)
    bad = is_valid & ~fits
    units = pa.array(np.where(fits, minor // down * up, 0), mask=~(is_valid & fits))
    if not bad.any():
        return amounts._replace(values=units)
    code_texts = codes.to_pylist()

    def reason(row: int) -> str:
        if not bad[row]:
            return amounts.reason(row)
        code = code_texts[row]
        if places[row].is_valid:
            return f"{minor[row]} minor units of {code} are not a value of type {type_.as_nullable(False)}"
        return f"{minor[row]} minor units need a currency of ISO 4217, not {code!r}"

    return Converted(units, amounts.nulls, bad if amounts.bad is None else bad | amounts.bad, reason)
