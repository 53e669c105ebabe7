"""The control thread: passes the plane's reports to `control`, and does what that decides."""
