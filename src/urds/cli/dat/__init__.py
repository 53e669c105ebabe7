"""The commands of `urds dat`."""
