//! What arrives for an attached socket: written into its memory, in the read that brings it.
//!
//! What finds no room there waits in the mailbox's own queue, and goes over as the client takes. The
//! account is the mailbox's: lengths are counted as they come, and taken off as the client's count
//! of taken messages moves.

use urds_channel::socket_memory::{Arrival, ClientError as Nonsense, NodeSide, Trace, Word};
use urds_path::{Extension, Inbox, NO_EXTENSION, SocketAddress};

use super::steps::{self, Rule, Step};
use super::{Attached, Delivery, name_of};
use crate::mailbox::Mailbox;
use crate::state::{MailboxId, State};

/// Details of a message that arrives.
#[derive(Clone, Copy)]
pub(crate) struct Details {
    pub(crate) source: SocketAddress,
    pub(crate) extension: Extension,
    pub(crate) wall_ns: u64,
    pub(crate) arrived_ns: u64,
}

impl Attached {
    /// Put a message into the client's memory and count it; return false if there is no room, or
    /// others wait before it.
    #[inline]
    pub(crate) fn deliver(
        &mut self,
        inbox: &mut Inbox,
        details: &Details,
        payload: &[u8],
        delivery: Delivery<'_>,
    ) -> bool {
        if !inbox.is_empty() || !self.write(details, payload, details.arrived_ns, delivery) {
            return false;
        }
        inbox.receive_queued_bytes += payload.len();
        true
    }

    /// Tell whether the client asks for the times of what arrives.
    #[inline]
    pub(crate) fn wants_times(&self) -> bool {
        let options = self.side.options();
        options.get(Word::Timestamp) != 0 || options.get(Word::Traces) != 0
    }

    fn write(
        &mut self,
        details: &Details,
        payload: &[u8],
        now_ns: u64,
        delivery: Delivery<'_>,
    ) -> bool {
        let side = &mut self.side;
        let trace = trace_of(side, details.arrived_ns, now_ns);
        let Some(place) = side.reserve(payload.len(), trace.count > 0) else {
            return false;
        };
        if let Some(intent) = delivery.intent(side.published()) {
            side.journal().intend(intent);
            steps::pass(Step::Intended);
        }
        side.fill(&place, 0, payload);
        let source = details.source;
        let has_extension = details.extension != NO_EXTENSION;
        let wants_time = side.options().get(Word::Timestamp) != 0;
        let arrival = Arrival {
            source: name_of(&source.address, source.port),
            extension: details.extension,
            extension_bytes: if has_extension { 16 } else { 0 },
            wall_ns: if wants_time { details.wall_ns } else { 0 },
            trace,
        };
        side.publish(&place, &arrival);
        self.has_published = true;
        if let Delivery::OfPath(journal, entry, sequence) = delivery {
            steps::pass(Step::Published);
            if steps::holds(Rule::NoteExpected) {
                journal.set_expected(entry, sequence.saturating_add(1));
            }
            steps::pass(Step::ExpectedNoted);
            side.journal().finish_intent();
        }
        true
    }

    /// Take off the account what the client has taken; return whether it took any.
    fn release_taken(&mut self, inbox: &mut Inbox) -> Result<bool, Nonsense> {
        let mut bytes = 0;
        let has_taken = self.side.look_taken(|length| bytes += length)?;
        inbox.receive_queued_bytes = inbox.receive_queued_bytes.saturating_sub(bytes);
        Ok(has_taken)
    }

    /// Move what waits in the mailbox's own queue into the memory, as far as there is room; return how
    /// many were dropped, for which there never is any.
    fn move_over(&mut self, inbox: &mut Inbox, now_ns: u64) -> u64 {
        let mut dropped = 0;
        while let Some(front) = inbox.front() {
            let details = Details {
                source: front.source,
                extension: front.extension,
                wall_ns: front.wall_ns,
                arrived_ns: front.arrived_ns,
            };
            let bytes = front.payload.len();
            if !self.side.may_hold(bytes) {
                inbox.pop();
                dropped += 1;
                continue;
            }
            if !self.write(&details, front.payload, now_ns, Delivery::Unnoted) {
                break;
            }
            inbox.pop();
            inbox.receive_queued_bytes += bytes;
        }
        dropped
    }
}

