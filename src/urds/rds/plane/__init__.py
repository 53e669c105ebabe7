"""The data plane, which runs once per message: its contract and its two implementations."""
