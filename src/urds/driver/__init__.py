"""The control thread: feeds what the plane reports to `proto`, and carries out what it decides."""
