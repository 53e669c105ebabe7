"""The commands `urds ping`, `info`, `demo` and `stress`."""
