"""Measure rsockets and the TCP of the kernel in one run: `python -m benches.rsocket`."""
