"""The RDS control core: who connects, who the peer is, what a handshake means. No I/O, no clock."""
