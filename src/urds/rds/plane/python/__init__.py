"""The data plane in Python: the specification that the compiled plane is compared with."""
