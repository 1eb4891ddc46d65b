"""Which names stand for a secret, by their words: `api_key`, `apiKey` and `X-Api-Key` are the same.

docs/secrets.md has the rule in full.
"""

import re
from itertools import pairwise

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


def secrecy(name: str) -> int:
    """What a name makes secret of the value below it: nothing (0), `TEXT`, or `ALL` of it."""
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
