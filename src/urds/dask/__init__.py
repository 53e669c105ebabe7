"""A backend of Dask's `distributed` for addresses `rds://host:port`: the extra `dask`.

Dask finds it through the entry point `distributed.comm.backends`; nothing has to be imported.
`import urds` does not import this package, and this module imports no Dask.
"""
