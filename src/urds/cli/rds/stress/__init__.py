"""The command `urds stress`: load and checked messages between two hosts, after rds-stress."""

from urds.cli.rds.stress.command import COMMAND

__all__ = ["COMMAND"]
