"""Fault runs: hosts in processes of their own, real TCP, and everything that breaks it.

`python -m tests.faults` runs the scenarios in full, the tests of this folder in small. See
docs/testing.md, "Fault runs".
"""
