"""The command `urds`: one module per tool, two fronts that read its arguments.

A tool is a record of options and a function that carries them out and returns an exit code; it
reads no arguments itself. `commands` is the front with typer, `plain` the one with the standard
library alone. What a tool prints goes through `output`, how it ends through `exits`.
"""
