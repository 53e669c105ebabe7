"""The RDS control core: connecting, peer identity and the handshake. No I/O, no clock."""
