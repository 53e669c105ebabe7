"""Bytes to frozen records and back: pure functions, big-endian only here.

Knows no socket, no time and no state. Each module is one kind of record; a parsed record is a
valid one, and `WireError` says which value broke which limit.
"""
