"""Measure rsockets and the TCP of the kernel in one run: `urds rsocket bench`."""
