"""The shell of rsockets: devices, connections, listeners, datagram sockets and timers."""
