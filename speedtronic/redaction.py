"""Blanks secrets in whatever is stored, logged or shown; docs/secrets.md has the full rule."""

import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any
from urllib.parse import unquote

MARK = "***"
REFERENCE = re.compile(r"(?<!\$)\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""`${NAME}`, which stands for an environment variable; `$${NAME}` is the text itself."""

MIN_LENGTH = 6
"""Shortest secret that `scrub` looks for; a shorter one would be found inside other words."""

_MAX_DEPTH = 100
_RUN = r"[^\s\"'<>]"
# Text in the shape of a secret. The group `secret` or `info` is blanked; `value` only if `name`
# is that of a secret.
_SHAPES = [
    # `user:password@`, the password with any characters; but `host:8080/a@b` is none.
    re.compile(rf"(?<=://)(?P<info>[^\s/@:\"'<>]*:(?!\d{{1,5}}(?:[/?#]|$)){_RUN}{{0,999}})(?=@)"),
    re.compile(r"(?<=://)(?P<info>[^/\s\"'<>]{0,999})(?=@)"),
    re.compile(
        r"(?P<before>^|[?&#;,\s\"'-])(?P<name>[A-Za-z_][\w.-]*)\s?=\s?"
        r"(?P<value>\"[^\"]*\"|'[^']*'|\{[^}]*\}|[^\s&;,\"'#]+)"
    ),
    re.compile(r"(?<![\w-])--(?P<name>\w[\w-]*)\s+(?P<value>[^\s-]\S*)"),
    re.compile(r"([\"'])(?P<name>[\w.-]+)\1\s*:\s*[\"'](?P<value>[^\"']+)[\"']"),
    re.compile(
        r"\b(?:(?:proxy-)?authorization|(?:set-)?cookie|x-api-key|x-auth-token|private-token)\s*:"
        r"\s*(?P<secret>[^\s\"'*$][^\n\"']*)",
        re.IGNORECASE,
    ),
    re.compile(r"\bbearer\s+(?P<secret>[\w.~+/=-]{6,})", re.IGNORECASE),
    re.compile(r"\b(?i:basic)\s+(?P<secret>(?=[\w+/]*[A-Z0-9])[\w+/]{8,}=*)"),
    re.compile(
        r"(?:hooks\.slack\.com/services|discord(?:app)?\.com/api/webhooks|api\.telegram\.org)/"
        r"(?P<secret>[\w:/-]+)"
    ),
    re.compile(
        r"\b(?P<secret>hf_\w{16,}|sk-[\w-]{16,}|gh[opsru]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
        r"|(?:AKIA|ASIA)[A-Z0-9]{16}|xox[abeoprs]-[\w-]{10,}|AIza[\w-]{30,}|npm_\w{30,}"
        r"|pypi-[\w-]{30,}|eyJ[\w-]{8,}\.[\w-]+\.[\w-]*)"
    ),
    re.compile(
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?P<secret>.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
        re.DOTALL,
    ),
]
_BLANKED_PART = re.compile(
    r"(?:[=:/-]\s?|bearer\s+|basic\s+|--[\w-]+\s+)[\"']?\*\*\*", re.IGNORECASE
)

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

# One of these anywhere in a name, alone or at the end of a word written together: `dbpassword`.
_ALWAYS = re.compile(
    r"(auth|oauth|authorization|authentication|pwd|creds?|dsn|bearer|cookies?|jwt|mnemonic|webhooks?"
    r"|.*(password|passwd|passphrase|passcode|secret|credential|(api|auth|access|secret|private)key)s?"
    r"|(hf|gh|api|auth|access|refresh|session|bearer|security|sas|bot|user|github|gitlab|wandb|slack)"
    r"tokens?)"
)
_LAST = {"pass", "pin", "otp", "sas", "sig", "signature"}
_KEYS = re.compile(
    "access|account|aes|anthropic|api|app|auth|aws|azure|client|comet|consumer|decryption|deploy|"
    "encryption|gcp|github|gitlab|gpg|hf|hmac|kaggle|license|master|neptune|openai|pgp|private|rsa|"
    "secret|service|session|shared|signing|ssh|ssl|subscription|tls|wandb"
)
_AFTER_TOKEN = {"value", "string", "str", "secret", "key", "header"}
# Before `token` or `tokens` these make it one of a tokenizer, or a number of them.
_OF_A_MODEL = re.compile(
    "added|additional|audio|avg|batch|begin|block|bos|chunk|class|cls|completion|context|count|"
    "empty|end|eos|extra|generated|image|input|latent|mask|max|mean|memory|min|n|new|no|num|output|"
    "pad|per|prefix|prompt|query|register|reserved|sep|separator|seq|sos|special|speech|start|"
    "stop|sub|suffix|target|text|time|total|train|training|unk|unused|val|video|vision|visual|"
    "warmup|word"
)

TEXT, ALL = 1, 2
"""Levels of secrecy: text is blanked, or every value."""

_known: set[str] = set()  # secrets that this process has seen, for `scrub`


def redact(value: Any, key: str = "") -> Any:
    """Return a copy of `value` with `***` in place of each secret.

    A value is a secret because of `key`, because of a key inside `value`, or by its own shape.
    References, `${NAME}`, stay; so do true, false and null.
    """
    return _redacted(value, secrecy_level(key), None)


def redact_at(location: Iterable[object], value: Any) -> Any:
    """Redact a value that lies below these nested keys; as `redact` otherwise."""
    return _redacted(value, max((secrecy_level(str(key)) for key in location), default=0), None)


def register_secrets(value: Any) -> None:
    """Register every secret in `value`, so that `scrub` blanks it in messages."""
    found: list[str] = []
    _redacted(value, 0, found)
    register_secret_texts(found)


def register_secret_texts(texts: Iterable[str]) -> None:
    """Register these texts as secrets, so that `scrub` blanks them in messages."""
    for text in texts:
        forms = {text, unquote(text), *text.splitlines()}
        _known.update(form for form in forms if len(form) >= MIN_LENGTH and form != MARK)


def scrub(text: str) -> str:
    """Return a message with registered secrets, and text in the shape of a secret, blanked."""
    for secret in sorted(_known, key=len, reverse=True):
        if secret in text:
            text = text.replace(secret, MARK)
    return _blank_shapes(text, None)


def format_value(value: Any) -> str:
    """Return a short text of any value for a message, with secrets blanked."""
    # Blank before shortening: a password in a URL is recognized by the @ after it.
    return _SHORT.repr(redact(value))


def redacted_keys(value: Any, key: str = "") -> Iterator[str]:
    """Yield the dotted keys, starting with `key`, of the values that `redact` has blanked."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from redacted_keys(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from redacted_keys(inner, f"{key}[{index}]")
    elif isinstance(value, str) and (value == MARK or _BLANKED_PART.search(value)):
        yield key


def secrecy_level(name: str) -> int:
    """Return what the name of a value makes secret: nothing (0), `TEXT`, or `ALL` of it."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words:
        return 0
    if any(_ALWAYS.fullmatch(word) for word in words) or words[-1] in _LAST:
        return ALL
    pairs = set(pairwise(words))
    if any(second in ("key", "keys") and _KEYS.fullmatch(first) for first, second in pairs):
        return ALL
    if not pairs.isdisjoint({("connection", "string"), ("conn", "str")}):
        return ALL
    *before, last = words
    if before and before[-1] == "token" and last in _AFTER_TOKEN:
        return ALL
    if last in ("token", "tokens") and not (before and _OF_A_MODEL.fullmatch(before[-1])):
        return ALL if last == "token" else TEXT  # a number of tokens is no secret
    return 0


def _redacted(value: Any, secret: int, found: list[str] | None, above: tuple[int, ...] = ()) -> Any:
    if id(value) in above or len(above) > _MAX_DEPTH:  # it contains itself, or is nested too deep
        return "..."
    below = (*above, id(value))
    if isinstance(value, Mapping):
        levels = {name: max(secret, secrecy_level(str(name))) for name in value}
        if "value" in value:  # {name: password, value: ...}, as lists of variables have it
            labels = (str(value.get(key, "")) for key in ("name", "key", "header"))
            levels["value"] = max(levels["value"], *map(secrecy_level, labels))
        return {name: _redacted(x, levels[name], found, below) for name, x in value.items()}
    if isinstance(value, list | tuple):
        flagged = [
            secrecy_level(before) if isinstance(before, str) and before.startswith("-") else 0
            for before in [None, *value]
        ]
        return [
            _redacted(inner, max(secret, flag), found, below)
            for inner, flag in zip(value, flagged, strict=False)
        ]
    if isinstance(value, str):
        return _blanked(value, found) if secret and value else _blank_shapes(value, found)
    if value is None or isinstance(value, bool) or secret != ALL:
        return value
    return _blanked(str(value), found)


def _blanked(text: str, found: list[str] | None) -> str:
    """Return `***` for a text that is secret as a whole, unless it consists of references."""
    if _is_reference(text):
        return text
    if found is not None:
        found.append(text)
        _blank_shapes(text, found)
    return MARK


def _is_reference(text: str) -> bool:
    rest = REFERENCE.sub("", text)
    return rest != text and not re.search(r"\w", re.sub(r"(?i)\b(bearer|basic|token)\b", "", rest))


def _blank_shapes(text: str, found: list[str] | None) -> str:
    """Return a text with `***` for each part that has the shape of a secret."""
    if len(text) > 2**20:
        return text
    for shape in _SHAPES:
        text = shape.sub(lambda match: _blank_match(match, found), text)
    return text


def _blank_match(match: re.Match[str], found: list[str] | None) -> str:
    kind = next(name for name in ("info", "value", "secret") if name in match.re.groupindex)
    secret = match[kind]
    if kind == "value":
        bare = secret.strip("\"'{}")
        name = match["name"]
        in_query = match.groupdict().get("before") in ("?", "&") and name.lower() in ("key", "code")
        level = ALL if in_query else secrecy_level(name)
        if not level or (level == TEXT and bare.isdigit()) or _is_plain(bare):
            return match[0]
    guarded = secret.partition(":")[2] if kind == "info" and ":" in secret else secret
    if not guarded or _is_reference(guarded) or secret == MARK:
        return match[0]
    if found is not None:
        found.extend({secret.strip("\"'{}"), guarded})
    start = match.start(kind) - match.start()
    return match[0][:start] + MARK + match[0][start + len(secret) :]


def _is_plain(text: str) -> bool:
    return text.lower() in ("", "true", "false", "null", "none") or text.startswith(MARK)


class _ShortRepr(reprlib.Repr):
    """Formats values with bounded length, null and truth values as YAML writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 80

    def repr_NoneType(self, value: None, level: int) -> str:
        return "null"

    def repr_bool(self, value: bool, level: int) -> str:
        return str(value).lower()


_SHORT = _ShortRepr()
