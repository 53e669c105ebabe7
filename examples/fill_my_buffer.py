"""A client that asks a server to fill its buffer: the pattern of rds-rdma(7), in two processes.

The client makes a region of its buffer and sends the cookie along with its request. The server
writes straight into the region, and its answer arrives after the bytes: a client that has the
answer has the data. No hardware is needed; on one host the bytes go through shared memory.
"""

import multiprocessing
import time

import urds

SERVER = ("127.0.0.31", 7)
CLIENT = ("127.0.0.32", 0)  # port 0: any free one
CHUNK_BYTES = 1 << 20  # one region may have so many
CHUNKS = 32


def rdma_socket(address: tuple[str, int]) -> urds.Socket:
    """Return a socket over RDMA; without the option it would be over TCP."""
    sock = urds.Socket()
    sock.setsockopt(urds.SOL_RDS, urds.SO_RDS_TRANSPORT, urds.RDS_TRANS_IB)
    sock.bind(address)
    return sock


def serve() -> None:
    with rdma_socket(SERVER) as sock:
        while True:
            request, client, cookie = sock.recv_region(100)
            if cookie is None:
                sock.sendto(b"give me a region to fill", client)
                continue
            letter = request[-1:]
            sock.rdma_write(letter * CHUNK_BYTES, cookie, client, payload=b"filled with " + letter)


def ask() -> None:
    buffer = bytearray(CHUNK_BYTES)
    with rdma_socket(CLIENT) as sock:
        sock.connect(SERVER)
        sock.settimeout(5)
        started_s = time.perf_counter()
        for number in range(CHUNKS):
            letter = b"%c" % (65 + number % 26)
            # For one use: the server's answer frees it.
            region = sock.get_mr(buffer, use_once=True)
            sock.send_region(b"please fill with " + letter, region)
            answer = sock.recv(100)
            assert buffer == letter * CHUNK_BYTES, "the bytes are there before the answer"
        elapsed_s = time.perf_counter() - started_s
    print("last answer:", answer.decode())
    print(f"{CHUNKS} times 1 MiB, {CHUNKS / elapsed_s:.0f} MiB/s, none of it copied by the client")


def main() -> None:
    server = multiprocessing.get_context("spawn").Process(target=serve, daemon=True)
    server.start()
    ask()
    server.terminate()
    server.join()


if __name__ == "__main__":
    main()
