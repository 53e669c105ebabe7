"""The command `urds`: `main` lists its commands, `parser` makes `argparse` of their options.

A command is a module of a folder, with a record of options, a function `run` and a `COMMAND`. All
use `output` (tables, JSON, exit codes) and some `processes` (the other side, started here).
"""
