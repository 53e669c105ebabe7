"""Providers: what moves the packets of the verbs engine. `base` is the contract."""
