"""The command `urds stress`: load and checked messages between two hosts, after rds-stress."""
