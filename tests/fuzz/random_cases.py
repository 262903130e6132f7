"""Random changes of bytes: of any kind, and of texts such as JSON, YAML and names."""

from __future__ import annotations

from random import Random

TOKENS = (
    b"{}", b"[]", b"null", b"true", b"NaN", b"Infinity", b"-1", b"0", b"1e999", b"-0.0", b"9007199254740993", b'""',
    b'"',
    b"\\ud800", b"\\u0000", b"\x1b[31m", b"\x00", b"\xff", b"\xe2\x80\xae", b"\xed\xa0\x80", b"$number", b"$items",
    b"__tuple__", b"__tensor__", b"schema_version", b"9" * 400, b"[" * 150, b'{"a":' * 120,
    b"-----BEGIN PRIVATE KEY-----",
    b"../", b"..\\", b"//", b"://", b"::", b"@", b"?sig=", b"password=", b"Bearer ", b"hf_", b"&a", b"*a", b"<<: *a",
    b"!!int ",
    b"!!float ", b"!!timestamp ", b"!!binary ", b"!!set ", b"!!omap ", b"!!python/object:os.system ", b"? ", b"- ",
    b": ", b"#",
    b"|\n", b">\n", b"%YAML 9.9\n", b"---\n", b"...\n", b"\t", b"\n", b"\r", b"\xef\xbb\xbf", b"\x85", b"~", b".inf",
    b"0x", b"0o9",
    b"1_000", b"2001-99-99", b"12:60:60", b"checkpoint-", b".unfinished-", b"damaged-1-checkpoint-1",
)  # fmt: skip
"""Pieces of text that readers treat in a way of their own."""


def changed(data: bytes, random: Random, others: list[bytes]) -> bytes:
    """Return bytes with one to a few random changes. others: cases to take pieces from."""
    made = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
        at = random.randrange(len(made) + 1)
        end = min(len(made), at + random.choice((1, 1, 2, 4, 8, random.randrange(1, 200))))
        kind = random.randrange(9)
        if kind == 0:
            made[at:end] = b""
        elif kind == 1:
            made[at:at] = random.choice(TOKENS)
        elif kind == 2:
            made[at:end] = random.choice(TOKENS)
        elif kind == 3 and at < len(made):
            made[at] ^= 1 << random.randrange(8)
        elif kind == 4 and at < len(made):
            made[at] = random.choice((0, 1, 9, 10, 32, 34, 44, 45, 48, 57, 58, 91, 93, 123, 125, 127, 128, 255))
        elif kind == 5:
            made[at:at] = bytes(made[at:end]) * random.choice((1, 2, 10, 300))
        elif kind == 6:
            other = random.choice(others)
            start = random.randrange(len(other) + 1)
            made[at:end] = other[start : start + random.randrange(1, 80)]
        elif kind == 7:
            made[at:end] = random.randbytes(end - at)
        else:
            size = random.choice((1, 2, 4, 8))
            number = random.choice((0, 1, 2**7, 2**15, 2**31, 2**63, 2**64 - 1, random.getrandbits(16)))
            made[at : at + size] = (number % 2 ** (8 * size)).to_bytes(size, random.choice(("little", "big")))
    return bytes(made[: 1 << 20])
