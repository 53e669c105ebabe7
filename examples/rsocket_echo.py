"""A stream and a write into the peer's memory, over rsockets: what a TCP program does, and more.

Both ends are in this process; between two processes of a host, or two hosts, nothing changes. The
bytes go through shared memory where both ends are on one host, else as iWARP over TCP.
"""

import threading

from urds import rsocket


def serve(listener: rsocket.Socket) -> None:
    """Answer one client until it ends its stream."""
    connection, _ = listener.accept()
    with connection:
        # A mapped buffer: the peer writes into it without a message, a receive or a copy of ours.
        buffer = bytearray(4096)
        connection.map_buffer(buffer, 0)  # the peer writes from offset 0 on
        while message := connection.recv(4096):
            if message == b"look":  # what was written before this message is there
                message = bytes(buffer[:6])
            connection.sendall(message)


def main() -> None:
    """Send, write into the peer's memory, and read both back."""
    with rsocket.Socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        server = threading.Thread(target=serve, args=(listener,))
        server.start()
        with rsocket.Socket() as client:
            # Room for the peer's mapped buffers; it is part of the connect.
            client.setsockopt(rsocket.SOL_RDMA, rsocket.RDMA_IOMAPSIZE, 1)
            client.connect(listener.getsockname())
            client.sendall(b"hello")
            print("echo:", client.recv(64).decode())
            written = client.write_mapped(b"direct", 0)
            client.sendall(b"look")
            print(f"written: {written} bytes, seen there:", client.recv(64).decode())
        server.join(10)


if __name__ == "__main__":
    main()
