"""What counts as a secret, by name and by shape, and what does not."""

import time
from typing import Any

import pytest

from speedtronic.config.references import expand_path, substitute
from speedtronic.errors import ConfigError
from speedtronic.redaction import (
    format_value,
    redact,
    redacted_keys,
    register_secrets,
    scrub,
    secrecy_level,
)

SECRET = """
password DB_PASSWORD dbPassword password2 password_file pin_password secret client_secret
secrets token hf_token HF_TOKEN hfToken accessToken session_token tokenValue tokens api_key apiKey
X-Api-Key apikey APIKEY access_key secret_access_key aws_access_key_id private_key secretKey passwd
passphrase pwd authorization auth oauth2 credentials creds dsn cookie bearer jwt user_pass pin
connectionString wandb_key slack_webhook a.api.key"""
INNOCENT = """tokenizer num_tokens max_tokens max_new_tokens tokens_per_s tokenizer_args key keys
key_dim num_keys sort_key text_key pad_token pad_token_id eos_token_id special_tokens author
pin_memory n_passes path token_type_ids token_dropout keyword keep_last monkey compass assign signal
tie_weights d_model secretary 1 _"""


@pytest.mark.parametrize("name", SECRET.split())
@pytest.mark.parametrize("value", ["hunter2", ["hunter2"], {"a": [{"b": "hunter2"}]}])
def test_a_name_makes_all_text_below_it_secret(name: str, value: Any) -> None:
    assert "hunter2" not in str(redact({"x": [{name: value}]}))
    assert "***" in str(redact({name: value}))
    assert "hunter2" in str(value)


@pytest.mark.parametrize("name", INNOCENT.split())
def test_a_name_of_something_else(name: str) -> None:
    assert redact({name: "text"}) == {name: "text"}
    assert redact({name: 7}) == {name: 7}


def test_numbers_are_secret_too_but_not_a_number_of_tokens() -> None:
    value = {"pin_password": 739182645, "token": 1.5, "tokens": 5, "auth": [1, True, None]}
    expected = {"pin_password": "***", "token": "***", "tokens": 5, "auth": ["***", True, None]}
    assert redact(value) == expected


SHAPES = [
    ("postgres://me:CANARY_ur/l@db/x", "postgres://***@db/x"),
    ("https://me:CANARY@db/x", "https://***@db/x"),
    ("https://CANARY@host", "https://***@host"),
    ("simplecache::s3://me:CA@NARY@host/a@b", "simplecache::s3://***@b"),
    ("a s3://u:CANARY@h and s3://v:CANARY@i", "a s3://***@h and s3://***@i"),
    ("redis://:CANARY@h", "redis://***@h"),
    ("https://b/x?token=CANARY&sig=CANARY&a=1", "https://b/x?token=***&sig=***&a=1"),
    ("https://b/x?X-Amz-Signature=CANARY&key=CANARY", "https://b/x?X-Amz-Signature=***&key=***"),
    ("host=db user=me password=CANARY", "host=db user=me password=***"),
    ("host=db password='CANARY x' user=me", "host=db password=*** user=me"),
    ("Server=x;Uid=me;Pwd=CANARY;", "Server=x;Uid=me;Pwd=***;"),
    ("AccountName=x;AccountKey=CANARY==;E=z", "AccountName=x;AccountKey=***;E=z"),
    ("Bearer CANARY_bearer", "Bearer ***"),
    ("Basic dXNlcjpwYXNzCANARY", "Basic ***"),
    ("Cookie: a=CANARY; b=CANARY", "Cookie: ***"),
    ("run --password CANARY -v", "run --password *** -v"),
    ("run --api-key=CANARY -v", "run --api-key=*** -v"),
    ('{"password": "CANARY", "a": "b"}', '{"password": "***", "a": "b"}'),
    ("hf_abcdefghijklmnopCANARY", "***"),
    ("ghp_abcdefghijklmnopqrstCANARY", "***"),
    ("https://hooks.slack.com/services/T0/B0/CANARY", "https://hooks.slack.com/services/***"),
    (
        "-----BEGIN RSA PRIVATE KEY-----\nCANARY\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN RSA PRIVATE KEY-----***-----END RSA PRIVATE KEY-----",
    ),
]


