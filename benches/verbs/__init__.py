"""Measure `urds.verbs` and plain sockets in the tables of perftest: `python -m benches.verbs`."""