impl Mailbox {
    /// Put the buffers in force that the client wants now, as far as its memory has room.
    fn apply_words(&mut self) {
        let Some(attached) = &self.attached else {
            return;
        };
        let (send_max, receive_max) = attached.buffers_max;
        let word = |word| attached.side.options().get(word) as usize;
        let send = word(Word::SendBytes).min(send_max);
        let receive = word(Word::ReceiveBytes).min(receive_max);
        if send != self.settings.send_bytes_max {
            self.settings.send_bytes_max = send;
            self.accounts.resize(send, self.settings.single_account);
        }
        if receive != self.settings.receive_bytes_max {
            self.settings.receive_bytes_max = receive;
            self.inbox.buffer_bytes = receive;
            if self.inbox.congested {
                self.inbox.clear_below_bytes = (receive / 2).max(1);
            }
        }
    }
}

/// Return the receive-path positions that the client asks for; all times are that of the arrival.
fn trace_of(side: &NodeSide, arrived_ns: u64, now_ns: u64) -> Trace {
    let wanted = side.options().get(Word::Traces).to_le_bytes();
    let count = wanted[0].min(3);
    if count == 0 {
        return Trace::default();
    }
    let queued_ns = now_ns.saturating_sub(arrived_ns);
    Trace {
        count,
        positions: [wanted[1], wanted[2], wanted[3]],
        ns: [queued_ns; 3],
    }
}

impl State {
    /// End a pass of an attached socket: its account, what waits for room, who is to be shown what.
    pub(crate) fn finish_attached(&mut self, id: MailboxId) {
        let now_ns = self.clock.now_ns();
        let Some(record) = self.mailboxes.get_mut(id) else {
            return;
        };
        let Some(attached) = record.attached.as_deref_mut() else {
            return;
        };
        if attached.is_over {
            return;
        }
        if let Err(Nonsense(what)) = attached.release_taken(&mut record.inbox) {
            self.end_attached(id, what);
            return;
        }
        record.apply_words();
        let Some(attached) = record.attached.as_deref_mut() else {
            return;
        };
        if !record.inbox.is_empty() {
            self.counters.recv_drop_too_long += attached.move_over(&mut record.inbox, now_ns);
        }
        let has_late = attached.side.has_late();
        if std::mem::take(&mut attached.has_published) && attached.side.must_show() {
            steps::pass(Step::ShowDue);
            self.show(id);
        }
        if has_late {
            self.note_late(id);
        }
    }

    /// Have the client ring when it has taken enough, if that is waited for: its port is congested,
    /// a path or another socket waits for room, or messages wait here. Returns whether it took more
    /// meanwhile.
    pub(crate) fn await_taken(&mut self, id: MailboxId) {
        let Some(record) = self.mailboxes.get_mut(id) else {
            return;
        };
        let Some(attached) = record.attached.as_deref_mut() else {
            return;
        };
        let is_awaited = record.inbox.congested
            || !record.inbox.is_empty()
            || !record.pausing.is_empty()
            || !record.pausing_externals.is_empty()
            || !attached.waiting.is_empty();
        if attached.is_over || !is_awaited || attached.side.unread() == 0 {
            return;
        }
        attached
            .side
            .await_taken(attached.side.unread().div_ceil(2));
        if attached.release_taken(&mut record.inbox) == Ok(true) {
            self.attached.due.insert(id); // its ring may have been before the word was set
        }
    }

    /// Messages to a peer were dropped: an attached socket's next send to it fails, once.
    pub(crate) fn fail_towards(&mut self, id: MailboxId, peer: urds_path::Address) {
        if let Some(record) = self.mailboxes.get_mut(id) {
            match record.attached.as_deref_mut() {
                Some(attached) => attached.report(&peer, libc::EHOSTUNREACH),
                None => record.fail(peer),
            }
        }
    }
}
