"""The stream core of rsockets: a value machine. `StreamCore` has its calls, its parts the others.

connecting   connect_data, adopt, is_urds_peer; lifecycle.is_connected
sending      send, is_writable, unsent_bytes; sending.zero_copy_bytes, set_no_delay
receiving    is_readable, is_ended; receive_ring.receive_into, receive, readable_bytes
in place     receive_ring.expect, expected_left, end_expect, holds
mapping      map_buffer, unmap, write_mapped, can_write_mapped; iomap.is_mapped
queue pair   poll_transmit, handle_posted, handle_sent, handle_disconnected, receive_data
time         poll_timeout, handle_timeout; keepalive.set_interval
the end      is_drained, wants_disconnect, close; lifecycle.shut_down, state, can_read, can_write,
             reason, error, take_error
counters     stats
"""
