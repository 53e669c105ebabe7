"""Bytes of rsockets to frozen records and back: pure functions without sockets, time and state.

Two modules: what goes over the connection of a stream, and the headers of datagrams. A parsed
record is a valid one, and `WireError` says which value broke which limit. Tables that the peer
writes are in the byte order of the memory's owner, so their records take it as an argument;
everything else is big-endian.
"""
