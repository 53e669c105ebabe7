"""The reference data plane in Python: the specification that every other plane is compared with."""
