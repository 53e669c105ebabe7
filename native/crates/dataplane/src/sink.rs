//! The mailboxes of an address, as a path uses them under the plane's lock.

use urds_path::{Address, Arriving, MessageSink, NO_EXTENSION, SocketAddress};

use crate::clock::wall_ns;
use crate::host::Inboxes;
use crate::mailbox::Mailbox;
use crate::state::MailboxId;
use crate::table::Table;

/// Where messages of one read go; it caches the last port, and counts messages by mailbox.
pub(crate) struct StateSink<'a> {
    inboxes: &'a Inboxes,
    mailboxes: &'a mut Table<Mailbox>,
    peer: Address,
    now_ns: u64,
    /// Neighbouring messages of one mailbox are counted together.
    arrivals: &'a mut Vec<(MailboxId, usize)>,
    last: Option<(u16, MailboxId)>,
}

impl<'a> StateSink<'a> {
    pub(crate) fn new(
        inboxes: &'a Inboxes,
        mailboxes: &'a mut Table<Mailbox>,
        peer: Address,
        now_ns: u64,
        arrivals: &'a mut Vec<(MailboxId, usize)>,
    ) -> Self {
        Self {
            inboxes,
            mailboxes,
            peer,
            now_ns,
            arrivals,
            last: None,
        }
    }
}

impl MessageSink for StateSink<'_> {
    #[inline]
    fn deliver(&mut self, target_port: u16, message: Arriving<'_>) -> bool {
        let id = match self.last {
            Some((port, id)) if port == target_port => id,
            _ => {
                let Some(&id) = self.inboxes.get(&target_port) else {
                    return false;
                };
                self.last = Some((target_port, id));
                id
            }
        };
        let Some(mailbox) = self.mailboxes.get_mut(id) else {
            return false;
        };
        let source = SocketAddress::new(self.peer, message.source_port);
        // Times are taken only for a message that reports other details as well.
        let (wall_ns, arrived_ns) = if mailbox.detailed || message.extension != NO_EXTENSION {
            (wall_ns(), self.now_ns)
        } else {
            (0, 0)
        };
        mailbox.inbox.push(
            source,
            message.extension,
            message.payload,
            wall_ns,
            arrived_ns,
        );
        match self.arrivals.last_mut() {
            Some((last, messages)) if *last == id => *messages += 1,
            _ => self.arrivals.push((id, 1)),
        }
        true
    }
}
