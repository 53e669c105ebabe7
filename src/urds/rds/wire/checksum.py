"""The Internet checksum of RFC 1071 for a header's integers, without its bytes.

The sum of 16-bit words with end-around carry is addition modulo 65535. Since 2**16 is 1 modulo
65535, an integer of any width counts as much as the sum of its 16-bit words, if it starts at an
even offset. So the sum of a whole header is the sum of its fields, where flags and credit, one
byte each, are one word: `(flags << 8) + credit`. No byte is touched.

The two zeros. Ones-complement arithmetic writes zero as 0x0000 and as 0xffff, and both verify.
RFC 1071, and Linux with it, get 0x0000 for a header whose other words sum to 0xffff. But in an
RDS header 0 means "not checked" (net/rds/message.c verifies only what is not 0), so such a header
would travel unprotected. `header_checksum` then gives 0xffff, the other zero, as UDP does for the
same reason (RFC 768); Linux accepts it, for the sum over all bytes is still 0xffff.
"""


def header_checksum(
    sequence: int,
    ack: int,
    payload_bytes: int,
    source_port: int,
    target_port: int,
    flags: int,
    credit: int = 0,
    padding: int = 0,
    extension_high: int = 0,
    extension_low: int = 0,
    /,
) -> int:
    """Return the value for the checksum field of a header, 1 to 65535, never 0.

    A hot loop that sends neither credit, padding nor extension may write the same as
    `65535 - (sequence + ack + payload_bytes + source_port + target_port + (flags << 8)) % 65535`.
    """
    total = sequence + ack + payload_bytes + source_port + target_port
    total += (flags << 8) + credit + padding + extension_high + extension_low
    return 0xFFFF - total % 0xFFFF


def header_intact(fields: tuple[int, ...]) -> bool:
    """Tell whether the eleven integers of `header.HEADER.unpack` agree with their checksum.

    A checksum of 0 agrees with everything: it means "not checked", as Linux leaves it over TCP.
    """
    # sum() took the flags once; in their word they stand 256 times.
    return not fields[8] or (sum(fields) + 255 * fields[5]) % 0xFFFF == 0
