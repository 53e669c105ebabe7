"""The commands of `urds verbs`."""
