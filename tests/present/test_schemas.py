"""The JSON schemas are valid, and every document of the tests is valid against its own."""

from __future__ import annotations

import copy

import jsonschema
import pytest

from ddtop.present.schemas import KEYS, NAMES, json_schema
from docs.generate.json_schema import documents

DOCUMENTS = list(documents())


def validator(schema):
    return jsonschema.Draft202012Validator(json_schema(schema))


@pytest.mark.parametrize("schema", KEYS)
def test_each_schema_is_one(schema):
    jsonschema.Draft202012Validator.check_schema(json_schema(schema))


@pytest.mark.parametrize("number", range(len(DOCUMENTS)))
def test_a_document_is_valid_against_its_schema(number):
    schema, document = DOCUMENTS[number]

    assert [error.message for error in validator(schema).iter_errors(document)] == []


def test_what_is_no_such_document_is_not_valid():
    schema, document = next(one for one in DOCUMENTS if one[0] == NAMES["diagnose"])
    for change in (
        {"schema": "ddtop.diagnose/2"},
        {"world_size": "8"},
        {"findings": [{"kind": "x"}]},
        {"health": None},
    ):
        broken = copy.deepcopy(document) | change
        assert list(validator(schema).iter_errors(broken)), change
    missing = {key: value for key, value in document.items() if key != "reporting"}
    assert list(validator(schema).iter_errors(missing))


def test_a_key_that_a_later_version_adds_is_allowed():
    schema, document = DOCUMENTS[0]

    assert not list(validator(schema).iter_errors(document | {"colour": "red"}))


def test_what_is_null_where_it_may_be_is_valid_and_its_keys_are_described():
    found = json_schema(NAMES["diagnose"])["properties"]["ended"]

    assert found["type"] == ["object", "null"]
    assert set(found["properties"]) == {"reason", "first_rank", "time_unix_ns"}
