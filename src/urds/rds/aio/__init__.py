"""Sockets for asyncio and trio; programs import them as `urds.aio`.

One implementation serves both; which loop runs is found out when a call has to wait. Importing
this package imports neither asyncio nor trio.
"""
