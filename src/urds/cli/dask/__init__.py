"""Commands about Dask over RDS."""
