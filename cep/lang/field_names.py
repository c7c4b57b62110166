"""The name of a field → its role: a label, a personal trait, a coordinate, money, or another one.

    is_fraud, isFraud, label         LABEL        it says which events are fraud: known only afterwards
    gender, dob, customer_age, job   SENSITIVE    a trait of a person, or a proxy of one
    lat, merch_long                  COORDINATE   a place: its sum and its average mean nothing
    amount, amt, fee                 MONEY        a sum over events means something
    old_balance                      BALANCE      money, but a sum over events means nothing

A name is a guess. So a role never decides alone: each message that it causes names the field and how to overrule it.
Tested by: tests/lang/test_check.py
"""

import re
from enum import Enum


class Role(Enum):
    """The role of a field, as its name suggests it."""

    LABEL = "a label"
    SENSITIVE = "a personal trait"
    COORDINATE = "a coordinate"
    MONEY = "money"
    BALANCE = "a balance"
    OTHER = "another field"


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_LABEL_NAMES = {"label", "labels", "class", "target", "y", "is bad"}
_LABEL_WORDS = {"fraud", "fraudulent", "isfraud", "laundering", "scam", "illicit", "betrug", "fraude", "frode"}
# A score or a count of past frauds is known when the event comes.
_KNOWN_WORDS = {"score", "risk", "probability", "prob", "model", "previous", "prior", "past", "count", "rate", "list"}
_PERSONAL_WORDS = {
    "gender", "sex", "dob", "birth", "birthday", "birthdate", "race", "ethnicity", "ethnic", "religion", "nationality",
    "citizenship", "marital", "married", "disability", "health", "pregnant", "orientation", "political", "surname",
    "firstname", "lastname", "job", "occupation", "employment", "education", "income", "housing", "street", "zip",
    "zipcode", "postcode", "postal", "geschlecht", "geburt", "geburtstag", "geburtsdatum", "plz", "postleitzahl",
    "vorname", "nachname", "beruf", "sexe", "naissance", "prenom", "profession", "sexo", "genero", "nacimiento",
}  # fmt: skip
_PERSON_NAMES = {
    "first", "last", "first name", "last name", "full name", "customer name", "holder name", "alter", "edad",
}  # fmt: skip
_AGED_THINGS = {"account", "card", "device", "session", "email", "phone", "token", "days", "hours", "months"}
_COORDINATE_WORDS = {"lat", "latitude", "lon", "lng", "long", "longitude"}
_MONEY_WORDS = {
    "amount", "amt", "amounts", "value", "price", "total", "fee", "fees", "cost", "paid", "payment", "sum", "money",
    "spend", "spent", "turnover", "betrag", "montant", "importe",
}  # fmt: skip


def role_of(name: str) -> Role:
    """Guess the role of a field, such as money or a personal value, from the words in its name."""
    words = [word.lower() for word in _WORD.findall(name)]
    whole, parts = " ".join(words), set(words)  # `oldBalance` becomes "old balance" and {"old", "balance"}
    if whole in _LABEL_NAMES or (parts & _LABEL_WORDS and not parts & _KNOWN_WORDS):  # `fraud_score` is known
        return Role.LABEL  # it says which events are fraud, and is known only after them
    if parts & _PERSONAL_WORDS or whole in _PERSON_NAMES or ("age" in parts and not parts & _AGED_THINGS):
        return Role.SENSITIVE
    if parts & _COORDINATE_WORDS:
        return Role.COORDINATE
    if "balance" in whole:  # before money, because a sum of balances means nothing
        return Role.BALANCE
    return Role.MONEY if parts & _MONEY_WORDS else Role.OTHER
