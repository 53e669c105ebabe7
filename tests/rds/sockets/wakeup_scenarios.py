"""Scenarios of wake-ups that both planes play: one message at the worst moment, then nothing.

A scenario returns whether all threads woke in time. How a rule is broken is the plane's own:
`wakeup_waiting`, `wakeup_helping`, and the switches of the compiled plane.
"""

from tests.rds.sockets.wakeup_scene import LOCAL, PEER_ADDRESS, Scene, payloads


def a_message_before_sleeping_is_seen(scene: Scene) -> bool:
    """Bring the message between the look and the sleep, read by another thread."""
    mailbox = scene.mailbox(1)
    remote = scene.attach()
    stop = scene.stop("LeaderSleeps")
    results = scene.start(lambda: mailbox.receive(wait_ns=None))
    stop.wait()
    remote.say(1, b"x", target_port=1)
    scene.plane.progress()
    stop.go_on()
    return scene.wait_for(lambda: bool(results))


def a_leader_hears_of_a_local_message(scene: Scene) -> bool:
    """Let it sleep in epoll, and send from a thread of this process."""
    mailbox, sender = scene.mailbox(1), scene.mailbox(2)
    results = scene.receive(mailbox)
    sender.sendto(b"x", (str(LOCAL), 1))
    return scene.wait_for(lambda: bool(results))


def a_pass_leaves_the_kick_to_the_leader(scene: Scene) -> bool:
    """Kick the leader before it is in epoll, and let a pass look first."""
    mailbox, sender = scene.mailbox(1), scene.mailbox(2)
    stop = scene.stop("LeaderSleeps")
    results = scene.start(lambda: mailbox.receive(wait_ns=None))
    stop.wait()
    sender.sendto(b"x", (str(LOCAL), 1))
    scene.plane.progress()
    stop.go_on()
    return scene.wait_for(lambda: bool(results))


def a_follower_takes_over(scene: Scene) -> bool:
    """Let the leader get its message and leave; then bring one for the follower."""
    first, second = scene.mailbox(1), scene.mailbox(2)
    remote = scene.attach()
    leads = scene.receive(first)
    follows = scene.receive(second)
    remote.say(1, target_port=1)
    scene.wait_for(lambda: bool(leads))
    remote.say(2, target_port=2)
    return scene.wait_for(lambda: bool(follows))


def a_named_one_who_leaves_names_the_next(scene: Scene) -> bool:
    """End the successor's time in the moment it is named; the third one must lead."""
    first, second, third = (scene.mailbox(port) for port in (1, 2, 3))
    remote = scene.attach()
    leads = scene.receive(first)
    stop = scene.stop("FollowerWoke")
    scene.receive(second, wait_s=0.05)
    follows = scene.receive(third)
    stop.wait()
    remote.say(1, target_port=1)
    scene.wait_for(lambda: bool(leads))
    stop.go_on()
    scene.threads[1].join(scene.bound_s)
    remote.say(2, target_port=3)
    return scene.wait_for(lambda: bool(follows))


def a_tail_wakes_the_helper(scene: Scene) -> bool:
    """Leave a tail to the helper when it has decided to sleep and does not yet."""
    mailbox = scene.mailbox(1)
    remote = scene.routed(mailbox)
    stop = scene.stop("ProgressThreadSleeps")
    scene.help()
    stop.wait()
    tail = scene.leave_a_tail(mailbox)
    stop.go_on()
    return scene.wait_for(lambda: tail in payloads(remote))


def a_tail_leaves_with_the_next_wait_of_its_sender(scene: Scene) -> bool:
    """Wait as a follower for the answer to one's own tail; no helper, the leader sleeps."""
    other, mailbox = scene.mailbox(1), scene.mailbox(2)
    remote = scene.routed(mailbox)
    scene.receive(other)
    tails: list[bytes] = []

    def ask() -> object:
        tails.append(scene.leave_a_tail(mailbox))
        return mailbox.receive(wait_ns=None)

    answers = scene.start(ask)
    scene.wait_for(lambda: bool(tails))
    if not scene.wait_for(lambda: tails[0] in payloads(remote)):
        return False
    remote.say(1, target_port=2)
    return scene.wait_for(lambda: bool(answers))


def close_wakes_all_waiters(scene: Scene) -> bool:
    """Close while a leader, a follower and a sender without room wait."""
    first, second = scene.mailbox(1), scene.mailbox(2, send_bytes_max=10)
    scene.attach()
    second.sendto(bytes(10), PEER_ADDRESS)
    scene.receive(first)
    scene.receive(second)
    before = scene.seats()
    scene.start(lambda: second.sendto(b"x", PEER_ADDRESS))
    scene.wait_for(lambda: scene.seats() > before)
    scene.start(lambda: scene.plane.close(0))
    return scene.wait_for(lambda: not any(thread.is_alive() for thread in scene.threads))
