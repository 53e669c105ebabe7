//! A path between two addresses of this process: the sender delivers, nothing is in flight.
//!
//! No header, no numbers, no checks. A delivered message is acknowledged by being in the inbox, so
//! the send account never holds it. Congestion is the target's own map. A ping is answered at once.
//! Source: linux v6.12 net/rds/loop.c; that every address of 127/8 is a host of its own with
//! congestion and a bounded queue is ours (docs/differences.md).

use urds_path::{ArrivingPayload, Extension, NO_EXTENSION, SocketAddress};

use crate::attached::{Attached, Delivery, Details};
use crate::clock::wall_ns;
use crate::state::{MailboxId, State};

impl State {
    /// Return whether the port of an address of this process is congested.
    pub(crate) fn is_congested_here(&self, target: &SocketAddress) -> bool {
        let host = self.hosts_by_address.get(&target.address);
        let host = host.and_then(|host| self.hosts.get(*host));
        host.is_some_and(|host| host.congested.test(target.port))
    }

    /// Queue a message in its target, which is in this process. Copies the payload. `receiver` is
    /// the mailbox at the target, if there is one.
    pub(crate) fn deliver_here(
        &mut self,
        sender: MailboxId,
        target: &SocketAddress,
        receiver: Option<MailboxId>,
        payload: &[u8],
        extension: Extension,
        delivery: Delivery<'_>,
    ) {
        let Some(mailbox) = self.mailboxes.get(sender) else {
            return;
        };
        let source = SocketAddress::new(mailbox.local, mailbox.port);
        self.counters.send_queued += 1;
        if target.port == 0 {
            self.counters.recv_ping += 1;
            self.counters.send_pong += 1;
            let pong = SocketAddress::new(target.address, 0);
            self.put(sender, &[], pong, NO_EXTENSION, Delivery::Unnoted);
        } else if let Some(mailbox) = receiver {
            self.put(mailbox, payload, source, extension, delivery);
        } else {
            self.counters.recv_drop_no_sock += 1;
        }
    }

    fn put(
        &mut self,
        target: MailboxId,
        bytes: &[u8],
        source: SocketAddress,
        extension: Extension,
        delivery: Delivery<'_>,
    ) {
        let Some(mailbox) = self.mailboxes.get_mut(target) else {
            return;
        };
        let attached = mailbox.attached.as_deref();
        let wants_times = mailbox.detailed
            || extension != NO_EXTENSION
            || attached.is_some_and(Attached::wants_times);
        let (wall_ns, now_ns) = if wants_times {
            (wall_ns(), self.clock.now_ns())
        } else {
            (0, 0)
        };
        let is_there = match mailbox.attached.as_deref_mut() {
            None => false,
            Some(attached) => {
                let details = Details {
                    source,
                    extension,
                    wall_ns,
                    arrived_ns: now_ns,
                };
                attached.deliver(&mut mailbox.inbox, &details, bytes, delivery)
            }
        };
        if !is_there {
            let arriving = ArrivingPayload::Borrowed(bytes);
            mailbox
                .inbox
                .push(source, extension, arriving, wall_ns, now_ns);
        }
        self.counters.recv_queued += 1;
        self.counters.recv_bytes_added_to_sock += bytes.len() as u64;
        self.note_arrival(target, 1);
    }
}
