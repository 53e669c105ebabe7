"""The connection manager's cores: messages, connections, MPA; no I/O."""
