"""The cores of rsockets: value machines without sockets, clocks or threads."""
