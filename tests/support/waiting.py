"""How long tests wait: no test is red because the machine has other work."""

BUSY_S = 20.0  # the most that other work may add to what takes no time; waits that fail are longer
ENDLESS_S = 60.0  # a wait whose end within BUSY_S shows that something else than its time ended it