@pytest.mark.parametrize(("text", "expected"), SHAPES)
def test_a_shape_makes_a_part_of_a_text_secret(text: str, expected: str) -> None:
    assert redact({"a": [text]}) == {"a": [expected]}
    assert redact(expected) == expected
    assert "CANARY" not in format_value({"a": text}) and "CANARY" not in scrub(f"x: {text}")
    assert [*redacted_keys({"a": [expected]})] == ["a[0]"]


@pytest.mark.parametrize(
    "text",
    [
        "s3://host/a@b",
        "http://host:8080/a@b",
        "me@host",
        "expected key=value, for example optimizer.lr=1e-3",
        "step 100/200  loss=2.3 tokens=400 auth=true",
        "basic tokenizer of text",
        "# a *** b",
        "***bold***",
    ],
)
def test_a_text_without_a_secret(text: str) -> None:
    assert redact(text) == scrub(text) == text
    assert [*redacted_keys({"a": text})] == []


def test_pairs_that_say_name_and_value_apart() -> None:
    given = [{"name": "DB_PASSWORD", "value": "x"}, {"name": "a", "value": "y"}, ["--token", "z"]]
    assert redact(given) == [{"name": "DB_PASSWORD", "value": "***"}, given[1], ["--token", "***"]]


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ({"password": "${DB}"}, True),
        ({"authorization": "Bearer ${T}"}, True),
        ({"credentials": "${U}:${P}"}, True),
        ({"auth": {"token": ["${T}"]}}, True),
        ({"url": "https://me:${P}@host?token=${T}"}, True),
        ({"conn": "host=db password=${P}"}, True),
        ({"credentials": "${U}:hunter2"}, False),
        ({"password": "$${DB}"}, False),
        ({"url": "https://${U}:hunter2@host"}, False),
    ],
)
def test_a_reference_is_kept_and_what_stands_beside_it_is_not(value: Any, kept: bool) -> None:
    assert (redact(value) == value) == kept
    assert kept or "***" in str(redact(value))


def test_what_was_seen_of_secrets_is_found_in_messages() -> None:
    register_secrets({"password": "a-long-secret", "pin": 55512345, "url": "s3://me:p%40ss-word@h"})
    said = scrub("got a-long-secret, '55512345', p%40ss-word and p@ss-word")
    assert said == "got ***, '***', *** and ***"
    register_secrets({"password": "short"})
    assert scrub("in short") == "in short"


def test_a_value_that_contains_itself() -> None:
    value: list[Any] = []
    value += [value, value]
    assert format_value(value) == "['...', '...']"


@pytest.mark.parametrize(
    "text", ["-" * 50_000, "://a:" * 10_000, "a=b " * 20_000, "'" * 50_000, "eyJ" + "a" * 90_000]
)
def test_it_takes_little_time(text: str) -> None:
    started = time.process_time()
    redact(text)
    assert time.process_time() - started < 2


def test_references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "value-of-it")
    monkeypatch.setenv("PLACE", "/some/place")
    given = {"a": ["x ${API_KEY} y", 1, None], "b": "$${API_KEY} $5", "c": "${PLACE}/z"}
    expected = {"a": ["x value-of-it y", 1, None], "b": "${API_KEY} $5", "c": "/some/place/z"}
    assert substitute(given, "model") == expected
    assert scrub("value-of-it in /some/place") == "*** in /some/place"
    assert expand_path("${PLACE}/a") == "/some/place/a"
    assert expand_path("~no-such-user/a") == "~no-such-user/a"
    monkeypatch.delenv("PLACE")
    with pytest.raises(ConfigError, match=r"^model\.c: the environment variable PLACE is not set"):
        substitute(given, "model")


@pytest.mark.parametrize("value", ["***", "https://***@host", "password=***", "Bearer ***"])
def test_a_blanked_value_is_not_used(value: str) -> None:
    with pytest.raises(ConfigError, match=r"^data\.dataset_args\.a\[0\] is blanked .*--config"):
        substitute({"a": [value]}, "data.dataset_args")


def test_secrecy_is_of_words() -> None:
    assert secrecy_level("monkey") == secrecy_level("pass_through_norm") == secrecy_level("") == 0
