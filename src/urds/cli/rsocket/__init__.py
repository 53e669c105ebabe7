"""The commands of `urds rsocket`."""
