"""The JSON schemas are valid, and every document of the tests is valid against its own."""

import copy
import functools

import jsonschema
import pytest

from ddtop.present.schemas import KEYS, NAMES, json_schema
from docs.generate.json_schema import documents


@functools.cache
def every_document():
    """Not made at the import: each worker collects all tests."""
    return list(documents())


def validator(schema):
    return jsonschema.Draft202012Validator(json_schema(schema))


@pytest.mark.parametrize("schema", KEYS)
def test_each_schema_is_one(schema):
    jsonschema.Draft202012Validator.check_schema(json_schema(schema))


def test_each_document_is_valid_against_its_schema():
    found = every_document()
    wrong = [
        (schema, error.message)
        for schema, document in found
        for error in validator(schema).iter_errors(document)
    ]

    assert {schema for schema, _ in found} <= set(KEYS)
    assert len(found) > 50
    assert wrong == []


def test_what_is_no_such_document_is_not_valid():
    schema, document = next(one for one in every_document() if one[0] == NAMES["diagnose"])
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
    schema, document = every_document()[0]

    assert not list(validator(schema).iter_errors(document | {"colour": "red"}))


def test_what_is_null_where_it_may_be_is_valid_and_its_keys_are_described():
    found = json_schema(NAMES["diagnose"])["properties"]["ended"]

    assert found["type"] == ["object", "null"]
    assert set(found["properties"]) == {"reason", "first_rank", "time_unix_ns"}
