"""The node of a host or of a user: addresses and connections for the sockets of programs."""
