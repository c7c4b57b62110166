"""The names of fields suggest their roles."""

from __future__ import annotations

import pytest

from cep.lang.field_names import Role, role_of


@pytest.mark.parametrize(
    ("role", "names"),
    [
        (Role.LABEL, "is_fraud,isFraud,Class,label,Is Laundering,fraud_type,FraudFound_P,Betrug"),
        (Role.SENSITIVE, "gender,dob,customer_age,date_of_birth,first,job,zip,employment_status,AgeOfPolicyHolder"),
        (Role.SENSITIVE, "Geschlecht,PLZ,Alter,sexo"),
        (Role.COORDINATE, "lat,merch_long,homeLon,latitude"),
        (Role.MONEY, "amount,amt,TransactionAmt,fee,Amount Paid"),
        (Role.BALANCE, "oldbalanceOrg,new_balance"),
        (Role.OTHER, "status,channel,account_age,fraud_score,flat,longest,merchant_name,V1,step,country,alternative"),
    ],
)  # fmt: skip
def test_roles(role: Role, names: str) -> None:
    assert [name for name in names.split(",") if role_of(name) is not role] == []
